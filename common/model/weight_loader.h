// Takes the tensors of a checkpoint one after the other and packs them for a device.
#ifndef BATON_COMMON_MODEL_WEIGHT_LOADER_H_
#define BATON_COMMON_MODEL_WEIGHT_LOADER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/backend/backend.h"
#include "common/base/check.h"
#include "common/model/checkpoint.h"
#include "common/model/convert.h"
#include "common/model/fused_experts.h"
#include "common/model/gated_range.h"
#include "common/model/model_config.h"
#include "common/model/quantization.h"
#include "common/model/weights.h"

namespace baton::model {

// A tensor in the form that backends take: in the file, or converted.
struct TakenMatrix {
  TakenMatrix() = default;
  TakenMatrix(TakenMatrix&&) = default;  // keeps what `matrix` points to, as a copy would not
  backend::HostMatrix matrix;
  uint64_t file_bytes = 0;
  std::vector<char> converted;  // what `matrix` points to, if it is not in the file
};

// The errors are those of LoadWeights. Thread: owned by one.
class WeightLoader {
 public:
  // `bytes_total`: those of all that will be asked for.
  WeightLoader(const Checkpoint& checkpoint, const ModelConfig& config,
               const std::function<void(double)>& progress, uint64_t bytes_total,
               backend::Backend& backend)
      : checkpoint_(checkpoint),
        quantization_(config.quantization),
        load_bits_(config.load_bits),
        progress_(progress),
        backend_(backend),
        packer_(&backend),
        bytes_total_(bytes_total) {}

  // Matrices of `cols` columns, given by name and rows, stacked into one.
  struct Part {
    std::string name;
    int64_t rows;
  };
  // Quantised: names are those of float matrices, "….weight", all the same. The parts are added to
  // `range`, if there is one: REQUIRES needs_range().
  absl::StatusOr<std::unique_ptr<backend::PackedMatrix>> Matrix(absl::Span<const Part> parts,
                                                                int64_t cols, bool quantized,
                                                                GatedRange* range = nullptr) {
    return Matrix(parts, cols, quantized, load_bits_, range);
  }
  // The same, of the activations' type whatever ModelConfig::load_bits is.
  absl::StatusOr<std::unique_ptr<backend::PackedMatrix>> UnroundedMatrix(
      absl::Span<const Part> parts, int64_t cols, bool quantized) {
    return Matrix(parts, cols, quantized, 0, nullptr);
  }
  // The matrix of a product with turns. UNIMPLEMENTED if it has few bits.
  absl::StatusOr<std::unique_ptr<backend::PackedMatrix>> MatrixInTurns(const Part& part,
                                                                       const ProductSpec& product);
  // Whether the matrices that follow, of experts, are packed in the host's memory. REQUIRES: the
  // backend has a host_packer().
  void PackOnHost(bool on_host) {
    packer_ = on_host ? backend_.host_packer() : &backend_;
    BATON_CHECK(packer_ != nullptr);
  }
  // Whether values can leave the range of the activations' type.
  bool needs_range() const { return backend_.activation_dtype() == backend::DType::kF16; }
  absl::StatusOr<std::unique_ptr<backend::PackedMatrix>> LmHead(const Part& part, int64_t cols,
                                                                bool quantized) {
    return Matrix({part}, cols, quantized, load_bits_ == 0 ? 0 : kLmHeadLoadBits, nullptr);
  }
  absl::StatusOr<std::unique_ptr<backend::PackedMatrix>> Router(const Part& part, int64_t cols);
  // router: the name of their router, for messages.
  absl::StatusOr<std::unique_ptr<backend::ExpertGroup>> Group(
      std::vector<backend::ExpertMatrices> experts, const backend::ExpertBiases& biases,
      absl::string_view router);
  // Loads one expert's matrix from the tensor that has those of all (fused_experts.h).
  absl::StatusOr<std::unique_ptr<backend::PackedMatrix>> FusedMatrix(const FusedPart& part,
                                                                     bool quantized,
                                                                     GatedRange* range);
  // The matrices of LatentSpec::expand, for each head: from one tensor or, where a GGUF file does
  // not have it, from two for each head.
  struct ExpanderNames {
    std::string all;
    std::function<std::string(int head)> keys, values;
  };
  struct ExpanderMatrices {
    std::unique_ptr<backend::PackedMatrix> keys, values;
  };
  absl::StatusOr<ExpanderMatrices> Expanders(const ExpanderNames& names, const LatentSpec& spec,
                                             int heads);
  // INVALID_ARGUMENT (MTP_HEAD_MISSING) if a head's tensor `copy` differs from the model's
  // `original`.
  absl::Status CheckCopy(const std::string& copy, const std::string& original);
  // A tensor [rows, cols] as f32.
  absl::StatusOr<std::vector<float>> Table(const std::string& name, int64_t rows, int64_t cols);
  // The weights of a convolution of each channel by itself, as f32 [taps, channels].
  absl::StatusOr<std::vector<float>> Taps(const std::string& name, int64_t channels, int64_t taps);
  // RecurrentSpec::decay. INVALID_ARGUMENT for a value that is not finite, or that does not decay.
  absl::StatusOr<std::unique_ptr<backend::Buffer>> Decay(const Part& part);
  // Vectors one behind the other, as f32.
  absl::StatusOr<std::unique_ptr<backend::Buffer>> Vector(absl::Span<const Part> parts);
  // INVALID_ARGUMENT for a value that is not finite.
  absl::StatusOr<std::unique_ptr<backend::Buffer>> FiniteVector(const Part& part);
  absl::StatusOr<std::vector<float>> FiniteFloats(const Part& part);
  // The weight of a norm, as it is multiplied with.
  absl::StatusOr<std::vector<float>> Norm(const std::string& name, const NormSpec& norm);
  absl::StatusOr<std::unique_ptr<backend::Buffer>> ToDevice(absl::Span<const float> values);
  // longest_row: becomes the length of the longest, unless it is null.
  absl::StatusOr<EmbeddingWeights> Embedding(const std::string& name, int64_t rows, int64_t cols,
                                             double* longest_row);

