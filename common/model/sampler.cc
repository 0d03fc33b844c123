#include "common/model/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/backend/exp_log.h"
#include "common/backend/philox.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/request_limits.h"
#include "common/base/status_macros.h"
#include "common/model/adjust_logits.h"

namespace baton::model {
namespace {

using backend::FixedExp2;
using backend::kOne;
using backend::kWeightBits;
using backend::LogSumExp;
using backend::Philox4x32;

// All filters keep a prefix of one order: by logit, highest first, then by id. Weights are whole
// numbers, so their sums are exact in any order: a selection that never sorts finds the same prefix
// and the same token as a sort would, and every CPU finds the same.
struct Candidate {
  float logit;
  int32_t id;
  uint64_t weight;  // of the highest logit: kOne
};

constexpr size_t kMaxCandidates = size_t{1} << 22;
constexpr size_t kSortedBelow = 64;
constexpr int kMaxHeap = 2048;  // longer prefixes are cheaper by nth_element

bool Before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

uint64_t Sum(absl::Span<const Candidate> candidates) {
  uint64_t sum = 0;
  for (const Candidate& candidate : candidates) sum += candidate.weight;
  return sum;
}

// Weights of one bucket differ by less than an eighth; a higher bucket is earlier in the order.
constexpr size_t kBucketCount = (kWeightBits + 2) * 8;
size_t BucketOf(uint64_t weight) {
  if (weight == 0) return 0;
  const int bits = std::bit_width(weight);
  return static_cast<size_t>(bits) * 8 + (weight << (64 - bits) >> 60 & 7);
}

// Reorders so that the shortest prefix whose weight reaches `target` comes first, its last element
// at its end; returns its length. Expected linear in the candidates: sums per bucket find the
// bucket in which the target is reached, halving finds the place in it, and only the last few are
// sorted. REQUIRES: 0 < target <= Sum(candidates).
size_t PrefixReaching(absl::Span<Candidate> candidates, uint64_t target) {
  size_t begin = 0;
  size_t end = candidates.size();
  if (end > kSortedBelow) {
    std::array<uint64_t, kBucketCount> sums{};
    for (const Candidate& candidate : candidates)
      sums[BucketOf(candidate.weight)] += candidate.weight;
    size_t bucket = kBucketCount - 1;
    for (; sums[bucket] < target; --bucket) target -= sums[bucket];
    const auto in_bucket =
        std::partition(candidates.begin(), candidates.end(),
                       [&](const Candidate& c) { return BucketOf(c.weight) > bucket; });
    const auto behind = std::partition(in_bucket, candidates.end(), [&](const Candidate& c) {
      return BucketOf(c.weight) == bucket;
    });
    begin = static_cast<size_t>(in_bucket - candidates.begin());
    end = static_cast<size_t>(behind - candidates.begin());
  }
  while (end - begin > kSortedBelow) {
    const size_t half = (end - begin) / 2;
    std::nth_element(candidates.begin() + begin, candidates.begin() + begin + half,
                     candidates.begin() + end, Before);
    const uint64_t weight = Sum(candidates.subspan(begin, half));
    if (weight >= target) {
      end = begin + half;
    } else {
      target -= weight;
      begin += half;
    }
  }
  std::sort(candidates.begin() + begin, candidates.begin() + end, Before);
  while (begin < end && candidates[begin].weight < target) target -= candidates[begin++].weight;
  BATON_CHECK_LT(begin, end);
  return begin + 1;
}

// The `count` first of the order, into `kept`, in no order among them. One pass with a heap, which
// is O(V + count · log count · log V) where logits come in random order, or an O(V) selection where
// many are kept.
void FirstByLogit(absl::Span<const float> logits, size_t count, std::vector<Candidate>& kept) {
  const size_t direct = count <= kMaxHeap ? count : logits.size();
  kept.resize(direct);
  for (size_t i = 0; i < direct; ++i) kept[i] = {logits[i], static_cast<int32_t>(i), 0};
  if (direct == logits.size()) {
    if (count == direct) return;
    std::nth_element(kept.begin(), kept.begin() + static_cast<ptrdiff_t>(count), kept.end(),
                     Before);
    kept.resize(count);
    return;
  }
  std::make_heap(kept.begin(), kept.end(), Before);  // its front is the last of the order
  for (size_t i = direct; i < logits.size(); ++i) {
    if (!(logits[i] > kept.front().logit)) continue;  // of equals, the earlier id stays
    std::pop_heap(kept.begin(), kept.end(), Before);
    kept.back() = {logits[i], static_cast<int32_t>(i), 0};
    std::push_heap(kept.begin(), kept.end(), Before);
  }
}

// Returns the sum of the weights.
uint64_t SetWeights(float highest, float temperature, std::vector<Candidate>& candidates) {
  const double scale = M_LOG2E / static_cast<double>(temperature);
  uint64_t total = 0;
  for (Candidate& candidate : candidates) {
    const double below = static_cast<double>(candidate.logit) - static_cast<double>(highest);
    candidate.weight = below == 0 ? kOne : FixedExp2(below * scale);  // 0 · inf is no number
    total += candidate.weight;
  }
  return total;
}

// A random share of 2^64, in (0, 1], scaled to 1 .. total.
uint64_t RandomTarget(uint64_t seed, uint32_t choice, uint64_t position, uint64_t total) {
  const auto random = Philox4x32(
      {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), choice, 0},
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t bits = uint64_t{random[1]} << 32 | random[0];
  return static_cast<uint64_t>((static_cast<unsigned __int128>(bits) * total) >> 64) + 1;
}

// Index of the highest logit, the lowest of equals; INTERNAL if the row is no distribution.
absl::StatusOr<int32_t> Highest(absl::Span<const float> logits) {
  size_t best = 0;
  bool finite = true;
  for (size_t i = 0; i < logits.size(); ++i) {
    finite &= logits[i] <= std::numeric_limits<float>::max();  // false for NaN and +inf
    if (logits[i] > logits[best]) best = i;
  }
  if (finite && logits[best] >= std::numeric_limits<float>::lowest()) {
    return static_cast<int32_t>(best);
  }
  const auto bad = std::find_if(logits.begin(), logits.end(), [](float logit) {
    return !(logit <= std::numeric_limits<float>::max());
  });
  if (bad == logits.end()) return NonFiniteLogits(-1, 0);
  return NonFiniteLogits(static_cast<int32_t>(bad - logits.begin()), *bad);
}

// Logits that one request draws from.
struct Row {
  absl::Span<const float> logits;
  int32_t highest = 0;  // index of the highest, which is finite
};

// `raw` as it is if nothing is to be changed in it, else a copy that lasts until the thread's next
// call.
absl::StatusOr<Row> Adjusted(const Row& raw, const SamplingParams& params,
                             const SamplingHistory& history) {
  if (!ChangesLogits(params, history)) return raw;
  thread_local std::vector<float> adjusted;
  adjusted.assign(raw.logits.begin(), raw.logits.end());
  AdjustLogits(params, history, absl::MakeSpan(adjusted));
  const absl::StatusOr<int32_t> highest = Highest(adjusted);
  // Finite logits stay finite: only suppression can have done it.
  if (!highest.ok()) return NoTokenLeft(history.suppressed.size());
  return Row{adjusted, *highest};
}

absl::StatusOr<Row> CheckedRow(absl::Span<const float> logits) {
  BATON_CHECK(!logits.empty());
  BATON_CHECK_LE(logits.size(), kMaxCandidates);
  BATON_ASSIGN_OR_RETURN(const int32_t highest, Highest(logits));
  return Row{logits, highest};
}

// Log probabilities of a row's tokens.
class LogSoftmax {
 public:
  explicit LogSoftmax(const Row& row)
      : logits_(row.logits),
        highest_(logits_[static_cast<size_t>(row.highest)]),
        log_sum_(LogSumExp(logits_, highest_)) {}

