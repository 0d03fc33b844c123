#include "common/model/weights.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "common/backend/quantized.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/gguf/documents.h"
#include "common/json/json.h"
#include "common/model/convert.h"
#include "common/model/gguf_blocks.h"
#include "common/model/gguf_tensors.h"
#include "common/model/quantization.h"

namespace baton::model {
namespace {

using backend::Buffer;
using backend::DType;
using backend::HostMatrix;
using backend::PackedMatrix;
using backend::QuantizedHostMatrix;

// Of one of the model's layers; some checkpoints append more, for speculation.
bool InALayer(absl::string_view name, size_t layer_count) {
  if (!absl::ConsumePrefix(&name, "model.layers.")) return false;
  size_t layer = 0;
  return absl::SimpleAtoi(name.substr(0, name.find('.')), &layer) && layer < layer_count;
}

// A tensor in the form that backends take: in the file, or converted.
struct TakenMatrix {
  TakenMatrix() = default;
  TakenMatrix(TakenMatrix&&) = default;  // keeps what `matrix` points to, as a copy would not
  HostMatrix matrix;
  uint64_t file_bytes = 0;
  std::vector<char> converted;  // what `matrix` points to, if it is not in the file
};

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
        bytes_total_(bytes_total) {}

  // Matrices of `cols` columns, given by name and rows, stacked into one.
  struct Part {
    std::string name;
    int64_t rows;
  };
  // Quantised: names are those of float matrices, "….weight", all the same.
  absl::StatusOr<std::unique_ptr<PackedMatrix>> Matrix(absl::Span<const Part> parts, int64_t cols,
                                                       bool quantized) {
    return Matrix(parts, cols, quantized, load_bits_);
  }
  absl::StatusOr<std::unique_ptr<PackedMatrix>> LmHead(const Part& part, int64_t cols,
                                                       bool quantized) {
    return Matrix({part}, cols, quantized, load_bits_ == 0 ? 0 : kLmHeadLoadBits);
  }
  // Vectors one behind the other, as f32.
  absl::StatusOr<std::unique_ptr<Buffer>> Vector(absl::Span<const Part> parts);
  absl::Status Embedding(const std::string& name, int64_t rows, int64_t cols, Weights* weights);

  // After the last tensor: what is left over, and what was lost.
  absl::Status CheckLeftOver(const ModelConfig& config) const;
  void LogLoss() const;

 private:
  // The tensor, if it has this shape.
  absl::StatusOr<const StoredTensor*> Find(const std::string& name,
                                           absl::Span<const uint64_t> shape);
  absl::StatusOr<TakenMatrix> Take(const std::string& name, absl::Span<const uint64_t> shape);
  absl::StatusOr<absl::string_view> TakeWords(const std::string& name,
                                              absl::Span<const uint64_t> shape);
  absl::StatusOr<QuantizedWeights> TakeQuantized(const Part& part, int64_t cols);
  absl::StatusOr<std::unique_ptr<PackedMatrix>> Matrix(absl::Span<const Part> parts, int64_t cols,
                                                       bool quantized, int load_bits);
  absl::StatusOr<std::unique_ptr<PackedMatrix>> Quantized(absl::Span<const Part> parts,
                                                          int64_t cols);
  absl::StatusOr<std::unique_ptr<PackedMatrix>> Rounded(absl::Span<const HostMatrix> stacked,
                                                        absl::Span<const Part> parts, int bits);
  void CountOverflows(const QuantizedHostMatrix& matrix);
  void Report(uint64_t size_bytes);

