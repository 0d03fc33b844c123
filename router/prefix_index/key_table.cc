#include "router/prefix_index/key_table.h"

#include <algorithm>
#include <memory>

namespace baton::router {
namespace {

constexpr uint32_t kSmallest = 8;
// Full to four fifths before it grows by a quarter: between 15 and 19 bytes a key.
constexpr uint64_t kFullPercent = 80;

}  // namespace

KeyTable::Place KeyTable::PlaceOf(uint64_t key) {
  // Keys are hashes already; a sender of chosen keys must not get long runs too easily.
  const uint64_t mixed = (key ^ key >> 32) * 0x9E3779B97F4A7C15u;
  return {static_cast<uint32_t>(mixed >> 52), static_cast<uint32_t>(mixed >> 20)};
}

uint32_t KeyTable::Probe(const Segment& segment, uint64_t key, uint32_t hash) {
  uint32_t at = Home(hash, segment.capacity);
  while (segment.slots[at].value != 0 && segment.slots[at].key() != key) {
    if (++at == segment.capacity) at = 0;
  }
  return at;
}

uint32_t KeyTable::Find(uint64_t key) const {
  const Place place = PlaceOf(key);
  const Segment& segment = segments_[place.segment];
  if (segment.size == 0) return 0;
  return segment.slots[Probe(segment, key, place.hash)].value;
}

void KeyTable::Prefetch(uint64_t key) const {
  const Place place = PlaceOf(key);
  const Segment& segment = segments_[place.segment];
  if (segment.capacity == 0) return;
  __builtin_prefetch(&segment.slots[Home(place.hash, segment.capacity)]);
}

KeyTable::Slot& KeyTable::FindOrInsert(uint64_t key) {
  const Place place = PlaceOf(key);
  Segment& segment = segments_[place.segment];
  if ((uint64_t{segment.size} + 1) * 100 > segment.capacity * kFullPercent) Grow(segment);
  Slot& slot = segment.slots[Probe(segment, key, place.hash)];
  if (slot.value == 0) {
    slot.key_low = static_cast<uint32_t>(key);
    slot.key_high = static_cast<uint32_t>(key >> 32);
    ++segment.size;
    ++size_;
  }
  return slot;
}

// Moves back the entries that lookups would not find any more across the hole.
void KeyTable::EraseAt(Segment& segment, uint32_t at) {
  const uint32_t capacity = segment.capacity;
  uint32_t hole = at;
  for (uint32_t next = at;;) {
    if (++next == capacity) next = 0;
    const Slot& slot = segment.slots[next];
    if (slot.value == 0) break;
    const uint32_t home = Home(PlaceOf(slot.key()).hash, capacity);
    // Both from the hole on, around the end.
    const uint32_t from_home = next - home + (next < home ? capacity : 0);
    const uint32_t from_hole = next - hole + (next < hole ? capacity : 0);
    if (from_home < from_hole) continue;
    segment.slots[hole] = slot;
    hole = next;
  }
  segment.slots[hole] = Slot{};
  --segment.size;
  --size_;
}

void KeyTable::Grow(Segment& segment) {
  const uint32_t capacity = std::max(kSmallest, segment.capacity + segment.capacity / 4);
  Segment larger;
  larger.capacity = capacity;
  larger.size = segment.size;
  larger.slots = static_cast<Slot*>(memory_.Allocate(capacity * sizeof(Slot)));
  std::uninitialized_fill_n(larger.slots, capacity, Slot{});
  for (uint32_t i = 0; i < segment.capacity; ++i) {
    const Slot& slot = segment.slots[i];
    if (slot.value == 0) continue;
    larger.slots[Probe(larger, slot.key(), PlaceOf(slot.key()).hash)] = slot;
  }
  if (segment.slots != nullptr) memory_.Free(segment.slots, segment.capacity * sizeof(Slot));
  segment = larger;
}

int64_t KeyTable::memory_bytes() const {
  int64_t bytes = static_cast<int64_t>(segments_.size() * sizeof(Segment));
  for (const Segment& segment : segments_) {
    bytes += int64_t{segment.capacity} * static_cast<int64_t>(sizeof(Slot));
  }
  return bytes;
}

}  // namespace baton::router
