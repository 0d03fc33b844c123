#include "common/tokenizer/bpe.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/utf8.h"
#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/merge_queue.h"
#include "common/tokenizer/unicode.h"
#include "common/tokenizer/word_cache.h"

namespace baton::tokenizer {
namespace {

// Up to here looking through all pairs beats keeping a heap of them.
constexpr size_t kMaxShortUnits = 24;
// Up to here a heap stays in the first-level cache.
constexpr size_t kMaxHeapUnits = 2048;
constexpr int32_t kMergedAway = -1;
constexpr uint32_t kNoRank = std::numeric_limits<uint32_t>::max();
constexpr absl::string_view kMetaspace = "\xE2\x96\x81";  // U+2581

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

uint32_t NextCacheOwner() {
  static std::atomic<uint32_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

bool EndsWithMetaspace(absl::string_view text) { return absl::EndsWith(text, kMetaspace); }

}  // namespace

Bpe::Bpe(BpeSpec spec, bool byte_level)
    : vocabulary_(std::move(spec.vocabulary)),
      unknown_(spec.unknown),
      fuse_unknown_(spec.fuse_unknown),
      byte_fallback_(spec.byte_fallback),
      ignore_merges_(spec.ignore_merges),
      byte_level_(byte_level),
      cache_owner_(NextCacheOwner()),
      plain_cache_owner_(NextCacheOwner()) {
  const absl::flat_hash_set<int32_t> special(spec.special.begin(), spec.special.end());
  for (const int32_t id : special) {
    if (ignore_merges_ && vocabulary_.Token(id) != nullptr) special_.insert(id);
  }
  merges_.reserve(spec.merges.size());
  uint32_t rank = 0;
  for (const BpeSpec::Merge& merge : spec.merges) {
    merges_[PairKey(merge.left, merge.right)] = {rank++, merge.merged};
    if (special.contains(merge.merged)) special_.insert(merge.merged);
  }
  for (int byte = 0; byte < 256; ++byte) {
    byte_units_[byte] = vocabulary_.Find(absl::StrFormat("<0x%02X>", byte));
    named_bytes_[byte] = vocabulary_.Find(ByteName(static_cast<unsigned char>(byte)));
  }
  if (byte_level_ && ignore_merges_) {
    for (size_t id = 0; id < vocabulary_.id_limit(); ++id) {
      const std::string* token = vocabulary_.Token(static_cast<int32_t>(id));
      std::string bytes;
      if (token == nullptr || !AppendNamedBytes(*token, &bytes)) continue;
      words_.emplace(std::move(bytes), static_cast<int32_t>(id));
    }
  }
  // A U+2581 that is no token would be part of a run of unknowns.
  cut_at_metaspace_ = !byte_level_ && !ignore_merges_ && vocabulary_.Find(kMetaspace).has_value();
  if (cut_at_metaspace_) FindMergesAcrossMetaspace();
}

// In most vocabularies U+2581 starts every token it is in, or is preceded by its like alone; Gemma
// has one other. Where nothing ever merges across the place before it, the text on both sides can
// be encoded apart.
void Bpe::FindMergesAcrossMetaspace() {
  for (const auto& [pair, merge] : merges_) {
    const std::string& left = *vocabulary_.Token(static_cast<int32_t>(pair >> 32));
    const std::string& right = *vocabulary_.Token(static_cast<int32_t>(pair & 0xFFFFFFFF));
    if (absl::StartsWith(right, kMetaspace) && !left.empty()) {
      merges_before_metaspace_[static_cast<unsigned char>(left.back())] = true;
    }
  }
}

void Bpe::Encode(absl::string_view word, bool may_be_special, std::vector<int32_t>* ids) const {
  if (word.empty()) return;
  may_be_special = may_be_special || special_.empty();
  BATON_CHECK_LE(word.size(), size_t{1} << 30);
  if (!cut_at_metaspace_ || word.size() <= WordCache::kMaxWordBytes) {
    return EncodePart(word, may_be_special, ids);
  }
  size_t begin = 0;
  for (size_t at = word.find(kMetaspace, 1); at != absl::string_view::npos;
       at = word.find(kMetaspace, at + kMetaspace.size())) {
    const absl::string_view before = word.substr(0, at);
    if (EndsWithMetaspace(before) ||
        merges_before_metaspace_[static_cast<unsigned char>(before.back())]) {
      continue;
    }
    EncodePart(word.substr(begin, at - begin), may_be_special, ids);
    begin = at;
  }
  EncodePart(word.substr(begin), may_be_special, ids);
}

void Bpe::EncodePart(absl::string_view word, bool may_be_special, std::vector<int32_t>* ids) const {
  if (word.size() > WordCache::kMaxWordBytes) return EncodeUncached(word, may_be_special, ids);
  static thread_local WordCache cache;
  const uint32_t owner = may_be_special ? cache_owner_ : plain_cache_owner_;
  const uint64_t hash = XXH3_64bits(word.data(), word.size());
  if (cache.Lookup(owner, hash, word, ids)) return;
  const size_t first = ids->size();
  EncodeUncached(word, may_be_special, ids);
  const size_t count = ids->size() - first;
  if (count <= WordCache::kMaxIds) {
    cache.Store(owner, hash, word, ids->data() + first, count);
  }
}

std::optional<int32_t> Bpe::WholeWord(absl::string_view word) const {
  if (!byte_level_) return vocabulary_.Find(word);
  const auto found = words_.find(word);
  if (found == words_.end()) return std::nullopt;
  return found->second;
}

void Bpe::EncodeUncached(absl::string_view word, bool may_be_special,
                         std::vector<int32_t>* ids) const {
  if (ignore_merges_) {
    const std::optional<int32_t> id = WholeWord(word);
    if (id && (may_be_special || !special_.contains(*id))) {
      ids->push_back(*id);
      return;
    }
  }
  const size_t first = ids->size();
  AppendUnits(word, ids);
  const size_t count = ids->size() - first;
  if (count <= kMaxShortUnits) {
    MergeShort(ids, first, may_be_special);
  } else if (count <= kMaxHeapUnits) {
    MergeLong<HeapMergeQueue>(ids, first, may_be_special);
  } else {
    MergeLong<BucketMergeQueue>(ids, first, may_be_special);
  }
}

// Appends the ids of the characters of one word. A run of unknown characters stays open, as later
// ones may fuse with it; byte tokens do not end it, which is how Hugging Face's code behaves.
struct Bpe::UnitWriter {
  const Bpe& bpe;
  std::vector<int32_t>* units;
  bool unknown_open = false;