  const Checkpoint& checkpoint_;
  const std::optional<WeightQuantization>& quantization_;
  const int load_bits_;
  const std::function<void(double)>& progress_;
  backend::Backend& backend_;
  const uint64_t bytes_total_;
  absl::flat_hash_set<std::string> taken_;
  RoundingLoss loss_;
  DType loss_from_ = DType::kF32;
  uint64_t bytes_done_ = 0;
  uint64_t quantized_file_bytes_ = 0;
  int64_t quantized_device_bytes_ = 0;
  uint64_t block_file_bytes_ = 0;
  uint64_t block_memory_bytes_ = 0;
  int64_t rounded_from_bytes_ = 0;
  int64_t rounded_bytes_ = 0;
};

absl::StatusOr<const StoredTensor*> WeightLoader::Find(const std::string& name,
                                                       absl::Span<const uint64_t> shape) {
  const StoredTensor* stored = checkpoint_.Find(name);
  if (stored == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        checkpoint_.path(), ": ", name, ": found nothing, expected shape ", ShapeText(shape)));
  }
  const TensorEntry& entry = *stored->entry;
  if (absl::MakeConstSpan(entry.shape) != shape) {
    return absl::InvalidArgumentError(absl::StrCat(stored->file->path(), ": ", name,
                                                   ": found shape ", ShapeText(entry.shape),
                                                   ", expected ", ShapeText(shape)));
  }
  BATON_RETURN_IF_ERROR(stored->file->CheckUnchanged());
  taken_.insert(name);
  return stored;
}

absl::Status WrongDType(const StoredTensor& stored, absl::string_view expected) {
  return absl::UnimplementedError(absl::StrCat(stored.file->path(), ": ", stored.entry->name,
                                               ": found dtype ", stored.entry->dtype, ", expected ",
                                               expected));
}

absl::StatusOr<TakenMatrix> WeightLoader::Take(const std::string& name,
                                               absl::Span<const uint64_t> shape) {
  BATON_ASSIGN_OR_RETURN(const StoredTensor* stored, Find(name, shape));
  const TensorEntry& entry = *stored->entry;
  const bool in_blocks = entry.blocks != nullptr && shape.size() == 2;
  if (!entry.weight_dtype && !in_blocks) {
    return WrongDType(*stored, shape.size() == 2 && checkpoint_.is_gguf()
                                   ? absl::StrCat("F32, BF16, F16, ", kBlockFormatNames)
                                   : "F32, BF16 or F16");
  }
  TakenMatrix taken;
  taken.file_bytes = entry.end - entry.begin;
  taken.matrix.rows = static_cast<int64_t>(shape[0]);
  taken.matrix.cols = shape.size() == 1 ? 1 : static_cast<int64_t>(shape[1]);
  if (NeedsConversion(entry)) {
    BATON_ASSIGN_OR_RETURN(
        ConvertedMatrix converted,
        ConvertMatrix(*stored->file, entry, backend_.activation_dtype(), &loss_));
    taken.converted = std::move(converted.values);
    if (in_blocks) {
      block_file_bytes_ += taken.file_bytes;
      block_memory_bytes_ += taken.converted.size();
    }
    taken.matrix.data = taken.converted.data();
    taken.matrix.dtype = converted.dtype;
  } else {
    taken.matrix.data = stored->file->Bytes(entry).data();
    taken.matrix.dtype = *entry.weight_dtype;
  }
  return taken;
}

absl::StatusOr<absl::string_view> WeightLoader::TakeWords(const std::string& name,
                                                          absl::Span<const uint64_t> shape) {
  BATON_ASSIGN_OR_RETURN(const StoredTensor* stored, Find(name, shape));
  if (stored->entry->dtype != "I32") return WrongDType(*stored, "I32");
  return stored->file->Bytes(*stored->entry);
}

void WeightLoader::Report(uint64_t size_bytes) {
  bytes_done_ += size_bytes;
  if (!progress_) return;
  const double total = static_cast<double>(std::max<uint64_t>(bytes_total_, 1));
  progress_(std::min(1.0, static_cast<double>(bytes_done_) / total));
}

