// Compiled for AVX-512 with BF16: the intrinsics of AMX are replaced, then their kernels compiled.
#include "tests/common/backend/cpu/emulated_kernels.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace baton::backend {
namespace {

// As Intel's Architecture Instruction Set Extensions Reference describes the tiles: 8 of 16 rows of
// 64 bytes, of each thread. An instruction that would fault ends the process.
struct Tile {
  int rows = 0, row_bytes = 0;
  uint8_t data[16][64];
};

struct Tiles {
  bool configured = false;
  Tile tile[8];

  static void Require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "emulated AMX: %s\n", what);
    std::abort();
  }
  Tile& Used(int t) {
    Require(configured && tile[t].rows > 0, "a tile that is not configured");
    return tile[t];
  }
};

thread_local Tiles tiles;

void LoadConfig(const void* memory) {
  const auto* bytes = static_cast<const uint8_t*>(memory);
  Tiles::Require(bytes[0] == 1 && bytes[1] == 0, "the palette is not 1, or the start row not 0");
  for (int i = 2; i < 16; ++i) Tiles::Require(bytes[i] == 0, "a reserved byte is set");
  for (int t = 0; t < 8; ++t) {
    uint16_t row_bytes;
    std::memcpy(&row_bytes, bytes + 16 + 2 * t, sizeof(row_bytes));
    const int rows = bytes[48 + t];
    Tiles::Require(rows <= 16 && row_bytes <= 64, "a tile is too large");
    Tiles::Require((rows == 0) == (row_bytes == 0), "a tile has rows or columns alone");
    tiles.tile[t].rows = rows;
    tiles.tile[t].row_bytes = row_bytes;
    std::memset(tiles.tile[t].data, 0, sizeof(tiles.tile[t].data));
  }
  tiles.configured = true;
}

void Release() { tiles = Tiles(); }

void LoadTile(int t, const void* base, int64_t stride) {
  Tile& tile = tiles.Used(t);
  std::memset(tile.data, 0, sizeof(tile.data));
  for (int r = 0; r < tile.rows; ++r) {
    std::memcpy(tile.data[r], static_cast<const uint8_t*>(base) + r * stride,
                static_cast<size_t>(tile.row_bytes));
  }
}

void StoreTile(int t, void* base, int64_t stride) {
  const Tile& tile = tiles.Used(t);
  for (int r = 0; r < tile.rows; ++r) {
    std::memcpy(static_cast<uint8_t*>(base) + r * stride, tile.data[r],
                static_cast<size_t>(tile.row_bytes));
  }
}

void ZeroTile(int t) { std::memset(tiles.Used(t).data, 0, sizeof(Tile::data)); }

// Calls add(sum, left, right) with each element of the sums and each four bytes that it sums up, in
// ascending order of k.
template <class Element, class Add>
void Multiply(int sums, int left, int right, Add add) {
  Tile& c = tiles.Used(sums);
  const Tile& a = tiles.Used(left);
  const Tile& b = tiles.Used(right);
  Tiles::Require(a.rows == c.rows && b.row_bytes == c.row_bytes && a.row_bytes == 4 * b.rows,
                 "shapes that do not fit each other");
  for (int m = 0; m < c.rows; ++m) {
    for (int k = 0; k < b.rows; ++k) {
      for (int n = 0; n < c.row_bytes / 4; ++n) {
        Element sum;
        std::memcpy(&sum, c.data[m] + 4 * n, sizeof(sum));
        sum = add(sum, a.data[m] + 4 * k, b.data[k] + 4 * n);
        std::memcpy(c.data[m] + 4 * n, &sum, sizeof(sum));
      }
    }
  }
}

void MultiplyBF16(int sums, int left, int right) {
  Multiply<float>(sums, left, right, [](float sum, const uint8_t* x, const uint8_t* w) {
    const auto at = [](const uint8_t* pair, int i) {
      uint16_t half;
      std::memcpy(&half, pair + 2 * i, sizeof(half));
      const uint32_t bits = uint32_t{half} << 16;
      float value;
      std::memcpy(&value, &bits, sizeof(value));
      return value;
    };
    return sum + at(x, 0) * at(w, 0) + at(x, 1) * at(w, 1);
  });
}

void MultiplyI8(int sums, int left, int right) {
  Multiply<int32_t>(sums, left, right, [](int32_t sum, const uint8_t* x, const uint8_t* w) {
    for (int i = 0; i < 4; ++i) sum += static_cast<int8_t>(x[i]) * static_cast<int8_t>(w[i]);
    return sum;
  });
}

}  // namespace
}  // namespace baton::backend

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#define _tile_loadconfig(memory) LoadConfig(memory)
#define _tile_release() Release()
#define _tile_loadd(tile, base, stride) LoadTile(tile, base, stride)
#define _tile_stored(tile, base, stride) StoreTile(tile, base, stride)
#define _tile_zero(tile) ZeroTile(tile)
#define _tile_dpbf16ps(sums, left, right) MultiplyBF16(sums, left, right)
#define _tile_dpbssd(sums, left, right) MultiplyI8(sums, left, right)

#include "common/backend/cpu/amx_kernels.h"

namespace baton::backend {
constinit const Kernels kEmulatedAmxKernels = AmxKernels("emulated_amx");
}  // namespace baton::backend
#else
namespace baton::backend {
constinit const Kernels kEmulatedAmxKernels = {};
}  // namespace baton::backend
#endif
