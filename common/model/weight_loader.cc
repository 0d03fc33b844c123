#include "common/model/weight_loader.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/backend/quantized.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/usable_cores.h"
#include "common/model/gguf_blocks.h"
#include "common/model/gguf_tensors.h"

namespace baton::model {
namespace {

using backend::AnyHostMatrix;
using backend::Buffer;
using backend::DType;
using backend::HostMatrix;
using backend::PackedMatrix;
using backend::QuantizedHostMatrix;

absl::Status WrongDType(const StoredTensor& stored, absl::string_view expected) {
  return absl::UnimplementedError(absl::StrCat(stored.file->path(), ": ", stored.entry->name,
                                               ": found dtype ", stored.entry->dtype, ", expected ",
                                               expected));
}

}  // namespace

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

absl::Status WeightLoader::CheckCopy(const std::string& copy, const std::string& original) {
  const StoredTensor* const of = checkpoint_.Find(original);
  if (checkpoint_.Find(copy) == nullptr || of == nullptr) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(const StoredTensor* stored, Find(copy, of->entry->shape));
  BATON_RETURN_IF_ERROR(of->file->CheckUnchanged());
  if (stored->entry->dtype == of->entry->dtype &&
      stored->file->Bytes(*stored->entry) == of->file->Bytes(*of->entry)) {
    return absl::OkStatus();
  }
  return MakeError(absl::StatusCode::kInvalidArgument, "MTP_HEAD_MISSING",
                   absl::StrCat(stored->file->path(), ": ", copy, ": found other values than in ",
                                original, ", expected a copy of it"));
}

absl::StatusOr<TakenMatrix> WeightLoader::Take(const std::string& name,
                                               absl::Span<const uint64_t> shape,
                                               backend::DType target) {
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
  taken.matrix.cols = 1;
  for (const uint64_t size : shape.subspan(1)) taken.matrix.cols *= static_cast<int64_t>(size);
  if (NeedsConversion(entry)) {
    BATON_ASSIGN_OR_RETURN(ConvertedMatrix converted,
                           ConvertMatrix(*stored->file, entry, target, &loss_));
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

backend::ThreadPool& WeightLoader::threads() {
  if (!threads_) threads_.emplace(UsableCores());
  return *threads_;
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
                                                                      int64_t cols,
                                                                      GatedRange* range) {
  std::vector<QuantizedWeights> weights;
  std::vector<QuantizedHostMatrix> stacked;
  for (const Part& part : parts) {
    BATON_ASSIGN_OR_RETURN(QuantizedWeights each, TakeQuantized(part, cols));
    weights.push_back(std::move(each));
    stacked.push_back(weights.back().view());
    CountOverflows(stacked.back());
    if (range != nullptr) range->Add(stacked.back(), threads());
    if (stacked.back().scale_dtype == stacked[0].scale_dtype) continue;
    return absl::UnimplementedError(absl::StrCat(
        checkpoint_.path(), ": ", part.name, ": found scales in ",
        backend::Name(stacked.back().scale_dtype), ", expected ",
        backend::Name(stacked[0].scale_dtype), ", as ", parts[0].name, " has, multiplied as one"));
  }
  auto packed = packer_->PackQuantized(stacked);
  if (!packed.ok()) return Annotate(packed.status(), parts[0].name);
  quantized_device_bytes_ += (*packed)->size_bytes();
  return packed;
}

absl::StatusOr<std::unique_ptr<PackedMatrix>> WeightLoader::Rounded(
    absl::Span<const HostMatrix> stacked, absl::Span<const Part> parts, int bits) {
  std::vector<QuantizedWeights> weights;
  std::vector<QuantizedHostMatrix> views;
  for (size_t i = 0; i < stacked.size(); ++i) {
    auto each = QuantizedWeights::Round(stacked[i], bits, threads());
    if (!each.ok()) {
      return Annotate(each.status(), absl::StrCat(checkpoint_.path(), ": ", parts[i].name));
    }
    rounded_from_bytes_ +=
        stacked[i].rows * stacked[i].cols * static_cast<int64_t>(backend::SizeOf(stacked[i].dtype));
    weights.push_back(*std::move(each));
    views.push_back(weights.back().view());
  }
  auto packed = packer_->PackQuantized(views);
  if (packed.ok()) rounded_bytes_ += (*packed)->size_bytes();
  return packed;
}

absl::StatusOr<std::unique_ptr<PackedMatrix>> WeightLoader::Matrix(absl::Span<const Part> parts,
                                                                   int64_t cols, bool quantized,
                                                                   int load_bits,
                                                                   GatedRange* range) {
  if (quantized) return Quantized(parts, cols, range);
  if (load_bits == 0 && KeepsBlocks(parts)) {
    BATON_CHECK(range == nullptr) << "no device keeps blocks and computes in float16";
    return InBlocks(parts, cols);
  }
  std::vector<TakenMatrix> taken;
  std::vector<HostMatrix> stacked;
  for (const Part& part : parts) {
    BATON_ASSIGN_OR_RETURN(
        TakenMatrix each,
        Take(part.name, {static_cast<uint64_t>(part.rows), static_cast<uint64_t>(cols)},
             backend_.activation_dtype()));
    stacked.push_back(each.matrix);
    taken.push_back(std::move(each));
  }
  auto packed = PackFloats(stacked, parts, load_bits, range);
  for (const TakenMatrix& each : taken) Report(each.file_bytes);
  return packed;
}

absl::StatusOr<std::unique_ptr<PackedMatrix>> WeightLoader::PackFloats(
    absl::Span<const HostMatrix> stacked, absl::Span<const Part> parts, int load_bits,
    GatedRange* range) {
  for (const HostMatrix& each : stacked) {
    if (load_bits == 0) AddLoss(each);
    if (range != nullptr) range->Add(each, threads());
  }
  auto packed = load_bits == 0 ? packer_->Pack(stacked) : Rounded(stacked, parts, load_bits);
  if (!packed.ok()) return Annotate(packed.status(), parts[0].name);
  return packed;
}

absl::StatusOr<std::unique_ptr<PackedMatrix>> WeightLoader::FusedMatrix(const FusedPart& part,
                                                                        bool quantized,
                                                                        GatedRange* range) {
  if (!quantized) {
    BATON_ASSIGN_OR_RETURN(const StoredTensor* stored, Find(part.name, part.FloatShape()));
    if (!stored->entry->weight_dtype) return WrongDType(*stored, "F32, BF16 or F16");
    std::vector<char> values;
    auto packed = PackFloats({{.data = FusedFloats(part, *stored, &values),
                               .dtype = *stored->entry->weight_dtype,
                               .rows = part.rows,
                               .cols = part.cols}},
                             {{part.name, part.rows}}, load_bits_, range);
    Report((stored->entry->end - stored->entry->begin) / static_cast<uint64_t>(part.experts));
    return packed;
  }
  BATON_ASSIGN_OR_RETURN(const StoredTensor* blocks,
                         Find(absl::StrCat(part.name, "_blocks"), part.BlocksShape()));
  BATON_ASSIGN_OR_RETURN(const StoredTensor* scales,
                         Find(absl::StrCat(part.name, "_scales"), part.ScalesShape()));
  for (const StoredTensor* stored : {blocks, scales}) {
    if (stored->entry->dtype != "U8") return WrongDType(*stored, "U8");
  }
  BATON_ASSIGN_OR_RETURN(const QuantizedWeights weights,
                         QuantizedWeights::FromMxfp4(part, *blocks, *scales));
  CountOverflows(weights.view());
  if (range != nullptr) range->Add(weights.view(), threads());
  auto packed = packer_->PackQuantized({weights.view()});
  if (!packed.ok()) return Annotate(packed.status(), part.name);
  quantized_device_bytes_ += (*packed)->size_bytes();
  const auto size_bytes = static_cast<uint64_t>(part.rows * part.cols * 17 / 32);
  quantized_file_bytes_ += size_bytes;
  Report(size_bytes);
  return packed;
}

absl::StatusOr<std::vector<float>> WeightLoader::Table(const std::string& name, int64_t rows,
                                                       int64_t cols) {
  BATON_ASSIGN_OR_RETURN(
      const TakenMatrix taken,
      Take(name, {static_cast<uint64_t>(rows), static_cast<uint64_t>(cols)}, DType::kF32));
  std::vector<float> values(static_cast<size_t>(rows * cols));
  ToF32(taken.matrix.data, taken.matrix.dtype, values.size(), values.data());
  Report(taken.file_bytes);
  return values;
}

absl::StatusOr<std::unique_ptr<PackedMatrix>> WeightLoader::Router(const Part& part, int64_t cols) {
  BATON_ASSIGN_OR_RETURN(
      const TakenMatrix taken,
      Take(part.name, {static_cast<uint64_t>(part.rows), static_cast<uint64_t>(cols)},
           DType::kF32));
  Report(taken.file_bytes);
  return backend_.PackRouter(taken.matrix);
}

absl::StatusOr<std::unique_ptr<backend::ExpertGroup>> WeightLoader::Group(
    std::vector<backend::ExpertMatrices> experts, const backend::ExpertBiases& biases,
    absl::string_view router) {
  auto group = backend_.GroupExperts(std::move(experts), biases);
  if (!group.ok()) return Annotate(group.status(), absl::StrCat("the experts of ", router));
  return group;
}

void WeightLoader::AddLoss(const HostMatrix& matrix) {
  const DType target = backend_.activation_dtype();
  if (matrix.dtype != target && target != DType::kF32) loss_from_ = matrix.dtype;
  CountLoss(matrix.data, matrix.dtype, target, static_cast<size_t>(matrix.rows * matrix.cols),
            &loss_);
}

bool WeightLoader::KeepsBlocks(absl::Span<const Part> parts) const {
  return packer_->packs_any() && std::any_of(parts.begin(), parts.end(), [&](const Part& part) {
           const StoredTensor* stored = checkpoint_.Find(part.name);
           return stored != nullptr && stored->entry->blocks != nullptr;
         });
}

absl::StatusOr<std::unique_ptr<PackedMatrix>> WeightLoader::InBlocks(absl::Span<const Part> parts,
                                                                     int64_t cols) {
  std::vector<TakenMatrix> taken;
  std::vector<QuantizedWeights> weights;
  std::vector<AnyHostMatrix> stacked;
  for (const Part& part : parts) {
    const uint64_t shape[] = {static_cast<uint64_t>(part.rows), static_cast<uint64_t>(cols)};
    BATON_ASSIGN_OR_RETURN(const StoredTensor* stored, Find(part.name, shape));
    const TensorEntry& entry = *stored->entry;
    if (entry.blocks == nullptr) {
      BATON_ASSIGN_OR_RETURN(TakenMatrix each, Take(part.name, shape, backend_.activation_dtype()));
      AddLoss(each.matrix);
      stacked.push_back(each.matrix);
      taken.push_back(std::move(each));
    } else if (entry.blocks->split != nullptr) {
      BATON_ASSIGN_OR_RETURN(stacked.emplace_back(), SuperBlocksOf(*stored->file, entry));
    } else {
      BATON_ASSIGN_OR_RETURN(QuantizedWeights each,
                             QuantizedWeights::FromBlocks(*stored->file, entry));
      weights.push_back(std::move(each));
      stacked.push_back(weights.back().view());
    }
    kept_file_bytes_ += entry.end - entry.begin;
    Report(entry.end - entry.begin);
  }
  auto packed = packer_->PackAny(stacked);
  if (!packed.ok()) return Annotate(packed.status(), parts[0].name);
  kept_bytes_ += (*packed)->size_bytes();
  return packed;
}

absl::StatusOr<std::vector<float>> WeightLoader::Floats(absl::Span<const Part> parts) {
  std::vector<float> values;
  for (const Part& part : parts) {
    std::vector<uint64_t> shape = {static_cast<uint64_t>(part.rows)};
    // GGUF files have some vectors of Mamba 2 as matrices.
    const StoredTensor* stored = checkpoint_.Find(part.name);
    if (checkpoint_.is_gguf() && stored != nullptr && stored->entry->shape.size() == 2 &&
        stored->entry->shape[0] <= shape[0] &&
        stored->entry->shape[0] * stored->entry->shape[1] == shape[0]) {
      shape = stored->entry->shape;
    }
    BATON_ASSIGN_OR_RETURN(const TakenMatrix taken, Take(part.name, shape, DType::kF32));
    const size_t begin = values.size();
    values.resize(begin + static_cast<size_t>(part.rows));
    ToF32(taken.matrix.data, taken.matrix.dtype, static_cast<size_t>(part.rows), &values[begin]);
    Report(taken.file_bytes);
  }
  return values;
}

absl::StatusOr<std::unique_ptr<Buffer>> WeightLoader::Vector(absl::Span<const Part> parts) {
  BATON_ASSIGN_OR_RETURN(const std::vector<float> values, Floats(parts));
  return ToDevice(values);
}

absl::StatusOr<std::unique_ptr<Buffer>> WeightLoader::FiniteVector(const Part& part) {
  BATON_ASSIGN_OR_RETURN(const std::vector<float> values, FiniteFloats(part));
  return ToDevice(values);
}

absl::StatusOr<std::vector<float>> WeightLoader::FiniteFloats(const Part& part) {
  BATON_ASSIGN_OR_RETURN(std::vector<float> values, Floats({part}));
  BATON_RETURN_IF_ERROR(CheckFinite(part, values));
  return values;
}

absl::StatusOr<std::vector<float>> WeightLoader::Norm(const std::string& name,
                                                      const NormSpec& norm) {
  BATON_ASSIGN_OR_RETURN(std::vector<float> values, Floats({{name, norm.size}}));
  if (norm.less_one && !checkpoint_.is_gguf()) {  // GGUF files have it as it is multiplied with
    for (float& value : values) value += 1;
  }
  return values;
}

absl::StatusOr<std::unique_ptr<Buffer>> WeightLoader::ToDevice(absl::Span<const float> values) {
  const size_t size_bytes = values.size() * sizeof(float);
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> buffer, backend_.Allocate(size_bytes));
  backend_.CopyToDevice(buffer->data(), values.data(), size_bytes);
  return buffer;
}

// Loads it as the file has it, unless it is in blocks: no value is lost, and no memory.
absl::StatusOr<EmbeddingWeights> WeightLoader::Embedding(const std::string& name, int64_t rows,
                                                         int64_t cols, double* longest_row) {
  BATON_ASSIGN_OR_RETURN(const TakenMatrix taken,
                         Take(name, {static_cast<uint64_t>(rows), static_cast<uint64_t>(cols)},
                              backend_.activation_dtype()));
  const HostMatrix& matrix = taken.matrix;
  const size_t size_bytes = static_cast<size_t>(rows * cols) * backend::SizeOf(matrix.dtype);
  auto memory = backend_.Allocate(size_bytes);
  if (!memory.ok()) return Annotate(memory.status(), name);
  EmbeddingWeights weights;
  weights.memory = *std::move(memory);
  weights.table = {weights.memory->data(), matrix.dtype, rows, cols, cols};
  backend_.CopyToDevice(weights.table.data, matrix.data, size_bytes);
  if (longest_row != nullptr) *longest_row = LongestRow(matrix, threads());
  Report(taken.file_bytes);
  return weights;
}

void WeightLoader::LogLoss() const {
  if (quantized_file_bytes_ > 0) {
    BATON_LOG(Info) << checkpoint_.path() << ": " << quantization_->bits << "-bit weights of "
                    << (quantized_file_bytes_ >> 20) << " MiB take "
                    << (quantized_device_bytes_ >> 20) << " MiB packed";
  }
  if (kept_file_bytes_ > 0) {
    BATON_LOG(Info) << checkpoint_.path() << ": blocks of " << (kept_file_bytes_ >> 20)
                    << " MiB take " << (kept_bytes_ >> 20) << " MiB packed";
  }
  if (block_file_bytes_ > 0) {
    BATON_LOG(Info) << checkpoint_.path() << ": blocks of " << (block_file_bytes_ >> 20)
                    << " MiB become " << (block_memory_bytes_ >> 20) << " MiB of "
                    << backend::Name(backend_.activation_dtype());
  }
  if (rounded_bytes_ > 0) {
    BATON_LOG(Info) << checkpoint_.path() << ": weights of " << (rounded_from_bytes_ >> 20)
                    << " MiB, rounded to " << load_bits_ << " bits (the LM head to "
                    << kLmHeadLoadBits << "), take " << (rounded_bytes_ >> 20) << " MiB packed";
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

}  // namespace baton::model
