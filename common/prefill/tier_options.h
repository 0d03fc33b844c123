// The flags of KV tiers, and what both workers make of them.
#ifndef BATON_COMMON_PREFILL_TIER_OPTIONS_H_
#define BATON_COMMON_PREFILL_TIER_OPTIONS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/prefill/kv_tiers.h"
#include "common/worker/options.h"

namespace CLI {
class App;
}

namespace baton::prefill {

struct TierOptions {
  std::string tiers;                // as kv_store::ParseTiers; empty: none
  int segment = 128;                // tokens, whole blocks
  int least_uses = 2;               // of a segment, before it is stored
  std::string redis_password_file;  // empty: no AUTH
};

void AddTierFlags(CLI::App& app, TierOptions& options);
// Checks the flags, and sets what the worker's card says of the tiers. INVALID_ARGUMENT, naming the
// flag.
absl::Status ListTiers(const TierOptions& options, worker::WorkerOptions* worker);
// Opens the stores; without flags there are none. INVALID_ARGUMENT, naming the flag, or as
// kv_store::OpenTiers. REQUIRES: ListTiers is OK.
absl::Status OpenTiers(const TierOptions& options, const worker::WorkerOptions& worker,
                       const Clock& awake, KvTiersOptions* tiers);

}  // namespace baton::prefill

#endif  // BATON_COMMON_PREFILL_TIER_OPTIONS_H_
