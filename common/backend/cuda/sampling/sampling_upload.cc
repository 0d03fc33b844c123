#include "common/backend/cuda/sampling/sampling_upload.h"

#include "common/base/check.h"

namespace baton::backend::cuda {
namespace {

static_assert(static_cast<int>(SampleOutcome::Kind::kToken) == kSampledToken);
static_assert(static_cast<int>(SampleOutcome::Kind::kNonFinite) == kSampledNonFinite);
static_assert(static_cast<int>(SampleOutcome::Kind::kNoTokenLeft) == kSampledNoTokenLeft);
// So that the parts after requests and biases are aligned.
static_assert(sizeof(SampleRequest) % alignof(TokenBias) == 0);
static_assert(sizeof(TokenBias) % alignof(int32_t) == 0);

bool HasPenalties(const SampleRow& row) {
  return row.repetition_penalty != 1 || row.frequency_penalty != 0 || row.presence_penalty != 0;
}
// How many tokens of the history the kernel needs: all or none.
size_t NeededTokens(const SampleRow& row) {
  return HasPenalties(row) ? row.tokens.size() + row.drafts.size() : 0;
}
bool NeedsDrawn(const SampleRow& row) { return HasPenalties(row) && row.drawn_row != kNotDrawn; }
bool ChangesLogits(const SampleRow& row) {
  return !row.logit_bias.empty() || !row.suppressed.empty() || NeededTokens(row) > 0 ||
         NeedsDrawn(row);
}

template <class T>
void Append(const std::vector<T>& values, std::vector<std::byte>& bytes) {
  const auto* data = reinterpret_cast<const std::byte*>(values.data());
  bytes.insert(bytes.end(), data, data + values.size() * sizeof(T));
}

}  // namespace

size_t SamplingUpload::Pack(absl::Span<const SampleRow> rows, const SamplingCapacity& room) {
  requests_.clear();
  biases_.clear();
  ids_.clear();
  size_t size_bytes = 0;
  int workspace_rows = 0;
  for (const SampleRow& row : rows) {
    const size_t tokens = NeededTokens(row);
    size_bytes += MaxBytes(tokens, row.suppressed.size(), row.logit_bias.size());
    const bool changes = ChangesLogits(row);
    if (size_bytes > room.bytes || workspace_rows + (changes ? 1 : 0) > room.workspace_rows) break;
    BATON_CHECK(row.prompt_tokens >= 0 &&
                static_cast<size_t>(row.prompt_tokens) <= row.tokens.size())
        << row.prompt_tokens << " prompt tokens of " << row.tokens.size();
    SampleRequest request = {};
    request.logit_row = row.logit_row;
    request.workspace_row = changes ? workspace_rows++ : -1;
    request.temperature = row.temperature;
    request.top_p = row.top_p;
    request.min_p = row.min_p;
    request.top_k = row.top_k;
    request.repetition_penalty = row.repetition_penalty;
    request.frequency_penalty = row.frequency_penalty;
    request.presence_penalty = row.presence_penalty;
    request.choice = row.choice;
    request.seed = row.seed;
    request.position = row.position;
    request.first_token = static_cast<int>(ids_.size());
    request.token_count = static_cast<int>(tokens);
    request.prompt_tokens = tokens == 0 ? 0 : row.prompt_tokens;
    request.drawn_row = NeedsDrawn(row) ? row.drawn_row : kNotDrawn;
    if (tokens > 0) {
      ids_.insert(ids_.end(), row.tokens.begin(), row.tokens.end());
      ids_.insert(ids_.end(), row.drafts.begin(), row.drafts.end());
    }
    request.first_suppressed = static_cast<int>(ids_.size());
    request.suppressed_count = static_cast<int>(row.suppressed.size());
    ids_.insert(ids_.end(), row.suppressed.begin(), row.suppressed.end());
    request.first_bias = static_cast<int>(biases_.size());
    request.bias_count = static_cast<int>(row.logit_bias.size());
    for (const auto& [id, bias] : row.logit_bias) biases_.push_back({id, bias});
    requests_.push_back(request);
  }
  bytes_.clear();
  Append(requests_, bytes_);
  first_bias_ = bytes_.size();
  Append(biases_, bytes_);
  first_id_ = bytes_.size();
  Append(ids_, bytes_);
  return requests_.size();
}

void SamplingUpload::PointTo(const std::byte* device, SampleLaunch& launch) const {
  launch.requests = reinterpret_cast<const SampleRequest*>(device);
  launch.biases = reinterpret_cast<const TokenBias*>(device + first_bias_);
  launch.ids = reinterpret_cast<const int32_t*>(device + first_id_);
}

SampleOutcome OutcomeOf(const SampleResult& result) {
  return {static_cast<SampleOutcome::Kind>(result.kind), result.token_id, result.bad_logit};
}

}  // namespace baton::backend::cuda
