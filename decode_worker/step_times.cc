#include "decode_worker/step_times.h"

#include <cmath>

namespace baton::decode_worker {
namespace {

constexpr double kKeep = 0.9;  // of the past, at each step
// Longer than others by this much, a step is taken for a stall: a process that was stopped, and
// then had nothing to do that would show it to be well, would be shunned for good.
constexpr double kStall = 3;
constexpr int kStallsToBelieve = 4;

}  // namespace

void StepTimes::Took(const std::vector<Chunk>& chunks, absl::Duration took) {
  worker::PrefillWork prompts;
  double decoding = 0, context_tokens = 0;
  for (const Chunk& chunk : chunks) {
    if (chunk.end - chunk.begin > 1) {
      prompts.Add(chunk.end - chunk.begin, chunk.begin);
    } else {
      ++decoding;
      context_tokens += chunk.begin;
    }
  }
  if (decoding == 0) {
    cost_.StepTook(prompts, took);
  } else if (prompts.tokens == 0) {
    const double seconds = absl::ToDoubleSeconds(took);
    stalls_in_a_row_ =
        steps_ > 1 && seconds > kStall * seconds_ / steps_ ? stalls_in_a_row_ + 1 : 0;
    if (stalls_in_a_row_ > 0 && stalls_in_a_row_ < kStallsToBelieve) return;
    steps_ = steps_ * kKeep + 1;
    seconds_ = seconds_ * kKeep + seconds;
    context_tokens_ = context_tokens_ * kKeep + context_tokens;
  }
}

void StepTimes::Tell(const std::vector<Sequence*>& sequences, int max_tokens_per_step,
                     worker::WorkerLoad* load) const {
  worker::PrefillWork work;
  for (const Sequence* sequence : sequences) {
    const bool here = sequence->state == Sequence::State::kRunning || sequence->compute_here ||
                      sequence->call->prefill.address.empty();
    const int missing = static_cast<int>(sequence->tokens.size()) - sequence->computed_tokens;
    // The last token of one that decodes is no prompt.
    if (here && missing > 1) work.Add(missing, sequence->computed_tokens);
  }
  load->prefill_cost = cost_.ToProto();
  load->remaining_work = cost_.TimeFor(work, max_tokens_per_step);
  if (steps_ == 0) return;
  load->decode_step = absl::Seconds(seconds_ / steps_);
  load->decode_context_tokens = static_cast<int64_t>(std::llround(context_tokens_ / steps_));
}

}  // namespace baton::decode_worker