  // After the last tensor: the names of all that were read, and what was lost.
  const absl::flat_hash_set<std::string>& taken() const { return taken_; }
  void LogLoss() const;

 private:
  // The tensor, if it has this shape.
  absl::StatusOr<const StoredTensor*> Find(const std::string& name,
                                           absl::Span<const uint64_t> shape);
  // target: the type that blocks become.
  absl::StatusOr<TakenMatrix> Take(const std::string& name, absl::Span<const uint64_t> shape,
                                   backend::DType target);
  absl::StatusOr<absl::string_view> TakeWords(const std::string& name,
                                              absl::Span<const uint64_t> shape);
  absl::StatusOr<QuantizedWeights> TakeQuantized(const Part& part, int64_t cols);
  // A matrix as f32, [rows, cols], of few bits or not.
  absl::StatusOr<std::vector<float>> MatrixFloats(const Part& part, int64_t cols);
  // INVALID_ARGUMENT unless all values of the vector are finite.
  absl::Status CheckFinite(const Part& part, absl::Span<const float> values) const;
  // One behind the other.
  absl::StatusOr<std::vector<float>> Floats(absl::Span<const Part> parts);
  absl::StatusOr<std::unique_ptr<backend::PackedMatrix>> Matrix(absl::Span<const Part> parts,
                                                                int64_t cols, bool quantized,
                                                                int load_bits, GatedRange* range);
  absl::StatusOr<std::unique_ptr<backend::PackedMatrix>> Quantized(absl::Span<const Part> parts,
                                                                   int64_t cols, GatedRange* range);
  absl::StatusOr<std::unique_ptr<backend::PackedMatrix>> PackFloats(
      absl::Span<const backend::HostMatrix> stacked, absl::Span<const Part> parts, int load_bits,
      GatedRange* range);
  absl::StatusOr<std::unique_ptr<backend::PackedMatrix>> Rounded(
      absl::Span<const backend::HostMatrix> stacked, absl::Span<const Part> parts, int bits);
  // Matrices of which a file in GGUF has some in blocks, on a device that keeps them.
  bool KeepsBlocks(absl::Span<const Part> parts) const;
  absl::StatusOr<std::unique_ptr<backend::PackedMatrix>> InBlocks(absl::Span<const Part> parts,
                                                                  int64_t cols);
  void AddLoss(const backend::HostMatrix& matrix);
  void CountOverflows(const backend::QuantizedHostMatrix& matrix);
  void Report(uint64_t size_bytes);
  backend::ThreadPool& threads();

  const Checkpoint& checkpoint_;
  const std::optional<WeightQuantization>& quantization_;
  const int load_bits_;
  const std::function<void(double)>& progress_;
  backend::Backend& backend_;
  backend::MatrixPacker* packer_;
  const uint64_t bytes_total_;
  absl::flat_hash_set<std::string> taken_;
  RoundingLoss loss_;
  backend::DType loss_from_ = backend::DType::kF32;
  uint64_t bytes_done_ = 0;
  uint64_t quantized_file_bytes_ = 0;
  int64_t quantized_device_bytes_ = 0;
  uint64_t kept_file_bytes_ = 0;
  int64_t kept_bytes_ = 0;
  uint64_t block_file_bytes_ = 0;
  uint64_t block_memory_bytes_ = 0;
  std::optional<backend::ThreadPool> threads_;  // from their first use on
  int64_t rounded_from_bytes_ = 0;
  int64_t rounded_bytes_ = 0;
};

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_WEIGHT_LOADER_H_
