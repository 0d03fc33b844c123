// Flags that only prefill workers have.
#ifndef BATON_PREFILL_WORKER_OPTIONS_H_
#define BATON_PREFILL_WORKER_OPTIONS_H_

#include <string>

#include "absl/status/status.h"
#include "common/base/tls_files.h"

namespace CLI {
class App;
}

namespace baton::prefill_worker {

struct PrefillOptions {
  std::string kv_tier;                      // as kv_store::ParseTiers; empty: none
  int kv_tier_segment = 128;                // tokens, whole blocks
  int kv_tier_least_uses = 2;               // of a segment, before it is stored
  std::string kv_tier_redis_password_file;  // empty: no AUTH
  ChannelTls worker_tls;                    // for channels to workers whose cached KV is fetched
};

void AddPrefillFlags(CLI::App& app, PrefillOptions& options);
// INVALID_ARGUMENT, naming the flag. block_size: tokens of a KV block.
absl::Status Validate(const PrefillOptions& options, int block_size);

}  // namespace baton::prefill_worker

#endif  // BATON_PREFILL_WORKER_OPTIONS_H_
