#include "common/worker/retention.h"

#include <algorithm>

namespace baton::worker {

void PromptRetention::Apply(kv::RadixCache& cache, kv::PrefixKey root,
                            absl::Span<const int32_t> computed) const {
  if (retention.priority == 0) return;
  cache.Retain(root, computed.subspan(0, static_cast<size_t>(tokens)), retention);
}

PromptRetention FromProto(const v1::Retention& retention, int prompt_tokens) {
  PromptRetention made;
  made.tokens = retention.has_until_token() ? std::min(retention.until_token(), prompt_tokens)
                                            : prompt_tokens;
  made.retention = {retention.priority(), absl::Milliseconds(retention.ttl_ms())};
  return made;
}

v1::Retention ToProto(const PromptRetention& retention) {
  v1::Retention message;
  message.set_until_token(retention.tokens);
  message.set_priority(retention.retention.priority);
  message.set_ttl_ms(absl::ToInt64Milliseconds(retention.retention.ttl));
  return message;
}

}  // namespace baton::worker
