// One .safetensors file: mapped, and validated as strictly as the format allows.
// Layout: u64 little-endian N, N bytes of JSON, then the tensors' bytes without gaps.
#ifndef BATON_COMMON_MODEL_SAFETENSORS_H_
#define BATON_COMMON_MODEL_SAFETENSORS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/backend/tensor.h"
#include "common/model/file.h"

namespace baton::model {

struct TensorEntry {
  std::string name;
  std::string dtype;                           // as the header spells it, e.g. "BF16"
  std::optional<backend::DType> weight_dtype;  // nullopt: weights cannot have it
  std::vector<uint64_t> shape;
  uint64_t begin = 0;  // offset after the header
  uint64_t end = 0;
};

// "[896, 4864]", for messages.
std::string ShapeText(absl::Span<const uint64_t> shape);

class SafetensorsFile {
 public:
  // NOT_FOUND, or INVALID_ARGUMENT with the file and the tensor. Accepts a file only if the header
  // is within it and at most 100 MB, no key occurs twice, every dtype is known, every span is
  // shape × dtype (checked for overflow), and the spans cover the rest of the file from its first
  // byte to its last, without gap or overlap.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);

  const std::string& path() const { return file_->path(); }
  absl::Span<const TensorEntry> tensors() const { return tensors_; }  // in file order
  // The tensor's bytes, at any alignment. REQUIRES: `entry` is one of tensors().
  absl::string_view Bytes(const TensorEntry& entry) const;
  absl::Status CheckUnchanged() const { return file_->CheckUnchanged(); }

 private:
  SafetensorsFile(std::unique_ptr<MappedFile> file, std::vector<TensorEntry> tensors,
                  uint64_t data_offset)
      : file_(std::move(file)), tensors_(std::move(tensors)), data_offset_(data_offset) {}

  std::unique_ptr<MappedFile> file_;
  std::vector<TensorEntry> tensors_;
  uint64_t data_offset_;
};

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_SAFETENSORS_H_