absl::StatusOr<QuantizedWeights> WeightLoader::TakeQuantized(const Part& part, int64_t cols) {
  if (quantization_->format == WeightQuantization::Format::kGguf) {
    BATON_ASSIGN_OR_RETURN(
        const StoredTensor* stored,
        Find(part.name, {static_cast<uint64_t>(part.rows), static_cast<uint64_t>(cols)}));
    const uint64_t size_bytes = stored->entry->end - stored->entry->begin;
    quantized_file_bytes_ += size_bytes;
    Report(size_bytes);
    return QuantizedWeights::FromBlocks(*stored->file, *stored->entry);
  }
  const std::string module(absl::StripSuffix(part.name, "weight"));
  const auto shapes = QuantizedShapesOf(*quantization_, part.rows, cols);
  if (!shapes.ok())
    return Annotate(shapes.status(), absl::StrCat(checkpoint_.path(), ": ", module));
  QuantizedTensors tensors;
  BATON_ASSIGN_OR_RETURN(tensors.qweight, TakeWords(module + "qweight", shapes->qweight));
  BATON_ASSIGN_OR_RETURN(tensors.qzeros, TakeWords(module + "qzeros", shapes->qzeros));
  BATON_ASSIGN_OR_RETURN(const StoredTensor* scales, Find(module + "scales", shapes->scales));
  if (!scales->entry->weight_dtype || scales->entry->weight_dtype == DType::kF32) {
    return WrongDType(*scales, "F16 or BF16");
  }
  tensors.scales = scales->file->Bytes(*scales->entry);
  tensors.scale_dtype = *scales->entry->weight_dtype;
  if (checkpoint_.Find(module + "g_idx") != nullptr) {
    BATON_ASSIGN_OR_RETURN(tensors.g_idx, TakeWords(module + "g_idx", shapes->g_idx));
  }
  auto weights = QuantizedWeights::Unpack(*quantization_, part.rows, cols, tensors);
  if (!weights.ok()) {
    return Annotate(weights.status(), absl::StrCat(checkpoint_.path(), ": ", module));
  }
  const uint64_t size_bytes =
      tensors.qweight.size() + tensors.qzeros.size() + tensors.scales.size() + tensors.g_idx.size();
  quantized_file_bytes_ += size_bytes;
  Report(size_bytes);
  return weights;
}

// Rows with a scale that could bring a value beyond float16.
void WeightLoader::CountOverflows(const QuantizedHostMatrix& matrix) {
  const DType target = backend_.activation_dtype();
  if (target != DType::kF16) return;
  const auto groups = static_cast<size_t>(matrix.groups());
  std::vector<float> scales(groups), row(static_cast<size_t>(matrix.cols));
  const float least = 65504.0f / static_cast<float>(1 << matrix.bits);
  for (int64_t r = 0; r < matrix.rows; ++r) {
    ToF32(matrix.scales + r * matrix.groups(), matrix.scale_dtype, groups, scales.data());
    if (std::none_of(scales.begin(), scales.end(),
                     [&](float scale) { return std::fabs(scale) > least; })) {
      continue;
    }
    backend::DequantizeRow(matrix, r, row.data());
    loss_from_ = matrix.scale_dtype;
    CountLoss(row.data(), DType::kF32, target, row.size(), &loss_);
  }
}

absl::StatusOr<std::unique_ptr<PackedMatrix>> WeightLoader::Quantized(absl::Span<const Part> parts,
                                                                      int64_t cols) {
  std::vector<QuantizedWeights> weights;
  std::vector<QuantizedHostMatrix> stacked;
  for (const Part& part : parts) {
    BATON_ASSIGN_OR_RETURN(QuantizedWeights each, TakeQuantized(part, cols));
    weights.push_back(std::move(each));
    stacked.push_back(weights.back().view());
    CountOverflows(stacked.back());
    if (stacked.back().scale_dtype == stacked[0].scale_dtype) continue;
    return absl::UnimplementedError(absl::StrCat(
        checkpoint_.path(), ": ", part.name, ": found scales in ",
        backend::Name(stacked.back().scale_dtype), ", expected ",
        backend::Name(stacked[0].scale_dtype), ", as ", parts[0].name, " has, multiplied as one"));
  }
  auto packed = backend_.PackQuantized(stacked);
  if (!packed.ok()) return Annotate(packed.status(), parts[0].name);
  quantized_device_bytes_ += (*packed)->size_bytes();
  return packed;
}

