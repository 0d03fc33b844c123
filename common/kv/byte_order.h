// Byte strings to hash, in the same order on every machine, for fingerprints and keys that cross
// the wire.
#ifndef BATON_COMMON_KV_BYTE_ORDER_H_
#define BATON_COMMON_KV_BYTE_ORDER_H_

#include <cstdint>
#include <type_traits>

#include "absl/container/inlined_vector.h"

namespace baton::kv {

// Holds a key and 64 tokens without the heap.
using ByteString = absl::InlinedVector<uint8_t, 8 + 4 * 64>;

// Returns where the next value goes.
template <class T>
uint8_t* StoreLittleEndian(T value, uint8_t* at) {
  static_assert(std::is_unsigned_v<T>);
  for (size_t i = 0; i < sizeof(T); ++i) *at++ = static_cast<uint8_t>(value >> (8 * i));
  return at;
}

template <class T>
void AppendLittleEndian(T value, ByteString* bytes) {
  bytes->resize(bytes->size() + sizeof(T));
  StoreLittleEndian(value, bytes->data() + bytes->size() - sizeof(T));
}

}  // namespace baton::kv

#endif  // BATON_COMMON_KV_BYTE_ORDER_H_
