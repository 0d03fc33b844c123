#include "router/routing/fleet_demand.h"

#include <algorithm>
#include <cmath>

namespace baton::router {
namespace {

// A prediction counts half as much after this time. Once all together count less than
// kLeastPredictions, the mean is 0.
constexpr double kPredictionsHalve_s = 10;
constexpr double kLeastPredictions = 0.02;
// Places of a batch whose size is unknown.
constexpr int kUnknownPlaces = 64;
constexpr double kMostWorkers = 1 << 20;

int WholeWorkers(double wanted) {
  // A little above a whole number is no worker more.
  return static_cast<int>(std::ceil(std::clamp(wanted - 0.05, 1.0, kMostWorkers)));
}

// The most sequences of so much context whose step stays within the target.
int SequencesWithin(double inter_token_s, const LoadOfWorker& worker, double context) {
  const int places = worker.max_sequences > 0 ? worker.max_sequences : kUnknownPlaces;
  const auto is_within = [&](int n) {
    return worker.step.DecodeStep(n, n * context) <= inter_token_s;
  };
  if (!is_within(1)) return places;
  int within = 1, beyond = places + 1;
  while (beyond - within > 1) {
    const int middle = within + (beyond - within) / 2;
    (is_within(middle) ? within : beyond) = middle;
  }
  return within;
}

}  // namespace

// Sums over the workers that answer.
struct FleetDemand::Answers {
  int ready = 0;
  double sequences = 0;  // of all, draining ones included
  double places = 0;     // of the ready ones, within the target
  double used_pages = 0, queued_pages = 0, pages = 0;
};

void FleetDemand::FadingMean::Add(double value, double keeps) {
  sum_ = sum_ * keeps + value * (1 - keeps);
  weight_ = weight_ * keeps + (1 - keeps);
}

void FleetDemand::OnSent(double ttft_s, double computing_s, double now_s) {
  const double keeps = std::exp2((ttft_at_s_ - now_s) / kPredictionsHalve_s);
  ttft_sum_s_ = ttft_sum_s_ * keeps + ttft_s;
  ttft_weight_ = ttft_weight_ * keeps + 1;
  ttft_at_s_ = now_s;
  computing_s_.Add(computing_s);
}

void FleetDemand::Update(absl::Span<const LoadOfWorker> loads, int64_t refused, double now_s) {
  const double passed_s = updated_at_s_ ? now_s - *updated_at_s_ : 0;
  if (updated_at_s_ && passed_s <= 0) return;
  if (updated_at_s_) {
    const double rate = static_cast<double>(std::max<int64_t>(refused - refused_, 0)) / passed_s;
    refused_rate_.Add(rate, std::exp(-passed_s / kWindow_s));
  }
  updated_at_s_ = now_s;
  refused_ = refused;

  Answers answers;
  int prefill_ready = 0;
  double running = 0, context = 0, step_s = 0;
  for (const LoadOfWorker& w : loads) {
    if (w.role == v1::WORKER_ROLE_PREFILL && w.ready) ++prefill_ready;
    if (w.role != v1::WORKER_ROLE_DECODE) continue;
    running += w.running;
    context += static_cast<double>(w.context_tokens);
    step_s += w.running * w.step.DecodeStep(w.running, static_cast<double>(w.context_tokens));
  }
  if (running > 0) context_ = context / running;
  for (const LoadOfWorker& w : loads) {
    if (w.role != v1::WORKER_ROLE_DECODE) continue;
    answers.sequences += w.running + w.queued;
    answers.used_pages += w.used_blocks;
    // Where some layers have windows, long sequences take fewer pages a token than short ones; what
    // the present ones take is the better guess. It may count prompts that are no sequence here.
    const double present =
        w.context_tokens > 0 && w.used_blocks > 0
            ? static_cast<double>(w.used_blocks) / static_cast<double>(w.context_tokens)
            : w.token_pages;
    answers.queued_pages += std::min(present, w.token_pages) * static_cast<double>(w.queued_tokens);
    if (!w.ready) continue;
    ++answers.ready;
    answers.places += SequencesWithin(targets_.inter_token_s, w, context_);
    answers.pages += w.total_blocks;
  }
  sequences_.Add(answers.sequences, std::exp(-passed_s / (kWindow_s / 3)));
  demand_.predicted_inter_token_s = running > 0 ? step_s / running : 0;
  const double age_s = now_s - ttft_at_s_;
  const bool is_recent = ttft_weight_ * std::exp2(-age_s / kPredictionsHalve_s) > kLeastPredictions;
  demand_.predicted_ttft_s = is_recent ? ttft_sum_s_ / ttft_weight_ : 0;

  const double refused_a_second = refused_rate_.value();
  const double refused_work = refused_a_second * computing_s_.value();
  const bool has_prefill = prefill_ready > 0 || demand_.prefill_workers > 0;
  const double prefill = ForPrompts(loads, v1::WORKER_ROLE_PREFILL, has_prefill ? refused_work : 0,
                                    passed_s, &prefill_);
  const double local =
      ForPrompts(loads, v1::WORKER_ROLE_DECODE, has_prefill ? 0 : refused_work, passed_s, &decode_);
  demand_.prefill_backlog_s = prefill_.backlog_s;
  demand_.decode_backlog_s = decode_.backlog_s;
  if (prefill_ready > 0) demand_.prefill_workers = WholeWorkers(prefill);
  if (answers.ready > 0) {
    demand_.decode_workers = WholeWorkers(ForAnswers(answers, refused_a_second) + local);
  }
}

double FleetDemand::ForPrompts(absl::Span<const LoadOfWorker> loads, v1::WorkerRole role,
                               double refused_work, double passed_s, Prompts* prompts) const {
  int ready = 0;
  double backlog_s = 0, busy = 0;
  for (const LoadOfWorker& w : loads) {
    if (w.role != role) continue;
    ready += w.ready ? 1 : 0;
    backlog_s += w.backlog_s;
    busy += w.busy;
  }
  if (passed_s > 0) {
    const double grown = (backlog_s - prompts->backlog_s) / passed_s;
    prompts->arriving.Add(busy + grown, std::exp(-passed_s / kWindow_s));
  }
  prompts->backlog_s = backlog_s;
  const double sent = std::max(prompts->arriving.value(), 0.0);
  const double arriving = sent + std::min(refused_work, sent);
  const double excess_s = std::max(0.0, backlog_s - ready * targets_.ttft_s);
  return arriving / targets_.busy + excess_s / kDrain_s;
}

double FleetDemand::ForAnswers(const Answers& answers, double refused_a_second) {
  const double answer_s = answer_tokens_.value() * demand_.predicted_inter_token_s;
  const double refused = std::min(refused_a_second * answer_s, sequences_.value());
  const double sequences = sequences_.value() + refused;
  const double pages = answers.used_pages + answers.queued_pages;
  demand_.sequence_headroom =
      answers.places > 0 ? 1 - (answers.sequences + refused) / answers.places : 0;
  demand_.kv_headroom = answers.pages > 0 ? 1 - pages / answers.pages : 0;
  double wanted = 0;
  if (answers.places > 0) wanted = sequences / (answers.places / answers.ready * targets_.fill);
  if (answers.pages > 0) {
    wanted = std::max(wanted, pages / (answers.pages / answers.ready * targets_.fill));
  }
  return wanted;
}

}  // namespace baton::router
