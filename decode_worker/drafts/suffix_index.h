// Finds where the last tokens of a text have occurred before, in a sliding window over the tokens
// of one or more texts.
//
// Hash chains, as the match finders of LZ77 compressors have them (Deutsch, RFC 1951, section 4): a
// table by the hash of a few consecutive tokens has the latest position behind them, and each
// position a link to the one before it with the same hash. Chains are by 1, 2 and 4 tokens, so that
// a longest match of 1 to 3 tokens is found as well, and a long one does not lie behind many short
// ones. Compared with a suffix tree (SuffixDecoding, Oliaro et al., arXiv 2411.04975) there is
// nothing to delete: what the window has left behind is not followed any more.
//
// Every position is compared with the text before it counts, so a collision of hashes costs a step
// of the walk and never makes a wrong match. A walk has a bound, so texts with few distinct tokens
// cost no more than others; of a chain that is longer, only the latest positions are looked at.
//
// Memory: 22 to 28 bytes a token of the window, allocated as the text grows. The tables double;
// that copies them and hashes nothing again (both halves of the larger table begin with the chains
// of the smaller one), so even the last doubling holds up the caller for a fraction of a
// millisecond.
//
// Thread: unsynchronized; const calls may run beside each other.
#ifndef BATON_DECODE_WORKER_DRAFTS_SUFFIX_INDEX_H_
#define BATON_DECODE_WORKER_DRAFTS_SUFFIX_INDEX_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"

namespace baton::decode_worker {

class SuffixIndex {
 public:
  // Ends a text: no match crosses it. All negative tokens are separators.
  static constexpr int32_t kSeparator = -1;
  static constexpr int kLongestMatch = 64;  // tokens that are compared; longer matches are as good
  static constexpr int kMostMatches = 8;
  static constexpr int kChains = 3;
  static constexpr int kMostStepsOfChain = 64;

  struct Match {
    uint64_t next =
        0;  // position of the token behind the match; positions count all tokens ever appended
    int length = 0;  // tokens before it that agree with the suffix
    friend bool operator==(const Match&, const Match&) = default;
  };
  // The longest first, among equally long ones the latest.
  struct Matches {
    std::array<Match, kMostMatches> items;
    int size = 0;
    int steps = 0;  // of walks, at most kChains * kMostStepsOfChain
    const Match* begin() const { return items.data(); }
    const Match* end() const { return items.data() + size; }
  };

  // REQUIRES: 1 <= window_tokens <= 2^30.
  explicit SuffixIndex(int window_tokens);

  // Amortised some tens of nanoseconds.
  void Append(int32_t token);

  // The window: positions from begin() to before end() have a token.
  uint64_t begin() const { return end_ - static_cast<uint64_t>(size()); }
  uint64_t end() const { return end_; }
  int size() const {
    return static_cast<int>(std::min(end_, static_cast<uint64_t>(window_tokens_)));
  }
  // REQUIRES: begin() <= position < end().
  int32_t at(uint64_t position) const { return BlockOf(position).tokens[position % kBlock]; }

  // Memory held.
  size_t bytes() const;

  // Where the last tokens of `suffix` occur in the window, with a token behind them that is no
  // separator: up to `most` (at most kMostMatches) places, those of the longest matches; of equally
  // long ones the latest. From `enough` tokens on all lengths count as equal. All places found are
  // of the chain that has the longest. The suffix may be the end of this very text, which does not
  // match itself.
  Matches Find(absl::Span<const int32_t> suffix, int enough, int most) const;

 private:
  static constexpr std::array<int, kChains> kTokensOfChain = {1, 2, 4};
  static constexpr size_t kBlock = 1024;
  // Positions are stored in 32 bits: a distance from end() says which is meant.
  using Links = std::array<uint32_t, kChains>;
  // A part of the ring that has the window.
  struct Block {
    std::array<int32_t, kBlock> tokens;
    std::array<Links, kBlock> links;
  };

  // The hash of `count` tokens that end before `end`; none of them may be a separator.
  static size_t Hash(const int32_t* end, int count);
  Block& BlockOf(uint64_t position) { return *blocks_[(position & mask_) / kBlock]; }
  const Block& BlockOf(uint64_t position) const { return *blocks_[(position & mask_) / kBlock]; }
  int MatchLength(uint64_t position, absl::Span<const int32_t> suffix) const;

  int window_tokens_;
  uint64_t mask_;                               // a power of two, at least the window, - 1
  std::vector<std::unique_ptr<Block>> blocks_;  // as many as have been used
  // [hash & (size - 1)]: the latest position behind the tokens.
  std::array<std::vector<uint32_t>, kChains> last_;
  std::array<int32_t, 4> recent_;  // the last tokens
  int since_separator_ = 0;        // tokens, at most 4
  uint64_t end_ = 0;
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_DRAFTS_SUFFIX_INDEX_H_
