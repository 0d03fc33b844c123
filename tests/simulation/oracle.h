// The requests of a simulation and the answers that are right, by the hash model alone: no block,
// no worker, no network, no router.
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
  bool asks_again = true;  // after a refusal, or the loss of its workers
  bool reads = true;       // else it leaves the last of its answer unread
  std::vector<int32_t> prompt;
  bool prompt_as_text = false;     // REQUIRES: the tokens are printable ASCII
  model::SamplingParams sampling;  // choice 0
  int n = 1;
  int beam_width = 0;  // 0: sampling
  float length_penalty = 1;
  int max_tokens = 1;
  int min_tokens = 0;
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = true;
  std::vector<std::string> stops;  // no U+FFFD in them
  std::optional<int> prompt_logprobs;
  bool return_token_ids = true;
  v1::Priority priority = v1::PRIORITY_NORMAL;
  std::string tenant;
  std::string cache_salt;
  int window = 0;  // of the model, and whether it is recurrent: HashEngineOptions
  bool recurrent = false;
};

v1::GenerateRequest ToProto(const RequestSpec& spec, const std::string& request_id);

struct Answer {
  std::vector<model::SampledToken> tokens;
  std::string text;
  bool stopped = false;  // by a stop token or string
  std::string matched_stop;
  double beam_score = 0;
};
// What is right.
struct Expected {
  std::vector<Answer> answers;  // by choice
  std::vector<model::SampledToken> prompt_logprobs;
};
Expected Oracle(const RequestSpec& spec);

}  // namespace baton::simulation

#endif  // BATON_TESTS_SIMULATION_ORACLE_H_
