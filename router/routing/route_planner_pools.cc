// The part of RoutePlanner that keeps requests to the workers of their pool.
#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "router/routing/route_planner.h"

namespace baton::router {

bool RoutePlanner::MayTake(v1::WorkerRole role, const RouteRequest& request,
                           const Candidate& c) const {
  const Worker& worker = workers_[c.worker];
  const Incarnation here = {c.worker, worker.target.epoch};
  if (absl::c_linear_search(request.avoid, here) || !health_.WorkerUsable(c.worker)) return false;
  const auto is_here = [&here](const Route& l) { return l.decode.incarnation() == here; };
  if (absl::c_any_of(request.lost, is_here)) return false;
  if (role != v1::WORKER_ROLE_DECODE) return true;
  const int blocks = (request.prompt_tokens + worker.block_tokens - 1) / worker.block_tokens;
  return c.free_blocks >= blocks - c.matched_blocks;
}

void RoutePlanner::KeepPool(v1::WorkerRole role, const RouteRequest& request,
                            std::vector<Candidate>* kept) {
  const int pool = pools_.Serving(role, request.pool);
  if (pool == PoolNames::kAll) return;
  const auto of_pool = [this, pool](const Candidate& c) {
    mutex_.AssertHeld();
    return workers_[c.worker].pool == pool;
  };
  const bool room = absl::c_any_of(*kept, [&](const Candidate& c) {
    mutex_.AssertHeld();
    return of_pool(c) && MayTake(role, request, c);
  });
  // Where the other pools' workers may not take it either, it waits at its own.
  const bool others = request.spill && absl::c_any_of(*kept, [&](const Candidate& c) {
                        mutex_.AssertHeld();
                        return !of_pool(c) && MayTake(role, request, c);
                      });
  if (!room && others) {
    kept->erase(std::remove_if(kept->begin(), kept->end(), of_pool), kept->end());
    // Workers of no pool before those that are another pool's.
    const auto free = [&](const Candidate& c) {
      mutex_.AssertHeld();
      return workers_[c.worker].pool == 0 && MayTake(role, request, c);
    };
    if (absl::c_any_of(*kept, free)) {
      kept->erase(std::remove_if(kept->begin(), kept->end(), std::not_fn(free)), kept->end());
    }
    return;
  }
  const auto other = [&of_pool](const Candidate& c) { return !of_pool(c); };
  kept->erase(std::remove_if(kept->begin(), kept->end(), other), kept->end());
}

std::vector<v1::WorkerRole> RoutePlanner::SpilledOf(const RouteRequest& request,
                                                    const Route& route) const {
  std::vector<v1::WorkerRole> spilled;
  for (const WorkerTarget* target : {&route.prefill, &route.decode}) {
    if (target->worker == kNoWorker) continue;
    const Worker& worker = workers_[target->worker];
    const int pool = pools_.Serving(worker.role, request.pool);
    if (pool != PoolNames::kAll && worker.pool != pool) spilled.push_back(worker.role);
  }
  return spilled;
}

absl::Status RoutePlanner::NoDecodeWorker(const std::string& pool) const {
  const absl::Status none = roster_.NoDecodeWorker();
  if (pool.empty()) return none;
  return Annotate(none, absl::StrCat("for pool ", pool));
}

}  // namespace baton::router
