// Flags that only prefill workers have.
#ifndef BATON_PREFILL_WORKER_OPTIONS_H_
#define BATON_PREFILL_WORKER_OPTIONS_H_

#include "common/base/tls_files.h"
#include "common/prefill/tier_options.h"

namespace CLI {
class App;
}

namespace baton::prefill_worker {

struct PrefillOptions {
  prefill::TierOptions tiers;
  ChannelTls worker_tls;  // for channels to workers whose cached KV is fetched
};

void AddPrefillFlags(CLI::App& app, PrefillOptions& options);

}  // namespace baton::prefill_worker

#endif  // BATON_PREFILL_WORKER_OPTIONS_H_
