// The recent answers of each scope, for drafts of later sequences of the same scope. A scope is an
// opaque string that says who may share text (the tenant, and the cache salt of the request):
// scopes are told apart by the whole string, and nothing of one is ever found from another.
//
// Memory: SuffixIndex's, for at most most_tokens tokens and most_scopes scopes. The scope whose
// last use (an answer added, or Find) is longest ago is forgotten first; within a scope the oldest
// text falls out of its window.
//
// Thread: owned by the loop; unsynchronized.
#ifndef BATON_DECODE_WORKER_DRAFTS_ANSWER_MEMORY_H_
#define BATON_DECODE_WORKER_DRAFTS_ANSWER_MEMORY_H_

#include <cstdint>
#include <list>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "decode_worker/drafts/suffix_index.h"

namespace baton::decode_worker {

class AnswerMemory {
 public:
  struct Options {
    int most_tokens = 1 << 20;  // of all scopes together, their separators included
    int most_scopes = 1024;
    int window_tokens = 1 << 16;  // of one scope
  };
  // The bound on the work of one Add: of a longer answer only its end is kept, where the result is.
  static constexpr int kMostTokensOfAnswer = 8192;

  // REQUIRES: all options are at least 1.
  explicit AnswerMemory(Options options);

  void Add(absl::string_view scope, absl::Span<const int32_t> answer);

  // The answers of a scope. A scope that has been forgotten and begun again has another id, and is
  // another text.
  struct Answers {
    const SuffixIndex* text = nullptr;  // null: the scope has none
    uint64_t id = 0;
  };
  // Holds as long as changes() is the same.
  Answers Find(absl::string_view scope);
  // Rises whenever a scope begins or is forgotten.
  uint64_t changes() const { return changes_; }

  int tokens() const { return tokens_; }
  int scopes() const { return static_cast<int>(scopes_.size()); }

 private:
  struct Scope {
    std::string name;
    SuffixIndex text;
    uint64_t id;
  };
  void ForgetLast();

  const Options options_;
  std::list<Scope> scopes_;  // the last one used is the first
  absl::flat_hash_map<absl::string_view, std::list<Scope>::iterator>
      by_name_;  // views of Scope::name
  int tokens_ = 0;
  uint64_t changes_ = 0;
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_DRAFTS_ANSWER_MEMORY_H_
