#include "common/grammar/character_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace baton::grammar {
namespace {

// The model is a set of single characters, at both ends of all code points.
TEST(CharacterSetTest, IsTheUnionOfItsRanges) {
  const auto in = [](const CharacterSet& set, uint32_t c) { return set.Intersects({{c, c}}); };
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const uint32_t span = 64, base = seed % 2 == 0 ? 0 : CharacterSet::kLast - span + 1;
    CharacterSet set;
    std::set<uint32_t> members;
    for (int i = 0; i < 6; ++i) {
      const uint32_t first = base + random() % span;
      const uint32_t last = std::min<uint32_t>(first + random() % 5, CharacterSet::kLast);
      set.Add({first, last});
      for (uint32_t c = first; c <= last; ++c) members.insert(c);
    }
    const CharacterSet complement = set.Complement();
    for (uint32_t c = base; c < base + span; ++c) {
      ASSERT_EQ(in(set, c), members.contains(c)) << c;
      ASSERT_EQ(in(complement, c), !members.contains(c)) << c;
    }
    for (size_t i = 1; i < set.ranges().size(); ++i) {
      ASSERT_GT(set.ranges()[i].first, set.ranges()[i - 1].last + 1);
    }
    CharacterSet all = complement;
    all.Add(set);
    EXPECT_TRUE(all.Complement().empty());
    EXPECT_EQ(all.ranges(), (std::vector<CharacterSet::Range>{{0, CharacterSet::kLast}}));
  }
}

}  // namespace
}  // namespace baton::grammar
