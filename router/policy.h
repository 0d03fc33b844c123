// Which prefill and which decode worker a request goes to: a decision over plain numbers.
#ifndef BATON_ROUTER_POLICY_H_
#define BATON_ROUTER_POLICY_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace baton::router {

// One ready worker as the router knows it now: its last report plus the router's own dispatches
// that the report cannot contain yet.
struct Candidate {
  int worker = 0;          // what the choice names
  int matched_blocks = 0;  // of the prompt, from its start, cached there
  int running = 0;
  int queued = 0;
  int64_t queued_tokens = 0;
  int free_blocks = 0;
};

struct RouteQuery {
  int prompt_tokens = 0;
  int prompt_blocks = 0;  // that the prompt will take, the partial last one included
};

// Indexes into the candidates given.
struct RouteChoice {
  int prefill = -1;  // none was given
  int decode = 0;
  absl::string_view decision;  // why, as a metric label: "prefix", "load" or "decode_only"
};

// Called under the router's lock: quick, no I/O. Need not be thread-safe.
class Policy {
 public:
  virtual ~Policy() = default;
  virtual absl::string_view name() const = 0;
  // Without prefill candidates, the decode worker computes the prompt, too.
  // REQUIRES: `decode` is not empty.
  virtual RouteChoice Choose(const RouteQuery& query, absl::Span<const Candidate> prefill,
                             absl::Span<const Candidate> decode) = 0;
};

// Prefill: longest cached prefix, then fewest tokens to compute before this prompt.
// Decode: one that has room for the prompt, then fewest sequences, then most free blocks. Of those
// that are to compute the prompt themselves: room, then longest cached prefix, then as above.
// What is still equal is taken in turn.
class PrefixThenLoad final : public Policy {
 public:
  absl::string_view name() const override { return "prefix_then_load"; }
  RouteChoice Choose(const RouteQuery& query, absl::Span<const Candidate> prefill,
                     absl::Span<const Candidate> decode) override;

 private:
  uint64_t turn_ = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_POLICY_H_
