#include "decode_worker/draft_engine.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "common/model/model_config.h"
#include "decode_worker/draft_model.h"

namespace baton::decode_worker {

absl::StatusOr<std::unique_ptr<engine::Engine>> LoadDraftEngine(const DecodeOptions& decode,
                                                                engine::EngineOptions& worker) {
  if (decode.speculation.mode != SpeculationOptions::Mode::kDraft) return nullptr;
  const std::string& dir = decode.speculation.draft_model;
  const auto annotate = [&](const absl::Status& status) {
    return Annotate(status, absl::StrCat("--speculative draft:", dir));
  };
  if (!FileExists(dir)) {
    return annotate(MakeError(absl::StatusCode::kInvalidArgument, "DRAFT_MODEL",
                              "found none, expected a directory or a GGUF file"));
  }
  const auto config = model::ReadModelConfig(dir);
  if (!config.ok()) return annotate(config.status());
  const auto of_worker = model::ReadModelConfig(worker.model_dir);
  BATON_RETURN_IF_ERROR(of_worker.status());
  BATON_RETURN_IF_ERROR(CheckDraftModel(*config, *of_worker));
  const double share = decode.draft_gpu_memory_utilization;
  engine::EngineOptions draft = worker;
  draft.model_dir = dir;
  draft.generation_overrides.clear();
  draft.backend.gpu_memory_utilization = share;
  draft.backend.cuda.device_links = false;
  draft.experts_on_host = 0;
  draft.num_blocks = 0;
  draft.kv_cache_bytes = decode.draft_kv_bytes;
  draft.cpu_kv_cache_bytes = engine::EngineOptions::kCpuMtpKvBytes;
  if (draft.max_model_len > 0)
    draft.max_model_len = std::min(draft.max_model_len, config->max_positions);
  draft.max_num_batched_tokens = std::max(512, DraftModel::kMostMissing * draft.max_num_seqs);
  draft.share_kv_pool = false;
  draft.load_mtp_head = false;
  draft.progress = nullptr;
  auto engine = engine::Engine::Load(draft);
  if (ErrorReason(engine.status()) == "KV_POOL_SIZE") {
    return annotate(Annotate(engine.status(), "--draft-kv-memory"));
  }
  if (!engine.ok()) return annotate(engine.status());
  if ((*engine)->kv_pool().copier == nullptr) return *std::move(engine);
  double& of_device = worker.backend.gpu_memory_utilization;
  if (share >= of_device) {
    return InvalidField("BAD_OPTION", "--draft-gpu-memory-utilization",
                        absl::StrCat(share, " given, expected less than the ", of_device,
                                     " of --gpu-memory-utilization"));
  }
  of_device -= share;
  return *std::move(engine);
}

}  // namespace baton::decode_worker
