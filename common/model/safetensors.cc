#include "common/model/safetensors.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/json/json.h"

namespace baton::model {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxRank = 16;
constexpr absl::string_view kMetadata = "__metadata__";

struct DTypeFormat {
  absl::string_view name;
  int bits;
  std::optional<backend::DType> weight_dtype;
};

constexpr DTypeFormat kDTypes[] = {
    {"F32", 32, backend::DType::kF32}, {"BF16", 16, backend::DType::kBF16},
    {"F16", 16, backend::DType::kF16}, {"F64", 64, std::nullopt},
    {"I64", 64, std::nullopt},         {"U64", 64, std::nullopt},
    {"C64", 64, std::nullopt},         {"I32", 32, std::nullopt},
    {"U32", 32, std::nullopt},         {"I16", 16, std::nullopt},
    {"U16", 16, std::nullopt},         {"I8", 8, std::nullopt},
    {"U8", 8, std::nullopt},           {"BOOL", 8, std::nullopt},
    {"F8_E5M2", 8, std::nullopt},      {"F8_E4M3", 8, std::nullopt},
    {"F8_E8M0", 8, std::nullopt},      {"F8_E5M2FNUZ", 8, std::nullopt},
    {"F8_E4M3FNUZ", 8, std::nullopt},  {"F6_E2M3", 6, std::nullopt},
    {"F6_E3M2", 6, std::nullopt},      {"F4", 4, std::nullopt},
};

const DTypeFormat* FindDType(absl::string_view name) {
  for (const DTypeFormat& format : kDTypes) {
    if (format.name == name) return &format;
  }
  return nullptr;
}

absl::Status Invalid(absl::string_view subject, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat(subject, ": ", message));
}

// Reads {"name": {"dtype": "F32", "shape": [..], "data_offsets": [b, e]}, .., "__metadata__": {..}}
// as it is parsed: the tree of a 100 MB header would be many times its size.
class HeaderReader : public json::Visitor {
 public:
  absl::Status OnScalar(json::Path path, json::Scalar&& scalar) override {
    if (path.size() == 2 && path[0].key == kMetadata) {
      if (scalar.kind == json::Scalar::Kind::kString) return absl::OkStatus();
    } else if (path.size() == 2 && path[1].key == "dtype" &&
               scalar.kind == json::Scalar::Kind::kString) {
      tensors_.back().dtype = scalar.text;
      ++field_count_;
      return absl::OkStatus();
    } else if (path.size() == 3 && path[1].key == "shape") {
      return AddNumber(path, scalar, kMaxRank, &tensors_.back().shape);
    } else if (path.size() == 3 && path[1].key == "data_offsets") {
      return AddNumber(path, scalar, 2, &offsets_);
    }
    return Unexpected(path, json::ScalarText(scalar));
  }

  absl::Status OnBegin(json::Path path, bool is_array) override {
    if (path.empty() && !is_array) return absl::OkStatus();
    if (path.size() == 1 && !is_array) {
      if (path[0].key != kMetadata) BeginTensor(path[0].key);
      return absl::OkStatus();
    }
    if (path.size() == 2 && is_array && path[0].key != kMetadata &&
        (path[1].key == "shape" || path[1].key == "data_offsets")) {
      ++field_count_;
      return absl::OkStatus();
    }
    return Unexpected(path, is_array ? "a list" : "an object");
  }

  absl::Status OnEnd(json::Path path) override {
    if (path.size() != 1 || path[0].key == kMetadata) return absl::OkStatus();
    TensorEntry& tensor = tensors_.back();
    if (field_count_ != 3 || offsets_.size() != 2) {
      return Invalid(json::Quoted(tensor.name),
                     absl::StrCat("found ", field_count_, " fields and ", offsets_.size(),
                                  " data_offsets, expected dtype, shape and two data_offsets"));
    }
    tensor.begin = offsets_[0];
    tensor.end = offsets_[1];
    return absl::OkStatus();
  }

  std::vector<TensorEntry> Take() { return std::move(tensors_); }

 private:
  void BeginTensor(const std::string& name) {
    tensors_.emplace_back().name = name;
    offsets_.clear();
    field_count_ = 0;
  }
  static absl::Status Unexpected(json::Path path, absl::string_view found) {
    return Invalid(json::PathText(path),
                   absl::StrCat("found ", found.substr(0, 80),
                                ", expected dtype (a string), shape and data_offsets (lists of "
                                "whole numbers) per tensor, and strings in __metadata__"));
  }
  static absl::Status AddNumber(json::Path path, const json::Scalar& scalar, size_t max_count,
                                std::vector<uint64_t>* numbers) {
    if (scalar.kind != json::Scalar::Kind::kInteger || scalar.integer < 0) {
      return Invalid(json::PathText(path),
                     absl::StrCat("found ", json::ScalarText(scalar).substr(0, 80),
                                  ", expected a whole number below 2^63"));
    }
    if (numbers->size() == max_count) {
      return Invalid(json::PathText(path),
                     absl::StrCat("expected at most ", max_count, " numbers"));
    }
    numbers->push_back(static_cast<uint64_t>(scalar.integer));
    return absl::OkStatus();
  }

