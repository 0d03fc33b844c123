#include "common/base/request_limits.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"

namespace baton {
namespace {

// Written so that NaN fails.
absl::Status CheckReal(absl::string_view field, float given, float least, float most,
                       absl::string_view note = "") {
  if (given >= least && given <= most) return absl::OkStatus();
  return OutOfRange(field, absl::StrCat(given),
                    absl::StrCat(least, " to ", most, " expected", note));
}

absl::Status CheckPositive(absl::string_view field, float given, float most,
                           absl::string_view note = "") {
  if (given > 0 && given <= most) return absl::OkStatus();
  return OutOfRange(field, absl::StrCat(given),
                    absl::StrCat("above 0 and at most ", most, " expected", note));
}

}  // namespace

absl::Status OutOfRange(absl::string_view field, absl::string_view given,
                        absl::string_view expected) {
  return InvalidField("OUT_OF_RANGE", field, absl::StrCat(given, " given, ", expected));
}

absl::Status CheckSamplingNumbers(const SamplingNumbers& n) {
  constexpr char kNone0[] = "; 0 is none";
  BATON_RETURN_IF_ERROR(
      CheckReal("sampling.temperature", n.temperature, 0, kMaxTemperature, "; 0 is greedy"));
  BATON_RETURN_IF_ERROR(CheckPositive("sampling.top_p", n.top_p, 1));
  if (n.top_k < -1) {
    return OutOfRange("sampling.top_k", absl::StrCat(n.top_k),
                      "-1 or more expected; -1 and 0 mean no limit");
  }
  BATON_RETURN_IF_ERROR(CheckReal("sampling.min_p", n.min_p, 0, 1));
  BATON_RETURN_IF_ERROR(CheckPositive("sampling.repetition_penalty", n.repetition_penalty,
                                      kMaxRepetitionPenalty, "; 1 is none"));
  BATON_RETURN_IF_ERROR(CheckReal("sampling.frequency_penalty", n.frequency_penalty, -kMaxPenalty,
                                  kMaxPenalty, kNone0));
  BATON_RETURN_IF_ERROR(CheckReal("sampling.presence_penalty", n.presence_penalty, -kMaxPenalty,
                                  kMaxPenalty, kNone0));
  if (!n.logprobs) return absl::OkStatus();
  return CheckRange("sampling.logprobs", *n.logprobs, 0, kMaxLogprobs);
}

absl::Status CheckLogitBiasCount(size_t count) {
  if (count <= kMaxLogitBiases) return absl::OkStatus();
  return OutOfRange("sampling.logit_bias", absl::StrCat(count, " ids"),
                    absl::StrCat("at most ", kMaxLogitBiases, " expected"));
}

absl::Status CheckLogitBias(int32_t token_id, float bias) {
  if (bias >= -kMaxLogitBias && bias <= kMaxLogitBias) return absl::OkStatus();
  return OutOfRange("sampling.logit_bias", absl::StrCat(bias, " for id ", token_id),
                    absl::StrCat(-kMaxLogitBias, " to ", kMaxLogitBias, " expected"));
}

absl::Status CheckLogitBiasId(int32_t token_id, int vocab_size) {
  if (token_id >= 0 && token_id < vocab_size) return absl::OkStatus();
  return OutOfRange("sampling.logit_bias", absl::StrCat("id ", token_id),
                    absl::StrCat("0 to ", vocab_size - 1, " expected"));
}

absl::Status CheckRange(absl::string_view field, int64_t given, int64_t least, int64_t most) {
  if (given >= least && given <= most) return absl::OkStatus();
  return OutOfRange(field, absl::StrCat(given), absl::StrCat(least, " to ", most, " expected"));
}

absl::Status CheckTokenIds(absl::string_view field, absl::Span<const int32_t> token_ids,
                           int vocab_size) {
  // The inner loop has no branch and a fixed length, so the compiler compares many ids at once.
  constexpr size_t kAtOnce = 16;
  const auto limit = static_cast<uint32_t>(std::max(vocab_size, 0));
  const size_t whole = token_ids.size() / kAtOnce * kAtOnce;
  uint32_t wrong = 0;
  for (size_t i = 0; i < whole; i += kAtOnce) {
    const int32_t* const ids = token_ids.data() + i;
    for (size_t j = 0; j < kAtOnce; ++j) wrong |= static_cast<uint32_t>(ids[j]) >= limit ? 1 : 0;
  }
  for (const int32_t id : token_ids.subspan(whole)) {
    wrong |= static_cast<uint32_t>(id) >= limit ? 1 : 0;
  }
  if (wrong == 0) return absl::OkStatus();
  for (size_t i = 0; i < token_ids.size(); ++i) {
    if (token_ids[i] >= 0 && token_ids[i] < vocab_size) continue;
    return OutOfRange(field, absl::StrCat("id ", token_ids[i], " at position ", i),
                      absl::StrCat("0 to ", vocab_size - 1, " expected"));
  }
  return absl::OkStatus();
}

absl::Status CheckLengthPenalty(float penalty) {
  return CheckReal("length_penalty", penalty, -kMaxLengthPenalty, kMaxLengthPenalty);
}

absl::Status CheckRetention(std::optional<int> until_token, int priority, int64_t ttl_ms) {
  if (until_token && *until_token < 1) {
    return OutOfRange("retention.until_token", absl::StrCat(*until_token), "1 or more expected");
  }
  BATON_RETURN_IF_ERROR(CheckRange("retention.priority", priority, 0, kMaxRetentionPriority));
  return CheckRange("retention.ttl_ms", ttl_ms, 1, kMaxRetentionTtlMs);
}

absl::Status CheckStopTokenIdCount(absl::string_view field, int count, int most) {
  if (count <= most) return absl::OkStatus();
  return InvalidField("TOO_MANY_STOPS", field,
                      absl::StrCat(count, " ids given, at most ", most, " expected"));
}

absl::Status CheckTenant(absl::string_view tenant) {
  if (tenant.size() <= kMaxTenantBytes &&
      std::all_of(tenant.begin(), tenant.end(), absl::ascii_isprint)) {
    return absl::OkStatus();
  }
  return InvalidField(
      "BAD_TENANT", "tenant",
      absl::StrCat("at most ", kMaxTenantBytes, " printable ASCII characters expected"));
}

absl::Status CheckPool(absl::string_view field, absl::string_view pool) {
  const bool fits = std::all_of(pool.begin(), pool.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
  });
  if (fits && !pool.empty() && pool.size() <= kMaxPoolBytes) return absl::OkStatus();
  return InvalidField(
      "BAD_POOL", field,
      absl::StrCat("1 to ", kMaxPoolBytes, " letters, digits and characters of ._- expected"));
}

}  // namespace baton
