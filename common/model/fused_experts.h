// Matrices of a layer's experts that gpt-oss's safetensors files have in one tensor, NAME:
// - as floats, NAME [experts, cols, rows]: transposed;
// - in MXFP4, NAME_blocks U8 [experts, rows, cols / 32, 16], of whose bytes the low half is the
//   even column, and NAME_scales U8 [experts, rows, cols / 32], exponents of two, plus 127.
// Rows of gate and up are in turn: gate's first, up's first, gate's second, ...
#ifndef BATON_COMMON_MODEL_FUSED_EXPERTS_H_
#define BATON_COMMON_MODEL_FUSED_EXPERTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/model/checkpoint.h"

namespace baton::model {

// The matrix [rows, cols] of one expert, gate's rows above up's.
struct FusedPart {
  std::string name;
  int experts = 0;
  int expert = 0;
  int64_t rows = 0;
  int64_t cols = 0;
  bool in_turn = false;  // it is gate and up

  std::vector<uint64_t> FloatShape() const;
  std::vector<uint64_t> BlocksShape() const;
  std::vector<uint64_t> ScalesShape() const;
  // Where the file has row `row` of the matrix.
  size_t StoredRow(size_t row) const;
};

// Where the file has row `row` of gate and up, of `rows` in all.
constexpr size_t FusedRow(size_t row, size_t rows) {
  return row < rows / 2 ? 2 * row : 2 * (row - rows / 2) + 1;
}

// Row-major, of the tensor's type. REQUIRES: FloatShape; the tensor has a weight_dtype.
std::vector<char> FusedFloats(const FusedPart& part, const StoredTensor& stored);

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_FUSED_EXPERTS_H_
