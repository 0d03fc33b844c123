// The requests of a simulation and the answers that are right, by the hash model alone: no block,
// no worker, no network.
#ifndef BATON_TESTS_SIMULATION_ORACLE_H_
#define BATON_TESTS_SIMULATION_ORACLE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "baton/v1/inference.pb.h"
#include "common/model/sampler.h"
#include "tests/simulation/world.h"

namespace baton::simulation {

// With so much time a request outlives all faults, and must end well.
constexpr Micros kAmpleTime = 120 * kSecond;

struct RequestSpec {
  Micros start = 0;
  Micros deadline = 0;  // absolute
  Micros cancel_at = -1;
  std::vector<int32_t> prompt;
  model::SamplingParams sampling;  // choice 0
  int n = 1;
  int beam_width = 0;  // 0: sampling
  float length_penalty = 1;
  int max_tokens = 1;
  int min_tokens = 0;
  std::vector<int32_t> stop_token_ids;
  std::optional<int> prompt_logprobs;
  v1::Priority priority = v1::PRIORITY_NORMAL;
  std::string tenant;
  std::string cache_salt;
  bool aggregated = false;  // no prefill worker: the decode worker computes the prompt
};

struct Answer {
  std::vector<model::SampledToken> tokens;
  bool stopped = false;
  double beam_score = 0;
};
// What is right, for each choice.
std::vector<Answer> OracleAnswers(const RequestSpec& spec);
std::vector<model::SampledToken> OraclePromptLogprobs(const RequestSpec& spec);

}  // namespace baton::simulation

#endif  // BATON_TESTS_SIMULATION_ORACLE_H_
