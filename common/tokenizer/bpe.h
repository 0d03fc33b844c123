// Byte-pair encoding of single words: the lowest-ranked pair of neighbours merges first, the
// leftmost of equals first, until no pair has a merge (Sennrich et al. 2016, with the order and the
// handling of unknown characters of Hugging Face `tokenizers`, models/bpe).
//
// O(n log n) for words of any length: a queue of (rank, position) over a linked list. Short words
// are looked up first in a per-thread table of words seen before.
#ifndef BATON_COMMON_TOKENIZER_BPE_H_
#define BATON_COMMON_TOKENIZER_BPE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/vocabulary.h"

namespace baton::tokenizer {

// The model part of a tokenizer.json, checked.
struct BpeSpec {
  struct Merge {
    int32_t left;
    int32_t right;
    int32_t merged;
  };

  explicit BpeSpec(Vocabulary tokens) : vocabulary(std::move(tokens)) {}

  Vocabulary vocabulary;
  std::vector<Merge> merges;  // by rank; of entries for the same pair, the last counts
  std::optional<int32_t> unknown;
  bool fuse_unknown = false;
  bool byte_fallback = false;
  bool ignore_merges = false;  // a word that is in the vocabulary is one token
  std::vector<int32_t>
      special;  // ids of special tokens, which some files also have in these tables
};

// Thread-safe.
class Bpe {
 public:
  // With `byte_level`, words are bytes and the tokens spell them with the names of byte_level.h;
  // without, words are characters. REQUIRES: ids of `spec` are those of its vocabulary.
  Bpe(BpeSpec spec, bool byte_level);
  Bpe(const Bpe&) = delete;
  Bpe& operator=(const Bpe&) = delete;

  // Appends the ids of `word`. A character that is neither in the vocabulary nor expressible by
  // byte tokens becomes the unknown token, or nothing if the model has none, as in Hugging Face.
  // Without `may_be_special`, no merge and no whole word makes a special token.
  // REQUIRES: at most 2^30 bytes; valid UTF-8 unless byte_level.
  void Encode(absl::string_view word, bool may_be_special, std::vector<int32_t>* ids) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  struct RankedMerge {
    uint32_t rank;
    int32_t merged;
  };
  struct UnitWriter;  // appends the ids of one character after another

  void EncodePart(absl::string_view word, bool may_be_special, std::vector<int32_t>* ids) const;
  void EncodeUncached(absl::string_view word, bool may_be_special, std::vector<int32_t>* ids) const;
  std::optional<int32_t> WholeWord(absl::string_view word) const;
  void AppendUnits(absl::string_view word, std::vector<int32_t>* units) const;
  const RankedMerge* FindMerge(int32_t left, int32_t right, bool may_be_special) const;
  void MergeShort(std::vector<int32_t>* units, size_t first, bool may_be_special) const;
  template <class Queue>
  void MergeLong(std::vector<int32_t>* units, size_t first, bool may_be_special) const;
  void FindMergesAcrossMetaspace();

  const Vocabulary vocabulary_;
  const std::optional<int32_t> unknown_;
  const bool fuse_unknown_;
  const bool byte_fallback_;
  const bool ignore_merges_;
  const bool byte_level_;
  // These identify this model's words in a thread's table: those that may be special, and the
  // others.
  const uint32_t cache_owner_;
  const uint32_t plain_cache_owner_;
  absl::flat_hash_map<uint64_t, RankedMerge> merges_;   // key: left id, right id
  std::array<std::optional<int32_t>, 256> byte_units_;  // ids of "<0x00>".. for byte_fallback
  bool has_byte_units_ = false;
  // byte_level: the id of each byte, and of whole words as bytes for ignore_merges.
  std::array<std::optional<int32_t>, 256> named_bytes_;
  absl::flat_hash_map<std::string, int32_t> words_;
  absl::flat_hash_set<int32_t> special_;  // tokens that a merge or a whole word makes; mostly none
  // Long words may be cut before each U+2581 that follows another character, except behind the
  // last bytes of tokens with which one that starts with it merges.
  bool cut_at_metaspace_ = false;
  std::array<bool, 256> merges_before_metaspace_ = {};
};

}  // namespace baton::tokenizer

#endif  // BATON_COMMON_TOKENIZER_BPE_H_
