#include "common/model/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/model/philox.h"

namespace baton::model {
namespace {

// All filters keep a prefix of one order: by logit, highest first, then by id. Weights are whole
// numbers, so their sums are exact in any order: a selection that never sorts finds the same prefix
// and the same token as a sort would, and every CPU finds the same.
struct Candidate {
  float logit;
  int32_t id;
  uint64_t weight;  // of the highest logit: kOne
};

constexpr int kWeightBits = 40;  // times 2^22 candidates is still below 2^63
constexpr uint64_t kOne = uint64_t{1} << kWeightBits;
constexpr size_t kMaxCandidates = size_t{1} << 22;
constexpr size_t kSortedBelow = 64;
constexpr int kMaxHeap = 2048;  // longer prefixes are cheaper by nth_element

constexpr int kTableBits = 10;

// 2^(-i / 1024), computed by the compiler.
constexpr std::array<double, 1 << kTableBits> MakeExp2Table() {
  std::array<double, 1 << kTableBits> table{};
  for (size_t i = 0; i < table.size(); ++i) {
    const double y = -M_LN2 * static_cast<double>(i) / static_cast<double>(table.size());
    double sum = 1;
    for (int n = 20; n > 0; --n) sum = 1 + sum * y / n;  // Taylor of e^y
    table[i] = sum;
  }
  return table;
}
constexpr std::array<double, 1 << kTableBits> kExp2Table = MakeExp2Table();

bool Before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// 2^x for x <= 0 in units of 2^-40, rounded down. Arithmetic only: the C library's exp differs by
// version and CPU in its last bit, which must not decide a token.
uint64_t FixedExp2(double x) {
  if (!(x > -kWeightBits - 1)) return 0;
  const double scaled = x * -static_cast<double>(kExp2Table.size());
  const int index = static_cast<int>(scaled);
  const double y = (index - scaled) * (M_LN2 / static_cast<double>(kExp2Table.size()));
  // e^y for y in (-0.0007, 0]: the first term left out is below 2^-46.
  const double rest = 1 + y * (1 + y * (1 / 2.0 + y * (1 / 6.0)));
  const double fraction = kExp2Table[static_cast<size_t>(index) & (kExp2Table.size() - 1)] * rest;
  return static_cast<uint64_t>(fraction * static_cast<double>(kOne)) >> (index >> kTableBits);
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

// In (0, 1] as a share of 2^64, scaled to 1 .. total.
uint64_t RandomTarget(const SamplingParams& params, uint64_t position, uint64_t total) {
  const auto random = Philox4x32(
      {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), params.choice, 0},
      {static_cast<uint32_t>(params.seed), static_cast<uint32_t>(params.seed >> 32)});
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
  return MakeError(absl::StatusCode::kInternal, "NON_FINITE_LOGITS",
                   bad == logits.end()
                       ? std::string("all logits are -inf")
                       : absl::StrCat("the logit of token ", bad - logits.begin(), " is ", *bad));
}

absl::Status OutOfRange(absl::string_view field, double found, absl::string_view expected) {
  return InvalidField("INVALID_SAMPLING", absl::StrCat("sampling.", field),
                      absl::StrCat("found ", found, ", expected ", expected));
}

}  // namespace

absl::Status Validate(const SamplingParams& params) {
  if (!(params.temperature >= 0 && params.temperature <= 100)) {
    return OutOfRange("temperature", params.temperature, "0 to 100");
  }
  if (!(params.top_p > 0 && params.top_p <= 1)) {
    return OutOfRange("top_p", params.top_p, "more than 0 and at most 1");
  }
  if (params.top_k < -1) return OutOfRange("top_k", params.top_k, "-1, 0 or a count");
  if (!(params.min_p >= 0 && params.min_p <= 1)) {
    return OutOfRange("min_p", params.min_p, "0 to 1");
  }
  return absl::OkStatus();
}

absl::StatusOr<int32_t> Sample(absl::Span<const float> logits, const SamplingParams& params,
                               uint64_t position) {
  BATON_CHECK(!logits.empty());
  BATON_CHECK_LE(logits.size(), kMaxCandidates);
  BATON_RETURN_IF_ERROR(Validate(params));
  BATON_ASSIGN_OR_RETURN(const int32_t highest, Highest(logits));
  if (params.temperature == 0 || params.top_k == 1) return highest;

  const size_t limit = params.top_k <= 0 ? logits.size() : static_cast<size_t>(params.top_k);
  // Kept between calls: fresh pages for 150,000 candidates cost more than the draw.
  thread_local std::vector<Candidate> candidates;
  FirstByLogit(logits, std::min(limit, logits.size()), candidates);
  uint64_t total = SetWeights(logits[static_cast<size_t>(highest)], params.temperature, candidates);
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
  const uint64_t target = RandomTarget(params, position, total);
  return candidates[PrefixReaching(absl::MakeSpan(candidates), target) - 1].id;
}

}  // namespace baton::model
