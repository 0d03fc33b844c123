// The value of --kv-tier: host:2GB,file:/path:20GB,redis:host:port, the fastest tier first.
#ifndef BATON_COMMON_KV_STORE_TIER_SPEC_H_
#define BATON_COMMON_KV_STORE_TIER_SPEC_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "common/kv_store/segment_store.h"

namespace baton::kv_store {

struct TierSpec {
  enum class Kind { kHost, kFile, kRedis };
  Kind kind = Kind::kHost;
  int64_t bytes = 0;      // host, file: the bound
  std::string directory;  // file
  std::string host;       // redis
  int port = 0;           // redis
};

// INVALID_ARGUMENT (BAD_OPTION), naming the part and what was expected. Each kind at most once.
// Empty text: no tiers.
absl::StatusOr<std::vector<TierSpec>> ParseTiers(absl::string_view text);

// Opens them, in order. `redis_password`: empty, or for AUTH. The clock must outlive the stores.
absl::StatusOr<std::vector<std::unique_ptr<SegmentStore>>> OpenTiers(
    const std::vector<TierSpec>& tiers, const std::string& redis_password, const Clock& clock);

}  // namespace baton::kv_store

#endif  // BATON_COMMON_KV_STORE_TIER_SPEC_H_
