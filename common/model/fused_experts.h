// Matrices of a layer's experts that safetensors files have in one tensor, NAME. Those of Qwen3.5
// and Granite are [experts, rows, cols]. Those of gpt-oss are
// - as floats, NAME [experts, cols, rows]: transposed;
// - in MXFP4, NAME_blocks U8 [experts, rows, cols / 32, 16], of whose bytes the low half is the
//   even column, and NAME_scales U8 [experts, rows, cols / 32], exponents of two, plus 127.
// and rows of gate and up are in turn: gate's first, up's first, gate's second, ...
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
  bool by_rows = false;  // not as gpt-oss's
  bool in_turn = false;  // rows of gate and up are

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

// Row-major, of the tensor's type: in the file if it is by rows, else in `values`, which it fills.
// REQUIRES: FloatShape; the tensor has a weight_dtype.
const char* FusedFloats(const FusedPart& part, const StoredTensor& stored,
                        std::vector<char>* values);

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_FUSED_EXPERTS_H_
