#include "common/worker/options.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/backend/make_backend.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/request_limits.h"
#include "common/base/status_macros.h"
#include "common/engine/engine_shape.h"
#include "common/model/generation_config.h"
#include "common/security/flags.h"
#include "common/security/listen_check.h"
#include "common/security/tls_check.h"

namespace baton::worker {
namespace {

// What is wrong with it; empty if nothing is.
std::string IsDevice(const std::string& text) {
  return std::string(backend::ParseDevice(text).status().message());
}

std::string IsExpertsOnHost(const std::string& text) {
  return std::string(engine::ParseExpertsOnHost(text).status().message());
}

}  // namespace

void AddWorkerFlags(CLI::App& app, WorkerOptions& o) {
  app.add_option("--model", o.model_dir,
                 "Hugging Face directory or GGUF file of the model, or its id, or "
                 "ORG/NAME/FILE.gguf, in the local Hugging Face cache")
      ->required();
  app.add_option("--override-generation-config", o.override_generation_config,
                 "JSON object of defaults that replace those of the model's "
                 "generation_config.json, e.g. '{\"temperature\": 0.5}'; the same for all workers "
                 "of a cluster");
  app.add_option("--listen", o.listen, "host:port for gRPC; port 0 takes a free one")
      ->capture_default_str();
  app.add_option("--metrics-listen", o.metrics_listen, "host:port for /metrics")
      ->capture_default_str();
  app.add_option("--address-file", o.address_file,
                 "write the bound gRPC and metrics addresses here once listening");
  app.add_option("--log-level", o.log_level)
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->capture_default_str();
  app.add_option("--log-format", o.log_format, "text, or json: one object a line")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  tracing::AddTracingFlags(app, o.tracing);
  app.add_option("--worker-id", o.worker_id, "name in logs and reports; default random");
  app.add_option("--pool", o.pool,
                 "routers send the worker requests of this pool; default: requests of none");
  app.add_option("--drain-grace-ms", o.drain_grace_ms,
                 "how long SIGTERM lets running streams finish")
      ->check(CLI::Range(0, 3'600'000))
      ->capture_default_str();
  app.add_option("--ready-routers", o.ready_routers,
                 "how many routers must have accepted this worker before its health service "
                 "reports that it is ready; 0: it is ready once it listens")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option(
      "--ready-routers-dns", o.ready_routers_dns,
      "a host: as many routers as it has addresses, and one at least, must have accepted "
      "this worker before it is ready, and no fewer than --ready-routers");
  security::AddWorkerSecret(app, o.worker_secret_file);
  security::AddServerTls(app, o.tls);
  app.add_flag("--insecure", o.insecure, "serve callers of other machines without a credential");
  app.add_option("--device", o.device, "where to compute: cpu, cuda:N, or auto: a GPU if it can be")
      ->check(IsDevice)
      ->capture_default_str();
  app.add_option("--dtype", o.dtype, "type of weights, activations and, by default, KV")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16", "float16"}))
      ->capture_default_str();
  app.add_option("--weights", o.weights,
                 "bits of weights, the same for all workers of a cluster; auto: the checkpoint's; "
                 "int8, int4: those of more bits are rounded when they are loaded, in groups of 32 "
                 "(the LM head to 8 bits)")
      ->check(CLI::IsMember({"auto", "int8", "int4"}))
      ->capture_default_str();
  app.add_option("--experts-on-host", o.experts_on_host,
                 "on a GPU: layers, from the first one with experts on, whose experts are kept in "
                 "the host's memory and cross the GPU's link when tokens choose them; auto: as few "
                 "as leave room for the KV pool that is asked for, or else for one sequence of "
                 "--max-model-len; all. The tokens are the same")
      ->check(IsExpertsOnHost)
      ->capture_default_str();
  app.add_flag("--dequantize-weights", o.dequantize_weights,
               "on a CPU: weights of 4 and 8 bits become those of --dtype when they are loaded, "
               "and activations are not rounded to 8 bits: slower, more exact");
  app.add_flag("--mix-numerics", o.mix_numerics,
               "work with workers whose results differ in their last bits, as on CPUs with and "
               "without AMX; all workers of the cluster need it, and tokens may then depend on the "
               "worker");
  app.add_option("--gpu-memory-utilization", o.gpu_memory_utilization,
                 "share of the GPU's memory for weights, workspaces and KV, above 0 and at most 1")
      ->capture_default_str();
  app.add_flag("--deterministic,!--no-deterministic", o.deterministic,
               "on a GPU: the same bits in every batch and chunking (default on); "
               "--no-deterministic: cuBLASLt's products where they are faster. A CPU is always "
               "deterministic");
  app.add_option(
         "--cublas-algorithms", o.cublas_algorithms,
         "on a GPU, with --no-deterministic: the file that keeps what was measured of matrix "
         "products; auto: baton/cublas_algorithms in $XDG_CACHE_HOME or ~/.cache; \"\": none")
      ->capture_default_str();
  app.add_option("--threads", o.threads, "compute threads; 0 for one a core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--kv-cache-dtype", o.kv_cache_dtype,
                 "type of KV, the same for all workers of a cluster; auto: as computed (--dtype); "
                 "bfloat16: half of float32; int8, fp8: half of 16 bits; int4: a quarter, less "
                 "exact")
      ->check(CLI::IsMember({"auto", "bfloat16", "int8", "int4", "fp8"}))
      ->capture_default_str();
  app.add_option("--block-size", o.block_size, "tokens in a KV block: 16, 32, 64, 128 or 256")
      ->check(CLI::Range(16, 256))
      ->capture_default_str();
  app.add_option("--num-blocks", o.num_blocks, "KV blocks; 0: what --kv-cache-memory holds")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  app.add_option("--kv-cache-memory", o.kv_cache_memory_bytes,
                 "bytes of the KV pool, e.g. 512MB; 0: 1 GiB on a CPU, all that is left on a GPU")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->capture_default_str();
  app.add_option("--max-model-len", o.max_model_len, "longest prompt plus answer; 0: the model's")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  app.add_option("--max-num-seqs", o.max_num_seqs, "most sequences in one step")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--max-num-batched-tokens", o.max_num_batched_tokens, "most tokens in one step")
      ->check(CLI::Range(16, 1 << 20))
      ->capture_default_str();
  app.add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", o.enable_prefix_caching,
               "keep prompts' KV for later requests with the same prefix (default on)");
  app.add_option("--max-retained-share", o.max_retained_share,
                 "share of the KV blocks that requests may retain, 0 to 1")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--max-snapshot-share", o.max_snapshot_share,
                 "share of the KV pool that snapshots of the states of recurrent layers may take, "
                 "0 to 1")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--kv-transport", o.kv_transport,
                 "how KV moves from prefill to decode workers: grpc; shm: decode workers of the "
                 "same host read the prefill worker's memory; ipc: their GPU reads that of the "
                 "prefill worker's GPU; nccl: from GPU to GPU by NCCL; auto: shm or ipc where it "
                 "can be, else grpc")
      ->check(CLI::IsMember({"auto", "grpc", "shm", "ipc", "nccl"}))
      ->capture_default_str();
  app.add_flag(
      "--kv-shm-checksums,!--no-kv-shm-checksums", o.kv_shm_checksums,
      "prefill workers: check what decode workers read through shared memory (default on)");
  app.add_flag(
      "--kv-fetch,!--no-kv-fetch", o.kv_fetch,
      "send cached KV to workers that ask for it, and fetch what a router says others have, "
      "where that is faster than computing (default off)");
  app.add_option("--max-num-queued-reqs", o.max_queued_requests, "most requests that wait")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app.add_option("--max-num-queued-tokens", o.max_queued_tokens, "most prompt tokens that wait")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
}

