// Reads a GGUF file's bytes into a File, and checks them.
#ifndef BATON_COMMON_GGUF_FILE_READER_H_
#define BATON_COMMON_GGUF_FILE_READER_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/gguf/file.h"

namespace baton::gguf {

// Bytes of a number; 0 for texts and lists.
uint64_t WidthOf(ValueType type);

// The little-endian number of up to 8 bytes.
uint64_t UnsignedAt(absl::string_view bytes);

// The text at the begin of `bytes`, behind its length, which is checked. `what` names it in errors.
absl::StatusOr<absl::string_view> TakeText(absl::string_view* bytes, absl::string_view what);

class FileReader {
 public:
  // REQUIRES: `file` has one part, with its map.
  explicit FileReader(File* file);
  absl::Status Read();

 private:
  absl::StatusOr<uint64_t> TakeNumber(uint64_t width, absl::string_view what);
  absl::Status ReadHeader();
  absl::Status ReadMetadata();
  absl::StatusOr<Value> TakeValue(ValueType type, int depth);
  absl::StatusOr<Value> TakeList(int depth);
  absl::Status ReadTensors();
  absl::StatusOr<Tensor> TakeTensor(uint64_t place);
  absl::Status SetAlignment();
  absl::Status FindData();
  uint64_t Padded(uint64_t offset) const;

  File* const file_;
  absl::string_view rest_;  // what is not read yet
  uint64_t tensor_count_ = 0;
  uint64_t metadata_count_ = 0;
  uint64_t alignment_ = 32;
};

}  // namespace baton::gguf

#endif  // BATON_COMMON_GGUF_FILE_READER_H_
