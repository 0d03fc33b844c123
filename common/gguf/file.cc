#include "common/gguf/file.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/gguf/file_reader.h"
#include "common/json/json.h"

namespace baton::gguf {
namespace {

constexpr uint64_t kMaxTextBytes = uint64_t{16} << 20;
constexpr int64_t kMaxParts = 4096;  // each keeps a file open
constexpr absl::string_view kSplitNumber = "split.no";
constexpr absl::string_view kSplitCount = "split.count";
constexpr absl::string_view kSplitTensors = "split.tensors.count";

bool IsReal(ValueType type) { return type == ValueType::kFloat32 || type == ValueType::kFloat64; }

bool IsInteger(ValueType type) {
  return WidthOf(type) > 0 && !IsReal(type) && type != ValueType::kBool;
}

bool IsSigned(ValueType type) {
  return type == ValueType::kInt8 || type == ValueType::kInt16 || type == ValueType::kInt32 ||
         type == ValueType::kInt64;
}

// Numbers of 2^63 and more become the largest int64, which no field allows.
int64_t ToInteger(ValueType type, absl::string_view bytes) {
  const uint64_t bits = UnsignedAt(bytes);
  if (IsSigned(type)) {
    const int unused = 64 - 8 * static_cast<int>(bytes.size());
    return static_cast<int64_t>(bits << unused) >> unused;
  }
  constexpr uint64_t kLargest = std::numeric_limits<int64_t>::max();
  return static_cast<int64_t>(bits < kLargest ? bits : kLargest);
}

// REQUIRES: IsReal(type).
double ToReal(ValueType type, absl::string_view bytes) {
  const uint64_t bits = UnsignedAt(bytes);
  return type == ValueType::kFloat32 ? std::bit_cast<float>(static_cast<uint32_t>(bits))
                                     : std::bit_cast<double>(bits);
}

std::string FoundText(const Value& value) {
  if (value.type == ValueType::kString) return json::Quoted(value.bytes.substr(0, 80));
  if (value.type == ValueType::kArray) return absl::StrCat("a list of ", value.count);
  if (value.type == ValueType::kBool) return value.bytes[0] != 0 ? "true" : "false";
  if (IsInteger(value.type)) return absl::StrCat(ToInteger(value.type, value.bytes));
  return "a real number";
}

std::string PartSuffix(int64_t number, int64_t count) {
  return absl::StrFormat("-%05d-of-%05d.gguf", number, count);
}

// `number` counts from 1, the key from 0.
absl::Status CheckSplitNumber(const File& file, int64_t number) {
  BATON_ASSIGN_OR_RETURN(const std::optional<int64_t> found, file.Integer(kSplitNumber));
  if (found == number - 1) return absl::OkStatus();
  return file.Invalid(
      kSplitNumber, absl::StrCat("found ", found ? absl::StrCat(*found) : "nothing", ", expected ",
                                 number - 1, ", as the file's name says"));
}

}  // namespace

int64_t Integers::At(uint64_t index) const {
  BATON_CHECK(index < list_.count);
  const uint64_t width = WidthOf(list_.element_type);
  return ToInteger(list_.element_type, list_.bytes.substr(index * width, width));
}

double Reals::At(uint64_t index) const {
  BATON_CHECK(index < list_.count);
  const uint64_t width = WidthOf(list_.element_type);
  return ToReal(list_.element_type, list_.bytes.substr(index * width, width));
}

absl::Status Texts::ForEach(
    absl::FunctionRef<absl::Status(uint64_t, absl::string_view)> visit) const {
  absl::string_view rest = list_.bytes;
  for (uint64_t i = 0; i < list_.count; ++i) {
    BATON_ASSIGN_OR_RETURN(const absl::string_view text, TakeText(&rest, "text"));
    BATON_RETURN_IF_ERROR(visit(i, text));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<File>> File::Open(const std::string& path) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<File> file, OpenOne(path));
  BATON_RETURN_IF_ERROR(file->AddOtherParts());
  return file;
}

absl::StatusOr<std::unique_ptr<File>> File::OpenOne(const std::string& path) {
  std::unique_ptr<File> file(new File);
  file->path_ = path;
  file->parts_.emplace_back();
  BATON_ASSIGN_OR_RETURN(file->parts_[0].map, MappedFile::Open(path));
  if (absl::Status status = FileReader(file.get()).Read(); !status.ok()) {
    return Annotate(status, path);
  }
  return file;
}

absl::Status File::AddOtherParts() {
  BATON_ASSIGN_OR_RETURN(const std::optional<int64_t> count, Integer(kSplitCount));
  if (count.value_or(1) <= 1) return absl::OkStatus();
  if (*count > kMaxParts) {
    return Invalid(kSplitCount,
                   absl::StrCat("found ", *count, " files, expected at most ", kMaxParts));
  }
  absl::string_view stem = path_;
  if (!absl::ConsumeSuffix(&stem, PartSuffix(1, *count))) {
    return Invalid(kSplitCount,
                   absl::StrCat("found one of ", *count,
                                " files, expected the first of them, whose name ends in ",
                                PartSuffix(1, *count)));
  }
  BATON_RETURN_IF_ERROR(CheckSplitNumber(*this, 1));
  for (int64_t number = 2; number <= *count; ++number) {
    BATON_RETURN_IF_ERROR(AddPart(absl::StrCat(stem, PartSuffix(number, *count)), number, *count));
  }
  BATON_ASSIGN_OR_RETURN(const std::optional<int64_t> tensors, Integer(kSplitTensors));
  if (tensors && *tensors != static_cast<int64_t>(tensors_.size())) {
    return Invalid(kSplitTensors, absl::StrCat("found ", *tensors, ", expected ", tensors_.size(),
                                               ", which the ", *count, " files have"));
  }
  return absl::OkStatus();
}

absl::Status File::AddPart(const std::string& path, int64_t number, int64_t count) {
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<File> part, OpenOne(path));
  BATON_ASSIGN_OR_RETURN(const std::optional<int64_t> stated, part->Integer(kSplitCount));
  if (stated != count) {
    return part->Invalid(kSplitCount,
                         absl::StrCat("found ", stated ? absl::StrCat(*stated) : "nothing",
                                      ", expected ", count, " as in ", path_));
  }
  BATON_RETURN_IF_ERROR(CheckSplitNumber(*part, number));
  for (Tensor& tensor : part->tensors_) {
    tensor.part = parts_.size();
    if (!tensor_index_.emplace(tensor.name, tensors_.size()).second) {
      return part->Invalid(json::Quoted(tensor.name), "found in a file before, too, expected once");
    }
    tensors_.push_back(std::move(tensor));
  }
  parts_.push_back(std::move(part->parts_[0]));
  return absl::OkStatus();
}