absl::Status Validate(const WorkerOptions& o) {
  if (o.worker_secret_file.empty() && o.tls.client_ca.empty() && !o.insecure) {
    BATON_RETURN_IF_ERROR(security::CheckLoopback(
        "--listen", o.listen, "--worker-secret-file FILE, or --tls-client-ca with TLS"));
  }
  BATON_RETURN_IF_ERROR(security::CheckTls(o.tls));
  BATON_RETURN_IF_ERROR(tracing::Validate(o.tracing));
  if (!o.pool.empty()) BATON_RETURN_IF_ERROR(CheckPool("--pool", o.pool));
  // A name of the DNS has at most 253 characters.
  if (o.ready_routers_dns.size() > 253 || absl::StrContains(o.ready_routers_dns, ':')) {
    return InvalidField("BAD_OPTION", "--ready-routers-dns",
                        absl::StrCat("\"", o.ready_routers_dns.substr(0, 300),
                                     "\" given, expected the name of a host without a port"));
  }
  const absl::Status overrides = model::CheckGenerationOverrides(o.override_generation_config);
  if (!overrides.ok()) {
    return WithDetails(overrides, "BAD_OPTION", "--override-generation-config", std::nullopt);
  }
  // Attention adds up splits of 256 tokens, which blocks must not straddle.
  if (o.block_size < 16 || 256 % o.block_size != 0) {
    return InvalidField("BLOCK_SIZE", "--block-size",
                        absl::StrCat(o.block_size, " given, expected 16, 32, 64, 128 or 256"));
  }
  if (o.max_num_batched_tokens < o.block_size) {
    return InvalidField("MAX_NUM_BATCHED_TOKENS", "--max-num-batched-tokens",
                        absl::StrCat(o.max_num_batched_tokens,
                                     " given, expected at least one block (", o.block_size, ")"));
  }
  if (o.kv_cache_memory_bytes < 0) {
    return InvalidField("KV_POOL_SIZE", "--kv-cache-memory",
                        absl::StrCat(o.kv_cache_memory_bytes, " given, expected 0 or more bytes"));
  }
  if (!(o.gpu_memory_utilization > 0 && o.gpu_memory_utilization <= 1)) {
    return InvalidField(
        "BAD_OPTION", "--gpu-memory-utilization",
        absl::StrCat(o.gpu_memory_utilization, " given, expected more than 0 and at most 1"));
  }
  BATON_ASSIGN_OR_RETURN(const backend::Device device, backend::ParseDevice(o.device));
  if (device.kind == backend::Device::Kind::kCpu && o.dtype == "float16") {
    return InvalidField("BAD_OPTION", "--dtype",
                        "float16 given, which takes a GPU: expected auto, float32 or bfloat16 with "
                        "--device cpu");
  }
  return engine::ParseExpertsOnHost(o.experts_on_host).status();
}

