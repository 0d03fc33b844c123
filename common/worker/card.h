// A worker's card: what it reports of itself to routers, made from its engine and options.
#ifndef BATON_COMMON_WORKER_CARD_H_
#define BATON_COMMON_WORKER_CARD_H_

#include "baton/internal/v1/worker.pb.h"
#include "common/engine/engine.h"
#include "common/worker/options.h"

namespace baton::worker {

// Returns a card with a new epoch and, unless the options name one, a new worker id.
internal::v1::WorkerCard MakeCard(baton::v1::WorkerRole role, const WorkerOptions& options,
                                  const engine::Engine& engine);

}  // namespace baton::worker

#endif  // BATON_COMMON_WORKER_CARD_H_
