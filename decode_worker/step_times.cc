#include "decode_worker/step_times.h"

#include <cmath>

namespace baton::decode_worker {
namespace {

constexpr double kKeep = 0.9;  // of the past, at each step

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
    steps_ = steps_ * kKeep + 1;
    seconds_ = seconds_ * kKeep + absl::ToDoubleSeconds(took);
    context_tokens_ = context_tokens_ * kKeep + context_tokens;
  }
}

void StepTimes::Tell(const std::vector<Sequence*>& sequences, int max_tokens_per_step,
                     worker::WorkerLoad* load) const {
  worker::PrefillWork work;
  for (const Sequence* sequence : sequences) {
    const bool here =
        sequence->state == Sequence::State::kRunning || sequence->call->prefill.address.empty();
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
