// A slow sampler that is obviously right: the definition in double.
#ifndef BATON_TESTS_COMMON_MODEL_SAMPLER_REFERENCE_H_
#define BATON_TESTS_COMMON_MODEL_SAMPLER_REFERENCE_H_

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "common/backend/philox.h"
#include "common/model/sampler.h"

namespace baton::model {

// The definition, straight: sort, filter, accumulate in double. Probability of each id.
inline std::map<int32_t, double> ExactProbabilities(const std::vector<float>& logits,
                                                    const SamplingParams& params) {
  std::vector<int32_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  if (params.top_k > 0) order.resize(std::min<size_t>(order.size(), params.top_k));
  std::vector<double> weights;
  double total = 0;
  for (int32_t id : order) {
    weights.push_back(std::exp((double{logits[id]} - logits[order[0]]) / params.temperature));
    total += weights.back();
  }
  size_t kept = 0;
  for (double cumulative = 0;
       kept < weights.size() && (kept == 0 || cumulative < params.top_p * total);) {
    cumulative += weights[kept++];
  }
  if (params.top_p >= 1) kept = weights.size();
  while (kept > 1 && weights[kept - 1] < params.min_p) --kept;
  total = 0;
  for (size_t i = 0; i < kept; ++i) total += weights[i];
  std::map<int32_t, double> probabilities;
  for (size_t i = 0; i < kept; ++i) probabilities[order[i]] = weights[i] / total;
  return probabilities;
}

inline std::vector<double> LogSoftmaxReference(const std::vector<float>& logits) {
  const double highest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - highest);
  std::vector<double> logprobs;
  for (const float logit : logits) logprobs.push_back(logit - highest - std::log(sum));
  return logprobs;
}

// The id whose share of the cumulative distribution, best first, `random` falls into, with
// everything that is compared moved by `slack`.
inline int32_t ReferenceDraw(const std::vector<float>& logits, const SamplingParams& params,
                             uint64_t position, double slack) {
  SamplingParams moved = params;
  if (params.top_p < 1) moved.top_p = static_cast<float>(params.top_p * (1 + slack));
  if (params.min_p > 0) moved.min_p = static_cast<float>(params.min_p * (1 + slack));
  const auto words = backend::Philox4x32(
      {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), params.choice, 0},
      {static_cast<uint32_t>(params.seed), static_cast<uint32_t>(params.seed >> 32)});
  const double random = (static_cast<double>(words[1]) * 4294967296.0 + words[0]) / 0x1p64;
  const std::map<int32_t, double> probabilities = ExactProbabilities(logits, moved);
  std::vector<std::pair<double, int32_t>> order;  // by logit, then by id
  for (const auto& [id, probability] : probabilities) order.push_back({-logits[id], id});
  std::sort(order.begin(), order.end());
  double cumulative = 0;
  for (const auto& [logit, id] : order) {
    cumulative += probabilities.at(id);
    if (cumulative > random + slack) return id;
  }
  return order.back().second;
}

}  // namespace baton::model

#endif  // BATON_TESTS_COMMON_MODEL_SAMPLER_REFERENCE_H_
