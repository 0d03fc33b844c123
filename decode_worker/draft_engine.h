// The engine of the model that drafts, beside the worker's own.
#ifndef BATON_DECODE_WORKER_DRAFT_ENGINE_H_
#define BATON_DECODE_WORKER_DRAFT_ENGINE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "common/engine/engine.h"
#include "decode_worker/options.h"

namespace baton::decode_worker {

// Loads it on the device of `worker`, the options of the worker's engine, with weights and
// activations of the same kinds. On a GPU it takes draft_gpu_memory_utilization of the device's
// memory, which `worker` then leaves. Its context is its own, or max_model_len where that is
// shorter. Null: the options have no draft model. Fails as CheckDraftModel does, and as
// Engine::Load does, naming the flag; INVALID_ARGUMENT (BAD_OPTION) if nothing of a GPU would be
// left.
absl::StatusOr<std::unique_ptr<engine::Engine>> LoadDraftEngine(const DecodeOptions& decode,
                                                                engine::EngineOptions& worker);

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_DRAFT_ENGINE_H_
