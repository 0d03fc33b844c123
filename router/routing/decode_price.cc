#include "router/routing/decode_price.h"

#include <algorithm>
#include <vector>

#include "router/routing/link_rates.h"
#include "router/routing/wide_loops.h"

namespace baton::router {
namespace {

// A sequence costs at least this share of a step's fixed part. Where sequences are nearly free, as
// on a GPU that reads weights all the time, this still spreads them: what is computed in a smaller
// batch grows, waits and fails with fewer others.
constexpr double kLeastSequenceShare = 1.0 / 200;
// Sequences that run now have this share of an answer left, on average.
constexpr double kAnswerLeft = 0.5;
// A step that decodes and computes prompts is meant to end within the first; prompts get at least
// the second of it. As in decode_worker/prompt_budget.h.
constexpr double kStepBesideAnswers_s = 0.250;
constexpr double kPromptShareOfStep_s = 0.150;

// Returns what is left for prompts of a step that decodes in `step_s`.
double PromptShareOfStep(double step_s) {
  return std::max(kPromptShareOfStep_s, kStepBesideAnswers_s - step_s);
}

LinearCost StepOf(const Candidate& worker) {
  LinearCost step = worker.step;
  step.first_s = std::max(step.first_s, kLeastSequenceShare * step.fixed_s);
  return step;
}

}  // namespace

double DecodeStepSeconds(const Candidate& worker, double more, double context_tokens) {
  return StepOf(worker).DecodeStep(
      worker.running + worker.queued + more,
      static_cast<double>(worker.context_tokens) + more * context_tokens);
}

double ComputeBesideAnswers(const RouteQuery& query, const Candidate& c) {
  // What was sent there to be computed runs by the time that this prompt is.
  const int inside = c.running + c.queued;
  const double answers = inside - c.receiving + 0.5 * std::min(c.receiving, query.prefill_workers);
  double decoding_share = 0;
  if (answers > 0) {
    const double step_s = DecodeStepSeconds(c, answers - inside, 0);
    decoding_share = step_s / PromptShareOfStep(step_s);
  }
  return c.wait_s() + c.computing_s() * (1 + decoding_share + answers);
}

double ComputeForAnother(const RouteQuery& query, const Candidate& lender,
                         const Candidate& answers) {
  const double move_s = KvMove(query, answers).SecondsFrom(lender);
  return ComputeBesideAnswers(query, lender) + move_s +
         BehindPrompts(query, answers, lender.wait_s() + lender.computing_s() + move_s);
}

double BehindPrompts(const RouteQuery& query, const Candidate& c, double ready_s) {
  const double left_s = c.queue_s - ready_s;
  if (left_s <= 0) return 0;
  const double slower_s = PromptShareOfStep(DecodeStepSeconds(c, 1, query.prompt_tokens));
  return std::min(left_s, query.answer_tokens * slower_s);
}

KvMove::KvMove(const RouteQuery& query, const Candidate& decode) {
  const double missing = query.kv.MovedBlocks(decode.matched_blocks, query.prompt_blocks);
  unknown_s_ = missing * query.block_transfer_s;
  if (query.links == nullptr) return;
  seconds_per_byte_ = query.links->SecondsPerByteTo(decode.worker);
  bytes_ = missing * query.kv.block_bytes;
  layer_share_ = query.layer_share;
}

void KvMove::AddTo(absl::Span<const double> costs, const Candidates& prefill, double hidden_s,
                   CostColumn* column) const {
  thread_local std::vector<float> gathered;  // for its memory
  const absl::Span<const float> byte_s = prefill.Gather(seconds_per_byte_, &gathered);
  AddTo(costs.data(), byte_s.data(), hidden_s, column->Resize(costs.size()));
}

// Plain pointers and locals, so that the loop is vectorized.
BATON_WIDE_LOOPS void KvMove::AddTo(const double* __restrict cost, const float* __restrict byte_s,
                                    double hidden_s, absl::Span<double> sums) const {
  const KvMove move = *this;
  double* __restrict sum = sums.data();
  int unknown = 0;
  for (size_t i = 0; i < sums.size(); ++i) {
    sum[i] = cost[i] + move.SecondsAt(byte_s[i], hidden_s);
    unknown += byte_s[i] == 0 ? 1 : 0;
  }
  for (size_t i = 0; unknown > 0 && i < sums.size(); ++i) {
    if (byte_s[i] == 0) sum[i] = cost[i] + unknown_s_;
  }
}

void PricePrompt(const RouteQuery& query, const Candidate& c, bool alone, const Candidate* prefill,
                 DecodePrice* price) {
  price->behind_s = 0;
  if (alone) {
    price->prompt_s = c.wait_s() + c.computing_s();
    return;
  }
  if (prefill == nullptr) {
    price->prompt_s =
        query.kv.MovedBlocks(c.matched_blocks, query.prompt_blocks) * query.block_transfer_s;
    price->behind_s = BehindPrompts(query, c, 0);
    return;
  }
  price->prompt_s = KvMove(query, c).SecondsFrom(*prefill);
  price->behind_s =
      BehindPrompts(query, c, prefill->wait_s() + prefill->computing_s() + price->prompt_s);
}

DecodePrice PriceDecode(const RouteQuery& query, const Candidate& c, bool alone,
                        const Candidate* prefill) {
  const LinearCost step = StepOf(c);
  const int missing = query.PagesBeside(c.matched_blocks);
  DecodePrice price;
  price.full = c.free_blocks < missing;
  PricePrompt(query, c, alone, prefill, &price);

  // The batch that the request joins. Those that wait, or are on their way, will be in it, too.
  const double inside = c.running + c.queued;
  const double places = c.max_sequences > 0 ? c.max_sequences : inside + 1;
  const double batch = std::min(inside + 1, places);
  const double own_context = query.prompt_tokens + query.answer_tokens / 2;
  const double step_s = step.DecodeStep(batch, static_cast<double>(c.context_tokens) + own_context);
  price.answer_s = query.answer_tokens * step_s;

  // All blocks in use, and all places, turn over once in an answer's time.
  const double turnover_s = query.mean_answer_tokens * step_s;
  const double growth_tokens = kAnswerLeft * query.mean_answer_tokens * c.running +
                               query.mean_answer_tokens * c.queued + query.answer_tokens;
  const double waiting_tokens = c.queued > c.sent ? static_cast<double>(c.queued_tokens) : 0;
  // What grows beyond its windows takes full pages alone.
  const double wanted_blocks = missing + (growth_tokens + waiting_tokens) /
                                             std::max(1, query.block_tokens) *
                                             query.kv.shape.full_pages;
  const double used_blocks = std::max(1.0, static_cast<double>(c.total_blocks) - c.free_blocks);
  const double for_blocks = std::max(0.0, wanted_blocks - c.free_blocks) / used_blocks;
  const double for_place = std::max(0.0, inside + 1 - places) / places;
  // Whatever they wait for, requests that wait there enter as others end.
  const double in_line = std::max(0, c.queued - c.sent) / std::max(1.0, 1.0 * c.running);
  price.wait_s = turnover_s * std::max({for_blocks, for_place, in_line});

  // What one sequence more adds to the steps of each that runs there, as if its context was the
  // batch's mean. By its own context, the price would gather long contexts on few workers: the mean
  // time between tokens is 1 % lower then, its 99th percentile 10 % higher.
  const double left = kAnswerLeft * query.mean_answer_tokens;
  const double others = std::min(inside, places);
  price.others_s =
      std::min(left, query.answer_tokens) *
      (others * step.OneMore(others) + static_cast<double>(c.context_tokens) * step.second_s);
  return price;
}

}  // namespace baton::router
