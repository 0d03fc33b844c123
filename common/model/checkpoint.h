// All tensors of a model: of a directory's one safetensors file or shards, or of one or more GGUF
// files.
#ifndef BATON_COMMON_MODEL_CHECKPOINT_H_
#define BATON_COMMON_MODEL_CHECKPOINT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/tensor_file.h"

namespace baton::model {

struct StoredTensor {
  const TensorFile* file = nullptr;
  const TensorEntry* entry = nullptr;
};

class Checkpoint {
 public:
  // Opens the GGUF file that `model_dir` names, or the directory's model.safetensors or, where that
  // is missing, the shards that model.safetensors.index.json names. NOT_FOUND if there is none.
  // INVALID_ARGUMENT if a file is invalid, a shard is not in the directory, or the index and the
  // headers do not name the same tensors.
  static absl::StatusOr<Checkpoint> Open(const std::string& model_dir);

  // Null if there is no such tensor.
  const StoredTensor* Find(absl::string_view name) const;
  const absl::flat_hash_map<std::string, StoredTensor>& tensors() const { return tensors_; }
  // Hashes the headers and a few bytes of each tensor: fine-tunes of one base have equal headers.
  // The name of a GGUF file does not count, and neither does how a model is split into such files.
  uint64_t Fingerprint() const;
  // Path of the file or index, for messages: "DIR/model.safetensors" or
  // "DIR/model.safetensors.index.json".
  const std::string& path() const { return path_; }
  bool is_gguf() const;
  uint64_t size_bytes() const;

 private:
  absl::Status OpenShards(const std::string& model_dir);
  void AddTensorsOf(const TensorFile& file);

  std::string path_;
  std::vector<std::unique_ptr<TensorFile>> files_;  // by name, or as GGUF's parts follow
  absl::flat_hash_map<std::string, StoredTensor> tensors_;
};

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_CHECKPOINT_H_
