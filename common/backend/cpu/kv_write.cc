#include "common/backend/cpu/kv_write.h"

#include <array>
#include <cstring>

#include "common/backend/cpu/rows.h"
#include "common/base/check.h"

namespace baton::backend {
namespace {

// The weight of a norm without one.
constexpr auto kOnes = [] {
  std::array<float, kMaxHeadDim> ones{};
  ones.fill(1);
  return ones;
}();

// A rotated part whose pairs are neighbours, with all first elements before all second ones.
void SplitPairs(const float* from, int half, float* to) {
  for (int i = 0; i < half; ++i) {
    to[i] = from[2 * i];
    to[half + i] = from[2 * i + 1];
  }
}

}  // namespace

KvWriter::Slot KvWriter::SlotOf(const CpuBatch& batch, const KvPool& kv, int layer,
                                int64_t row) const {
  const CpuBatch::Sequence& sequence = batch.sequences()[batch.sequence_of(row)];
  Slot slot;
  slot.position = sequence.context + static_cast<int>(row) - sequence.first_row;
  const int64_t block_index = slot.position / kv.block_tokens;
  BATON_CHECK_LT(block_index, sequence.block_count(kv));
  const KvPlace place = kv.PlaceOf(layer);
  const int32_t block = sequence.Table(kv, place.table)[block_index];
  BATON_CHECK(block >= 0 && block < kv.block_count) << "block " << block;
  slot.in_block = slot.position % kv.block_tokens;
  slot.chunk = kv.Chunk(block, place.slot);
  return slot;
}

void KvWriter::Rotate(const CpuRopeTable& rope, int position, float* head) const {
  BATON_CHECK_LT(position, rope.positions);
  const int64_t first = int64_t{position} * rope.half;
  kernels_.rope(head, rope.cosine.data() + first, rope.sine.data() + first, rope.half);
}

void KvWriter::WriteHead(const KvPool& kv, const Slot& slot, int head, const float* values) const {
  std::byte* base = slot.chunk + head * kv.head_bytes();
  std::byte* to = base + slot.in_block * kv.row_bytes();
  if (kv.format == KvFormat::kPlain) {
    kernels_.from_f32(values, ElementOf(kv.dtype), kv.head_dim, to);
    return;
  }
  uint16_t scale_and_zero[2];
  kernels_.quantize(values, static_cast<Codes>(kv.format), kv.head_dim,
                    reinterpret_cast<uint8_t*>(to), scale_and_zero);
  const int64_t parameters = KvRowParameterBytes(kv.format);
  std::memcpy(base + kv.block_tokens * kv.row_bytes() + slot.in_block * parameters, scale_and_zero,
              static_cast<size_t>(parameters));
}

void KvWriter::Write(const CpuBatch& batch, const KvPool& kv, const RopeWriteArgs& args) {
  const int64_t d = kv.head_dim;
  BATON_CHECK_EQ(kv.latent_dim, 0);
  CheckF32(args.qkv);
  CheckF32(args.q_out);
  const int64_t stored = args.q_only ? 0 : args.v_is_k ? 1 : 2;
  CheckShape(args.qkv, batch.rows(),
             args.query_heads * (args.q_stride > 0 ? args.q_stride : d) + stored * kv.kv_heads * d);
  CheckShape(args.q_out, batch.rows(), args.query_heads * d);
  BATON_CHECK_LE(d, kMaxHeadDim);
  if (args.rope != nullptr) {
    BATON_CHECK_LE(static_cast<const CpuRopeTable*>(args.rope)->half * 2, d);
  }
  ForRows(pool_, batch.rows(), args.qkv.cols, [&](int64_t row) { WriteRow(batch, kv, args, row); });
}

void KvWriter::WriteRow(const CpuBatch& batch, const KvPool& kv, const RopeWriteArgs& args,
                        int64_t row) const {
  const auto* rope = static_cast<const CpuRopeTable*>(args.rope);
  const Slot slot = SlotOf(batch, kv, args.layer, row);
  const int64_t d = kv.head_dim;
  const auto norm_head = [&](const float* from, const float* norm, float* to) {
    kernels_.norm(
        {.x = const_cast<float*>(from), .weight = norm, .eps = args.norm_eps, .n = d, .y = to});
  };
  const auto turn = [&](const float* from, const float* norm, float* to) {
    if (norm != nullptr) {
      norm_head(from, norm, to);
    } else {
      std::memcpy(to, from, static_cast<size_t>(d) * sizeof(float));
    }
    if (rope != nullptr) Rotate(*rope, slot.position, to);
  };
  const float *q_norm = FloatsOf(args.q_norm, d), *k_norm = FloatsOf(args.k_norm, d);
  const float* from = At<float>(args.qkv, row);
  const int64_t q_stride = args.q_stride > 0 ? args.q_stride : d;
  for (int head = 0; head < args.query_heads; ++head, from += q_stride) {
    float* to = At<float>(args.q_out, row) + head * d;
    turn(from, q_norm, to);
    if (rope != nullptr && !rope->query_scale.empty()) {
      kernels_.scale(to, rope->query_scale[static_cast<size_t>(slot.position)], 0, d);
    }
  }
  if (args.q_only) return;
  alignas(64) float turned[kMaxHeadDim];
  const float* v = args.v_is_k ? from : from + kv.kv_heads * d;
  for (int head = 0; head < kv.kv_heads; ++head, from += d) {
    turn(from, k_norm, turned);
    WriteHead(kv, slot, head, turned);
  }
  for (int head = 0; head < kv.kv_heads; ++head, v += d) {
    if (args.norm_v) norm_head(v, kOnes.data(), turned);
    WriteHead(kv, slot, kv.kv_heads + head, args.norm_v ? turned : v);
  }
}

void KvWriter::Write(const CpuBatch& batch, const KvPool& kv, const LatentWriteArgs& args) {
  const auto& rope = static_cast<const CpuRopeTable&>(*args.rope);
  const int64_t rotated = 2 * int64_t{rope.half};
  BATON_CHECK(rope.query_scale.empty());
  BATON_CHECK(kv.kv_heads == 1 && kv.head_dim == kv.latent_dim + rotated);
  BATON_CHECK_LE(kv.head_dim, kMaxHeadDim);
  for (const Tensor* tensor : {&args.q, &args.kv, &args.q_out}) CheckF32(*tensor);
  CheckShape(args.kv, batch.rows(), kv.head_dim);
  CheckShape(args.q_plain, batch.rows(), args.q.cols - args.query_heads * rotated);
  CheckShape(args.q_out, batch.rows(), int64_t{args.query_heads} * kv.head_dim);
  ForRows(pool_, batch.rows(), args.q.cols + args.kv.cols,
          [&](int64_t row) { WriteRow(batch, kv, args, row); });
}

void KvWriter::WriteRow(const CpuBatch& batch, const KvPool& kv, const LatentWriteArgs& args,
                        int64_t row) const {
  const auto& rope = static_cast<const CpuRopeTable&>(*args.rope);
  const Slot slot = SlotOf(batch, kv, args.layer, row);
  const int64_t latent = kv.latent_dim, plain = args.q_plain.cols / args.query_heads;
  const float* q = At<float>(args.q, row);
  auto* q_plain = static_cast<std::byte*>(RowOf(args.q_plain, row));
  for (int head = 0; head < args.query_heads; ++head, q += plain + 2 * int64_t{rope.half}) {
    kernels_.from_f32(q, ElementOf(args.q_plain.dtype), plain, q_plain);
    q_plain += plain * static_cast<int64_t>(SizeOf(args.q_plain.dtype));
    float* to = At<float>(args.q_out, row) + head * int64_t{kv.head_dim} + latent;
    SplitPairs(q + plain, rope.half, to);
    Rotate(rope, slot.position, to);
  }
  alignas(64) float k[kMaxHeadDim];
  const float* from = At<float>(args.kv, row);
  kernels_.norm({.x = const_cast<float*>(from),
                 .weight = FloatsOf(args.norm, latent),
                 .eps = args.norm_eps,
                 .n = latent,
                 .y = k});
  SplitPairs(from + latent, rope.half, k + latent);
  Rotate(rope, slot.position, k + latent);
  WriteHead(kv, slot, 0, k);
}

}  // namespace baton::backend
