// A file of tensors, mapped.
#ifndef BATON_COMMON_MODEL_TENSOR_FILE_H_
#define BATON_COMMON_MODEL_TENSOR_FILE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/backend/tensor.h"
#include "common/base/file.h"

namespace baton::model {

struct BlockFormat;  // gguf_blocks.h

struct TensorEntry {
  std::string name;
  std::string dtype;                           // as the header spells it, e.g. "BF16"
  std::optional<backend::DType> weight_dtype;  // nullopt: weights cannot have it
  const BlockFormat* blocks = nullptr;         // if not null, quantised in blocks of a row
  std::vector<uint64_t> shape;
  uint64_t begin = 0;  // offset after the header
  uint64_t end = 0;
  // If not 0, each of so many heads' rows are 0, n/2, 1, n/2 + 1, … of those that Transformers has:
  // pairs that RoPE rotates are neighbours.
  int interleaved_heads = 0;
};

// The file's row that is the row-th in Transformers' order.
uint64_t StoredRow(const TensorEntry& entry, uint64_t row);

// "[896, 4864]", for messages.
std::string ShapeText(absl::Span<const uint64_t> shape);

class TensorFile {
 public:
  // `bytes_before`: of the tensors in the files of which this one is the continuation.
  // REQUIRES: every entry ends in the file, whose tensors start at `data_offset`.
  TensorFile(std::unique_ptr<MappedFile> file, std::vector<TensorEntry> tensors,
             uint64_t data_offset, uint64_t bytes_before = 0)
      : file_(std::move(file)),
        tensors_(std::move(tensors)),
        data_offset_(data_offset),
        bytes_before_(bytes_before) {}

  const std::string& path() const { return file_->path(); }
  absl::Span<const TensorEntry> tensors() const { return tensors_; }  // in file order
  uint64_t bytes_before() const { return bytes_before_; }
  // The tensor's bytes, at any alignment. REQUIRES: `entry` is one of tensors().
  absl::string_view Bytes(const TensorEntry& entry) const;
  absl::Status CheckUnchanged() const { return file_->CheckUnchanged(); }

 private:
  std::unique_ptr<MappedFile> file_;
  std::vector<TensorEntry> tensors_;
  uint64_t data_offset_;
  uint64_t bytes_before_;
};

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_TENSOR_FILE_H_
