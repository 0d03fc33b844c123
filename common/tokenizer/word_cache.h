// Caches the ids of short words that a thread has encoded: most words of a text repeat, and then
// skip the merges. A direct-mapped table of one cache line per word; a new word replaces the old
// one.
#ifndef BATON_COMMON_TOKENIZER_WORD_CACHE_H_
#define BATON_COMMON_TOKENIZER_WORD_CACHE_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"

namespace baton::tokenizer {

// One per thread, shared by all models of the process; not thread-safe.
class WordCache {
 public:
  static constexpr size_t kMaxWordBytes = 26;
  static constexpr size_t kMaxIds = 8;

  WordCache() : entries_(kEntries) {}

  // Appends the ids of `word` if `owner`, a model, has stored them. `hash` is of the word's bytes.
  bool Lookup(uint32_t owner, uint64_t hash, absl::string_view word,
              std::vector<int32_t>* ids) const {
    const Entry& entry = entries_[Slot(owner, hash)];
    if (entry.owner != owner || absl::string_view(entry.word, entry.word_bytes) != word) {
      return false;
    }
    ids->insert(ids->end(), entry.ids, entry.ids + entry.id_count);
    return true;
  }

  // REQUIRES: at most kMaxWordBytes and kMaxIds; owner is not 0.
  void Store(uint32_t owner, uint64_t hash, absl::string_view word, const int32_t* ids,
             size_t id_count) {
    Entry& entry = entries_[Slot(owner, hash)];
    entry.owner = owner;
    entry.word_bytes = static_cast<uint8_t>(word.size());
    entry.id_count = static_cast<uint8_t>(id_count);
    std::copy_n(word.data(), word.size(), entry.word);
    std::copy_n(ids, id_count, entry.ids);  // `ids` may be null if there are none
  }

 private:
  static constexpr size_t kEntries = 1 << 14;  // 1 MiB, which fits a core's second-level cache

  struct alignas(64) Entry {
    uint32_t owner = 0;  // 0: empty
    uint8_t word_bytes = 0;
    uint8_t id_count = 0;
    char word[kMaxWordBytes];
    int32_t ids[kMaxIds];
  };
  static_assert(sizeof(Entry) == 64);

  static size_t Slot(uint32_t owner, uint64_t hash) { return (hash + owner) % kEntries; }

  std::vector<Entry> entries_;
};

}  // namespace baton::tokenizer

#endif  // BATON_COMMON_TOKENIZER_WORD_CACHE_H_
