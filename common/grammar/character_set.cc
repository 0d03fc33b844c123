#include "common/grammar/character_set.h"

#include <algorithm>

#include "common/base/check.h"

namespace baton::grammar {

CharacterSet::CharacterSet(std::initializer_list<Range> ranges) {
  for (const Range& range : ranges) Add(range);
}

void CharacterSet::Add(const CharacterSet& other) {
  for (const Range& range : other.ranges_) Add(range);
}

// Merges the ranges that touch `range` into it.
void CharacterSet::Add(Range range) {
  BATON_CHECK(range.first <= range.last && range.last <= kLast);
  const auto begin = std::find_if(ranges_.begin(), ranges_.end(), [&](const Range& present) {
    return present.last + 1 >= range.first;
  });
  auto end = begin;
  for (; end != ranges_.end() && end->first <= range.last + 1; ++end) {
    range.first = std::min(range.first, end->first);
    range.last = std::max(range.last, end->last);
  }
  ranges_.insert(ranges_.erase(begin, end), range);
}

CharacterSet CharacterSet::Complement() const {
  CharacterSet complement;
  uint32_t next = 0;
  for (const Range& range : ranges_) {
    if (range.first > next) complement.Add({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLast) complement.Add({next, kLast});
  return complement;
}

bool CharacterSet::Intersects(const CharacterSet& other) const {
  return std::any_of(ranges_.begin(), ranges_.end(), [&](const Range& a) {
    return std::any_of(other.ranges_.begin(), other.ranges_.end(),
                       [&](const Range& b) { return a.first <= b.last && b.first <= a.last; });
  });
}

}  // namespace baton::grammar
