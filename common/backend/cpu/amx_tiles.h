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

// Makes the compiler write what `p` points into, and all other memory, before this point: GCC 12's
// tile loads do not say that they read memory.
BATON_INLINE void TilesReadMemory(const void* p) { asm volatile("" : : "r"(p) : "memory"); }

// Sums in tiles 0-3, left operands in 4 and 5, right operands, 16 pairs of k x 16 columns, in 6
// and 7.
class TileSession {
 public:
  TileSession() = default;
  ~TileSession() { _tile_release(); }
  TileSession(const TileSession&) = delete;

  // Sums 0 and 1 and left operand 4 get `upper` rows; 2, 3 and 5 `lower`, or, with 0, are not used.
  void Configure(int upper, int lower) {
    const int rows[8] = {upper, upper, lower, lower, upper, lower, 16, 16};
    TileConfig config;
    for (int i = 0; i < 8; ++i) {
      config.rows[i] = static_cast<uint8_t>(rows[i]);
      config.row_bytes[i] = rows[i] > 0 ? 64 : 0;
    }
    Load(config);
  }

  // Configures for 8-bit operands: sums in 0 and 1, of 16 rows; left operands of as many, `in`
  // columns each, in 4 and 5.
  void ConfigureForBytes(int in) {
    TileConfig config;
    for (int i = 0; i < 2; ++i) {
      config.rows[i] = config.rows[4 + i] = 16;
      config.rows[6 + i] = static_cast<uint8_t>(in / 4);
      config.row_bytes[i] = config.row_bytes[6 + i] = 64;
      config.row_bytes[4 + i] = static_cast<uint16_t>(in);
    }
    Load(config);
  }

 private:
  static void Load(const TileConfig& config) {
    // GCC 12's intrinsic claims to read 8 of the 64 bytes.
    TilesReadMemory(&config);
    _tile_loadconfig(&config);
  }
};

}  // namespace
}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_AMX_TILES_H_
