// The quantised types of GGUF files: blocks of elements with scales of their own, as the format of
// ggml lays them out. Dequantised in float32, each operation rounded, so every machine and every
// other reader gets the same values.
#ifndef BATON_COMMON_MODEL_GGUF_BLOCKS_H_
#define BATON_COMMON_MODEL_GGUF_BLOCKS_H_

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "common/backend/tensor.h"

namespace baton::model {

struct BlockFormat {
  absl::string_view name;
  int elements;  // of a block
  int bytes;
  void (*dequantize)(const uint8_t* block, float* out);
  // As the one super-block of a SuperBlockRow, of so many bits; null if it cannot be one.
  int split_bits = 0;
  void (*split)(const uint8_t* block, const backend::SuperBlockRow& out) = nullptr;
  int scale_places[2] = {};  // of float16 values in a block, the same one twice if there is one
};

// Null for a type that Baton does not read. FindBlockFormat("Q4_K")
const BlockFormat* FindBlockFormat(absl::string_view name);

inline constexpr absl::string_view kMxfp4Name = "MXFP4";
// The largest exponent of a block's scale that is accepted, with its bias of 127. GPUs hold scales
// times 64 in bfloat16, which ends there; 255 is no number.
inline constexpr int kMxfp4MaxExponent = 248;

// For messages.
inline constexpr char kBlockFormatNames[] =
    "Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K or MXFP4";

// Whether the scales of a block are finite numbers. REQUIRES: format.split.
bool HasFiniteScales(const BlockFormat& format, const uint8_t* block);

// Writes `elements` values, whole blocks, from bytes at any alignment. False if one of them is not
// finite, as in a damaged file.
bool Dequantize(const BlockFormat& format, const char* blocks, int64_t elements, float* out);

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_GGUF_BLOCKS_H_
