// Tokens that probably follow a sequence, for a step to check: the step computes a row for each of
// them, and a token counts as long as all before it, and it, are what the sampler draws from those
// rows. A draft so never changes an answer, only the number of steps that it takes.
#ifndef BATON_DECODE_WORKER_DRAFTS_DRAFT_H_
#define BATON_DECODE_WORKER_DRAFTS_DRAFT_H_

#include <cstdint>
#include <vector>

namespace baton::decode_worker {

struct Draft {
  std::vector<int32_t> tokens;
  // [i]: the estimated probability that tokens[0..i] are all drawn. As many as tokens; never rises.
  std::vector<float> likelihoods;
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_DRAFTS_DRAFT_H_
