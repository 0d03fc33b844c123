#include "router/request/tokenized_texts.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

#include "common/base/status_macros.h"

namespace baton::router {
namespace {

// What a key takes in the table and in its text's list, about.
constexpr int64_t kKeyBytes = 48;

// Of each beginning of whole chunks. `add_special_tokens` and whether `split` is empty are a part
// of it: EncodeOnward demands that they are the same.
std::vector<uint64_t> KeysOf(absl::string_view tenant, absl::string_view text,
                             bool add_special_tokens, bool has_split) {
  constexpr size_t kChunk = TokenizedTexts::kChunkBytes;
  uint64_t key = XXH3_64bits_withSeed(tenant.data(), tenant.size(),
                                      (add_special_tokens ? 2u : 0u) + (has_split ? 1u : 0u));
  std::vector<uint64_t> keys;
  keys.reserve(text.size() / kChunk);
  for (size_t begin = 0; begin + kChunk <= text.size(); begin += kChunk) {
    key = XXH3_64bits_withSeed(text.data() + begin, kChunk, key);
    keys.push_back(key);
  }
  return keys;
}

// The first byte that is in one of the lists only; npos if they are the same.
size_t FirstDifference(const ByteRanges& a, absl::Span<const ByteRange> b) {
  const size_t count = std::min(a.size(), b.size());
  for (size_t i = 0; i < count; ++i) {
    if (a[i].begin != b[i].begin) return std::min(a[i].begin, b[i].begin);
    if (a[i].end != b[i].end) return std::min(a[i].end, b[i].end);
  }
  if (a.size() > count) return a[count].begin;
  if (b.size() > count) return b[count].begin;
  return std::string::npos;
}

// How many bytes two texts with their parts to split have in common.
size_t CommonBytes(absl::string_view a, const ByteRanges& split_of_a, absl::string_view b,
                   absl::Span<const ByteRange> split_of_b) {
  const size_t count = std::min(a.size(), b.size());
  constexpr size_t kAtOnce = TokenizedTexts::kChunkBytes;
  size_t same = 0;
  while (same + kAtOnce <= count && a.substr(same, kAtOnce) == b.substr(same, kAtOnce)) {
    same += kAtOnce;
  }
  same = std::mismatch(a.begin() + same, a.begin() + count, b.begin() + same).first - a.begin();
  return std::min(same, FirstDifference(split_of_a, split_of_b));
}

// Gives back what is free in `values` where that is more than an eighth: copying them takes time.
template <class Values>
void ShrinkIfLarge(Values& values) {
  if (values.capacity() - values.size() > values.size() / 8) values.shrink_to_fit();
}

}  // namespace

TokenizedTexts::TokenizedTexts(const tokenizer::Tokenizer& tokenizer, int64_t max_bytes,
                               OnEncoded on_encoded)
    : tokenizer_(tokenizer), max_bytes_(max_bytes), on_encoded_(std::move(on_encoded)) {}

int64_t TokenizedTexts::bytes() const {
  absl::MutexLock lock(&mutex_);
  return bytes_;
}

absl::StatusOr<TokenizedTexts::SharedIds> TokenizedTexts::Encode(
    absl::string_view tenant, std::string text, bool add_special_tokens,
    absl::Span<const ByteRange> split) {
  if (max_bytes_ == 0 || text.size() < kChunkBytes) {
    on_encoded_(0, text.size());
    std::vector<int32_t> ids;
    BATON_ASSIGN_OR_RETURN(ids, tokenizer_.Encode(text, add_special_tokens, split));
    return std::make_shared<const std::vector<int32_t>>(std::move(ids));
  }
  std::vector<uint64_t> keys = KeysOf(tenant, text, add_special_tokens, !split.empty());
  const std::shared_ptr<const Entry> earlier = Find(tenant, keys);
  static const Entry* const kNone = new Entry();
  const Entry& begun = earlier == nullptr ? *kNone : *earlier;
  // Keys can be equal by chance.
  const bool fits = begun.tenant == tenant && begun.add_special_tokens == add_special_tokens &&
                    begun.split.empty() == split.empty();
  const size_t common = fits ? CommonBytes(begun.text, begun.split, text, split) : 0;
  auto entry = std::make_shared<Entry>();
  BATON_ASSIGN_OR_RETURN(entry->encoded, tokenizer_.EncodeOnward(text, add_special_tokens, split,
                                                                 begun.encoded, common));
  on_encoded_(entry->encoded.known_bytes, text.size());
  SharedIds ids(entry, &entry->encoded.ids);
  // Without a cut nothing of it can be reused.
  if (entry->encoded.cuts.empty()) return ids;
  if (common == text.size() && begun.text.size() == text.size()) return ids;  // kept already
  entry->tenant = std::string(tenant);
  entry->text = std::move(text);
  entry->split.assign(split.begin(), split.end());
  entry->add_special_tokens = add_special_tokens;
  ShrinkIfLarge(entry->text);
  ShrinkIfLarge(entry->encoded.ids);
  Keep(std::move(entry), std::move(keys));
  return ids;
}

std::shared_ptr<const TokenizedTexts::Entry> TokenizedTexts::Find(absl::string_view tenant,
                                                                  absl::Span<const uint64_t> keys) {
  absl::MutexLock lock(&mutex_);
  for (auto key = keys.rbegin(); key != keys.rend(); ++key) {
    const auto found = by_key_.find(*key);
    if (found == by_key_.end() || found->second->entry->tenant != tenant) continue;
    Texts& texts = tenants_.find(tenant)->second->texts;
    texts.splice(texts.begin(), texts, found->second);
    return found->second->entry;
  }
  return nullptr;
}

void TokenizedTexts::Keep(std::shared_ptr<const Entry> entry, std::vector<uint64_t> keys) {
  Kept kept;
  kept.bytes = static_cast<int64_t>(
      sizeof(Kept) + sizeof(Entry) + entry->tenant.size() + entry->text.capacity() +
      entry->split.size() * sizeof(ByteRange) + entry->encoded.ids.capacity() * sizeof(int32_t) +
      entry->encoded.cuts.size() * sizeof(entry->encoded.cuts[0]));
  kept.bytes += static_cast<int64_t>(keys.size()) * kKeyBytes;
  if (kept.bytes > max_bytes_) return;
  const std::string name = entry->tenant;
  kept.entry = std::move(entry);
  kept.keys = std::move(keys);
  absl::MutexLock lock(&mutex_);
  if (Has(kept)) return;  // another thread had the same text
  DropCovered(kept.keys);
  while (bytes_ + kept.bytes > max_bytes_) {
    Drop(std::prev(tenants_.find(by_bytes_.rbegin()->second)->second->texts.end()));
  }
  std::unique_ptr<Tenant>& tenant = tenants_[name];
  if (tenant == nullptr) tenant = std::make_unique<Tenant>();
  AddBytes(name, *tenant, kept.bytes);
  tenant->texts.push_front(std::move(kept));
  const Texts::iterator newest = tenant->texts.begin();
  for (const uint64_t key : newest->keys) by_key_[key] = newest;
}

// A text is found by the longest of its keys that no other text has taken, and the new one takes
// all that they have in common. So a text that the new one continues goes, and so does one that
// differs in less than a chunk at the end, as the turns of an agent do.
void TokenizedTexts::DropCovered(absl::Span<const uint64_t> keys) {
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto found = by_key_.find(keys[i]);
    if (found == by_key_.end()) continue;
    if (found->second->keys.size() == i + 1) Drop(found->second);
  }
}

bool TokenizedTexts::Has(const Kept& kept) const {
  const auto found = by_key_.find(kept.keys.back());
  if (found == by_key_.end()) return false;
  const Entry& there = *found->second->entry;
  return there.tenant == kept.entry->tenant && there.text == kept.entry->text &&
         there.split == kept.entry->split;
}

void TokenizedTexts::Drop(Texts::iterator kept) {
  for (const uint64_t key : kept->keys) {
    const auto found = by_key_.find(key);
    if (found != by_key_.end() && found->second == kept) by_key_.erase(found);
  }
  const std::string name = kept->entry->tenant;
  Tenant& tenant = *tenants_.find(name)->second;
  AddBytes(name, tenant, -kept->bytes);
  tenant.texts.erase(kept);
  if (tenant.texts.empty()) {
    by_bytes_.erase({tenant.bytes, name});
    tenants_.erase(name);
  }
}

void TokenizedTexts::AddBytes(const std::string& name, Tenant& tenant, int64_t bytes) {
  by_bytes_.erase({tenant.bytes, name});
  tenant.bytes += bytes;
  bytes_ += bytes;
  by_bytes_.emplace(tenant.bytes, name);
}

}  // namespace baton::router
