#include "common/backend/cuda/plan/workspace_sizes.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "common/backend/cuda/kernels/attention.h"
#include "common/backend/cuda/kernels/blocks.h"
#include "common/backend/cuda/kernels/experts.h"
#include "common/backend/cuda/kernels/index_maps.h"
#include "common/backend/cuda/kernels/latent.h"
#include "common/backend/cuda/kernels/recurrence.h"
#include "common/backend/cuda/matrices/expert_group.h"
#include "common/backend/cuda/runtime/arena.h"
#include "common/backend/cuda/runtime/kv_copier.h"
#include "common/backend/cuda/sampling/device_sampler.h"
#include "common/backend/cuda/steps/batch_upload.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"

namespace baton::backend::cuda {
namespace {

// The most bytes of the split kernel's partial sums: beyond it, sequences go to the tile kernel,
// which is slow for few rows, and keeps the step from being recorded. It is enough for 64 sequences
// of 12,000 tokens with 4 KV heads of 128.
constexpr int64_t kMaxPartialBytes = int64_t{96} << 20;

absl::Status Unsupported(absl::string_view what, int64_t found, absl::string_view expected) {
  return MakeError(absl::StatusCode::kUnimplemented, "UNSUPPORTED_MODEL",
                   absl::StrCat("--device cuda: ", what, " is ", found, ", expected ", expected));
}

absl::Status CheckHeads(const AttentionHeads& heads, const StepLimits& limits) {
  const int dim = heads.head_dim;
  const bool has_kernel = dim % 8 == 0 && (!IsWide(dim) || dim == kWidestHead);
  if (limits.latent_dim == 0 && !has_kernel) {
    return Unsupported("head_dim", dim,
                       absl::StrCat("a multiple of 8 up to 256, or ", kWidestHead));
  }
  if (heads.query_heads % heads.kv_heads != 0) {
    return Unsupported("num_attention_heads", heads.query_heads,
                       absl::StrCat("a multiple of num_key_value_heads, ", heads.kv_heads));
  }
  // An index of a row's heads of the queries by those of a group stays in 32 bits.
  const int64_t group = heads.group();
  if (limits.max_rows * group * group > INT32_MAX) {
    return Unsupported("num_attention_heads", heads.query_heads,
                       absl::StrCat("fewer with ", heads.kv_heads, " KV heads in steps of ",
                                    limits.max_rows, " tokens"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSupported(const StepLimits& limits) {
  const int rotated = limits.head_dim - limits.latent_dim;
  if (limits.latent_dim > 0 && (limits.latent_dim % 8 != 0 || limits.latent_dim > kMostLatentDim)) {
    return Unsupported("kv_lora_rank", limits.latent_dim,
                       absl::StrCat("a multiple of 8 up to ", kMostLatentDim));
  }
  if (limits.latent_dim > 0 && (rotated % 8 != 0 || rotated > kMostRotatedDim)) {
    return Unsupported("qk_rope_head_dim", rotated,
                       absl::StrCat("a multiple of 8 up to ", kMostRotatedDim));
  }
  for (const AttentionHeads& heads : limits.heads()) {
    BATON_RETURN_IF_ERROR(CheckHeads(heads, limits));
  }
  if (limits.hidden_dim % 8 != 0) {
    return Unsupported("hidden_size", limits.hidden_dim, "a multiple of 8");
  }
  if (limits.experts > kMostExperts) {
    return Unsupported("the number of experts", limits.experts,
                       absl::StrCat("at most ", kMostExperts));
  }
  if (limits.experts_per_token > kMostChoices) {
    return Unsupported("num_experts_per_tok", limits.experts_per_token,
                       absl::StrCat("at most ", kMostChoices));
  }
  if (!std::has_single_bit(static_cast<unsigned>(limits.block_tokens)) ||
      limits.block_tokens < 16) {
    return Unsupported("--block-size", limits.block_tokens, "a power of two from 16 on");
  }
  return absl::OkStatus();
}

WorkspaceSizes WorkspaceSizes::For(const StepLimits& limits, DType activation,
                                   size_t products_bytes) {
  const bool latent = limits.latent_dim > 0;
  WorkspaceSizes sizes = {};
  // One layer after the other uses the workspaces, whatever its heads.
  for (const AttentionHeads& heads : limits.heads()) {
    const int dim = PaddedDim(heads.head_dim);
    const int64_t partial_floats = latent ? kLatentPartialFloats : PartialFloats(dim);
    const int64_t total_floats = latent ? kLatentTotalFloats : TotalFloats(dim);
    const int64_t partial_bytes = heads.kv_heads * partial_floats * int64_t{sizeof(float)};
    const AttentionRoom room =
        RoomFor(limits.max_rows, limits.max_sequences, limits.max_positions, heads.group(),
                static_cast<int>(kMaxPartialBytes / partial_bytes));
    sizes.rooms.push_back(room);
    const auto grow = [](size_t& size, int64_t bytes) {
      size = std::max(size, static_cast<size_t>(bytes));
    };
    grow(sizes.partials, room.partials * partial_bytes);
    grow(sizes.counters,
         int64_t{room.row_tiles} * heads.kv_heads * static_cast<int64_t>(sizeof(unsigned)));
    grow(sizes.totals, int64_t{room.tile_items} * heads.kv_heads * total_floats *
                           static_cast<int64_t>(sizeof(float)));
  }
  sizes.upload = BatchUpload::DeviceBytes(limits, sizes.rooms);
  sizes.sampler = DeviceSampler::DeviceBytes(limits);
  sizes.products = products_bytes;
  sizes.quantized = QuantizedWorkspaces::For(limits);
  sizes.experts = ExpertWorkspace::DeviceBytes(limits);
  sizes.state_spots = static_cast<size_t>(limits.state_spots) * sizeof(SpotEntry);
  sizes.copied_blocks = kCopiedBlocksAtOnce * sizeof(BlockPair);
  int64_t chunk_bytes = limits.chunk_bytes;
  if (chunk_bytes == 0) {
    chunk_bytes = int64_t{latent ? 1 : 2} * limits.kv_heads * limits.block_tokens *
                  (KvRowBytes(limits.kv_format, activation, limits.head_dim) +
                   KvRowParameterBytes(limits.kv_format));
  }
  sizes.copier = CudaKvCopier::DeviceBytes(static_cast<size_t>(chunk_bytes));
  return sizes;
}

size_t WorkspaceSizes::total() const {
  size_t sum = 0;
  for (const size_t part :
       {upload, partials, counters, totals, sampler, products, copied_blocks, copier,
        quantized.dequantized, quantized.reordered, experts, state_spots}) {
    sum += (part + Arena::kAlignment - 1) / Arena::kAlignment * Arena::kAlignment;
  }
  return sum;
}

}  // namespace baton::backend::cuda
