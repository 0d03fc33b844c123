#include "common/kv_store/tier_spec.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/kv_store/file_store.h"
#include "common/kv_store/host_store.h"
#include "common/kv_store/redis_store.h"

namespace baton::kv_store {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 50;

absl::Status Bad(absl::string_view part, absl::string_view expected) {
  return InvalidField("BAD_OPTION", "--kv-tier",
                      absl::StrCat("\"", part, "\" given, expected ", expected));
}

// "512MB", "20GB", "1GiB", "4096": as --kv-cache-memory, so that 1 KB is 1,024 bytes.
bool ParseSize(absl::string_view text, int64_t* bytes) {
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  int64_t value;
  if (!absl::SimpleAtoi(text.substr(0, digits), &value) || value < 1) return false;
  std::string unit = absl::AsciiStrToUpper(text.substr(digits));
  if (!unit.empty() && unit.back() == 'B') unit.pop_back();
  if (unit.size() == 2 && unit.back() == 'I') unit.pop_back();
  const size_t power = unit.empty() ? 0 : absl::string_view("KMGT").find(unit) + 1;
  if (unit.size() > 1 || (power == 0 && !unit.empty())) return false;
  for (size_t i = 0; i < power; ++i) {
    if (value > kMostBytes / 1024) return false;
    value *= 1024;
  }
  *bytes = value;
  return value <= kMostBytes;
}

// Splits at the last colon.
bool SplitLast(absl::string_view text, absl::string_view* before, absl::string_view* after) {
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return false;
  *before = text.substr(0, colon);
  *after = text.substr(colon + 1);
  return !before->empty() && !after->empty();
}

absl::StatusOr<TierSpec> ParseTier(absl::string_view part) {
  TierSpec tier;
  absl::string_view rest = part, before, after;
  if (absl::ConsumePrefix(&rest, "host:")) {
    tier.kind = TierSpec::Kind::kHost;
    if (!ParseSize(rest, &tier.bytes)) return Bad(part, "host:SIZE, e.g. host:2GB");
  } else if (absl::ConsumePrefix(&rest, "file:")) {
    tier.kind = TierSpec::Kind::kFile;
    if (!SplitLast(rest, &before, &after) || !ParseSize(after, &tier.bytes)) {
      return Bad(part, "file:DIRECTORY:SIZE, e.g. file:/var/cache/baton:20GB");
    }
    tier.directory = std::string(before);
  } else if (absl::ConsumePrefix(&rest, "redis:")) {
    tier.kind = TierSpec::Kind::kRedis;
    if (!SplitLast(rest, &before, &after) || !absl::SimpleAtoi(after, &tier.port) ||
        tier.port < 1 || tier.port > 65535) {
      return Bad(part, "redis:HOST:PORT, e.g. redis:localhost:6379");
    }
    if (absl::ConsumePrefix(&before, "[")) absl::ConsumeSuffix(&before, "]");
    tier.host = std::string(before);
  } else {
    return Bad(part, "host:SIZE, file:DIRECTORY:SIZE or redis:HOST:PORT");
  }
  return tier;
}

}  // namespace

absl::StatusOr<std::vector<TierSpec>> ParseTiers(absl::string_view text) {
  std::vector<TierSpec> tiers;
  if (text.empty()) return tiers;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    BATON_ASSIGN_OR_RETURN(TierSpec tier, ParseTier(part));
    for (const TierSpec& other : tiers) {
      if (other.kind == tier.kind) return Bad(part, "each kind of tier at most once");
    }
    tiers.push_back(std::move(tier));
  }
  return tiers;
}

absl::StatusOr<std::vector<std::unique_ptr<SegmentStore>>> OpenTiers(
    const std::vector<TierSpec>& tiers, const std::string& redis_password, const Clock& clock) {
  std::vector<std::unique_ptr<SegmentStore>> stores;
  for (const TierSpec& tier : tiers) {
    switch (tier.kind) {
      case TierSpec::Kind::kHost:
        stores.push_back(std::make_unique<HostStore>(tier.bytes));
        break;
      case TierSpec::Kind::kFile: {
        BATON_ASSIGN_OR_RETURN(std::unique_ptr<FileStore> store,
                               FileStore::Open(tier.directory, tier.bytes, clock));
        stores.push_back(std::move(store));
        break;
      }
      case TierSpec::Kind::kRedis:
        stores.push_back(std::make_unique<RedisStore>(
            RedisOptions{tier.host, tier.port, redis_password}, clock));
        break;
    }
  }
  return stores;
}

}  // namespace baton::kv_store
