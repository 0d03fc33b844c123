// What the planner learns of the load, and what it wants of it.
#include <algorithm>

#include "router/routing/decode_price.h"
#include "router/routing/route_planner.h"

namespace baton::router {
namespace {

// Longer ones that a worker reports are not believed.
constexpr absl::Duration kLongestTransfer = absl::Minutes(1);
constexpr absl::Duration kDemandEvery = absl::Milliseconds(100);

}  // namespace

Demand RoutePlanner::UpdateDemand(int64_t refused) {
  const absl::Duration now = clock_.SinceStart();
  absl::MutexLock lock(&mutex_);
  if (now >= next_demand_) {
    next_demand_ = now + kDemandEvery;
    fleet_.ListLoads(now, &loads_);
    demand_.Update(loads_, refused, absl::ToDoubleSeconds(now));
  }
  return demand_.demand();
}

// A prompt is not computed before the worker that answers has a place for it.
void RoutePlanner::CountDemand(const RouteQuery& query, const Pair& pair, const Route& route) {
  double wait_s = 0;
  if (!pair.prefill_alone()) {
    const Candidate* const prefill = pair.prefill ? &*pair.prefill : nullptr;
    wait_s = PriceDecode(query, pair.decode, /*alone=*/prefill == nullptr, prefill).wait_s;
  }
  demand_.OnSent(wait_s + absl::ToDoubleSeconds(route.predicted_ttft),
                 pair.computes().computing_s(), absl::ToDoubleSeconds(clock_.SinceStart()));
}

void RoutePlanner::OnAnswered(int64_t generated_tokens, int64_t kv_bytes,
                              absl::Duration kv_transfer) {
  absl::MutexLock lock(&mutex_);
  answer_tokens_.Add(static_cast<double>(generated_tokens));
  demand_.OnAnswered(generated_tokens);
  if (kv_bytes <= 0) return;
  transfer_bytes_.Add(static_cast<double>(kv_bytes));
  transfer_seconds_.Add(
      absl::ToDoubleSeconds(std::clamp(kv_transfer, absl::ZeroDuration(), kLongestTransfer)));
}

}  // namespace baton::router
