// A worker without a model: real gRPC, scripted answers. Tests decide what it says and when, by
// events and not by sleeping.
#ifndef BATON_TESTS_TESTING_FAKE_WORKER_H_
#define BATON_TESTS_TESTING_FAKE_WORKER_H_

#include <grpcpp/grpcpp.h>

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "baton/internal/v1/decode.grpc.pb.h"
#include "baton/internal/v1/prefill.grpc.pb.h"
#include "baton/internal/v1/worker.grpc.pb.h"
#include "common/base/check.h"
#include "common/base/rpc/server.h"

namespace baton::testing {

// Long enough for the slowest sanitizer run; a wait that needs it has failed.
inline constexpr absl::Duration kPatience = absl::Seconds(60);

// What fake workers answer for the hidden state of every input: its length is 13.
inline constexpr std::array<float, 4> kFakeState = {3, 4, 0, 12};

// The server's end of one streaming call. Thread-safe. Shared by the test and, until the call is
// over, by itself.
template <class Response>
class ScriptedStream final : public grpc::ServerWriteReactor<Response>,
                             public std::enable_shared_from_this<ScriptedStream<Response>> {
 public:
  // Keeps the stream alive until OnDone.
  void Hold() { self_ = this->shared_from_this(); }

  void Send(const Response& response) {
    absl::MutexLock lock(&mutex_);
    if (ended_) return;
    queue_.push_back(response);
    Next();
  }

  // After what was sent.
  void End(const grpc::Status& status) {
    absl::MutexLock lock(&mutex_);
    if (ended_) return;
    ended_ = true;
    status_ = status;
    Next();
  }

  // False if the client does not cancel.
  bool AwaitCancelled() {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&cancelled_), kPatience);
  }
  bool AwaitDone() {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&done_), kPatience);
  }
  bool cancelled() {
    absl::MutexLock lock(&mutex_);
    return cancelled_;
  }

 private:
  void Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_) return;
    if (!queue_.empty() && !cancelled_) {
      writing_ = true;
      this->StartWrite(&queue_.front());
    } else if (ended_) {
      finished_ = true;
      this->Finish(status_);
    }
  }
  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    queue_.pop_front();
    if (!ok) queue_.clear();
    Next();
  }
  void OnCancel() override {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    if (!ended_) status_ = grpc::Status::CANCELLED;
    ended_ = true;
    Next();
  }
  void OnDone() override {
    std::shared_ptr<ScriptedStream> last = std::move(self_);
    absl::MutexLock lock(&mutex_);
    done_ = true;
  }

  absl::Mutex mutex_;
  std::deque<Response> queue_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<ScriptedStream> self_;
};

using WatchStream = ScriptedStream<internal::v1::WatchResponse>;

struct DecodeCall {
  internal::v1::DecodeRequest request;
  std::chrono::system_clock::time_point deadline;
  std::shared_ptr<ScriptedStream<internal::v1::DecodeResponse>> stream;

  void SendTokens(const std::vector<int32_t>& ids, int choice = 0);
  // The last message of a choice.
  void FinishChoice(int choice, const std::vector<int32_t>& ids,
                    internal::v1::DecodeResponse::Finish finish);
  // The last message; the stream then ends in order.
  void Finish(const std::vector<int32_t>& ids, internal::v1::DecodeResponse::Finish finish);
  void Fail(const grpc::Status& status) { stream->End(status); }
};

// Items to score.
struct ScoreItemsCall {
  internal::v1::ScoreItemsRequest request;
  std::shared_ptr<ScriptedStream<internal::v1::ScoredItem>> stream;

  // Each token of a label has log probability -1.
  void Score(int item);
  // All items, in their order; the stream then ends in order.
  void ScoreAll();
};

// A card that goes with the tiny tokenizer of tiny_tokenizer.h.
internal::v1::WorkerCard FakeCard(v1::WorkerRole role, uint64_t tokenizer_fingerprint);

class FakeWorker {
 public:
  // Serves at once. `address` with port 0, or the address of a worker that has gone.
  // Without an address the worker listens on a port of its choice, which stays free when it has
  // ended, so that another one can listen there: the kernel gives it to no connection, and to no
  // server that asks for any port.
  explicit FakeWorker(internal::v1::WorkerCard card, std::string address = "");
  // As a killed process: all streams end.
  ~FakeWorker();

  const std::string& address() const { return rpc_->address(); }

  // --- Watch. Each new stream is greeted with the card, a snapshot of `keys` and a load report,
  // which is then repeated several times a second, so that a slow test does not make a silent
  // worker.
  void SetSnapshot(uint64_t sequence, std::vector<uint64_t> keys);
  // On all streams there are.
  void Tell(const internal::v1::WatchResponse& event);
  void TellLoad(int running, int queued, int64_t queued_tokens, bool draining = false);
  void TellDelta(uint64_t sequence, std::vector<uint64_t> added, std::vector<uint64_t> removed);
  // It drains on request, and is drained while its last load has no request. A call with `wait` is
  // answered after a Tell() with `drained`.
  int drain_waits() const;
  // FlushCache returns this.
  static constexpr int kFlushedBlocks = 7;
  // Waits until that many streams have ever been opened.
  bool AwaitWatches(int count);

  // --- Decode. Calls wait for the test, unless a reply is set.
  void SetReply(std::function<void(DecodeCall)> reply);
  // The oldest call that no test has taken; check-fails after kPatience.
  DecodeCall AwaitDecode();
  int decode_count() const;

  // --- ScoreItems. Calls are answered by this, on threads of gRPC; by default with ScoreAll().
  void SetScoreReply(std::function<void(ScoreItemsCall)> reply);

 private:
  class WorkerFace;
  class DecodeFace;
  class PrefillFace;
  void Heartbeat();
  void EndDrainWaits() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellAll(const internal::v1::WatchResponse& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  internal::v1::WorkerCard card_ ABSL_GUARDED_BY(mutex_);
  uint64_t snapshot_sequence_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<uint64_t> snapshot_keys_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<WatchStream>> watches_ ABSL_GUARDED_BY(mutex_);
  std::function<void(DecodeCall)> reply_ ABSL_GUARDED_BY(mutex_);
  std::function<void(ScoreItemsCall)> score_reply_ ABSL_GUARDED_BY(mutex_);
  std::deque<DecodeCall> calls_ ABSL_GUARDED_BY(mutex_);
  int decode_count_ ABSL_GUARDED_BY(mutex_) = 0;
  internal::v1::WatchResponse load_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::pair<grpc::ServerUnaryReactor*, internal::v1::SetDrainingResponse*>> drain_waits_
      ABSL_GUARDED_BY(mutex_);

  std::unique_ptr<WorkerFace> worker_face_;
  std::unique_ptr<DecodeFace> decode_face_;
  std::unique_ptr<PrefillFace> prefill_face_;
  std::unique_ptr<RpcServer> rpc_;
  std::thread heartbeat_;
};

}  // namespace baton::testing

#endif  // BATON_TESTS_TESTING_FAKE_WORKER_H_
