// Answers of a router, for the tests of `baton top`.
#ifndef BATON_TESTS_CLI_TOP_FRAMES_H_
#define BATON_TESTS_CLI_TOP_FRAMES_H_

#include <string>
#include <vector>

#include "baton/v1/admin.pb.h"

namespace baton::testing {

struct WorkerWish {
  v1::WorkerRole role = v1::WORKER_ROLE_DECODE;
  std::string address = "10.0.0.1:50053";
  v1::WorkerState state = v1::WORKER_STATE_READY;
  // KV blocks.
  int active = 0, held = 0, cached = 0, free = 100;
  int running = 0, queued = 0;
  int64_t queued_tokens = 0;
  int64_t computed = 0, generated = 0, drafted = 0, accepted = 0;  // tokens so far
  uint64_t epoch = 7;
};

inline v1::WorkerLoad LoadOf(const WorkerWish& wish) {
  v1::WorkerLoad load;
  load.set_role(wish.role);
  load.set_address(wish.address);
  load.set_state(wish.state);
  load.set_worker_id("id-" + wish.address.substr(0, 8));
  load.set_active_blocks(wish.active);
  load.set_held_blocks(wish.held);
  load.set_cached_blocks(wish.cached);
  load.set_free_blocks(wish.free);
  load.set_total_blocks(wish.active + wish.held + wish.cached + wish.free);
  load.set_running(wish.running);
  load.set_queued(wish.queued);
  load.set_queued_tokens(wish.queued_tokens);
  load.set_context_tokens(100 * wish.running);
  load.set_remaining_work_ms(0.5 * static_cast<double>(wish.queued_tokens));
  load.set_open_transfers(wish.held / 2);
  load.set_computed_prompt_tokens(wish.computed);
  load.set_generated_tokens(wish.generated);
  load.set_draft_tokens(wish.drafted);
  load.set_accepted_draft_tokens(wish.accepted);
  load.set_epoch(wish.epoch);
  load.set_age_ms(40);
  return load;
}

inline v1::GetLoadsResponse AnswerOf(const std::vector<WorkerWish>& workers) {
  v1::GetLoadsResponse answer;
  for (const WorkerWish& worker : workers) *answer.add_workers() = LoadOf(worker);
  answer.mutable_router()->set_requests(12);
  answer.mutable_router()->set_max_requests(256);
  answer.mutable_router()->set_requests_before_first_token(3);
  return answer;
}

// `counts`: cumulative, for bounds of 10, 20, 40 ms and all.
inline void SetHistogram(const std::vector<uint64_t>& counts, v1::SecondsHistogram* histogram) {
  for (const double bound : {0.01, 0.02, 0.04}) histogram->add_bounds_s(bound);
  for (const uint64_t count : counts) histogram->add_counts(count);
}

}  // namespace baton::testing

#endif  // BATON_TESTS_CLI_TOP_FRAMES_H_