absl::StatusOr<std::unique_ptr<PackedMatrix>> WeightLoader::Rounded(
    absl::Span<const HostMatrix> stacked, absl::Span<const Part> parts, int bits) {
  std::vector<QuantizedWeights> weights;
  std::vector<QuantizedHostMatrix> views;
  for (size_t i = 0; i < stacked.size(); ++i) {
    auto each = QuantizedWeights::Round(stacked[i], bits);
    if (!each.ok()) {
      return Annotate(each.status(), absl::StrCat(checkpoint_.path(), ": ", parts[i].name));
    }
    rounded_from_bytes_ +=
        stacked[i].rows * stacked[i].cols * static_cast<int64_t>(backend::SizeOf(stacked[i].dtype));
    weights.push_back(*std::move(each));
    views.push_back(weights.back().view());
  }
  auto packed = backend_.PackQuantized(views);
  if (packed.ok()) rounded_bytes_ += (*packed)->size_bytes();
  return packed;
}

absl::StatusOr<std::unique_ptr<PackedMatrix>> WeightLoader::Matrix(absl::Span<const Part> parts,
                                                                   int64_t cols, bool quantized,
                                                                   int load_bits) {
  if (quantized) return Quantized(parts, cols);
  std::vector<TakenMatrix> taken;
  std::vector<HostMatrix> stacked;
  const DType target = backend_.activation_dtype();
  for (const Part& part : parts) {
    BATON_ASSIGN_OR_RETURN(TakenMatrix each, Take(part.name, {static_cast<uint64_t>(part.rows),
                                                              static_cast<uint64_t>(cols)}));
    const HostMatrix& matrix = each.matrix;
    if (load_bits == 0) {
      if (matrix.dtype != target && target != DType::kF32) loss_from_ = matrix.dtype;
      CountLoss(matrix.data, matrix.dtype, target, static_cast<size_t>(matrix.rows * matrix.cols),
                &loss_);
    }
    stacked.push_back(matrix);
    taken.push_back(std::move(each));
  }
  auto packed = load_bits == 0 ? backend_.Pack(stacked) : Rounded(stacked, parts, load_bits);
  if (!packed.ok()) return Annotate(packed.status(), parts[0].name);
  for (const TakenMatrix& each : taken) Report(each.file_bytes);
  return packed;
}

absl::StatusOr<std::unique_ptr<Buffer>> WeightLoader::Vector(absl::Span<const Part> parts) {
  std::vector<float> values;
  for (const Part& part : parts) {
    BATON_ASSIGN_OR_RETURN(const TakenMatrix taken,
                           Take(part.name, {static_cast<uint64_t>(part.rows)}));
    const size_t begin = values.size();
    values.resize(begin + static_cast<size_t>(part.rows));
    ToF32(taken.matrix.data, taken.matrix.dtype, static_cast<size_t>(part.rows), &values[begin]);
    Report(taken.file_bytes);
  }
  const size_t size_bytes = values.size() * sizeof(float);
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> buffer, backend_.Allocate(size_bytes));
  backend_.CopyToDevice(buffer->data(), values.data(), size_bytes);
  return buffer;
}

// As the file has it, unless it is in blocks: no value is lost, and no memory.
absl::Status WeightLoader::Embedding(const std::string& name, int64_t rows, int64_t cols,
                                     Weights* weights) {
  BATON_ASSIGN_OR_RETURN(const TakenMatrix taken,
                         Take(name, {static_cast<uint64_t>(rows), static_cast<uint64_t>(cols)}));
  const HostMatrix& matrix = taken.matrix;
  const size_t size_bytes = static_cast<size_t>(rows * cols) * backend::SizeOf(matrix.dtype);
  auto memory = backend_.Allocate(size_bytes);
  if (!memory.ok()) return Annotate(memory.status(), name);
  weights->embedding_memory = *std::move(memory);
  weights->embedding = {weights->embedding_memory->data(), matrix.dtype, rows, cols, cols};
  backend_.CopyToDevice(weights->embedding.data, matrix.data, size_bytes);
  Report(taken.file_bytes);
  return absl::OkStatus();
}

