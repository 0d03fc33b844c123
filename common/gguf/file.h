// A model in GGUF, version 2 or 3, little-endian: one file, or the parts that llama-gguf-split or
// the package gguf writes, mapped, and validated as strictly as the format allows. Layout of a
// file: "GGUF", u32 version, u64 count of tensors, u64 count of metadata; the metadata (key, type,
// value); of each tensor name, extents, type and offset; then, aligned, the tensors' bytes. Strings
// and lists have their length before them, so each is checked against the file's end before it is
// read; nothing is allocated by a number of the file.
#ifndef BATON_COMMON_GGUF_FILE_H_
#define BATON_COMMON_GGUF_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/file.h"
#include "common/gguf/tensor_type.h"

namespace baton::gguf {

enum class ValueType : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
};

struct Value {
  ValueType type = ValueType::kUint8;
  ValueType element_type = ValueType::kUint8;  // of a list
  uint64_t count = 0;                          // of a list
  // A text; a list's elements as they stand in the file; else the number.
  absl::string_view bytes;
};

// A list of integers.
class Integers {
 public:
  explicit Integers(const Value& list) : list_(list) {}
  uint64_t size() const { return list_.count; }
  // REQUIRES: index < size().
  int64_t At(uint64_t index) const;

 private:
  Value list_;
};

// A list of real numbers.
class Reals {
 public:
  explicit Reals(const Value& list) : list_(list) {}
  uint64_t size() const { return list_.count; }
  // Any number, NaN included. REQUIRES: index < size().
  double At(uint64_t index) const;

 private:
  Value list_;
};

// A list of texts.
class Texts {
 public:
  explicit Texts(const Value& list) : list_(list) {}
  uint64_t size() const { return list_.count; }
  uint64_t size_bytes() const { return list_.bytes.size(); }  // with a length of each
  // In order, up to the first error.
  absl::Status ForEach(absl::FunctionRef<absl::Status(uint64_t, absl::string_view)> visit) const;

 private:
  Value list_;
};

struct Tensor {
  std::string name;
  const TensorType* type = nullptr;
  std::vector<uint64_t> extents;  // the first is that of a row's elements
  size_t part = 0;                // of File::parts()
  uint64_t begin = 0;             // offsets after the part's data_offset
  uint64_t end = 0;
};

// One of the files of a model.
struct Part {
  std::unique_ptr<MappedFile> map;
  uint64_t data_offset = 0;  // where its tensors begin
  uint64_t data_bytes = 0;   // of its tensors, each padded to the alignment
};

// Immutable. Errors of metadata are "FILE: KEY: found X, expected Y".
class File {
 public:
  // NOT_FOUND, or INVALID_ARGUMENT with the file and the place. Accepts a file only if no key and
  // no tensor's name occurs twice, every type is known, and the tensors follow each other, padded
  // to the alignment, from the data's first byte to the file's last. Of a model in several files,
  // `path` is that of the first one, NAME-00001-of-00003.gguf: its metadata is the model's, and all
  // parts have the tensors, none of them twice. An error about another part has its name.
  static absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path);

  const std::string& path() const { return path_; }

  bool Has(absl::string_view key) const { return metadata_.contains(key); }
  // The keys that begin with `prefix`, sorted.
  std::vector<std::string> Keys(absl::string_view prefix) const;
  // True if the key is absent, or its value is 0, false, an empty text or an empty list.
  bool IsOff(absl::string_view key) const;
  // Each is nullopt without the key, and INVALID_ARGUMENT for a value of another type. A text is
  // valid UTF-8 of at most 16 MiB.
  absl::StatusOr<std::optional<std::string>> Text(absl::string_view key) const;
  absl::StatusOr<std::optional<int64_t>> Integer(absl::string_view key) const;
  absl::StatusOr<std::optional<double>> Real(absl::string_view key) const;  // finite
  absl::StatusOr<std::optional<bool>> Bool(absl::string_view key) const;
  absl::StatusOr<std::optional<Integers>> IntegerList(absl::string_view key) const;
  absl::StatusOr<std::optional<Integers>> BoolList(absl::string_view key) const;  // 0 and 1
  absl::StatusOr<std::optional<Reals>> RealList(absl::string_view key) const;
  absl::StatusOr<std::optional<Texts>> TextList(absl::string_view key) const;
  bool IsList(absl::string_view key) const;  // the key is there, and its value is a list

  absl::Status Invalid(absl::string_view key, absl::string_view message) const;
  absl::Status Unsupported(absl::string_view key, absl::string_view message) const;
  // "found nothing, expected …".
  absl::Status Missing(absl::string_view key, absl::string_view expected) const;

  absl::Span<const Tensor> tensors() const { return tensors_; }  // in file order
  const Tensor* FindTensor(absl::string_view name) const;        // null if there is none
  // INVALID_ARGUMENT if the file has changed. REQUIRES: one of tensors(), before TakeParts.
  absl::StatusOr<absl::string_view> BytesOf(const Tensor& tensor) const;
  absl::Span<const Part> parts() const { return parts_; }  // at least one

  // The parts, for a reader of the tensors. Values and texts stay valid as long as the first one.
  std::vector<Part> TakeParts() && { return std::move(parts_); }

 private:
  friend class FileReader;
  File() = default;
  static absl::StatusOr<std::unique_ptr<File>> OpenOne(const std::string& path);
  absl::Status AddOtherParts();
  absl::Status AddPart(const std::string& path, int64_t number, int64_t count);
  const Value* Find(absl::string_view key) const;
  absl::Status Mismatch(absl::string_view key, const Value& found,
                        absl::string_view expected) const;

  std::string path_;
  std::vector<Part> parts_;
  absl::flat_hash_map<std::string, Value> metadata_;
  std::vector<Tensor> tensors_;
  absl::flat_hash_map<std::string, size_t> tensor_index_;
};

}  // namespace baton::gguf

#endif  // BATON_COMMON_GGUF_FILE_H_
