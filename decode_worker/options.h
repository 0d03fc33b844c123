// Flags that only decode workers have.
#ifndef BATON_DECODE_WORKER_OPTIONS_H_
#define BATON_DECODE_WORKER_OPTIONS_H_

#include <cstdint>
#include <string>

#include "common/base/tls_files.h"
#include "common/prefill/tier_options.h"
#include "decode_worker/drafts/speculation_options.h"

namespace CLI {
class App;
}

namespace baton::decode_worker {

struct DecodeOptions {
  int local_prefill_max_tokens = 32;  // missing prompt tokens that are computed here; 0: none
  int64_t host_kv_bytes = 256 << 20;  // for the KV of preempted sequences
  bool kv_write_back = false;         // offer answers' KV to the prefill workers
  bool serve_prefill = true;          // computes prompts for other workers, and scores items
  prefill::TierOptions tiers;
  int long_context_tokens = 0;         // requests of more tokens than this are long; 0: none are
  double long_context_share = 0.5;     // share of the pool for all long requests together
  int max_tenant_requests = 0;         // 0: no bound
  int64_t max_tenant_tokens = 0;       // 0: no bound
  SpeculationOptions speculation;      // default: off
  // The KV pool of a draft model or MTP head. 0: on the CPU EngineOptions::kCpuMtpKvBytes, on a GPU
  // what draft_gpu_memory_utilization leaves.
  int64_t draft_kv_bytes = 0;
  double draft_gpu_memory_utilization = 0.1;  // of the device, out of gpu_memory_utilization
  std::string grammar_program = "";  // not a flag: baton-grammar; empty: beside this program
  ChannelTls worker_tls;             // for channels to other workers
};

void AddDecodeFlags(CLI::App& app, DecodeOptions& options);

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_OPTIONS_H_
