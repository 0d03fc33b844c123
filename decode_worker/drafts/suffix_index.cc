#include "decode_worker/drafts/suffix_index.h"

#include <bit>

#include "common/base/check.h"
#include "common/base/splitmix64.h"

namespace baton::decode_worker {

namespace {

constexpr size_t kFirstTable = 256;

}  // namespace

SuffixIndex::SuffixIndex(int window_tokens) : window_tokens_(window_tokens) {
  BATON_CHECK(window_tokens >= 1 && window_tokens <= 1 << 30) << window_tokens;
  mask_ = std::max(std::bit_ceil(static_cast<size_t>(window_tokens)), kBlock) - 1;
  for (std::vector<uint32_t>& last : last_) last.resize(kFirstTable);
  recent_.fill(kSeparator);
}

size_t SuffixIndex::Hash(const int32_t* end, int count) {
  uint64_t hash = 0;
  for (int i = 1; i <= count; ++i) hash = (hash ^ static_cast<uint32_t>(end[-i])) * kSplitMix64Step;
  return static_cast<size_t>(hash >> 32);
}

void SuffixIndex::Append(int32_t token) {
  if (const size_t table = last_[0].size(); end_ == 2 * table && end_ <= mask_) {
    for (std::vector<uint32_t>& last : last_) {
      last.resize(2 * table);
      std::copy_n(last.begin(), table, last.begin() + static_cast<std::ptrdiff_t>(table));
    }
  }
  if ((end_ & mask_) == blocks_.size() * kBlock) blocks_.push_back(std::make_unique<Block>());
  Block& block = BlockOf(end_);
  block.tokens[end_ % kBlock] = token;
  if (token < 0) {
    since_separator_ = 0;
    ++end_;
    return;
  }
  // The tokens before this one enter their chains only now, so whatever a chain has is followed by
  // a token.
  const size_t table_mask = last_[0].size() - 1;
  for (int chain = 0; chain < kChains; ++chain) {
    if (since_separator_ < kTokensOfChain[chain]) break;
    uint32_t& last =
        last_[chain][Hash(recent_.data() + recent_.size(), kTokensOfChain[chain]) & table_mask];
    block.links[end_ % kBlock][chain] = last;
    last = static_cast<uint32_t>(end_);
  }
  std::copy(recent_.begin() + 1, recent_.end(), recent_.begin());
  recent_.back() = token;
  since_separator_ = std::min(since_separator_ + 1, static_cast<int>(recent_.size()));
  ++end_;
}

size_t SuffixIndex::bytes() const {
  size_t bytes = blocks_.size() * sizeof(Block) + blocks_.capacity() * sizeof(blocks_[0]);
  for (const std::vector<uint32_t>& last : last_) bytes += last.capacity() * sizeof(uint32_t);
  return bytes;
}

int SuffixIndex::MatchLength(uint64_t position, absl::Span<const int32_t> suffix) const {
  const uint64_t most =
      std::min<uint64_t>({position - begin(), suffix.size(), static_cast<uint64_t>(kLongestMatch)});
  const int32_t* const end = suffix.data() + suffix.size();
  uint64_t length = 0;
  while (length < most) {
    const int32_t token = *(end - 1 - length);
    if (token < 0 || token != at(position - 1 - length)) break;
    ++length;
  }
  return static_cast<int>(length);
}

SuffixIndex::Matches SuffixIndex::Find(absl::Span<const int32_t> suffix, int enough,
                                       int most) const {
  Matches found;
  most = std::min(most, kMostMatches);
  const size_t table_mask = last_[0].size() - 1;
  // The most that a match of the chain can be worth. No longer match is in a chain of fewer tokens
  // once that of more tokens has none.
  int ceiling =
      static_cast<int>(std::min<size_t>(suffix.size(), static_cast<size_t>(std::max(enough, 0))));
  for (int chain = kChains - 1; chain >= 0 && found.size == 0 && most > 0; --chain) {
    const int tokens = kTokensOfChain[chain];
    if (tokens > ceiling) continue;
    uint32_t position = last_[chain][Hash(suffix.data() + suffix.size(), tokens) & table_mask];
    uint32_t previous = 0;  // distance from end()
    for (int step = 0; step < kMostStepsOfChain; ++step) {
      const uint32_t distance = static_cast<uint32_t>(end_) - position;
      // A position that the window has left behind, or a slot that is a later one's by now: the
      // chain ends.
      if (distance <= previous || distance > static_cast<uint32_t>(size())) break;
      previous = distance;
      ++found.steps;
      const uint64_t next = end_ - distance;
      const int length = MatchLength(next, suffix);
      position = BlockOf(next).links[next % kBlock][chain];
      if (length < tokens) continue;  // another hash, or not all of it is in the window
      const int worth = std::min(length, enough);
      int at = found.size;
      while (at > 0 && std::min(found.items[at - 1].length, enough) < worth) --at;
      if (at == most) continue;
      found.size = std::min(found.size + 1, most);
      std::move_backward(found.items.begin() + at, found.items.begin() + found.size - 1,
                         found.items.begin() + found.size);
      found.items[at] = {next, length};
      if (found.size == most && found.items[most - 1].length >= ceiling) break;
    }
    ceiling = std::min(ceiling, tokens - 1);
  }
  return found;
}

}  // namespace baton::decode_worker
