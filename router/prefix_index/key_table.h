// The flat table under PrefixIndex: 64-bit keys to 32-bit values other than 0. Linear probing in
// segments; erasing moves the following entries back, so there are no tombstones.
#ifndef BATON_ROUTER_PREFIX_INDEX_KEY_TABLE_H_
#define BATON_ROUTER_PREFIX_INDEX_KEY_TABLE_H_

#include <cstdint>
#include <vector>

#include "common/base/huge_page_arena.h"

namespace baton::router {

// Unsynchronized.
class KeyTable {
 public:
  static constexpr int kSegments = 4096;

  KeyTable() : segments_(kSegments) {}

  // 0 if the key is absent.
  uint32_t Find(uint64_t key) const;
  void Prefetch(uint64_t key) const;
  // Sets the key's value to change(value), which must not be 0; value is 0 if the key was absent.
  template <class Change>
  void Insert(uint64_t key, Change change) {
    Slot& slot = FindOrInsert(key);
    slot.value = change(slot.value);
  }
  // The same for a present key, which is erased if `change` returns 0. No effect on an absent one.
  template <class Change>
  void Update(uint64_t key, Change change) {
    const Place place = PlaceOf(key);
    Segment& segment = segments_[place.segment];
    if (segment.size == 0) return;
    const uint32_t at = Probe(segment, key, place.hash);
    Slot& slot = segment.slots[at];
    if (slot.value == 0) return;
    const uint32_t changed = change(slot.value);
    if (changed != 0) {
      slot.value = changed;
    } else {
      EraseAt(segment, at);
    }
  }

  // The same for each entry of a segment.
  template <class Change>
  void ChangeSegment(int segment, Change change) {
    Segment& s = segments_[segment];
    for (uint32_t i = 0; i < s.capacity;) {
      Slot& slot = s.slots[i];
      if (slot.value == 0) {
        ++i;
        continue;
      }
      const uint32_t changed = change(slot.value);
      if (changed != 0) {
        slot.value = changed;
        ++i;
      } else {
        EraseAt(s, i);  // the entry that moves here is next
      }
    }
  }

  int64_t size() const { return size_; }
  int64_t memory_bytes() const;

 private:
  struct Slot {
    uint32_t key_low, key_high;  // two halves, so that a slot is 12 bytes
    uint32_t value;              // 0: empty

    uint64_t key() const { return uint64_t{key_high} << 32 | key_low; }
  };
  static_assert(sizeof(Slot) == 12);
  struct Segment {
    Slot* slots = nullptr;  // of memory_
    uint32_t capacity = 0;
    uint32_t size = 0;
  };
  struct Place {
    uint32_t segment;
    uint32_t hash;
  };

  static Place PlaceOf(uint64_t key);
  // Monotone in the hash, so that a larger segment is filled from the smaller one in order.
  static uint32_t Home(uint32_t hash, uint32_t capacity) {
    return static_cast<uint32_t>(uint64_t{hash} * capacity >> 32);
  }
  // The key's slot, or the empty one where it belongs. REQUIRES: one is empty.
  static uint32_t Probe(const Segment& segment, uint64_t key, uint32_t hash);
  // The value of a new key is 0, which the caller must change.
  Slot& FindOrInsert(uint64_t key);
  void Grow(Segment& segment);
  void EraseAt(Segment& segment, uint32_t at);

  HugePageArena memory_;
  std::vector<Segment> segments_;
  int64_t size_ = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_PREFIX_INDEX_KEY_TABLE_H_
