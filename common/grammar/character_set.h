// A set of code points.
#ifndef BATON_COMMON_GRAMMAR_CHARACTER_SET_H_
#define BATON_COMMON_GRAMMAR_CHARACTER_SET_H_

#include <cstdint>
#include <initializer_list>
#include <vector>

namespace baton::grammar {

class CharacterSet {
 public:
  struct Range {
    uint32_t first = 0;
    uint32_t last = 0;  // included
    friend bool operator==(const Range&, const Range&) = default;
  };

  static constexpr uint32_t kLast = 0x10ffff;

  CharacterSet() = default;
  CharacterSet(std::initializer_list<Range> ranges);

  // REQUIRES: range.first <= range.last <= kLast.
  void Add(Range range);
  void Add(const CharacterSet& other);

  CharacterSet Complement() const;
  bool Intersects(const CharacterSet& other) const;
  bool empty() const { return ranges_.empty(); }
  // Ascending; no two touch.
  const std::vector<Range>& ranges() const { return ranges_; }
  friend bool operator==(const CharacterSet&, const CharacterSet&) = default;

 private:
  std::vector<Range> ranges_;
};

}  // namespace baton::grammar

#endif  // BATON_COMMON_GRAMMAR_CHARACTER_SET_H_