  void Known(int32_t id) {
    Close();
    units->push_back(id);
  }

  // `character` is not in the vocabulary.
  void Unknown(absl::string_view character) {
    if (bpe.byte_fallback_ && AppendByteTokens(character)) return;
    if (!bpe.unknown_) return;
    if (!bpe.fuse_unknown_) Close();
    unknown_open = true;
  }

  void Close() {
    if (unknown_open) units->push_back(*bpe.unknown_);
    unknown_open = false;
  }

  bool AppendByteTokens(absl::string_view character) {
    const size_t first = units->size();
    for (const char c : character) {
      const std::optional<int32_t> id = bpe.byte_units_[static_cast<unsigned char>(c)];
      if (!id) {
        units->resize(first);
        return false;
      }
      units->push_back(*id);
    }
    return true;
  }
};

void Bpe::AppendUnits(absl::string_view word, std::vector<int32_t>* units) const {
  UnitWriter writer{*this, units};
  if (byte_level_) {
    for (const char c : word) {
      const unsigned char byte = c;
      if (named_bytes_[byte]) {
        writer.Known(*named_bytes_[byte]);
      } else {
        writer.Unknown(ByteName(byte));
      }
    }
  } else {
    for (size_t i = 0; i < word.size();) {
      const absl::string_view character = word.substr(i, Utf8CharBytes(word[i]));
      if (const std::optional<int32_t> id = vocabulary_.Find(character)) {
        writer.Known(*id);
      } else {
        writer.Unknown(character);
      }
      i += character.size();
    }
  }
  writer.Close();
}

const Bpe::RankedMerge* Bpe::FindMerge(int32_t left, int32_t right, bool may_be_special) const {
  const auto found = merges_.find(PairKey(left, right));
  if (found == merges_.end()) return nullptr;
  if (!may_be_special && special_.contains(found->second.merged)) return nullptr;
  return &found->second;
}

// Merges the units from `first` on, in place. REQUIRES: at most kMaxShortUnits of them.
void Bpe::MergeShort(std::vector<int32_t>* units, size_t first, bool may_be_special) const {
  int32_t* const unit = units->data() + first;
  size_t count = units->size() - first;
  if (count < 2) return;
  RankedMerge merges[kMaxShortUnits];  // of each unit with the next
  const auto look_up = [&](size_t i) {
    const RankedMerge* merge = FindMerge(unit[i], unit[i + 1], may_be_special);
    merges[i] = merge != nullptr ? *merge : RankedMerge{kNoRank, 0};
  };
  for (size_t i = 0; i + 1 < count; ++i) look_up(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == kNoRank) break;
    unit[best] = merges[best].merged;
    std::copy(unit + best + 2, unit + count, unit + best + 1);
    --count;
    if (best + 1 < count) {
      std::copy(merges + best + 2, merges + count, merges + best + 1);
      look_up(best);
    }
    if (best > 0) look_up(best - 1);
  }
  units->resize(first + count);
}

template <class Queue>
void Bpe::MergeLong(std::vector<int32_t>* units, size_t first, bool may_be_special) const {
  int32_t* const unit = units->data() + first;
  const uint32_t count = static_cast<uint32_t>(units->size() - first);
  std::vector<uint32_t> next(count);
  std::vector<uint32_t> previous(count);
  // A candidate whose units have changed since is found stale when it comes up: a rank names one
  // pair.
  Queue queue;
  const auto push = [&](uint32_t left, uint32_t right) {
    const RankedMerge* merge = FindMerge(unit[left], unit[right], may_be_special);
    if (merge != nullptr) queue.Push({merge->rank, left});
  };
  for (uint32_t i = 0; i < count; ++i) {
    next[i] = i + 1;
    previous[i] = i - 1;  // of the first one never read
    if (i + 1 < count) push(i, i + 1);
  }
  while (!queue.empty()) {
    const auto [rank, left] = queue.Pop();
    if (unit[left] == kMergedAway || next[left] >= count) continue;
    const uint32_t right = next[left];
    const RankedMerge* merge = FindMerge(unit[left], unit[right], may_be_special);
    if (merge == nullptr || merge->rank != rank) continue;
    unit[left] = merge->merged;
    unit[right] = kMergedAway;
    next[left] = next[right];
    if (left > 0) push(previous[left], left);
    if (next[left] < count) {
      previous[next[left]] = left;
      push(left, next[left]);
    }
  }
  units->erase(std::remove(units->begin() + first, units->end(), kMergedAway), units->end());
}

}  // namespace baton::tokenizer
