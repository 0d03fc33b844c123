#include "common/backend/cpu/convert.h"

#include <algorithm>
#include <cstring>

#include "common/backend/cpu/isa.h"

namespace baton::backend {

void ConvertElements(const void* source, DType from, int64_t count, DType to, void* target) {
  if (from == to) {
    std::memcpy(target, source, count * SizeOf(from));
    return;
  }
  static const Kernels& kernels = KernelsOf(BestIsa());
  constexpr int64_t kChunk = 256;
  alignas(64) std::byte raw[kChunk * 4];
  alignas(64) float wide[kChunk];
  for (int64_t at = 0; at < count; at += kChunk) {
    const int64_t size = std::min(kChunk, count - at);
    std::memcpy(raw, static_cast<const std::byte*>(source) + at * SizeOf(from),
                size * SizeOf(from));
    kernels.to_f32(raw, static_cast<Element>(from), size, wide);
    kernels.from_f32(wide, static_cast<Element>(to), size,
                     static_cast<std::byte*>(target) + at * SizeOf(to));
  }
}

}  // namespace baton::backend
