#include "cli/top_frame.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "cli/admin.h"

namespace baton::cli {
namespace {

using Json = nlohmann::ordered_json;

// The increase of a counter of one process.
std::optional<double> Increase(int64_t before, int64_t now) {
  if (now < before || before < 0) return std::nullopt;
  return static_cast<double>(now) - static_cast<double>(before);
}

std::optional<double> Rate(int64_t before, int64_t now, absl::Duration between) {
  const std::optional<double> increase = Increase(before, now);
  if (!increase || between <= absl::ZeroDuration()) return std::nullopt;
  return *increase / absl::ToDoubleSeconds(between);
}

std::optional<double> Share(std::optional<double> part, std::optional<double> whole) {
  if (!part || !whole || *whole <= 0) return std::nullopt;
  return *part / *whole;
}

void AddTo(std::optional<double>* sum, std::optional<double> value) {
  if (value) *sum = sum->value_or(0) + *value;
}

TopFrame::Percentiles PercentilesBetween(const v1::SecondsHistogram& before,
                                         const v1::SecondsHistogram& now) {
  return {QuantileBetween(before, now, 0.5), QuantileBetween(before, now, 0.95),
          QuantileBetween(before, now, 0.99)};
}

void SetWorkerRates(const v1::GetLoadsResponse& before, absl::Duration between, TopFrame* frame) {
  using Key = std::tuple<int, std::string, uint64_t>;
  const auto key = [](const v1::WorkerLoad& load) {
    return Key(load.role(), load.address(), load.epoch());
  };
  std::map<Key, const v1::WorkerLoad*> known;
  for (const v1::WorkerLoad& load : before.workers()) {
    if (load.epoch() != 0) known[key(load)] = &load;
  }
  for (TopFrame::Worker& worker : frame->workers) {
    const auto found = known.find(key(worker.load));
    if (found == known.end()) continue;
    const v1::WorkerLoad& then = *found->second;
    worker.prefill_tokens_per_s =
        Rate(then.computed_prompt_tokens(), worker.load.computed_prompt_tokens(), between);
    worker.decode_tokens_per_s =
        Rate(then.generated_tokens(), worker.load.generated_tokens(), between);
    worker.accepted_draft_share =
        Share(Increase(then.accepted_draft_tokens(), worker.load.accepted_draft_tokens()),
              Increase(then.draft_tokens(), worker.load.draft_tokens()));
    AddTo(&frame->prefill_tokens_per_s, worker.prefill_tokens_per_s);
    AddTo(&frame->decode_tokens_per_s, worker.decode_tokens_per_s);
  }
}

void SetRouterRates(const v1::RouterTotals& before, const v1::RouterTotals& now,
                    absl::Duration between, TopFrame* frame) {
  if (now.epoch() == 0 || now.epoch() != before.epoch()) return;
  frame->requests_per_s = Rate(before.requests(), now.requests(), between);
  frame->refused_per_s = Rate(before.rejections(), now.rejections(), between);
  frame->cached_prompt_share =
      Share(Increase(before.cached_prompt_tokens(), now.cached_prompt_tokens()),
            Increase(before.prompt_tokens(), now.prompt_tokens()));
  frame->time_to_first_token =
      PercentilesBetween(before.time_to_first_token(), now.time_to_first_token());
  frame->inter_token_latency =
      PercentilesBetween(before.inter_token_latency(), now.inter_token_latency());
}

Json OrNull(std::optional<double> value) { return value ? Json(*value) : Json(); }

Json PercentilesJson(const TopFrame::Percentiles& values) {
  return {{"p50", OrNull(values.p50)}, {"p95", OrNull(values.p95)}, {"p99", OrNull(values.p99)}};
}

Json WorkerJson(const TopFrame::Worker& worker) {
  const v1::WorkerLoad& load = worker.load;
  return {{"address", load.address()},
          {"worker_id", load.worker_id()},
          {"role", Short(load.role())},
          {"state", Short(load.state())},
          {"kv_blocks",
           {{"total", load.total_blocks()},
            {"active", load.active_blocks()},
            {"held", load.held_blocks()},
            {"cached", load.cached_blocks()},
            {"free", load.free_blocks()}}},
          {"running", load.running()},
          {"queued", load.queued()},
          {"queued_tokens", load.queued_tokens()},
          {"context_tokens", load.context_tokens()},
          {"remaining_work_ms", load.remaining_work_ms()},
          {"open_transfers", load.open_transfers()},
          {"prefill_tokens_per_s", OrNull(worker.prefill_tokens_per_s)},
          {"decode_tokens_per_s", OrNull(worker.decode_tokens_per_s)},
          {"accepted_draft_share", OrNull(worker.accepted_draft_share)},
          {"age_ms", load.has_age_ms() ? Json(load.age_ms()) : Json()}};
}

}  // namespace

std::optional<double> QuantileBetween(const v1::SecondsHistogram& before,
                                      const v1::SecondsHistogram& now, double q) {
  const int bounds = now.bounds_s_size();
  if (bounds == 0 || now.counts_size() != bounds + 1 || before.counts_size() != bounds + 1 ||
      !std::equal(now.bounds_s().begin(), now.bounds_s().end(), before.bounds_s().begin(),
                  before.bounds_s().end())) {
    return std::nullopt;
  }
  std::vector<double> counts;
  for (int i = 0; i <= bounds; ++i) {
    if (now.counts(i) < before.counts(i)) return std::nullopt;
    counts.push_back(static_cast<double>(now.counts(i) - before.counts(i)));
  }
  if (counts.back() == 0) return std::nullopt;
  const double rank = q * counts.back();
  const auto found = std::lower_bound(counts.begin(), counts.end(), rank);
  const int bucket = static_cast<int>(found - counts.begin());
  if (bucket >= bounds) return now.bounds_s(bounds - 1);
  const double low = bucket > 0 ? now.bounds_s(bucket - 1) : 0;
  const double below = bucket > 0 ? counts[bucket - 1] : 0;
  if (counts[bucket] <= below) return low;
  return low + (now.bounds_s(bucket) - low) * (rank - below) / (counts[bucket] - below);
}

const TopFrame& TopFrames::Add(absl::StatusOr<v1::GetLoadsResponse> answer) {
  const absl::Duration now = clock_.SinceStart();
  if (!answer.ok()) {
    frame_.time = clock_.Now();
    frame_.status = answer.status();
    frame_.age = last_ ? now - last_at_ : absl::ZeroDuration();
    return frame_;
  }
  frame_ = TopFrame();
  frame_.time = clock_.Now();
  frame_.router = answer->router();
  for (const v1::WorkerLoad& load : answer->workers()) frame_.workers.emplace_back().load = load;
  if (last_) {
    frame_.between = now - last_at_;
    SetWorkerRates(*last_, frame_.between, &frame_);
    SetRouterRates(last_->totals(), answer->totals(), frame_.between, &frame_);
  }
  last_ = *std::move(answer);
  last_at_ = now;
  return frame_;
}

std::string FrameJson(const TopFrame& frame, const std::string& address) {
  Json workers = Json::array();
  for (const TopFrame::Worker& worker : frame.workers) workers.push_back(WorkerJson(worker));
  Json error;
  if (!frame.status.ok()) {
    error = {{"code", absl::StatusCodeToString(frame.status.code())},
             {"message", std::string(frame.status.message())}};
  }
  const Json json = {{"time_unix_ms", absl::ToUnixMillis(frame.time)},
                     {"router", address},
                     {"error", std::move(error)},
                     {"age_s", absl::ToDoubleSeconds(frame.age)},
                     {"interval_s", absl::ToDoubleSeconds(frame.between)},
                     {"requests",
                      {{"in_flight", frame.router.requests()},
                       {"max_in_flight", frame.router.max_requests()},
                       {"before_first_token", frame.router.requests_before_first_token()},
                       {"per_s", OrNull(frame.requests_per_s)},
                       {"refused_per_s", OrNull(frame.refused_per_s)}}},
                     {"prompt_tokens",
                      {{"in_flight", frame.router.prompt_tokens()},
                       {"max_in_flight", frame.router.max_prompt_tokens()},
                       {"cached_share", OrNull(frame.cached_prompt_share)}}},
                     {"prefill_tokens_per_s", OrNull(frame.prefill_tokens_per_s)},
                     {"decode_tokens_per_s", OrNull(frame.decode_tokens_per_s)},
                     {"time_to_first_token_s", PercentilesJson(frame.time_to_first_token)},
                     {"inter_token_latency_s", PercentilesJson(frame.inter_token_latency)},
                     {"workers", std::move(workers)}};
  // Text of workers may be no UTF-8.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace baton::cli
