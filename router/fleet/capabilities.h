// Which work a worker takes, by its card.
#ifndef BATON_ROUTER_FLEET_CAPABILITIES_H_
#define BATON_ROUTER_FLEET_CAPABILITIES_H_

#include "absl/algorithm/container.h"
#include "baton/internal/v1/worker.pb.h"

namespace baton::router {

// A card that names no capabilities has those of its role.
inline bool Can(const internal::v1::WorkerCard& card, v1::WorkerCapability capability) {
  if (card.capabilities_size() > 0) return absl::c_linear_search(card.capabilities(), capability);
  const bool answers = capability == v1::WORKER_CAPABILITY_ANSWER;
  return answers == (card.role() == v1::WORKER_ROLE_DECODE);
}

}  // namespace baton::router

#endif  // BATON_ROUTER_FLEET_CAPABILITIES_H_
