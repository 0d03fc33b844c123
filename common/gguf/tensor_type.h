// The types of tensors in GGUF files: how many elements a block has, in how many bytes.
#ifndef BATON_COMMON_GGUF_TENSOR_TYPE_H_
#define BATON_COMMON_GGUF_TENSOR_TYPE_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace baton::gguf {

struct TensorType {
  uint32_t id;             // in the file
  absl::string_view name;  // as llama.cpp spells it
  uint32_t block_elements;
  uint32_t block_bytes;
};

// Null if the format has no such type.
const TensorType* FindTensorType(uint32_t id);

}  // namespace baton::gguf

#endif  // BATON_COMMON_GGUF_TENSOR_TYPE_H_
