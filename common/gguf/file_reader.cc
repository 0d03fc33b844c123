#include "common/gguf/file_reader.h"

#include <algorithm>
#include <bit>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/json/json.h"

namespace baton::gguf {
namespace {

constexpr absl::string_view kMagic = "GGUF";
constexpr uint64_t kMaxKeyBytes = 65535;
constexpr uint64_t kMaxNameBytes = 64;
constexpr uint64_t kMaxRank = 4;
constexpr uint64_t kMaxAlignment = 1 << 20;
constexpr int kMaxDepth = 4;  // of lists of lists, of which no known file has any
// The least bytes of a metadata entry (a key of one byte and a value of one) and of a tensor (one
// extent).
constexpr uint64_t kLeastMetadataBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kLeastTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

absl::Status Invalid(absl::string_view what, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat(what, ": ", message));
}

absl::Status TooShort(absl::string_view what, uint64_t found, uint64_t expected) {
  return Invalid(what,
                 absl::StrCat("found ", found, " bytes up to the file's end, expected ", expected));
}

absl::Status CheckBools(absl::string_view bytes) {
  for (const char byte : bytes) {
    if (byte == 0 || byte == 1) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("found a bool of ", static_cast<uint8_t>(byte), ", expected 0 or 1"));
  }
  return absl::OkStatus();
}

bool IsKey(absl::string_view key) {
  return !key.empty() && key.size() <= kMaxKeyBytes &&
         std::all_of(key.begin(), key.end(), [](char c) { return absl::ascii_isgraph(c); });
}

}  // namespace

uint64_t WidthOf(ValueType type) {
  switch (type) {
    case ValueType::kUint8:
    case ValueType::kInt8:
    case ValueType::kBool:
      return 1;
    case ValueType::kUint16:
    case ValueType::kInt16:
      return 2;
    case ValueType::kUint32:
    case ValueType::kInt32:
    case ValueType::kFloat32:
      return 4;
    case ValueType::kUint64:
    case ValueType::kInt64:
    case ValueType::kFloat64:
      return 8;
    case ValueType::kString:
    case ValueType::kArray:
      break;
  }
  return 0;
}

uint64_t UnsignedAt(absl::string_view bytes) {
  uint64_t number = 0;
  for (size_t i = bytes.size(); i-- > 0;) number = number << 8 | static_cast<uint8_t>(bytes[i]);
  return number;
}

absl::StatusOr<absl::string_view> TakeText(absl::string_view* bytes, absl::string_view what) {
  constexpr uint64_t kLengthBytes = 8;
  if (bytes->size() < kLengthBytes) return TooShort(what, bytes->size(), kLengthBytes);
  const uint64_t length = UnsignedAt(bytes->substr(0, kLengthBytes));
  if (length > bytes->size() - kLengthBytes) {
    return TooShort(what, bytes->size() - kLengthBytes, length);
  }
  const absl::string_view text = bytes->substr(kLengthBytes, length);
  bytes->remove_prefix(kLengthBytes + length);
  return text;
}

FileReader::FileReader(File* file) : file_(file), rest_(file->parts_[0].map->bytes()) {}

absl::Status FileReader::Read() {
  BATON_RETURN_IF_ERROR(ReadHeader());
  BATON_RETURN_IF_ERROR(ReadMetadata());
  BATON_RETURN_IF_ERROR(SetAlignment());
  BATON_RETURN_IF_ERROR(ReadTensors());
  return FindData();
}

absl::StatusOr<uint64_t> FileReader::TakeNumber(uint64_t width, absl::string_view what) {
  if (rest_.size() < width) return TooShort(what, rest_.size(), width);
  const uint64_t number = UnsignedAt(rest_.substr(0, width));
  rest_.remove_prefix(width);
  return number;
}

absl::Status FileReader::ReadHeader() {
  if (!absl::StartsWith(rest_, kMagic)) {
    return Invalid("header", "found another file format, expected \"GGUF\" at its start");
  }
  rest_.remove_prefix(kMagic.size());
  BATON_ASSIGN_OR_RETURN(const uint64_t version, TakeNumber(4, "version"));
  if (version != 2 && version != 3) {
    const bool reversed = version != 0 && version % 65536 == 0;
    return absl::UnimplementedError(absl::StrCat("version: found ", version,
                                                 reversed ? ", as in a big-endian file" : "",
                                                 ", expected 2 or 3, little-endian"));
  }
  BATON_ASSIGN_OR_RETURN(tensor_count_, TakeNumber(8, "count of tensors"));
  BATON_ASSIGN_OR_RETURN(metadata_count_, TakeNumber(8, "count of metadata"));
  for (const auto& [what, count, least] :
       {std::tuple("count of tensors", tensor_count_, kLeastTensorBytes),
        {"count of metadata", metadata_count_, kLeastMetadataBytes}}) {
    if (count <= rest_.size() / least) continue;
    return Invalid(what, absl::StrCat("found ", count, ", expected at most ", rest_.size() / least,
                                      ", for which the file has bytes"));
  }
  return absl::OkStatus();
}

