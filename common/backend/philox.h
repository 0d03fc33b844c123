// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC
// 2011): random bits as a pure function of a counter and a key, so a request that moves to another
// worker carries no generator state.
#ifndef BATON_COMMON_BACKEND_PHILOX_H_
#define BATON_COMMON_BACKEND_PHILOX_H_

#include <array>
#include <cstdint>

#include "common/base/portable.h"

namespace baton::backend {

// Turns the counter into the four random words.
BATON_PORTABLE constexpr void PhiloxRounds(uint32_t (&counter)[4], uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter[0] = static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key0;
    counter[1] = static_cast<uint32_t>(product1);
    counter[2] = static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key1;
    counter[3] = static_cast<uint32_t>(product0);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

constexpr std::array<uint32_t, 4> Philox4x32(const std::array<uint32_t, 4>& counter,
                                             const std::array<uint32_t, 2>& key) {
  uint32_t words[4] = {counter[0], counter[1], counter[2], counter[3]};
  PhiloxRounds(words, key[0], key[1]);
  return {words[0], words[1], words[2], words[3]};
}

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_PHILOX_H_
