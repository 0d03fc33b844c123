// The shape of an engine, computed from its model and its options only, so that `baton plan`, which
// has no device, and Engine::Load agree.
#ifndef BATON_COMMON_ENGINE_ENGINE_SHAPE_H_
#define BATON_COMMON_ENGINE_ENGINE_SHAPE_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/backend/backend.h"
#include "common/engine/engine.h"
#include "common/engine/memory_plan.h"
#include "common/kv/kv_layout.h"
#include "common/model/model_config.h"

namespace baton::engine {

// UNIMPLEMENTED (UNSUPPORTED_MODEL) for layers whose KV no pool holds; INVALID_ARGUMENT
// (MAX_MODEL_LEN_TOO_LONG) for a max_model_len beyond the model's context length.
absl::Status CheckModel(const model::ModelConfig& config, const EngineOptions& options);

// --experts-on-host as EngineOptions has it: a number of layers, auto or all. INVALID_ARGUMENT
// (BAD_OPTION).
absl::StatusOr<std::optional<int>> ParseExpertsOnHost(absl::string_view text);

struct EngineShape {
  kv::KvLayout layout;
  backend::StepLimits limits;
};
// INVALID_ARGUMENT if the layout is not valid. REQUIRES: CheckModel(config, options).ok().
absl::StatusOr<EngineShape> ShapeOf(const model::ModelConfig& config, const EngineOptions& options,
                                    backend::DType activation);

// Sets the heads of a pool's layers, where they differ.
void SetHeads(const kv::KvLayout& layout, backend::KvPool* pool);
// Sets where a pool of this layout has its layers' KV and states. REQUIRES: layout.windowed().
void SetPlaces(const kv::KvLayout& layout, backend::KvPool* pool);

// Sets all fields except those that only the device or the weight files know: kernel_bytes,
// free_bytes and stored_embedding. `config` must outlive the result.
MemoryDemand DemandOf(const model::ModelConfig& config, const EngineShape& shape,
                      const EngineOptions& options, backend::DType activation);

}  // namespace baton::engine

#endif  // BATON_COMMON_ENGINE_ENGINE_SHAPE_H_
