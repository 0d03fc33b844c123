// The tensors of a GGUF model.
#ifndef BATON_COMMON_MODEL_GGUF_TENSORS_H_
#define BATON_COMMON_MODEL_GGUF_TENSORS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/backend/tensor.h"
#include "common/model/convert.h"
#include "common/model/tensor_file.h"

namespace baton::model {

// The model's files, in their order. Errors as gguf::File::Open, and for rows of q and k that do
// not fit the heads.
absl::StatusOr<std::vector<std::unique_ptr<TensorFile>>> OpenGgufTensors(const std::string& path);

// A matrix or vector whose file has other values or another order of rows than a backend takes.
struct ConvertedMatrix {
  std::vector<char> values;  // row-major
  backend::DType dtype = backend::DType::kF32;
};

inline bool NeedsConversion(const TensorEntry& entry) {
  return entry.blocks != nullptr || entry.interleaved_heads > 0;
}

// Blocks become the values of `target` that are nearest to their float32 values; other types stay.
// Rows are put in Transformers' order. INVALID_ARGUMENT, naming the tensor, for values that are not
// finite. Adds values that `target` cannot hold to `loss`.
// REQUIRES: NeedsConversion(entry); it has a weight_dtype or blocks; blocks are of a matrix.
absl::StatusOr<ConvertedMatrix> ConvertMatrix(const TensorFile& file, const TensorEntry& entry,
                                              backend::DType target, RoundingLoss* loss);

// The matrix as super-blocks, which it reads from the file: `file` and `entry` outlive it.
// INVALID_ARGUMENT, naming the tensor, for scales that are no finite numbers.
// REQUIRES: entry.blocks->split; it is a matrix.
absl::StatusOr<backend::SuperBlockHostMatrix> SuperBlocksOf(const TensorFile& file,
                                                            const TensorEntry& entry);

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_GGUF_TENSORS_H_
