// Reads quantised checkpoints: their config, and their tensors in the one form that devices take
// (backend::QuantizedHostMatrix). Four formats, as published:
//
// - GPTQ (AutoGPTQ, GPTQModel): qweight I32 [cols * bits / 32, rows], qzeros I32 [groups,
//   rows * bits / 32], scales [groups, rows], g_idx I32 [cols] (may be missing: columns in order).
//   Zero points are stored less one, except with checkpoint_format "gptq_v2".
// - GGUF: blocks of Q4_0, Q8_0 or MXFP4, see gguf_blocks.h.
// - MXFP4 (gpt-oss), of experts alone: fused_experts.h.
// - AWQ (AutoAWQ's "gemm"): qweight I32 [cols, rows / 8] and qzeros I32 [groups, rows / 8], whose
//   eight nibbles, from the lowest, are rows 0, 2, 4, 6, 1, 3, 5, 7; scales [groups, rows].
#ifndef BATON_COMMON_MODEL_QUANTIZATION_H_
#define BATON_COMMON_MODEL_QUANTIZATION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/backend/cpu/thread_pool.h"
#include "common/backend/tensor.h"
#include "common/model/checkpoint.h"
#include "common/model/fused_experts.h"
#include "common/model/json_fields.h"
#include "common/model/model_config.h"

namespace baton::model {

// Returns config.json's quantization_config; nullopt if there is none. UNIMPLEMENTED for other
// methods, bits and layouts, naming the field.
absl::StatusOr<std::optional<WeightQuantization>> ParseQuantization(const JsonFields& config);

// Marks the matrices of the model that are quantised: those with a qweight in the checkpoint.
// UNIMPLEMENTED if only some of the matrices that are multiplied as one (q, k and v; gate and up)
// are quantised. In a GGUF file, those whose blocks have the model's bits, if all that are
// multiplied as one do; other blocks are the device's to keep or to have dequantised at load.
absl::Status FindQuantizedMatrices(const Checkpoint& checkpoint, ModelConfig* model);

// True if `name` is a zero bias, which some quantisers write for modules without a bias.
bool IsZeroBias(const Checkpoint& checkpoint, absl::string_view name);

// The tensors of one matrix W [rows, cols] in a file, at any alignment.
struct QuantizedTensors {
  absl::string_view qweight, qzeros, scales;
  absl::string_view g_idx;  // empty: absent
  backend::DType scale_dtype = backend::DType::kF16;
};
struct QuantizedShapes {
  std::vector<uint64_t> qweight, qzeros, scales, g_idx;
};
// INVALID_ARGUMENT if such a matrix cannot be packed in whole words and groups.
// REQUIRES: rows, cols > 0.
absl::StatusOr<QuantizedShapes> QuantizedShapesOf(const WeightQuantization& quantization,
                                                  int64_t rows, int64_t cols);

// Owns what the view points to.
class QuantizedWeights {
 public:
  // REQUIRES: the tensors have the shapes of QuantizedShapesOf. INVALID_ARGUMENT for a scale that
  // is no number or a group that does not exist; UNIMPLEMENTED for groups of other sizes.
  static absl::StatusOr<QuantizedWeights> Unpack(const WeightQuantization& quantization,
                                                 int64_t rows, int64_t cols,
                                                 const QuantizedTensors& tensors);
  // REQUIRES: `entry` is a matrix of Q4_0, Q8_0 or MXFP4. INVALID_ARGUMENT for a scale that is no
  // number, or an exponent above kMxfp4MaxExponent.
  static absl::StatusOr<QuantizedWeights> FromBlocks(const TensorFile& file,
                                                     const TensorEntry& entry);
  // REQUIRES: the tensors have part's shapes and are bytes. INVALID_ARGUMENT for an exponent above
  // kMxfp4MaxExponent.
  static absl::StatusOr<QuantizedWeights> FromMxfp4(const FusedPart& part,
                                                    const StoredTensor& blocks,
                                                    const StoredTensor& scales);
  // Rounds W to `bits` of 4 or 8, symmetric, in groups of kRoundedGroup columns. Of 8 bits, a value
  // is off by at most half a scale, and the scale is the largest magnitude / 127, rounded up to
  // float16. Of 4 bits, the scale is the one of a few, spread around the largest magnitude / 8,
  // with the least sum of squared errors. INVALID_ARGUMENT for a value that is no finite number or
  // that needs a scale beyond float16. REQUIRES: cols * bits are whole bytes.
  static constexpr int kRoundedGroup = 32;
  static absl::StatusOr<QuantizedWeights> Round(const backend::HostMatrix& matrix, int bits,
                                                backend::ThreadPool& pool);
  backend::QuantizedHostMatrix view() const;

 private:
  static QuantizedWeights EmptyFp4(int64_t rows, int64_t cols);
  static absl::StatusOr<QuantizedWeights> FromMxfp4Blocks(const TensorFile& file,
                                                          const TensorEntry& entry);
  absl::Status SetOrder(absl::string_view g_idx, bool may_differ);
  void Reorder();

  backend::QuantizedHostMatrix matrix_;  // without the pointers
  std::vector<uint32_t> values_;
  std::vector<uint16_t> scales_, zeros_;
  std::vector<int32_t> order_;  // empty: in order
};

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_QUANTIZATION_H_
