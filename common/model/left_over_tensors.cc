#include "common/model/left_over_tensors.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/gguf/documents.h"
#include "common/json/json.h"
#include "common/model/model_tensors.h"
#include "common/model/quantization.h"

namespace baton::model {
namespace {

// Tensors that nothing reads; `first` by name, as no message depends on an order in memory.
struct LeftOut {
  int count = 0;
  std::string first;

  void Add(const std::string& name) {
    if (count++ == 0 || name < first) first = name;
  }
};

}  // namespace

absl::Status CheckLeftOver(const Checkpoint& checkpoint, const ModelConfig& config,
                           const absl::flat_hash_set<std::string>& taken) {
  const TensorNames names(config, checkpoint);
  const int layers = static_cast<int>(config.layers.size());
  LeftOut unknown, for_speculation;
  for (const auto& [name, stored] : checkpoint.tensors()) {
    if (taken.contains(name)) continue;
    // Those of a head that is loaded are left over by its own loading.
    const bool of_head = config.loads_mtp && IsOfMtpHead(config, name);
    if (of_head != config.is_mtp_head) continue;
    if (absl::EndsWith(name, "rotary_emb.inv_freq")) continue;  // follows from the config
    // Read with the config.
    if (name == gguf::kRopeFactorsName) continue;
    if (config.original_positions > 0 && absl::StartsWith(name, "rope_factors_")) continue;
    if (config.tied_embeddings && name == absl::StrCat(names.own_lm_head(), ".weight")) continue;
    if (IsZeroBias(checkpoint, name)) continue;
    const int layer = names.LayerOf(name);
    if (names.IsOfSharedKv(config, layer, name)) continue;
    if (layer >= 0 && layer < layers &&
        (absl::EndsWith(name, ".bias") || absl::EndsWith(name, "norm.weight"))) {
      return absl::UnimplementedError(
          absl::StrCat(stored.file->path(), ": found ", json::Quoted(name),
                       ", expected no such tensor in ", config.architecture));
    }
    // Multi-token prediction, as "mtp." or in layers behind the last one.
    (layer >= layers || absl::StartsWith(name, "mtp.") ? for_speculation : unknown).Add(name);
  }
  if (for_speculation.count > 0) {
    BATON_LOG(Info) << checkpoint.path() << ": left out " << for_speculation.count
                    << " tensors of layers for speculation (multi-token prediction), e.g. "
                    << json::Quoted(for_speculation.first) << ": no answer depends on them";
  }
  if (unknown.count > 0) {
    BATON_LOG(Warning) << checkpoint.path() << ": left out " << unknown.count << " tensors that "
                       << config.architecture << " does not have, e.g. "
                       << json::Quoted(unknown.first);
  }
  return absl::OkStatus();
}

}  // namespace baton::model
