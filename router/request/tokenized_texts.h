// Texts of recent prompts with their tokens: a conversation that goes on is tokenized from where it
// goes on. An agent sends its whole history each turn, of which nearly all has been tokenized
// before.
//
// A text is found by the hash of its longest beginning of whole chunks, compared byte by byte, and
// reused up to the last added token (such as <|im_end|>) that the common bytes decide:
// Tokenizer::EncodeOnward. Tenants never share texts, so that no tenant's latency shows what
// another has sent.
#ifndef BATON_ROUTER_REQUEST_TOKENIZED_TEXTS_H_
#define BATON_ROUTER_REQUEST_TOKENIZED_TEXTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/base/byte_range.h"
#include "common/tokenizer/tokenizer.h"

namespace baton::router {

// Thread-safe.
class TokenizedTexts {
 public:
  // Shorter texts are not kept, and beginnings are found in steps of so many bytes.
  static constexpr size_t kChunkBytes = 4096;

  // Called for each text, from any thread, with how many of its bytes had known tokens.
  using OnEncoded = std::function<void(size_t known_bytes, size_t bytes)>;
  // Keeps at most `max_bytes` of texts and tokens; 0: none. Where more would be kept, the least
  // recently used text goes of the tenant that has most. `tokenizer` must outlive it.
  TokenizedTexts(const tokenizer::Tokenizer& tokenizer, int64_t max_bytes, OnEncoded on_encoded);

  // Returns what Tokenizer::Encode returns, always; never null. Kept texts and callers share it.
  using SharedIds = std::shared_ptr<const std::vector<int32_t>>;
  absl::StatusOr<SharedIds> Encode(absl::string_view tenant, std::string text,
                                   bool add_special_tokens, absl::Span<const ByteRange> split);

  int64_t bytes() const;  // that are kept

 private:
  struct Entry {
    std::string tenant;
    std::string text;
    ByteRanges split;
    bool add_special_tokens = false;
    tokenizer::Tokenizer::Encoded encoded;
  };
  struct Kept {
    std::shared_ptr<const Entry> entry;
    std::vector<uint64_t> keys;  // of the beginnings of 1, 2, … chunks
    int64_t bytes = 0;
  };
  using Texts = std::list<Kept>;  // of one tenant, the most recently used first
  struct Tenant {
    Texts texts;
    int64_t bytes = 0;
  };

  std::shared_ptr<const Entry> Find(absl::string_view tenant, absl::Span<const uint64_t> keys);
  void Keep(std::shared_ptr<const Entry> entry, std::vector<uint64_t> keys);
  // Drops the texts that Find returns no more once a text with these keys is kept.
  void DropCovered(absl::Span<const uint64_t> keys) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // True if the text is kept already.
  bool Has(const Kept& kept) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Drop(Texts::iterator kept) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddBytes(const std::string& name, Tenant& tenant, int64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const tokenizer::Tokenizer& tokenizer_;
  const int64_t max_bytes_;
  const OnEncoded on_encoded_;
  mutable absl::Mutex mutex_;
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, std::unique_ptr<Tenant>> tenants_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<int64_t, std::string>> by_bytes_ ABSL_GUARDED_BY(mutex_);  // the tenants
  // By key, the text that was kept last of those with this beginning.
  absl::flat_hash_map<uint64_t, Texts::iterator> by_key_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_TOKENIZED_TEXTS_H_