absl::Status WeightLoader::CheckLeftOver(const ModelConfig& config) const {
  std::string first_unknown;
  int unknown_count = 0;
  for (const auto& [name, stored] : checkpoint_.tensors()) {
    if (taken_.contains(name)) continue;
    if (absl::EndsWith(name, "rotary_emb.inv_freq")) continue;         // follows from the config
    if (name == gguf::kRopeFactorsName) continue;                      // read with the config
    if (name == "lm_head.weight" && config.tied_embeddings) continue;  // a copy of the embedding
    if (IsZeroBias(checkpoint_, name)) continue;
    if (InALayer(name, config.layers.size()) &&
        (absl::EndsWith(name, ".bias") || absl::EndsWith(name, "norm.weight"))) {
      return absl::UnimplementedError(
          absl::StrCat(stored.file->path(), ": found ", json::Quoted(name),
                       ", expected no such tensor in ", config.architecture));
    }
    if (unknown_count++ == 0 || name < first_unknown) first_unknown = name;
  }
  if (unknown_count > 0) {
    BATON_LOG(Warning) << checkpoint_.path() << ": left out " << unknown_count << " tensors that "
                       << config.architecture << " does not have, e.g. "
                       << json::Quoted(first_unknown);
  }
  return absl::OkStatus();
}

void WeightLoader::LogLoss() const {
  if (quantized_file_bytes_ > 0) {
    BATON_LOG(Info) << checkpoint_.path() << ": " << quantization_->bits << "-bit weights of "
                    << (quantized_file_bytes_ >> 20) << " MiB take "
                    << (quantized_device_bytes_ >> 20) << " MiB on this device";
  }
  if (block_file_bytes_ > 0) {
    BATON_LOG(Info) << checkpoint_.path() << ": blocks of " << (block_file_bytes_ >> 20)
                    << " MiB become " << (block_memory_bytes_ >> 20) << " MiB of "
                    << backend::Name(backend_.activation_dtype());
  }
  if (rounded_bytes_ > 0) {
    BATON_LOG(Info) << checkpoint_.path() << ": weights of " << (rounded_from_bytes_ >> 20)
                    << " MiB, rounded to " << load_bits_ << " bits (the LM head to "
                    << kLmHeadLoadBits << "), take " << (rounded_bytes_ >> 20)
                    << " MiB on this device";
  }
  if (loss_.inexact == 0) return;
  const char* target = backend::Name(backend_.activation_dtype());
  BATON_LOG(Warning) << checkpoint_.path() << ": weights are " << backend::Name(loss_from_)
                     << ", this device multiplies " << target << ": " << loss_.inexact << " of "
                     << loss_.values << " values lose low bits";
  if (loss_.overflows == 0) return;
  BATON_LOG(Error) << checkpoint_.path() << ": " << loss_.overflows << " of " << loss_.values
                   << " weights are beyond what " << target
                   << " holds and become infinite: requests that meet them fail with "
                      "NON_FINITE_LOGITS; expected another --dtype";
}

