// What baton-grammar does: XGrammar behind the two sockets of grammar_process.h.
#ifndef BATON_COMMON_GRAMMAR_PROGRAM_GRAMMAR_SERVER_H_
#define BATON_COMMON_GRAMMAR_PROGRAM_GRAMMAR_SERVER_H_

#include <xgrammar/xgrammar.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/grammar/frames.h"
#include "common/grammar/grammar.h"
#include "common/grammar/program/cpu_limit.h"
#include "common/grammar/program/utf8_masks.h"
#include "common/grammar/reasoning_phase.h"
#include "common/grammar/tool_call_grammar.h"

namespace baton::grammar {

// ServeControl and ServeMasks each run on one thread.
class GrammarServer {
 public:
  // Answers requests until the peer is gone.
  void ServeControl(int socket);
  void ServeMasks(int socket);

 private:
  absl::StatusOr<std::string> Handle(FrameReader& request, CpuLimit& limit);
  absl::StatusOr<std::string> Hello(FrameReader& request);
  absl::StatusOr<std::string> Compile(FrameReader& request, CpuLimit& limit);
  absl::StatusOr<std::string> Load(FrameReader& request);
  struct Session;
  using Mask = std::vector<uint32_t>;
  absl::Status FillMasks(FrameReader& item, CpuLimit& limit, std::vector<Mask>& masks);
  // Adds the masks behind the drafts, as far as these follow the grammar and their masks take
  // little time; the session stays as it is.
  void FillDraftMasks(Session& session, absl::Span<const int32_t> drafts, CpuLimit& limit,
                      std::vector<Mask>& masks);
  // What the answer may go on with.
  Mask MaskOf(Session& session);

  // The token ends the reasoning of the session.
  bool EndsReasoning(const Session& session, int32_t token) const;
  // One more token of an answer; false if it cannot come there.
  bool Accept(Session& session, int32_t token) const;
  // What the constrained part may go on with.
  void FillConstrainedMask(Session& session, std::vector<uint32_t>& mask) const;
  std::shared_ptr<ReasoningPhase> PhaseOf(GrammarSpec::Reasoning reasoning)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // False for a special token that is not `allowed`.
  bool MayCome(int32_t token, const std::vector<int32_t>& allowed) const;
  // Clears the bits of the special tokens that are not `allowed`.
  void MaskSpecialTokens(const std::vector<int32_t>& allowed, absl::Span<uint32_t> mask) const;

  struct Grammar {
    xgrammar::CompiledGrammar compiled;
    // The special tokens that its answers may have, besides the end tokens; ascending.
    std::vector<int32_t> special_tokens;
    std::shared_ptr<ReasoningPhase> reasoning;  // null without; for ServeMasks
  };
  // An answer so far.
  struct Session {
    xgrammar::GrammarMatcher matcher;
    int matched = 0;                      // tokens that the matcher has taken
    std::vector<int32_t> special_tokens;  // of the grammar
    std::shared_ptr<ReasoningPhase> reasoning;
    ReasoningPhase::State place = {};
    bool constrained = true;  // the answer may be at `matcher`; false within its reasoning
    Utf8State text_end = Utf8State::kCharacter;
  };

  // Set by Hello, before anything else.
  std::optional<xgrammar::TokenizerInfo> vocabulary_;
  std::optional<Utf8Masks> utf8_masks_;
  std::vector<SpecialToken> special_tokens_;  // by id, without the end tokens
  ReasoningVocabulary reasoning_vocabulary_;
  uint64_t compile_ms_ = 0, mask_ms_ = 0;
  absl::Mutex mutex_;
  std::map<uint64_t, Grammar> grammars_ ABSL_GUARDED_BY(mutex_);
  // Those that grammars have, by their texts: a model's marks are the same for all.
  std::map<std::pair<std::string, std::string>, std::weak_ptr<ReasoningPhase>> phases_
      ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Session> sessions_;  // of ServeMasks
};

}  // namespace baton::grammar

#endif  // BATON_COMMON_GRAMMAR_PROGRAM_GRAMMAR_SERVER_H_
