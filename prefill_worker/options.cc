#include "prefill_worker/options.h"

#include <CLI/CLI.hpp>

#include "common/security/flags.h"

namespace baton::prefill_worker {

void AddPrefillFlags(CLI::App& app, PrefillOptions& options) {
  security::AddWorkerTls(app, options.worker_tls);
  prefill::AddTierFlags(app, options.tiers);
}

}  // namespace baton::prefill_worker
