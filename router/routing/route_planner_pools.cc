// The part of RoutePlanner that keeps requests to the workers of their pool.
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "router/routing/route_planner.h"

namespace baton::router {

bool RoutePlanner::MayTake(v1::WorkerRole role, const RouteRequest& request, const Candidates& of,
                           int i) const {
  const Worker& worker = workers_[of.worker(i)];
  const Incarnation here = worker.target.incarnation();
  if (absl::c_linear_search(request.avoid, here) || !health_.WorkerUsable(here.worker))
    return false;
  const auto is_here = [&here](const Route& l) { return l.answers.incarnation() == here; };
  if (absl::c_any_of(request.lost, is_here)) return false;
  if (role != v1::WORKER_ROLE_DECODE) return true;
  const int blocks = (request.prompt_tokens + worker.block_tokens - 1) / worker.block_tokens;
  return of.row(i).free_blocks >= worker.kv.PagesOf(of.matched_blocks()[i], blocks);
}

void RoutePlanner::KeepPool(v1::WorkerRole role, const RouteRequest& request,
                            Candidates* kept) const {
  const int pool = pools_.Serving(role, request.pool);
  if (pool == PoolNames::kAll) return;
  const auto of_pool = [this, kept, pool](int i) {
    mutex_.AssertReaderHeld();
    return workers_[kept->worker(i)].pool == pool;
  };
  const auto may_take = [&](int i) {
    mutex_.AssertReaderHeld();
    return MayTake(role, request, *kept, i);
  };
  const auto any = [kept](const auto& is) {
    for (int i = 0; i < kept->size(); ++i) {
      if (is(i)) return true;
    }
    return false;
  };
  const bool room = any([&](int i) { return of_pool(i) && may_take(i); });
  // Where the other pools' workers may not take it either, it waits at its own, if there are any.
  const bool others = any([&](int i) { return !of_pool(i) && may_take(i); });
  if (!room && request.spill && (others || !any(of_pool))) {
    kept->KeepIf([&of_pool](int i) { return !of_pool(i); });
    // Workers of no pool before those that are another pool's.
    kept->Prefer([&](int i) {
      mutex_.AssertReaderHeld();
      return workers_[kept->worker(i)].pool == 0 && may_take(i);
    });
    return;
  }
  kept->KeepIf(of_pool);
}

std::vector<v1::WorkerRole> RoutePlanner::SpilledOf(const RouteRequest& request,
                                                    const Route& route) const {
  std::vector<v1::WorkerRole> spilled;
  const auto look = [&](const WorkerTarget& target) {
    mutex_.AssertReaderHeld();
    const Worker& worker = workers_[target.worker];
    const int pool = pools_.Serving(worker.role, request.pool);
    if (pool != PoolNames::kAll && worker.pool != pool) spilled.push_back(worker.role);
  };
  look(route.computes);
  if (!route.together()) look(route.answers);
  return spilled;
}

absl::Status RoutePlanner::NoDecodeWorker(const std::string& pool) const {
  const absl::Status none = roster_.NoDecodeWorker();
  if (pool.empty()) return none;
  return Annotate(none, absl::StrCat("for pool ", pool));
}

}  // namespace baton::router
