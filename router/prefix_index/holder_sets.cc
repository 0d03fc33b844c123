#include "router/prefix_index/holder_sets.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"

namespace baton::router {

int HolderSets::PlacesLog2(int size_class) {
  // A place of class k takes 8 << k bytes.
  return std::max(0, kChunkBytesLog2 - 3 - size_class);
}

uint16_t* HolderSets::Data(Set set) const {
  const int size_class = ClassOf(set);
  const uint32_t place = set & ((1u << kPlaceBits) - 1);
  const int log2 = PlacesLog2(size_class);
  uint16_t* chunk = classes_[size_class].chunks[place >> log2];
  return chunk + (static_cast<size_t>(place & ((1u << log2) - 1)) << (size_class + 2));
}

HolderSets::Set HolderSets::Allocate(int size_class) {
  SizeClass& of = classes_[size_class];
  const Set tag = kInSlab | static_cast<Set>(size_class) << kPlaceBits;
  if (of.first_free != 0) {
    const Set set = tag | (of.first_free - 1);
    std::memcpy(&of.first_free, Data(set), sizeof(of.first_free));
    return set;
  }
  const int log2 = PlacesLog2(size_class);
  if (of.used >> log2 == of.chunks.size()) {
    const size_t bytes = size_t{8} << (size_class + log2);
    of.chunks.push_back(static_cast<uint16_t*>(memory_.Allocate(bytes)));
  }
  BATON_CHECK_LT(of.used, 1u << kPlaceBits) << "more sets of one size than can be numbered";
  return tag | of.used++;
}

void HolderSets::Free(Set set) {
  SizeClass& of = classes_[ClassOf(set)];
  std::memcpy(Data(set), &of.first_free, sizeof(of.first_free));
  of.first_free = (set & ((1u << kPlaceBits) - 1)) + 1;
}

HolderSets::Set HolderSets::Move(Set set, int size_class) {
  const Set moved = Allocate(size_class);
  const uint16_t* from = Data(set);
  std::copy(from, from + from[0] + 1, Data(moved));
  Free(set);
  return moved;
}

HolderSets::Set HolderSets::Insert(Set set, int member, bool* changed) {
  BATON_CHECK(member >= 0 && member <= kMaxMember);
  const Set bits = static_cast<Set>(member) + 1;
  *changed = true;
  if ((set & kInSlab) == 0) {
    const Set first = set & kMemberMask, second = set >> kMemberBits;
    if (set == kEmpty) return bits;
    if (first == bits || second == bits) {
      *changed = false;
      return set;
    }
    if (second == 0) {
      return std::min(first, bits) | std::max(first, bits) << kMemberBits;
    }
    const Set made = Allocate(0);
    uint16_t* data = Data(made);
    data[0] = 3;
    data[1] = static_cast<uint16_t>(first - 1);
    data[2] = static_cast<uint16_t>(second - 1);
    data[3] = static_cast<uint16_t>(member);
    std::sort(data + 1, data + 4);
    return made;
  }
  uint16_t* data = Data(set);
  uint16_t* end = data + 1 + data[0];
  uint16_t* at = std::lower_bound(data + 1, end, member);
  if (at != end && *at == member) {
    *changed = false;
    return set;
  }
  if (data[0] == Capacity(ClassOf(set))) {
    const size_t offset = at - data;
    set = Move(set, ClassOf(set) + 1);
    data = Data(set);
    end = data + 1 + data[0];
    at = data + offset;
  }
  std::copy_backward(at, end, end + 1);
  *at = static_cast<uint16_t>(member);
  ++data[0];
  return set;
}

HolderSets::Set HolderSets::Erase(Set set, int member, bool* changed) {
  const Set bits = static_cast<Set>(member) + 1;
  if ((set & kInSlab) == 0) {
    const Set first = set & kMemberMask, second = set >> kMemberBits;
    *changed = set != kEmpty && (first == bits || second == bits);
    if (!*changed) return set;
    return first == bits ? second : first;
  }
  uint16_t* data = Data(set);
  uint16_t* end = data + 1 + data[0];
  uint16_t* at = std::lower_bound(data + 1, end, member);
  *changed = at != end && *at == member;
  if (!*changed) return set;
  std::copy(at + 1, end, at);
  const int count = --data[0];
  if (count == 2) {
    const Set inlined = (static_cast<Set>(data[1]) + 1) | (static_cast<Set>(data[2]) + 1)
                                                              << kMemberBits;
    Free(set);
    return inlined;
  }
  // With some slack, so that one who comes and goes does not move the set each time.
  const int size_class = ClassOf(set);
  if (size_class > 0 && count <= Capacity(size_class - 1) * 3 / 4) return Move(set, size_class - 1);
  return set;
}

bool HolderSets::Contains(Set set, int member) const {
  if ((set & kInSlab) == 0) {
    const Set bits = static_cast<Set>(member) + 1;
    return set != kEmpty && ((set & kMemberMask) == bits || set >> kMemberBits == bits);
  }
  const uint16_t* data = Data(set);
  return std::binary_search(data + 1, data + 1 + data[0], member);
}

int HolderSets::Count(Set set) const {
  if ((set & kInSlab) != 0) return Data(set)[0];
  return set == kEmpty ? 0 : set >> kMemberBits == 0 ? 1 : 2;
}

int64_t HolderSets::memory_bytes() const {
  int64_t bytes = 0;
  for (int k = 0; k < kClasses; ++k) {
    bytes += static_cast<int64_t>(classes_[k].chunks.size()) * (int64_t{8} << (k + PlacesLog2(k)));
  }
  return bytes;
}

}  // namespace baton::router
