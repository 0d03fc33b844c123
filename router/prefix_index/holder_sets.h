// Packed sets of small numbers, the holders of a block: one or two members fit into the 32-bit
// handle, more are sorted in slabs. Almost all blocks have one or two holders; widely shared
// prefixes are few, and take two to four bytes a member.
#ifndef BATON_ROUTER_PREFIX_INDEX_HOLDER_SETS_H_
#define BATON_ROUTER_PREFIX_INDEX_HOLDER_SETS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/huge_page_arena.h"

namespace baton::router {

// A set is a value: what Insert and Erase return replaces their argument.
// Unsynchronized.
class HolderSets {
 public:
  using Set = uint32_t;
  static constexpr Set kEmpty = 0;
  static constexpr int kMaxMember = 32765;

  // `*changed`: it was not a member before. REQUIRES: 0 <= member <= kMaxMember.
  Set Insert(Set set, int member, bool* changed);
  // `*changed`: it was a member.
  Set Erase(Set set, int member, bool* changed);
  bool Contains(Set set, int member) const;
  int Count(Set set) const;

  template <class Visit>
  void ForEach(Set set, Visit visit) const {
    if ((set & kInSlab) == 0) {
      if (set == kEmpty) return;
      visit(static_cast<int>(set & kMemberMask) - 1);
      if (const Set second = set >> kMemberBits; second != 0) visit(static_cast<int>(second) - 1);
      return;
    }
    const uint16_t* data = Data(set);
    const int count = data[0];
#pragma GCC unroll 4
    for (int i = 1; i <= count; ++i) visit(data[i]);
  }

  // The first memory that ForEach and Count of the set would touch, or null.
  const void* Address(Set set) const { return (set & kInSlab) != 0 ? Data(set) : nullptr; }

  int64_t memory_bytes() const;

 private:
  // Handle: members + 1 in 15 bits each, the lower first; or kInSlab, class, place in the class.
  static constexpr int kMemberBits = 15;
  static constexpr Set kMemberMask = (1u << kMemberBits) - 1;
  static constexpr Set kInSlab = 1u << 31;
  static constexpr int kPlaceBits = 27;
  static constexpr int kClasses = 14;
  static constexpr int kChunkBytesLog2 = 13;

  // Sets of up to Capacity(class) members, each with its count in front.
  struct SizeClass {
    std::vector<uint16_t*> chunks;  // of memory_
    uint32_t used = 0;              // places ever handed out
    uint32_t first_free = 0;        // place + 1; each free place has the next
  };

  static int Capacity(int size_class) { return (4 << size_class) - 1; }
  static int PlacesLog2(int size_class);  // in one chunk
  static int ClassOf(Set set) { return static_cast<int>(set >> kPlaceBits & 15); }
  uint16_t* Data(Set set) const;
  Set Allocate(int size_class);
  void Free(Set set);
  // Into a new place of that class, or into the handle; the old place is freed.
  Set Move(Set set, int size_class);

  HugePageArena memory_;
  SizeClass classes_[kClasses];
};

}  // namespace baton::router

#endif  // BATON_ROUTER_PREFIX_INDEX_HOLDER_SETS_H_
