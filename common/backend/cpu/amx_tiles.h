// AMX's tile registers. For kernels_amx.cc only; see simd16.h.
#ifndef BATON_COMMON_BACKEND_CPU_AMX_TILES_H_
#define BATON_COMMON_BACKEND_CPU_AMX_TILES_H_

#include "common/backend/cpu/simd16.h"

namespace baton::backend {
namespace {

// What LDTILECFG reads.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Sums in tiles 0-3 and left operands in 4 and 5; right operands, 16 pairs of k x 16 columns, in 6
// and 7. Of the two rows of sums and left operands, the first have `rows0` rows, the second `rows1`.
class TileSession {
 public:
  TileSession() = default;
  ~TileSession() { _tile_release(); }
  TileSession(const TileSession&) = delete;

  // 2 x 2 tiles of sums: 0 and 1 above 2 and 3.
  void ConfigureSquare(int rows0, int rows1) {
    const int rows[8] = {rows0, rows0, rows1, rows1, rows0, rows1, 16, 16};
    Configure(rows);
  }
  // 1 x 4 tiles of sums; one left operand in 4, right operands in 5-7.
  void ConfigureRow(int rows0) {
    const int rows[8] = {rows0, rows0, rows0, rows0, rows0, 16, 16, 16};
    Configure(rows);
  }

 private:
  void Configure(const int* rows) {
    TileConfig config;
    for (int i = 0; i < 8; ++i) {
      config.rows[i] = static_cast<uint8_t>(rows[i]);
      config.row_bytes[i] = rows[i] > 0 ? 64 : 0;
    }
    _tile_loadconfig(&config);
  }
};

}  // namespace
}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_AMX_TILES_H_