const Value* File::Find(absl::string_view key) const {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? nullptr : &found->second;
}

std::vector<std::string> File::Keys(absl::string_view prefix) const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : metadata_) {
    if (absl::StartsWith(key, prefix)) keys.push_back(key);
  }
  std::sort(keys.begin(), keys.end());
  return keys;
}

bool File::IsOff(absl::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) return true;
  if (value->type == ValueType::kArray) return value->count == 0;
  return std::all_of(value->bytes.begin(), value->bytes.end(), [](char byte) { return byte == 0; });
}

const Tensor* File::FindTensor(absl::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

absl::StatusOr<std::optional<std::string>> File::Text(absl::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != ValueType::kString) return Mismatch(key, *value, "a text");
  if (value->bytes.size() > kMaxTextBytes) {
    return Invalid(key, absl::StrCat("found ", value->bytes.size(), " bytes, expected at most ",
                                     kMaxTextBytes));
  }
  if (!IsUtf8(value->bytes)) return Invalid(key, "found other bytes than UTF-8, expected a text");
  return std::string(value->bytes);
}

absl::StatusOr<std::optional<int64_t>> File::Integer(absl::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!IsInteger(value->type)) return Mismatch(key, *value, "an integer");
  return ToInteger(value->type, value->bytes);
}

absl::StatusOr<std::optional<double>> File::Real(absl::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) return std::nullopt;
  double real = 0;
  if (IsReal(value->type)) {
    real = ToReal(value->type, value->bytes);
  } else if (IsInteger(value->type)) {
    real = static_cast<double>(ToInteger(value->type, value->bytes));
  } else {
    return Mismatch(key, *value, "a number");
  }
  if (!std::isfinite(real)) return Invalid(key, "found no finite number, expected one");
  return real;
}

absl::StatusOr<std::optional<bool>> File::Bool(absl::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != ValueType::kBool) return Mismatch(key, *value, "true or false");
  return value->bytes[0] != 0;
}

absl::StatusOr<std::optional<Integers>> File::IntegerList(absl::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != ValueType::kArray || !IsInteger(value->element_type)) {
    return Mismatch(key, *value, "a list of integers");
  }
  return Integers(*value);
}

absl::StatusOr<std::optional<Integers>> File::BoolList(absl::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != ValueType::kArray || value->element_type != ValueType::kBool) {
    return Mismatch(key, *value, "a list of true and false");
  }
  return Integers(*value);
}

absl::StatusOr<absl::string_view> File::BytesOf(const Tensor& tensor) const {
  const Part& part = parts_[tensor.part];
  BATON_RETURN_IF_ERROR(part.map->CheckUnchanged());
  return part.map->bytes().substr(part.data_offset + tensor.begin, tensor.end - tensor.begin);
}

bool File::IsList(absl::string_view key) const {
  const Value* value = Find(key);
  return value != nullptr && value->type == ValueType::kArray;
}

absl::StatusOr<std::optional<Reals>> File::RealList(absl::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != ValueType::kArray || !IsReal(value->element_type)) {
    return Mismatch(key, *value, "a list of real numbers");
  }
  return Reals(*value);
}

absl::StatusOr<std::optional<Texts>> File::TextList(absl::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != ValueType::kArray || value->element_type != ValueType::kString) {
    return Mismatch(key, *value, "a list of texts");
  }
  return Texts(*value);
}

absl::Status File::Invalid(absl::string_view key, absl::string_view message) const {
  return absl::InvalidArgumentError(absl::StrCat(path_, ": ", key, ": ", message));
}

absl::Status File::Unsupported(absl::string_view key, absl::string_view message) const {
  return absl::UnimplementedError(absl::StrCat(path_, ": ", key, ": ", message));
}

absl::Status File::Missing(absl::string_view key, absl::string_view expected) const {
  return Invalid(key, absl::StrCat("found nothing, expected ", expected));
}

absl::Status File::Mismatch(absl::string_view key, const Value& found,
                            absl::string_view expected) const {
  return Invalid(key, absl::StrCat("found ", FoundText(found), ", expected ", expected));
}

}  // namespace baton::gguf