  std::vector<TensorEntry> tensors_;
  std::vector<uint64_t> offsets_;  // of the last tensor
  int field_count_ = 0;            // of the last tensor; no key occurs twice, so three are all
};

// Bytes of shape × dtype; nothing on overflow or if they are not whole.
std::optional<uint64_t> SpanBytes(absl::Span<const uint64_t> shape, int bits) {
  uint64_t total = static_cast<uint64_t>(bits);
  for (uint64_t extent : shape) {
    if (__builtin_mul_overflow(total, extent, &total)) return std::nullopt;
  }
  if (total % 8 != 0) return std::nullopt;
  return total / 8;
}

absl::Status CheckDType(TensorEntry& tensor) {
  const DTypeFormat* format = FindDType(tensor.dtype);
  if (format == nullptr) {
    return Invalid(json::Quoted(tensor.name),
                   absl::StrCat("dtype: found ", json::Quoted(tensor.dtype),
                                ", expected one of the format's"));
  }
  tensor.weight_dtype = format->weight_dtype;
  const std::optional<uint64_t> expected = SpanBytes(tensor.shape, format->bits);
  if (!expected) {
    return Invalid(json::Quoted(tensor.name), absl::StrCat("shape: found ", ShapeText(tensor.shape),
                                                           ", expected a product below 2^64 bits"));
  }
  if (tensor.end < tensor.begin || tensor.end - tensor.begin != *expected) {
    return Invalid(
        json::Quoted(tensor.name),
        absl::StrCat("data_offsets: found [", tensor.begin, ", ", tensor.end, "], expected ",
                     *expected, " bytes for ", tensor.dtype, " ", ShapeText(tensor.shape)));
  }
  return absl::OkStatus();
}

// Sorts by place and checks that the spans tile [0, data_bytes).
absl::Status CheckTiling(std::vector<TensorEntry>& tensors, uint64_t data_bytes) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  uint64_t place = 0;
  for (const TensorEntry& tensor : tensors) {
    if (tensor.begin != place) {
      return Invalid(json::Quoted(tensor.name),
                     absl::StrCat("data_offsets: found begin ", tensor.begin, ", expected ", place,
                                  ", the end of the tensor before"));
    }
    place = tensor.end;
  }
  if (place != data_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("found ", data_bytes,
                                                   " bytes behind the header, expected ", place,
                                                   ", the end of the last tensor"));
  }
  return absl::OkStatus();
}

// The header's bytes of a whole file.
absl::StatusOr<absl::string_view> HeaderOf(absl::string_view bytes) {
  if (bytes.size() < kLengthBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("found ", bytes.size(), " bytes, expected at least the 8 of the header size"));
  }
  uint64_t length = 0;
  for (size_t i = kLengthBytes; i-- > 0;) length = length << 8 | static_cast<uint8_t>(bytes[i]);
  const uint64_t highest = std::min<uint64_t>(kMaxHeaderBytes, bytes.size() - kLengthBytes);
  if (length < 2 || length > highest) {
    return absl::InvalidArgumentError(
        absl::StrCat("header size: found ", length, ", expected 2 to ", highest, " bytes"));
  }
  const absl::string_view header = bytes.substr(kLengthBytes, length);
  if (header[0] != '{') {
    return absl::InvalidArgumentError("header: expected to start with '{'");
  }
  return header;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TensorFile>> OpenSafetensors(const std::string& path) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  const absl::StatusOr<absl::string_view> header = HeaderOf(file->bytes());
  if (!header.ok()) return Annotate(header.status(), path);
  HeaderReader reader;
  BATON_RETURN_IF_ERROR(json::Visit(*header, path, reader));
  std::vector<TensorEntry> tensors = reader.Take();
  for (TensorEntry& tensor : tensors) {
    if (absl::Status status = CheckDType(tensor); !status.ok()) return Annotate(status, path);
  }
  const uint64_t data_offset = kLengthBytes + header->size();
  const absl::Status tiling = CheckTiling(tensors, file->bytes().size() - data_offset);
  if (!tiling.ok()) return Annotate(tiling, path);
  return std::make_unique<TensorFile>(std::move(file), std::move(tensors), data_offset);
}

}  // namespace baton::model
