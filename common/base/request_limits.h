// The ranges of a generation request's fields: one table, and the checks of it. The router checks
// what a client sends, the workers check again what a router sends, and the sampler what it draws
// with. docs/sampling.md and inference.proto give the same numbers.
//
// Errors: INVALID_ARGUMENT that names the field, what was given and what is expected; the reason is
// OUT_OF_RANGE where no other is named. NaN is in no range. Thread-safe.
#ifndef BATON_COMMON_BASE_REQUEST_LIMITS_H_
#define BATON_COMMON_BASE_REQUEST_LIMITS_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace baton {

inline constexpr float kMaxTemperature = 2;
inline constexpr float kMaxRepetitionPenalty = 2;
inline constexpr float kMaxPenalty = 2;  // frequency and presence; at least -kMaxPenalty
inline constexpr int kMaxLogitBiases = 1024;
inline constexpr float kMaxLogitBias = 100;  // at least -kMaxLogitBias
inline constexpr int kMaxLogprobs = 20;      // of the most probable tokens beside each token
// Log probabilities of a whole prompt: they go in one message, of about 12 bytes each, and many
// clients take 4 MiB.
inline constexpr int64_t kMaxPromptLogprobs = 1 << 18;

inline constexpr int kMaxChoices = 16;
inline constexpr int kMinBeamWidth = 2;
inline constexpr int kMaxBeamWidth = 16;
inline constexpr float kMaxLengthPenalty = 10;  // at least -kMaxLengthPenalty

inline constexpr int kMaxStopStrings = 16;
inline constexpr size_t kMaxStopStringBytes = 1024;
inline constexpr int kMaxStopTokenIds = 256;  // of the client
inline constexpr int kMaxEosTokenIds = 768;   // of the model, which the router adds to the client's

inline constexpr int kMaxRetentionPriority = 100;
inline constexpr int64_t kMaxRetentionTtlMs = int64_t{7} * 24 * 3600 * 1000;

// Scoring. A call of Score has at most kMaxScoreItems items, one of ScoreStream any number; at most
// kMaxScoredItems go to a worker together.
inline constexpr int kMaxScoreItems = 4096;
inline constexpr int kMaxScoredItems = 64;
inline constexpr int kMaxLabels = 64;
inline constexpr size_t kMaxLabelBytes = 1024;

// Most inputs of one Embed call.
inline constexpr int kMaxEmbedInputs = 2048;

inline constexpr size_t kMaxRequestIdBytes = 128;
inline constexpr size_t kMaxTenantBytes = 128;
inline constexpr size_t kMaxCacheSaltBytes = 256;
inline constexpr size_t kMaxPoolBytes = 64;

// Sampling parameters that are numbers. A default is in range, so what a message lacks stays unset.
struct SamplingNumbers {
  float temperature = 1;
  float top_p = 1;
  int top_k = 0;
  float min_p = 0;
  float repetition_penalty = 1;
  float frequency_penalty = 0;
  float presence_penalty = 0;
  std::optional<int> logprobs;
};
absl::Status CheckSamplingNumbers(const SamplingNumbers& numbers);

// The number of biases, one of them, and its token.
absl::Status CheckLogitBiasCount(size_t count);
absl::Status CheckLogitBias(int32_t token_id, float bias);
absl::Status CheckLogitBiasId(int32_t token_id, int vocab_size);

// `given` is in [least, most].
absl::Status CheckRange(absl::string_view field, int64_t given, int64_t least, int64_t most);
absl::Status CheckTokenIds(absl::string_view field, absl::Span<const int32_t> token_ids,
                           int vocab_size);
absl::Status CheckLengthPenalty(float penalty);
// Checks `retention`; `until_token` may be absent.
absl::Status CheckRetention(std::optional<int> until_token, int priority, int64_t ttl_ms);
// The same for a baton.v1.Retention.
template <class Message>
absl::Status CheckRetention(const Message& retention) {
  std::optional<int> until_token;
  if (retention.has_until_token()) until_token = retention.until_token();
  return CheckRetention(until_token, retention.priority(), retention.ttl_ms());
}

// At most `most` ids; reason TOO_MANY_STOPS.
absl::Status CheckStopTokenIdCount(absl::string_view field, int count, int most);
// Reason BAD_TENANT.
absl::Status CheckTenant(absl::string_view tenant);
// The name of a pool of workers: 1 to kMaxPoolBytes letters, digits and characters of "._-". Reason
// BAD_POOL.
absl::Status CheckPool(absl::string_view field, absl::string_view pool);

// The error itself: "<given> given, <expected>".
absl::Status OutOfRange(absl::string_view field, absl::string_view given,
                        absl::string_view expected);

}  // namespace baton

#endif  // BATON_COMMON_BASE_REQUEST_LIMITS_H_
