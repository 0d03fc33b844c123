// A layer of experts: which of them each row chooses, and the products of all of them at once, each
// with the rows that chose it.
//
// A row and one of its choices is a *pair*, number row * per_token + choice; a row's choices are in
// the order of the experts. Pairs sorted by expert, those of one in ascending order, have *places*.
// A block multiplies a tile: some consecutive places of one expert. How tiles are cut changes no
// bit, because every shape of block sums a row's product in one order (matmul.h), and a row adds
// its experts' results in the order of its choices.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_EXPERTS_H_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_EXPERTS_H_

#include "common/backend/cuda/kernels/gating.h"
#include "common/backend/cuda/kernels/quantized.h"
#include "common/backend/cuda/simt/simt.h"
#include "common/backend/tensor.h"

namespace baton::backend::cuda {

inline constexpr int kMostExperts = 512;
inline constexpr int kMostChoices = 32;

// A tile has the places [first, first + count). If count is 0, there is no such tile.
struct alignas(16) ExpertTile {
  int32_t expert;
  int32_t first;
  int32_t count;
  int32_t unused;
};

struct RouterLaunch {
  const void* x;  // [rows, cols]
  int64_t x_stride;
  const float* router;  // [experts, cols]
  const float* bias;    // [experts] or null
  float* logits;        // [rows, experts]
  int64_t logit_stride;
  unsigned* counts;  // [experts]: becomes zeros
  int rows;
  int cols;  // a multiple of 8
  int experts;
};

// Logits in float32, each summed in one order for any number of rows. dtype: of x. Reads the rows'
// values for every 8 experts (one row for every 2), and the router for every row or 8 rows.
void LaunchRouter(const RouterLaunch& launch, DType dtype, Stream stream);

struct ChooseExpertsLaunch {
  const float* logits;  // [rows, experts]
  int64_t logit_stride;
  int32_t* chosen;   // [rows, per_token], of each pair
  float* weights;    // [rows, per_token]
  unsigned* counts;  // [experts]: grow by the pairs of each
  int rows;
  int experts;      // at most kMostExperts
  int per_token;    // at most kMostChoices, and experts
  bool normalized;  // as ExpertRouting (backend/experts.h), whose rules hold, like those below
  bool sigmoid = false;
  float scale = 1;
  const float* choice_bias = nullptr;  // [experts], or null
  const float* scales = nullptr;       // [experts], factors of the weights at last, or null
  // [rows] or null. A row whose position is below 0 is padding and chooses what the first row does,
  // so that no expert is read for it alone.
  const int32_t* positions = nullptr;
};

void LaunchChooseExperts(const ChooseExpertsLaunch& launch, Stream stream);

struct PlacePairsLaunch {
  const int32_t* chosen;   // [pairs]
  const unsigned* counts;  // [experts]
  int32_t* pairs;          // [pairs], by place: the pair
  int32_t* rows;           // [pairs], by place: its row
  ExpertTile* tiles;       // [tile_count]
  int pair_count;
  int per_token;
  int experts;
  int tile_rows;
  int tile_count;  // ExpertTileCount
};

void LaunchPlacePairs(const PlacePairsLaunch& launch, Stream stream);

// Rows of a tile, for so many pairs: few, so that experts that few rows chose waste little, or
// many, which share the loads of W.
inline constexpr int kLeastTileRows = 8, kMiddleTileRows = 32, kMostTileRows = 64;
inline int ExpertTileRows(int pairs, int experts) {
  // Half full on average, or more.
  if (pairs <= kLeastTileRows / 2 * experts) return kLeastTileRows;
  return pairs <= kMiddleTileRows / 2 * experts ? kMiddleTileRows : kMostTileRows;
}
// More tiles than any choice of experts makes.
inline int ExpertTileCount(int pairs, int experts, int tile_rows) {
  return pairs / tile_rows + (pairs < experts ? pairs : experts);
}

// An expert's matrix: of 16 bits, w [n, k] (groups: null), or as QuantizedView.
struct ExpertMatrix {
  const void* w;
  const uint32_t* groups;
  const float* bias;  // [n] or null
};

// What both products below take. bits of W: 16, 4, 8 or kFp4.
struct ExpertOperands {
  const void* x;  // 16-bit
  int64_t x_stride;
  const int32_t* x_rows;  // by place: the row of x; null: the place
  const ExpertMatrix* matrices;
  QuantizedView w;  // all but values and groups; of 16 bits n and k alone
  int bits;
  const ExpertTile* tiles;
  int tile_count;
  int tile_rows;
};

struct ExpertMatMulLaunch {
  ExpertOperands operands;
  float* out;
  int64_t out_stride;
  const int32_t* out_rows;  // by place: the row of out
};

// dtype: of x and of W of 16 bits, kF16 or kBF16. Reads the matrices of experts that have tiles,
// once a tile.
void LaunchExpertMatMul(const ExpertMatMulLaunch& launch, DType dtype, Stream stream);

struct ExpertMatMulGatedLaunch {
  ExpertOperands operands;  // gate first; n a multiple of 16
  void* out;                // [places, n / 2], 16-bit
  int64_t out_stride;
  Gating gating = {};
};

void LaunchExpertMatMulGated(const ExpertMatMulGatedLaunch& launch, DType dtype, Stream stream);

// Where the matrices of one expert are in pinned memory of the host.
struct ExpertSource {
  const std::byte* gate_up;
  const std::byte* down;
};

// Copies experts' matrices from the host's memory to the device's, at the places where the products
// of any layer look for them. Pointers, sizes and offsets are multiples of 16 bytes.
struct FetchExpertsLaunch {
  const ExpertSource* sources;  // [experts]
  std::byte* to;                // [experts, stride_bytes]
  int64_t gate_up_bytes;
  int64_t down_bytes;
  int64_t down_offset;  // of down in an expert's place
  int64_t stride_bytes;
  // [experts], the pairs of each: an expert without pairs is not copied. Null: all are.
  const unsigned* counts;
  int experts;
};

void LaunchFetchExperts(const FetchExpertsLaunch& launch, Stream stream);

struct SumExpertsLaunch {
  const float* results;  // [rows * per_token, cols], by pair
  int64_t result_stride;
  const float* weights;  // [rows, per_token]
  float* out;            // [rows, cols]
  int64_t out_stride;
  int cols;  // a multiple of 4, as the strides
  int per_token;
  bool accumulates = false;  // added to what `out` has
};

void LaunchSumExperts(const SumExpertsLaunch& launch, int rows, Stream stream);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_EXPERTS_H_
