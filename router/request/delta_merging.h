// Deltas of an answer that are not sent one by one: those that wait for a slow client, and those of
// an answer that is sent whole.
#ifndef BATON_ROUTER_REQUEST_DELTA_MERGING_H_
#define BATON_ROUTER_REQUEST_DELTA_MERGING_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "baton/v1/inference.pb.h"

namespace baton::router {

// Deltas that wait for the client to read. Those of a choice merge, so that what waits is never
// longer than the answer. Unsynchronized.
class PendingDeltas {
 public:
  bool empty() const { return pending_.empty(); }
  // The memory that they take, roughly.
  int64_t bytes() const { return bytes_; }
  // Add(delta) would add at most so many bytes.
  static int64_t BytesOf(const v1::GenerateResponse& delta);
  void Add(const v1::GenerateResponse& delta);
  // Instead of Add, for a delta that is sent at once.
  void Pass(const v1::GenerateResponse& delta);
  // REQUIRES: not empty. Its usage is the newest of all choices'.
  v1::GenerateResponse Next();
  void Clear() {
    pending_.clear();
    bytes_ = 0;
  }

 private:
  struct Pending {
    v1::GenerateResponse delta;
    size_t wire_bytes = 0;  // most bytes of what was merged into it
    int64_t bytes = 0;
  };
  // Those of a choice in their order; one for each choice, unless that is too large for a message.
  std::deque<Pending> pending_;
  int64_t bytes_ = 0;
  v1::Usage usage_;
};

// Bounds the size of an answer that is sent whole. Unsynchronized.
class WholeAnswerSize {
 public:
  void Add(const v1::GenerateResponse& delta);
  // OUT_OF_RANGE, ANSWER_TOO_LARGE, if the answer with `delta` would be larger than
  // WholeAnswer::kMaxMessageBytes.
  absl::Status Accepts(const v1::GenerateResponse& delta) const;

 private:
  size_t bytes_ = 0;  // of what grows
};

// An answer that is sent as one message. Unsynchronized.
class WholeAnswer {
 public:
  // The largest message that every gRPC client takes.
  static constexpr size_t kMaxMessageBytes = 4 << 20;

  void Add(const v1::GenerateResponse& delta);
  absl::Status Accepts(const v1::GenerateResponse& delta) const { return size_.Accepts(delta); }
  // Call once, at the end. `last`: the last delta, not added before.
  v1::GenerateOnceResponse Take(const v1::GenerateResponse& last,
                                absl::Span<const int> token_counts);

 private:
  std::map<int, v1::GenerateResponse> choices_;  // what was added, by choice
  WholeAnswerSize size_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_DELTA_MERGING_H_
