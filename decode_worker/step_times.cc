#include "decode_worker/step_times.h"

#include <algorithm>

#include "common/model/model_costs.h"

namespace baton::decode_worker {

DecodeShape DecodeShapeOf(const model::ModelConfig& config, bool on_gpu) {
  const double sequences_for_weights = on_gpu ? 256 : 8;
  // An engine that computes nothing: as a model of 8 B.
  if (config.layers.empty()) return {{8e9, 8e9 / sequences_for_weights, 65'536}, {}};
  const model::ModelCosts costs = model::CostsOf(config);
  ExpertChoice experts;
  double one_of_each_layer = 0, chosen = 0, all = 0;
  for (const model::LayerCosts& layer : costs.layers) {
    if (experts.experts == 0) experts = layer.choice();
    const auto elements = static_cast<double>(layer.expert_elements);
    one_of_each_layer += elements;
    chosen += elements * layer.experts_per_token;
    all += elements * layer.experts;
  }
  const double fixed = static_cast<double>(costs.parameters()) - all;
  return {{fixed, (fixed + chosen) / sequences_for_weights,
           std::max<double>(1, static_cast<double>(costs.kv_elements())), one_of_each_layer},
          experts};
}

void StepTimes::AddStep(const std::vector<Chunk>& chunks, const PrefillWork& jobs,
                        absl::Duration took, absl::Duration between, absl::Duration now) {
  PrefillWork prompts = jobs;
  double decoding = 0, context_tokens = 0;
  bool drafted = false;
  for (const Chunk& chunk : chunks) {
    if (chunk.decodes) {
      const auto drafts = static_cast<double>(chunk.drafts.size());
      decoding += chunk.rows();
      context_tokens += (1 + kDraftContext * drafts) * chunk.begin;
      drafted |= drafts > 0;
    } else {
      prompts.Add(chunk.end - chunk.begin, chunk.begin);
    }
  }
  if (decoding == 0 && prompts.tokens > 0) {
    prompts_.AddStep({1, prompts.tokens, prompts.pairs}, took, now);
  } else if (prompts.tokens == 0 && decoding > 0) {
    AddRest(DecodeSeconds(decoding, context_tokens, {}), drafted,
            absl::ToDoubleSeconds(took + between));
    decoding_.AddStep({1, decoding, context_tokens, experts_.Distinct(decoding)}, took, now);
  }
}

void StepTimes::AddRest(double predicted, bool drafted, double seconds) {
  if (!decoding_.known()) return;
  constexpr double kWeight = 0.05;
  constexpr double kForget = 0.999;  // so that drafts are tried again
  // A stall says nothing of drafts.
  const double rest = std::clamp(seconds - predicted, -predicted, predicted);
  if (drafted) {
    drafted_rest_ += kWeight * (rest - drafted_rest_);
  } else {
    plain_rest_ += kWeight * (rest - plain_rest_);
    drafted_rest_ = plain_rest_ + kForget * (drafted_rest_ - plain_rest_);
  }
}

double StepTimes::DraftedExtraSeconds() const { return std::max(0.0, drafted_rest_ - plain_rest_); }

double StepTimes::DecodeSeconds(double rows, double context_tokens,
                                const PrefillWork& prompts) const {
  const worker::StepCost::Terms& terms = decoding_.known() ? decoding_.terms() : decode_prior_;
  double seconds =
      terms[0] + terms[1] * rows + terms[2] * context_tokens + terms[3] * experts_.Distinct(rows);
  // The weights are read once for both.
  seconds += decoding_.known() && prompts_.known()
                 ? prompts_.terms()[1] * prompts.tokens + prompts_.terms()[2] * prompts.pairs
                 : terms[1] * prompts.tokens;
  return seconds;
}

double StepTimes::SecondsPerUnit() const {
  if (!decoding_.known()) return 1;
  const worker::StepCost::Terms one = {1, 1, 0, experts_.Distinct(1)};
  double units = 0;
  for (int i = 0; i < worker::StepCost::kTerms; ++i) units += decode_prior_[i] * one[i];
  return DecodeSeconds(1, 0, {}) / units;
}

void StepTimes::Report(const std::vector<Sequence*>& sequences, const PrefillWork& jobs,
                       int max_tokens_per_step, absl::Duration now,
                       worker::WorkerLoad* load) const {
  PrefillWork work = jobs;
  load->context_tokens = 0;
  for (const Sequence* sequence : sequences) {
    const bool running = sequence->state == Sequence::State::kRunning;
    const int tokens = static_cast<int>(sequence->tokens.size());
    if (running || sequence->state == Sequence::State::kReceiving) load->context_tokens += tokens;
    const bool here = running || sequence->compute_here || sequence->call->prefill.address.empty();
    const int missing = tokens - sequence->computed_tokens;
    // The last token of one that decodes is no prompt.
    if (here && !sequence->decodes()) work.Add(missing, sequence->computed_tokens);
  }
  load->prefill_cost = ToPrefillCost(prompts_, now);
  load->decode_cost = ToDecodeCost(decoding_, experts_, now);
  load->remaining_work = absl::ZeroDuration();
  if (work.tokens > 0) {
    load->remaining_work =
        absl::Seconds(prompts_.Seconds(worker::PrefillTerms(work, max_tokens_per_step), now));
  }
}

}  // namespace baton::decode_worker
