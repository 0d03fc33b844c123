// The quantised types of GGUF files: blocks of elements with scales of their own, as the format of
// ggml lays them out. Dequantised in float32, each operation rounded, so every machine and every
// other reader gets the same values.
#ifndef BATON_COMMON_MODEL_GGUF_BLOCKS_H_
#define BATON_COMMON_MODEL_GGUF_BLOCKS_H_

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace baton::model {

struct BlockFormat {
  absl::string_view name;
  int elements;  // of a block
  int bytes;
  void (*dequantize)(const uint8_t* block, float* out);
};

// Null for a type that Baton does not read. FindBlockFormat("Q4_K")
const BlockFormat* FindBlockFormat(absl::string_view name);

// For messages.
inline constexpr char kBlockFormatNames[] = "Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K or Q6_K";

// Writes `elements` values, whole blocks, from bytes at any alignment. False if one of them is not
// finite, as in a damaged file.
bool Dequantize(const BlockFormat& format, const char* blocks, int64_t elements, float* out);

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_GGUF_BLOCKS_H_
