// The flat table under PrefixIndex: 64-bit keys to 32-bit values that are not 0. Linear probing in
// segments; erasing moves what follows back, so there are no tombstones.
#ifndef BATON_ROUTER_PREFIX_INDEX_KEY_TABLE_H_
#define BATON_ROUTER_PREFIX_INDEX_KEY_TABLE_H_

#include <cstdint>
#include <memory>
#include <vector>

namespace baton::router {

// Unsynchronized.
class KeyTable {
 public:
  static constexpr int kSegments = 4096;

  KeyTable() : segments_(kSegments) {}

  // 0 if it is not there.
  uint32_t Find(uint64_t key) const;
  void Prefetch(uint64_t key) const;
  // Sets the key's value to change(value), which must not be 0; value is 0 if it was not there.
  template <class Change>
  void Insert(uint64_t key, Change change) {
    Slot& slot = FindOrInsert(key);
    slot.value = change(slot.value);
  }
  // The same of a key that is there; it goes where `change` returns 0. Nothing if it is not.
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

  // `change(value)` of each entry of a segment; where it returns 0, the entry goes.
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
        EraseAt(s, i);  // what moves here is looked at next
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
    std::unique_ptr<Slot[]> slots;
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
  // Its slot, or the empty one where it would go. REQUIRES: one is empty.
  static uint32_t Probe(const Segment& segment, uint64_t key, uint32_t hash);
  // With the value 0 if it is new, which must not stay.
  Slot& FindOrInsert(uint64_t key);
  static void Grow(Segment& segment);
  void EraseAt(Segment& segment, uint32_t at);

  std::vector<Segment> segments_;
  int64_t size_ = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_PREFIX_INDEX_KEY_TABLE_H_
