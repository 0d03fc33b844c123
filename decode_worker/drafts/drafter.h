// Drafts of one sequence, without a model: what followed the sequence's last tokens where they
// occurred before.
//
// Mode kNgram is prompt lookup decoding (Saxena 2023,
// github.com/apoorvumang/prompt-lookup-decoding) with the bounds that vLLM's n-gram method has: of
// ngram_max to ngram_min last tokens, the largest number that occur before in prompt and answer,
// and of their occurrences the latest (vLLM: the first). The latest one is more often about the
// same thing; that little text is behind it costs nothing, see below.
//
// Mode kSuffix is in the spirit of SuffixDecoding (Oliaro et al., arXiv 2411.04975): the longest
// match of any length, in prompt and answer and in recent answers of the same scope. Its matches
// stay from token to token, as long as they agree with what is drawn, and new ones are looked for
// only when the longest has ended: until then no other can be longer. Beyond that paper, a match of
// some length that ends is resumed behind the token that differed, as compressors with a match
// model do (M. Mahoney's PAQ): in a text that is copied with small changes the copy goes on there.
//
// A draft that reaches the end of the text continues in itself, as copies of LZ77 do: a text with a
// period continues with that period.
//
// Likelihoods are estimates of AcceptanceTable and of the sequence's own record
// (SequenceAcceptance). With each token drawn, the token that the match said is compared with it,
// whether or not there was a draft; so the estimate also learns while the caller drafts nothing.
// What matches of similar length (at least half of the longest one's) say of the same token makes
// the kind of match, so the record says how much their agreement raises the likelihood, and
// disagreement lowers it. Along a draft the likelihoods of its tokens are multiplied, each for a
// match that has grown by the tokens before it.
//
// Time: well below a microsecond a token on typical text. Walks of chains are bounded
// (suffix_index.h), so a text that is made to be slow costs some microseconds a token. Memory:
// SuffixIndex's, for at most window_tokens tokens.
//
// Thread: owned by the loop; unsynchronized. No clock, random number or address decides anything.
#ifndef BATON_DECODE_WORKER_DRAFTS_DRAFTER_H_
#define BATON_DECODE_WORKER_DRAFTS_DRAFTER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "decode_worker/drafts/acceptance_table.h"
#include "decode_worker/drafts/answer_memory.h"
#include "decode_worker/drafts/draft.h"
#include "decode_worker/drafts/suffix_index.h"

namespace baton::decode_worker {

struct DrafterOptions {
  enum class Mode { kSuffix, kNgram };
  Mode mode = Mode::kSuffix;
  int window_tokens = 1 << 17;  // of prompt and answer
  // kNgram needs 1 <= ngram_min <= ngram_max <= SuffixIndex::kLongestMatch.
  int ngram_min = 2;
  int ngram_max = 4;
};

class Drafter {
 public:
  // The bound on the tokens that one Observe indexes.
  static constexpr int kMostIndexedAtOnce = 8192;

  // `table` outlives this, as does `memory`, which may be null and is not used by kNgram. `scope`
  // is the sequence's in `memory`.
  Drafter(const DrafterOptions& options, AcceptanceTable* table, AnswerMemory* memory,
          std::string scope);

  // Takes all tokens so far (prompt, then answer); those that the last call had not are new. A call
  // with fewer tokens than the last one begins a new text. Of a long prompt each call indexes a
  // part: nothing is proposed until all of it is.
  void Observe(absl::Span<const int32_t> tokens);

  // How many of the tokens it has taken.
  size_t observed() const { return observed_; }

  // The tokens that probably follow, at most `most`; empty if nothing matches.
  Draft Propose(int most);

  // Positions looked at in chains so far.
  int64_t steps() const { return steps_; }

 private:
  struct Candidate {
    uint64_t next = 0;  // in the text that it is in
    int length = 0;
    bool in_memory = false;
  };
  // What one match says of the next token.
  struct Prediction {
    int32_t token = SuffixIndex::kSeparator;  // negative: nothing
    int cell = 0;
  };

  void Restart();
  // Takes what the scope is in the memory now.
  void RefreshAnswers();
  void Take(int32_t token, absl::Span<const int32_t> tokens);
  void Search(absl::Span<const int32_t> tokens);
  void Predict();
  void Learn(const Prediction& prediction, int32_t drawn);
  // The token `ahead` of the next one, where `drafted` follows the text; negative if there is none.
  int32_t TokenOf(const Candidate& candidate, int ahead, absl::Span<const int32_t> drafted) const;
  // What the candidates at the places of `agreeing` say of `token`, and leaves those there that say
  // the same.
  int CellOfMatch(int32_t token, absl::Span<const int32_t> drafted, uint32_t* agreeing) const;
  int CellOfResumed(int ahead) const;
  float Probability(const Prediction& prediction) const;

  const DrafterOptions options_;
  AcceptanceTable* const table_;
  AnswerMemory* const memory_;
  const std::string scope_;

  SuffixIndex text_;
  size_t observed_ = 0;    // tokens of the caller
  bool complete_ = false;  // all of them are in text_
  AnswerMemory::Answers answers_;
  std::optional<uint64_t> answers_as_of_;  // the memory's changes()

  std::vector<Candidate>
      candidates_;      // the longest first, then the latest; at most 2 * kMostMatches
  bool search_ = true;  // the first of them may not be the longest
  std::optional<Candidate> resumed_;  // length: tokens drawn since
  Prediction of_match_;
  Prediction of_resumed_;
  SequenceAcceptance acceptance_;
  int64_t steps_ = 0;
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_DRAFTS_DRAFTER_H_
