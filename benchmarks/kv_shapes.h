// KV of the shapes of known models, for benchmarks without a model.
#ifndef BATON_BENCHMARKS_KV_SHAPES_H_
#define BATON_BENCHMARKS_KV_SHAPES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/backend/tensor.h"
#include "common/kv/kv_layout.h"

namespace baton::benchmarks {

struct KvShape {
  const char* name;
  int layers, kv_heads, head_dim;
};
inline constexpr KvShape kKvShapes[] = {{"demo", 4, 2, 64},    // models/demo
                                        {"0.5b", 24, 2, 64},   // Qwen2.5-0.5B
                                        {"1.5b", 28, 2, 128},  // Qwen2.5-1.5B
                                        {"7b", 28, 4, 128}};   // Qwen2.5-7B
// Qwen3.5-9B, where every fourth layer attends and the others have the gated delta rule; and the
// same with attention in all of its layers.
inline constexpr KvShape kRecurrentShape = {"9b-recurrent", 8, 4, 256};
inline constexpr KvShape kRecurrentShapeInFull = {"9b-full", 32, 4, 256};
inline constexpr int kLayersPerAttention = 4;

inline kv::KvLayout LayoutOf(const KvShape& shape) {
  kv::KvLayout layout;
  layout.layers = shape.layers;
  layout.kv_heads = shape.kv_heads;
  layout.head_dim = shape.head_dim;
  return layout;
}

inline kv::KvLayout RecurrentLayout() {
  kv::KvLayout layout = LayoutOf(kRecurrentShape);
  const std::vector<kv::StateShape> state = {{.lanes = 8192, .depth = 3},
                                             {.lanes = 32 * 128, .depth = 128}};
  layout.AddStates({static_cast<size_t>(layout.layers * (kLayersPerAttention - 1)), state});
  return layout;
}

// As the engine lays it out.
inline backend::KvPool PoolAt(std::byte* base, const kv::KvLayout& layout, int blocks) {
  backend::KvPool pool;
  pool.base = base;
  pool.block_stride_bytes = layout.BlockBytes();
  pool.layer_stride_bytes = layout.ChunkBytes();
  pool.block_count = blocks;
  if (!layout.recurrent()) return pool;
  const kv::KvPages pages = layout.Pages();
  pool.block_stride_bytes = layout.PageBytes();
  pool.tables = pages.tables();
  pool.state_tables = pages.window_tables;
  for (const auto [table, slot] : pages.places) pool.places.push_back({table, slot});
  return pool;
}

// Bytes that differ from each other, every page written.
inline std::vector<std::byte> MakePool(int64_t bytes) {
  std::vector<std::byte> pool(static_cast<size_t>(bytes));
  for (size_t i = 0; i < pool.size(); ++i) pool[i] = static_cast<std::byte>(i * 2654435761u >> 24);
  return pool;
}

}  // namespace baton::benchmarks

#endif  // BATON_BENCHMARKS_KV_SHAPES_H_
