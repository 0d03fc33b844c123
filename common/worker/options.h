// Flags that prefill and decode workers share, with the names that other LLM servers use.
#ifndef BATON_COMMON_WORKER_OPTIONS_H_
#define BATON_COMMON_WORKER_OPTIONS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/base/tls_files.h"
#include "common/engine/engine.h"
#include "common/tracing/options.h"

namespace CLI {
class App;
}

namespace baton::worker {

struct WorkerOptions {
  std::string model_dir;   // as the flag: what FindModel() takes
  std::string model_name;  // not a flag; in reports. Empty: the name of model_dir
  // A JSON object whose values replace those of the model's generation_config.json; empty: none.
  std::string override_generation_config;
  std::string listen = "127.0.0.1:0";
  std::string metrics_listen = "127.0.0.1:0";
  std::string address_file;  // written once the worker listens; see base/rpc/address_file.h
  std::string log_level = "info";
  std::string log_format = "text";
  tracing::TracingOptions tracing;
  std::string worker_id;  // empty: a random one
  std::string pool;       // routers send the worker requests of this pool; empty: of none
  int drain_grace_ms = 30'000;
  int ready_routers = 0;  // grpc.health.v1 reports SERVING once so many routers know the worker
  std::string ready_routers_dns;   // and as many as this host has addresses; empty: none
  std::string worker_secret_file;  // callers must have its secret; empty: none
  ServerTls tls;                   // without files: plaintext
  bool insecure = false;           // may listen beyond loopback without secret and client CA

  std::string device = "cpu";    // cpu, cuda:N, auto: a GPU if there is one
  std::string dtype = "auto";    // auto, float32, bfloat16, float16
  std::string weights = "auto";  // auto, int8, int4
  // Layers whose experts are kept in the host's memory: a number, auto, all.
  std::string experts_on_host = "0";
  bool dequantize_weights = false;
  bool mix_numerics = false;
  double gpu_memory_utilization = 0.9;
  bool deterministic = true;
  // Path of the cuBLASLt algorithm cache. auto: in the user's cache directory; empty: no file.
  std::string cublas_algorithms = "auto";
  int threads = 0;                      // 0: all cores
  std::string kv_cache_dtype = "auto";  // auto: as the activations; bfloat16, int8, int4, fp8
  int block_size = 16;                  // tokens in a KV block
  int num_blocks = 0;                   // 0: as many as kv_cache_memory_bytes holds
  // 0: 1 GiB on the CPU; on a GPU, what weights and workspaces leave of gpu_memory_utilization.
  int64_t kv_cache_memory_bytes = 0;
  int max_model_len = 0;  // 0: the model's context length
  int max_num_seqs = 64;
  int max_num_batched_tokens = 2048;
  bool enable_prefix_caching = true;
  double max_retained_share = 0.25;  // of the KV blocks
  double max_snapshot_share = 0.5;   // of the KV pages
  // How KV moves from prefill to decode workers: grpc; shm or ipc (from device to device), where
  // both are on one host; nccl, from GPU to GPU; auto: shm, else grpc. Where the chosen way
  // is not open, KV moves over gRPC.
  std::string kv_transport = "auto";
  bool kv_shm_checksums = true;  // of what decode workers read from a prefill worker's pool
  bool kv_fetch = false;         // exchange cached KV with other workers: docs/design/transfer.md
  // Not flags: the KV tiers that the worker reports to routers, together.
  int64_t listed_tier_bytes = 0;
  int listed_tier_segment = 0;  // tokens
  // Not a flag: a decode worker that computes prompts for other workers, and scores items.
  bool serves_prefill = false;
  // Not a flag. Creates the backend for `device`; tests may replace it. Empty: MakeBackend().
  decltype(engine::EngineOptions::make_backend) make_backend;
  int max_queued_requests = 256;        // waiting requests; running ones do not count
  int64_t max_queued_tokens = 1 << 20;  // prompt tokens of the waiting requests
};

void AddWorkerFlags(CLI::App& app, WorkerOptions& options);

// Returns INVALID_ARGUMENT, naming the flag, for a value out of range.
absl::Status Validate(const WorkerOptions& options);

// The result's progress callback logs how much of the weights is loaded.
// REQUIRES: Validate(options).ok().
engine::EngineOptions ToEngineOptions(const WorkerOptions& options);

}  // namespace baton::worker

#endif  // BATON_COMMON_WORKER_OPTIONS_H_