absl::StatusOr<LayerWeights> LoadLayer(const LayerSpec& spec, int layer, int64_t d,
                                       WeightLoader& loader) {
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");
  const std::string attention = absl::StrCat(prefix, "self_attn.");
  const std::string mlp = absl::StrCat(prefix, "mlp.");
  const int64_t q_rows = int64_t{spec.query_heads} * spec.head_dim;
  const int64_t kv_rows = int64_t{spec.kv_heads} * spec.head_dim;
  const auto qkv_parts = [&](const char* kind) {
    return std::vector<WeightLoader::Part>{{absl::StrCat(attention, "q_proj.", kind), q_rows},
                                           {absl::StrCat(attention, "k_proj.", kind), kv_rows},
                                           {absl::StrCat(attention, "v_proj.", kind), kv_rows}};
  };
  LayerWeights weights;
  BATON_ASSIGN_OR_RETURN(weights.attention_norm,
                         loader.Vector({{absl::StrCat(prefix, "input_layernorm.weight"), d}}));
  BATON_ASSIGN_OR_RETURN(weights.qkv, loader.Matrix(qkv_parts("weight"), d, spec.quantized.qkv));
  if (spec.qkv_bias) {
    BATON_ASSIGN_OR_RETURN(weights.qkv_bias, loader.Vector(qkv_parts("bias")));
  }
  if (spec.qk_norm) {
    BATON_ASSIGN_OR_RETURN(
        weights.q_norm, loader.Vector({{absl::StrCat(attention, "q_norm.weight"), spec.head_dim}}));
    BATON_ASSIGN_OR_RETURN(
        weights.k_norm, loader.Vector({{absl::StrCat(attention, "k_norm.weight"), spec.head_dim}}));
  }
  BATON_ASSIGN_OR_RETURN(weights.attention_output,
                         loader.Matrix({{absl::StrCat(attention, "o_proj.weight"), d}}, q_rows,
                                       spec.quantized.attention_output));
  BATON_ASSIGN_OR_RETURN(
      weights.ffn_norm,
      loader.Vector({{absl::StrCat(prefix, "post_attention_layernorm.weight"), d}}));
  BATON_ASSIGN_OR_RETURN(weights.gate_up,
                         loader.Matrix({{absl::StrCat(mlp, "gate_proj.weight"), spec.ffn_dim},
                                        {absl::StrCat(mlp, "up_proj.weight"), spec.ffn_dim}},
                                       d, spec.quantized.gate_up));
  BATON_ASSIGN_OR_RETURN(weights.down, loader.Matrix({{absl::StrCat(mlp, "down_proj.weight"), d}},
                                                     spec.ffn_dim, spec.quantized.down));
  return weights;
}

}  // namespace

std::optional<DType> EmbeddingDType(const Checkpoint& checkpoint, DType activation) {
  const StoredTensor* embedding = checkpoint.Find(kEmbeddingName);
  if (embedding == nullptr) return std::nullopt;
  if (embedding->entry->blocks != nullptr) return activation;
  return embedding->entry->weight_dtype.value_or(DType::kF32);
}

absl::StatusOr<Weights> LoadWeights(const Checkpoint& checkpoint, const ModelConfig& config,
                                    const std::function<void(double)>& progress,
                                    backend::Backend& backend) {
  const StoredTensor* embedding = checkpoint.Find(kEmbeddingName);
  const bool twice = config.tied_embeddings && embedding != nullptr;
  WeightLoader loader(
      checkpoint, config, progress,
      checkpoint.size_bytes() + (twice ? embedding->entry->end - embedding->entry->begin : 0),
      backend);
  Weights weights;
  BATON_RETURN_IF_ERROR(
      loader.Embedding(kEmbeddingName, config.vocab_size, config.hidden_dim, &weights));
  for (size_t i = 0; i < config.layers.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(LayerWeights layer, LoadLayer(config.layers[i], static_cast<int>(i),
                                                         config.hidden_dim, loader));
    weights.layers.push_back(std::move(layer));
  }
  BATON_ASSIGN_OR_RETURN(weights.final_norm,
                         loader.Vector({{"model.norm.weight", config.hidden_dim}}));
  BATON_ASSIGN_OR_RETURN(
      weights.lm_head,
      loader.LmHead({config.tied_embeddings ? kEmbeddingName : "lm_head.weight", config.vocab_size},
                    config.hidden_dim, config.lm_head_quantized));
  BATON_RETURN_IF_ERROR(loader.CheckLeftOver(config));
  loader.LogLoss();
  if (progress) progress(1);
  return weights;
}

}  // namespace baton::model
