// Finds tokens by id and ids by token. Thread-safe once filled.
#ifndef BATON_COMMON_TOKENIZER_VOCABULARY_H_
#define BATON_COMMON_TOKENIZER_VOCABULARY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace baton::tokenizer {

class Vocabulary {
 public:
  // `id_limit` bounds the memory: the table by id has room for all ids below it.
  explicit Vocabulary(size_t id_limit) : by_id_(id_limit) {}
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

  // False, changing nothing, if the id or the token is taken. REQUIRES: 0 <= id < id_limit.
  bool Add(absl::string_view token, int32_t id) {
    std::unique_ptr<const std::string>& slot = by_id_[id];
    if (slot != nullptr || by_token_.contains(token)) return false;
    slot = std::make_unique<const std::string>(token);
    by_token_.emplace(*slot, id);
    return true;
  }

  std::optional<int32_t> Find(absl::string_view token) const {
    const auto found = by_token_.find(token);
    if (found == by_token_.end()) return std::nullopt;
    return found->second;
  }

  // Returns nullptr if no token has this id, which may be any number.
  const std::string* Token(int32_t id) const {
    if (id < 0 || static_cast<size_t>(id) >= by_id_.size()) return nullptr;
    return by_id_[id].get();
  }

  size_t id_limit() const { return by_id_.size(); }
  size_t token_count() const { return by_token_.size(); }

 private:
  std::vector<std::unique_ptr<const std::string>> by_id_;
  absl::flat_hash_map<absl::string_view, int32_t> by_token_;  // keys point into by_id_
};

}  // namespace baton::tokenizer

#endif  // BATON_COMMON_TOKENIZER_VOCABULARY_H_