engine::EngineOptions ToEngineOptions(const WorkerOptions& o) {
  engine::EngineOptions engine;
  engine.model_dir = o.model_dir;
  engine.generation_overrides = o.override_generation_config;
  using Compute = backend::BackendOptions::Compute;
  engine.backend.device = o.device;
  engine.backend.compute = o.dtype == "float32"    ? Compute::kF32
                           : o.dtype == "bfloat16" ? Compute::kBF16
                           : o.dtype == "float16"  ? Compute::kF16
                                                   : Compute::kAuto;
  engine.weight_bits = o.weights == "int8" ? 8 : o.weights == "int4" ? 4 : 0;
  engine.experts_on_host = engine::ParseExpertsOnHost(o.experts_on_host).value();
  engine.backend.dequantize_weights = o.dequantize_weights;
  engine.mix_numerics = o.mix_numerics;
  engine.backend.gpu_memory_utilization = o.gpu_memory_utilization;
  engine.backend.deterministic = o.deterministic;
  engine.backend.cuda.device_links = o.kv_transport == "nccl";
  engine.backend.cuda.cublas_algorithms =
      o.cublas_algorithms == "auto" ? backend::DefaultCublasAlgorithms() : o.cublas_algorithms;
  engine.backend.thread_count = o.threads;
  engine.make_backend = o.make_backend;
  engine.kv_dtype = kv::ParseKvDtype(o.kv_cache_dtype);  // auto: nullopt
  engine.block_tokens = o.block_size;
  engine.num_blocks = o.num_blocks;
  engine.kv_cache_bytes = o.kv_cache_memory_bytes;
  engine.max_model_len = o.max_model_len;
  engine.max_num_batched_tokens = o.max_num_batched_tokens;
  engine.max_num_seqs = o.max_num_seqs;
  auto logged_percent = std::make_shared<int>(-10);
  engine.progress = [logged_percent](double share) {
    const int percent = static_cast<int>(share * 100);
    if (percent < *logged_percent + 10 && percent != 100) return;
    if (percent == *logged_percent) return;
    *logged_percent = percent;
    BATON_LOG(Info) << "loading weights " << percent << " %";
  };
  return engine;
}

}  // namespace baton::worker