absl::Status FileReader::ReadMetadata() {
  for (uint64_t i = 0; i < metadata_count_; ++i) {
    const std::string place = absl::StrCat("metadata ", i);
    BATON_ASSIGN_OR_RETURN(const absl::string_view key, TakeText(&rest_, place + ": key"));
    if (!IsKey(key)) {
      return Invalid(
          place, absl::StrCat("found the key ", json::Quoted(key.substr(0, 80)), ", expected 1 to ",
                              kMaxKeyBytes, " printable ASCII characters"));
    }
    const std::string name = json::Printable(key);
    BATON_ASSIGN_OR_RETURN(const uint64_t type, TakeNumber(4, name));
    if (type > static_cast<uint64_t>(ValueType::kFloat64)) {
      return Invalid(name, absl::StrCat("found type ", type, ", expected 0 to 12"));
    }
    absl::StatusOr<Value> value = TakeValue(static_cast<ValueType>(type), 0);
    if (!value.ok()) return Annotate(value.status(), name);
    if (!file_->metadata_.emplace(key, *value).second) {
      return Invalid(name, "found twice, expected once");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Value> FileReader::TakeValue(ValueType type, int depth) {
  Value value;
  value.type = type;
  if (type == ValueType::kArray) return TakeList(depth + 1);
  if (type == ValueType::kString) {
    BATON_ASSIGN_OR_RETURN(value.bytes, TakeText(&rest_, "text"));
    return value;
  }
  const uint64_t width = WidthOf(type);
  if (rest_.size() < width) return TooShort("value", rest_.size(), width);
  value.bytes = rest_.substr(0, width);
  rest_.remove_prefix(width);
  if (type == ValueType::kBool) BATON_RETURN_IF_ERROR(CheckBools(value.bytes));
  return value;
}

absl::StatusOr<Value> FileReader::TakeList(int depth) {
  if (depth > kMaxDepth) {
    return absl::InvalidArgumentError(
        absl::StrCat("found lists in lists, expected at most ", kMaxDepth, " levels"));
  }
  Value list;
  list.type = ValueType::kArray;
  BATON_ASSIGN_OR_RETURN(const uint64_t type, TakeNumber(4, "type of the list's elements"));
  if (type > static_cast<uint64_t>(ValueType::kFloat64)) {
    return Invalid("type of the list's elements",
                   absl::StrCat("found ", type, ", expected 0 to 12"));
  }
  list.element_type = static_cast<ValueType>(type);
  BATON_ASSIGN_OR_RETURN(list.count, TakeNumber(8, "length of the list"));
  const uint64_t width = WidthOf(list.element_type);
  // A text has a length before it; a list its elements' type, too.
  const uint64_t least = width > 0 ? width : list.element_type == ValueType::kArray ? 12 : 8;
  if (list.count > rest_.size() / least) {
    return Invalid("length of the list",
                   absl::StrCat("found ", list.count, ", expected at most ", rest_.size() / least,
                                ", for which the file has bytes"));
  }
  const absl::string_view begin = rest_;
  if (width > 0) {
    rest_.remove_prefix(list.count * width);
  } else {
    for (uint64_t i = 0; i < list.count; ++i) {
      const absl::StatusOr<Value> element = TakeValue(list.element_type, depth);
      if (!element.ok()) return Annotate(element.status(), absl::StrCat("[", i, "]"));
    }
  }
  list.bytes = begin.substr(0, begin.size() - rest_.size());
  if (list.element_type == ValueType::kBool) BATON_RETURN_IF_ERROR(CheckBools(list.bytes));
  return list;
}

absl::Status FileReader::SetAlignment() {
  constexpr absl::string_view kKey = "general.alignment";
  const Value* given = file_->Find(kKey);
  if (given == nullptr) return absl::OkStatus();
  alignment_ = given->type == ValueType::kUint32 ? UnsignedAt(given->bytes) : 0;
  if (alignment_ <= kMaxAlignment && std::has_single_bit(alignment_)) return absl::OkStatus();
  return Invalid(kKey, absl::StrCat("expected a uint32, a power of two up to ", kMaxAlignment));
}

uint64_t FileReader::Padded(uint64_t offset) const {
  return (offset + alignment_ - 1) / alignment_ * alignment_;
}

absl::Status FileReader::ReadTensors() {
  uint64_t place = 0;  // where the next one begins
  for (uint64_t i = 0; i < tensor_count_; ++i) {
    absl::StatusOr<Tensor> tensor = TakeTensor(place);
    if (!tensor.ok()) return Annotate(tensor.status(), absl::StrCat("tensor ", i));
    if (!file_->tensor_index_.emplace(tensor->name, i).second) {
      return Invalid(absl::StrCat("tensor ", i),
                     absl::StrCat("found ", json::Quoted(tensor->name), " twice, expected once"));
    }
    place = Padded(tensor->end);
    file_->tensors_.push_back(*std::move(tensor));
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> FileReader::TakeTensor(uint64_t place) {
  Tensor tensor;
  BATON_ASSIGN_OR_RETURN(const absl::string_view name, TakeText(&rest_, "name"));
  if (name.empty() || name.size() > kMaxNameBytes) {
    return Invalid("name",
                   absl::StrCat("found ", name.size(), " bytes, expected 1 to ", kMaxNameBytes));
  }
  tensor.name = std::string(name);
  const std::string quoted = json::Quoted(name);
  BATON_ASSIGN_OR_RETURN(const uint64_t rank, TakeNumber(4, quoted));
  if (rank < 1 || rank > kMaxRank) {
    return Invalid(quoted, absl::StrCat("found ", rank, " dimensions, expected 1 to ", kMaxRank));
  }
  uint64_t elements = 1;
  for (uint64_t i = 0; i < rank; ++i) {
    BATON_ASSIGN_OR_RETURN(const uint64_t extent, TakeNumber(8, quoted));
    if (extent == 0 || __builtin_mul_overflow(elements, extent, &elements)) {
      return Invalid(quoted, absl::StrCat("dimension ", i, ": found ", extent,
                                          ", expected at least 1 and a product below 2^64"));
    }
    tensor.extents.push_back(extent);
  }
  BATON_ASSIGN_OR_RETURN(const uint64_t type, TakeNumber(4, quoted));
  tensor.type = FindTensorType(static_cast<uint32_t>(type));
  if (tensor.type == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat(quoted, ": found type ", type, ", expected one of the format's"));
  }
  if (tensor.extents[0] % tensor.type->block_elements != 0) {
    return Invalid(
        quoted,
        absl::StrCat("found rows of ", tensor.extents[0], " elements, expected a multiple of ",
                     tensor.type->block_elements, ", the blocks of ", tensor.type->name));
  }
  BATON_ASSIGN_OR_RETURN(tensor.begin, TakeNumber(8, quoted));
  if (tensor.begin != place) {
    return Invalid(quoted, absl::StrCat("found offset ", tensor.begin, ", expected ", place,
                                        ", the padded end of the tensor before"));
  }
  const uint64_t blocks = elements / tensor.type->block_elements;
  const uint64_t file_bytes = file_->parts_[0].map->bytes().size();
  if (blocks > (file_bytes - std::min(place, file_bytes)) / tensor.type->block_bytes) {
    return Invalid(quoted, absl::StrCat("found ", blocks, " blocks of ", tensor.type->block_bytes,
                                        " bytes at offset ", place,
                                        ", expected them in the file's ", file_bytes, " bytes"));
  }
  tensor.end = place + blocks * tensor.type->block_bytes;
  return tensor;
}

absl::Status FileReader::FindData() {
  const uint64_t file_bytes = file_->parts_[0].map->bytes().size();
  const uint64_t header_end = file_bytes - rest_.size();
  Part& part = file_->parts_[0];
  if (file_->tensors_.empty()) {
    part.data_offset = header_end;
    return absl::OkStatus();
  }
  part.data_offset = Padded(header_end);
  part.data_bytes = Padded(file_->tensors_.back().end);
  const uint64_t end = part.data_offset + file_->tensors_.back().end;
  // The last one may be padded, too.
  if (file_bytes == end || file_bytes == Padded(end)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("found ", file_bytes, " bytes, expected ", end,
                                                 ", the end of the last tensor, or ", Padded(end),
                                                 ", padded"));
}

}  // namespace baton::gguf
