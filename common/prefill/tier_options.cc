#include "common/prefill/tier_options.h"

#include <CLI/CLI.hpp>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/kv_store/tier_spec.h"

namespace baton::prefill {

void AddTierFlags(CLI::App& app, TierOptions& options) {
  app.add_option("--kv-tier", options.tiers,
                 "where prompts' KV is kept beside the KV pool, the fastest first: host:SIZE, "
                 "file:DIRECTORY:SIZE, redis:HOST:PORT, separated by commas; default: nowhere");
  app.add_option("--kv-tier-segment", options.segment,
                 "tokens that a tier stores and loads at once; the same for all that share a tier")
      ->check(CLI::Range(16, 1 << 16))
      ->capture_default_str();
  app.add_option("--kv-tier-least-uses", options.least_uses,
                 "uses of a segment before it is stored; 1 stores every prompt")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--kv-tier-redis-password-file", options.redis_password_file,
                 "file with the password of the Redis tier");
}

absl::Status ListTiers(const TierOptions& options, worker::WorkerOptions* worker) {
  BATON_ASSIGN_OR_RETURN(const std::vector<kv_store::TierSpec> tiers,
                         kv_store::ParseTiers(options.tiers));
  if (!tiers.empty() && options.segment % worker->block_size != 0) {
    return InvalidField(
        "BAD_OPTION", "--kv-tier-segment",
        absl::StrCat(options.segment, " given, expected a multiple of --block-size, ",
                     worker->block_size));
  }
  for (const kv_store::TierSpec& tier : tiers) worker->listed_tier_bytes += tier.bytes;
  if (worker->listed_tier_bytes > 0) worker->listed_tier_segment = options.segment;
  return absl::OkStatus();
}

absl::Status OpenTiers(const TierOptions& options, const worker::WorkerOptions& worker,
                       const Clock& awake, KvTiersOptions* tiers) {
  if (options.tiers.empty()) return absl::OkStatus();
  if (!worker.enable_prefix_caching) {
    return InvalidField("BAD_OPTION", "--kv-tier",
                        "given with --no-enable-prefix-caching, expected the prefix cache, where "
                        "what tiers load is put");
  }
  std::string password;
  if (!options.redis_password_file.empty()) {
    std::ifstream file(options.redis_password_file);
    std::string line;
    std::getline(file, line);
    password = std::string(WithoutByteOrderMark(line));
    if (password.empty()) {
      return InvalidField("BAD_OPTION", "--kv-tier-redis-password-file",
                          absl::StrCat(options.redis_password_file,
                                       " cannot be read or is empty, expected a line with the "
                                       "password"));
    }
  }
  BATON_ASSIGN_OR_RETURN(const std::vector<kv_store::TierSpec> specs,
                         kv_store::ParseTiers(options.tiers));
  BATON_ASSIGN_OR_RETURN(auto stores, kv_store::OpenTiers(specs, password, awake));
  for (auto& store : stores) {
    const kv_store::StoreUsage usage = store->usage();
    BATON_LOG(Info) << "KV tier " << store->kind() << ": " << usage.segments << " segments, "
                    << usage.bytes << " bytes";
    tiers->stores.push_back(std::move(store));
  }
  tiers->segment_tokens = options.segment;
  tiers->least_uses = options.least_uses;
  return absl::OkStatus();
}

}  // namespace baton::prefill
