#include "decode_worker/drafts/answer_memory.h"

#include <algorithm>

#include "common/base/check.h"

namespace baton::decode_worker {

AnswerMemory::AnswerMemory(Options options) : options_(options) {
  BATON_CHECK_GE(options.most_tokens, 1);
  BATON_CHECK_GE(options.most_scopes, 1);
  BATON_CHECK_GE(options.window_tokens, 1);
}

void AnswerMemory::Add(absl::string_view scope, absl::Span<const int32_t> answer) {
  if (answer.size() < 2) return;  // nothing can follow a part of it
  if (answer.size() > kMostTokensOfAnswer) answer = answer.last(kMostTokensOfAnswer);
  if (Find(scope).text == nullptr) {
    if (scopes() == options_.most_scopes) ForgetLast();
    scopes_.push_front({.name = std::string(scope),
                        .text = SuffixIndex(std::min(options_.window_tokens, options_.most_tokens)),
                        .id = ++changes_});
    by_name_.emplace(scopes_.front().name, scopes_.begin());
  }
  SuffixIndex& text = scopes_.front().text;
  tokens_ -= text.size();
  for (const int32_t token : answer) text.Append(token);
  text.Append(SuffixIndex::kSeparator);
  tokens_ += text.size();
  // This scope alone fits: its window does.
  while (tokens_ > options_.most_tokens) ForgetLast();
}

AnswerMemory::Answers AnswerMemory::Find(absl::string_view scope) {
  const auto found = by_name_.find(scope);
  if (found == by_name_.end()) return {};
  scopes_.splice(scopes_.begin(), scopes_, found->second);
  return {.text = &found->second->text, .id = found->second->id};
}

void AnswerMemory::ForgetLast() {
  const Scope& last = scopes_.back();
  tokens_ -= last.text.size();
  by_name_.erase(last.name);
  scopes_.pop_back();
  ++changes_;
}

}  // namespace baton::decode_worker