  // A token that can't be drawn gets the lowest finite number: not every consumer has an infinity.
  float Of(int32_t id) const {
    if (static_cast<size_t>(id) >= logits_.size()) return std::numeric_limits<float>::lowest();
    const double logprob = static_cast<double>(logits_[static_cast<size_t>(id)]) -
                           static_cast<double>(highest_) - log_sum_;
    return std::max(static_cast<float>(logprob), std::numeric_limits<float>::lowest());
  }

 private:
  const absl::Span<const float> logits_;
  const float highest_;
  const double log_sum_;
};

// The `count` first of the order, in it.
std::vector<Candidate> Best(absl::Span<const float> logits, int count) {
  std::vector<Candidate> best;
  if (count <= 0) return best;
  FirstByLogit(logits, std::min(static_cast<size_t>(count), logits.size()), best);
  std::sort(best.begin(), best.end(), Before);
  return best;
}

std::vector<TokenLogprob> Top(const Row& row, const LogSoftmax& log_softmax, int count) {
  std::vector<TokenLogprob> top;
  for (const Candidate& candidate : Best(row.logits, count)) {
    top.push_back({candidate.id, log_softmax.Of(candidate.id)});
  }
  return top;
}

// Adds to each token what params.logprobs asks for.
void SetLogprobs(const Row& raw, const SamplingParams& params, std::vector<SampledToken>& tokens) {
  if (!params.logprobs) return;
  const LogSoftmax log_softmax(raw);
  const std::vector<TokenLogprob> top = Top(raw, log_softmax, *params.logprobs);
  for (SampledToken& token : tokens) {
    token.logprob = log_softmax.Of(token.token_id);
    token.top = top;
  }
}

// What temperature and filters leave, in no order, with weights. Returns their sum.
uint64_t Filter(const Row& row, const SamplingParams& params, std::vector<Candidate>& candidates) {
  const absl::Span<const float> logits = row.logits;
  const size_t limit = params.top_k <= 0 ? logits.size() : static_cast<size_t>(params.top_k);
  FirstByLogit(logits, std::min(limit, logits.size()), candidates);
  uint64_t total =
      SetWeights(logits[static_cast<size_t>(row.highest)], params.temperature, candidates);
  if (params.top_p < 1) {
    const double share = std::ceil(static_cast<double>(params.top_p) * static_cast<double>(total));
    const uint64_t target = std::clamp<uint64_t>(static_cast<uint64_t>(share), 1, total);
    candidates.resize(PrefixReaching(absl::MakeSpan(candidates), target));
    total = Sum(candidates);
  }
  if (params.min_p > 0) {
    const auto least = static_cast<uint64_t>(static_cast<double>(params.min_p) * kOne);
    const auto kept = std::partition(candidates.begin(), candidates.end(),
                                     [&](const Candidate& c) { return c.weight >= least; });
    candidates.erase(kept, candidates.end());
    total = Sum(candidates);
  }
  return total;
}

absl::Status ValidateBias(const std::vector<std::pair<int32_t, float>>& biases) {
  BATON_RETURN_IF_ERROR(CheckLogitBiasCount(biases.size()));
  int64_t last = -1;
  for (const auto& [id, bias] : biases) {
    if (id <= last) {
      return OutOfRange("sampling.logit_bias", absl::StrCat("id ", id),
                        "ids from 0 on expected, in order and each once");
    }
    BATON_RETURN_IF_ERROR(CheckLogitBias(id, bias));
    last = id;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status NonFiniteLogits(int32_t token_id, float logit) {
  return MakeError(absl::StatusCode::kInternal, "NON_FINITE_LOGITS",
                   token_id < 0 ? std::string("all logits are -inf")
                                : absl::StrCat("the logit of token ", token_id, " is ", logit));
}

absl::Status NoTokenLeft(size_t suppressed) {
  return MakeError(
      absl::StatusCode::kInvalidArgument, "NO_TOKEN_LEFT",
      absl::StrCat("the ", suppressed, " suppressed token ids are all that could be drawn"));
}

absl::Status Validate(const SamplingParams& params) {
  BATON_RETURN_IF_ERROR(CheckSamplingNumbers({.temperature = params.temperature,
                                              .top_p = params.top_p,
                                              .top_k = params.top_k,
                                              .min_p = params.min_p,
                                              .repetition_penalty = params.repetition_penalty,
                                              .frequency_penalty = params.frequency_penalty,
                                              .presence_penalty = params.presence_penalty,
                                              .logprobs = params.logprobs}));
  return ValidateBias(params.logit_bias);
}

absl::StatusOr<std::vector<SampledToken>> SampleMany(absl::Span<const float> logits,
                                                     const SamplingParams& params,
                                                     const SamplingHistory& history,
                                                     uint64_t position, int draws) {
  BATON_CHECK_GE(draws, 1);
  BATON_RETURN_IF_ERROR(Validate(params));
  BATON_ASSIGN_OR_RETURN(const Row raw, CheckedRow(logits));
  BATON_ASSIGN_OR_RETURN(const Row row, Adjusted(raw, params, history));
  std::vector<SampledToken> tokens(static_cast<size_t>(draws));
  if (params.temperature == 0 || params.top_k == 1) {
    for (SampledToken& token : tokens) token.token_id = row.highest;
  } else {
    // Kept between calls: fresh memory for 150,000 candidates costs more than the draw.
    thread_local std::vector<Candidate> candidates;
    const uint64_t total = Filter(row, params, candidates);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const uint32_t choice = params.choice + static_cast<uint32_t>(i);
      const uint64_t target = RandomTarget(params.seed, choice, position, total);
      // Reorders the candidates, which have no order.
      tokens[i].token_id = candidates[PrefixReaching(absl::MakeSpan(candidates), target) - 1].id;
    }
  }
  SetLogprobs(raw, params, tokens);
  return tokens;
}

absl::StatusOr<SampledToken> Sample(absl::Span<const float> logits, const SamplingParams& params,
                                    const SamplingHistory& history, uint64_t position) {
  absl::StatusOr<std::vector<SampledToken>> tokens =
      SampleMany(logits, params, history, position, 1);
  if (!tokens.ok()) return tokens.status();
  return std::move(tokens->front());
}

absl::StatusOr<std::vector<SampledToken>> BestTokens(absl::Span<const float> logits,
                                                     const SamplingParams& params,
                                                     const SamplingHistory& history, int count) {
  BATON_CHECK_GE(count, 1);
  BATON_RETURN_IF_ERROR(Validate(params));
  BATON_ASSIGN_OR_RETURN(const Row raw, CheckedRow(logits));
  BATON_ASSIGN_OR_RETURN(const Row row, Adjusted(raw, params, history));
  const LogSoftmax log_softmax(row);
  std::vector<SampledToken> tokens;
  for (const Candidate& candidate : Best(row.logits, count)) {
    if (Masked(candidate.logit)) break;
    tokens.emplace_back();
    tokens.back().token_id = candidate.id;
    tokens.back().score = log_softmax.Of(candidate.id);
  }
  SetLogprobs(raw, params, tokens);
  return tokens;
}

absl::StatusOr<SampledToken> LogprobsOf(absl::Span<const float> logits, int32_t token_id, int top) {
  BATON_ASSIGN_OR_RETURN(const Row row, CheckedRow(logits));
  const LogSoftmax log_softmax(row);
  SampledToken token;
  token.token_id = token_id;
  token.logprob = log_softmax.Of(token_id);
  token.top = Top(row, log_softmax, top);
  return token;
}

absl::StatusOr<std::vector<float>> LogprobsOf(absl::Span<const float> logits,
                                              absl::Span<const int32_t> token_ids) {
  BATON_ASSIGN_OR_RETURN(const Row row, CheckedRow(logits));
  const LogSoftmax log_softmax(row);
  std::vector<float> logprobs;
  logprobs.reserve(token_ids.size());
  for (const int32_t id : token_ids) logprobs.push_back(log_softmax.Of(id));
  return logprobs;
}

}  // namespace baton::model
