#include "prefill_worker/options.h"

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/kv_store/tier_spec.h"
#include "common/security/flags.h"

namespace baton::prefill_worker {

void AddPrefillFlags(CLI::App& app, PrefillOptions& options) {
  security::AddWorkerTls(app, options.worker_tls);
  app.add_option("--kv-tier", options.kv_tier,
                 "where prompts' KV is kept beside the KV pool, the fastest first: host:SIZE, "
                 "file:DIRECTORY:SIZE, redis:HOST:PORT, separated by commas; default: nowhere");
  app.add_option("--kv-tier-segment", options.kv_tier_segment,
                 "tokens that a tier stores and loads at once; the same for all that share a tier")
      ->check(CLI::Range(16, 1 << 16))
      ->capture_default_str();
  app.add_option("--kv-tier-least-uses", options.kv_tier_least_uses,
                 "uses of a segment before it is stored; 1 stores every prompt")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--kv-tier-redis-password-file", options.kv_tier_redis_password_file,
                 "file with the password of the Redis tier");
}

absl::Status Validate(const PrefillOptions& options, int block_size) {
  BATON_RETURN_IF_ERROR(kv_store::ParseTiers(options.kv_tier).status());
  if (options.kv_tier_segment % block_size != 0) {
    return InvalidField("BAD_OPTION", "--kv-tier-segment",
                        absl::StrCat(options.kv_tier_segment,
                                     " given, expected a multiple of --block-size, ", block_size));
  }
  return absl::OkStatus();
}

}  // namespace baton::prefill_worker
