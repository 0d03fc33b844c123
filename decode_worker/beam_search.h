// Beam search: decides, by tokens and log probabilities, which beams continue and which answers are
// best. The scheduler turns its decisions into sequences that share blocks.
//
// The algorithm is the one that vLLM documents for its beam search: each beam proposes its 2 ·
// width most probable tokens, those that are stop tokens complete an answer, the `width` best of
// the others continue. A score is the sum of log probabilities over the number of generated tokens
// to the power of length_penalty (Wu et al., arXiv 1609.08144, in the simple form that Hugging Face
// uses).
//
// Thread: owned by the loop; unsynchronized.
#ifndef BATON_DECODE_WORKER_BEAM_SEARCH_H_
#define BATON_DECODE_WORKER_BEAM_SEARCH_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "common/model/sampler.h"

namespace baton::decode_worker {

class BeamSearch {
 public:
  struct Options {
    int width = 2;
    int n = 1;  // answers wanted
    double length_penalty = 1;
    int max_tokens = 1;
    int min_tokens = 0;  // generated before a stop token may complete an answer
    absl::flat_hash_set<int32_t> stop_token_ids;
  };
  explicit BeamSearch(Options options) : options_(std::move(options)) { Restart(); }

  int width() const { return options_.width; }
  // Proposals that each beam must make.
  int proposals() const { return 2 * options_.width; }
  // True once there are several beams, each with a sequence.
  bool started() const { return started_; }
  // Forgets all beams and answers.
  void Restart();

  // A beam that continues: beam `parent` of the previous step, and its next token.
  struct Step {
    int parent = 0;
    int32_t token_id = 0;
  };
  // proposed[i]: the most probable tokens after beam i, best first. Returns at most `width` beams
  // that continue, best first; ties go to the lower parent, then the lower token. Empty: the search
  // is over.
  std::vector<Step> Advance(const std::vector<std::vector<model::SampledToken>>& proposed);

  struct Answer {
    std::vector<int32_t> token_ids;           // generated, a stop token included
    std::vector<model::SampledToken> tokens;  // the same tokens, as proposed
    double score = 0;
    bool stopped = false;  // false: it has max_tokens tokens
  };
  // Returns the n best answers. REQUIRES: the search is over.
  std::vector<Answer> Best() const;

 private:
  // A generated token and those before it, which beams with a common start share.
  struct Node {
    Node(model::SampledToken drawn, std::shared_ptr<Node> before)
        : token(std::move(drawn)), previous(std::move(before)) {}
    ~Node();
    Node(const Node&) = delete;
    Node& operator=(const Node&) = delete;

    const model::SampledToken token;
    std::shared_ptr<Node> previous;
  };
  struct Beam {
    std::shared_ptr<Node> last;  // null: nothing generated
    int length = 0;
    double logprob = 0;
  };
  struct Completed {
    Beam beam;
    double score = 0;
    bool stopped = false;
  };
  double Score(double logprob, int length) const;
  bool CannotImprove() const;
  void Complete(const Beam& beam, bool stopped);

  const Options options_;
  bool started_ = false;
  std::vector<Beam> beams_;
  std::vector<Completed> answers_;  // best first
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_BEAM_SEARCH_H_
