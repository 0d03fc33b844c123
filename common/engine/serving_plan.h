// `baton plan`: the GPU memory that a model takes, and lower bounds on any engine's times on that
// GPU. Memory uses the arithmetic of a starting worker and matches it to the block. Times are
// floors: bytes over the memory's rate, operations over the matrix rate.
#ifndef BATON_COMMON_ENGINE_SERVING_PLAN_H_
#define BATON_COMMON_ENGINE_SERVING_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/engine/engine.h"
#include "common/engine/gpu_facts.h"
#include "common/engine/memory_plan.h"
#include "common/kv/kv_layout.h"
#include "common/model/model_costs.h"

namespace baton::engine {

struct ServingQuestion {
  EngineOptions engine;  // as made from a worker's flags
  GpuFacts gpu;
  // Tokens of a sequence, prompt and answer; absent: 2048, or what the model allows if that is
  // less.
  std::optional<int> context;
  std::vector<int> batches = {1, 8, 32};         // of decode steps
  std::vector<int> prompts = {512, 2048, 8192};  // tokens
  std::optional<model::WeightFormat> weights;    // nullopt: as config.json says
};

// The tokens of a sequence for which `question` is answered, where one has at most `max_positions`.
int ContextOf(const ServingQuestion& question, int max_positions);

struct DecodeFloor {
  int batch = 0;
  bool fits = false;  // the pool holds `batch` sequences of `context` tokens
  // The costs of a step in which every sequence has `context` tokens.
  model::StepBytes bytes;
  double flops = 0;
  // host_ms: for the experts in the host's memory to cross the link. Which of them a layer needs is
  // known only behind its attention, and they are multiplied with after they have come, so this
  // time is on top of the others.
  double memory_ms = 0, matrix_ms = 0, host_ms = 0;
  double floor_ms() const { return std::max(memory_ms, matrix_ms) + host_ms; }
  double max_tokens_per_second() const { return batch / floor_ms() * 1e3; }
};

struct TransferTime {
  std::string link;  // "25 GbE", "NVLink", ...: usual networks, and what the GPU has
  double ms = 0;     // of the prompt's KV
  // The part of `ms` that is not hidden behind computation when each layer is sent while later ones
  // are computed at the floor: max(one layer's share of ms, ms - compute time of all layers but the
  // first). Not a lower bound: an engine slower than the floor has more computation to hide it
  // behind.
  double exposed_ms = 0;
};

struct PrefillFloor {
  int tokens = 0;
  double flops = 0;
  double matrix_ms = 0, memory_ms = 0;  // memory_ms: to read the weights once
  double host_ms = 0;                   // as DecodeFloor's, in steps of max_num_batched_tokens
  double floor_ms() const { return std::max(memory_ms, matrix_ms) + host_ms; }
  int64_t kv_bytes = 0;
  std::vector<TransferTime> transfers;
};

// What the pool holds with another --kv-cache-dtype.
struct KvDtypePlan {
  kv::KvDtype dtype = kv::KvDtype::kF16;
  int64_t token_bytes = 0;  // KV of one token, all layers
  int64_t tokens = 0;
  int64_t sequences = 0;  // of ServingPlan.context tokens
};

struct ServingPlan {
  model::ModelCosts costs;
  model::WeightFormat weights;
  backend::DType activation = backend::DType::kF16;
  GpuFacts gpu;
  int64_t arena_bytes = 0;  // the single device allocation: weights, workspaces and the KV pool
  int context = 0;
  // OK, or why a worker would not start. RESOURCE_EXHAUSTED, in the worker's words: there is no
  // pool, and `memory` has no blocks. UNIMPLEMENTED: the engine does not serve the model; `memory`
  // counts weights and KV only, as if it did.
  absl::Status refusal;
  MemoryPlan memory;                    // as far as `refusal` allows
  int64_t sequences = 0;                // of `context` tokens
  std::optional<kv::KvDtype> kv_dtype;  // of the plan, if the model is served
  std::vector<KvDtypePlan> kv_dtypes;   // each that fits; empty without a pool
  int max_num_seqs = 0;                 // the worker's configured limit of sequences in one step
  std::vector<DecodeFloor> decode;
  std::vector<PrefillFloor> prefill;

  bool served() const { return refusal.code() != absl::StatusCode::kUnimplemented; }
};

// Fails with INVALID_ARGUMENT for a bad question or a malformed model file, NOT_FOUND for a missing
// file, and UNIMPLEMENTED for an architecture whose memory and operations this code cannot count. A
// model that it can count and the engine does not serve is reported in `refusal`.
absl::StatusOr<ServingPlan> PlanServing(const ServingQuestion& question);

}  // namespace baton::engine

#endif  // BATON_COMMON_ENGINE_SERVING_PLAN_H_
