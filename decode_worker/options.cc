#include "decode_worker/options.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "absl/status/statusor.h"
#include "common/security/flags.h"

namespace baton::decode_worker {
namespace {

template <class Value>
Value ValueOf(absl::StatusOr<Value> parsed) {
  if (!parsed.ok()) throw CLI::ValidationError(std::string(parsed.status().message()));
  return *std::move(parsed);
}

void AddSpeculationFlags(CLI::App& app, DecodeOptions& decode) {
  SpeculationOptions& o = decode.speculation;
  app.add_option_function<std::string>(
         "--speculative",
         [&o](const std::string& text) {
           SpeculationOptions parsed = ValueOf(ParseSpeculation(text));
           parsed.priorities = o.priorities;
           o = parsed;
         },
         "draft tokens, and check them in one step; the answers stay the same. off; suffix:K, at "
         "most K drafts behind the longest text that was seen before (suffix: 8); "
         "ngram:K,MIN,MAX, behind the last MAX to MIN tokens; draft:DIR,K, those that a smaller "
         "model with the same tokenizer draws (draft:DIR: 8); mtp:K, those of the checkpoint's "
         "head "
         "for multi-token prediction (mtp: 3)")
      ->default_str("off");
  app.add_option_function<std::string>(
         "--speculative-priorities",
         [&o](const std::string& text) {
           o.priorities = ValueOf(ParseSpeculativePriorities(text));
         },
         "priorities of the requests for which tokens are drafted, separated by commas")
      ->default_str("low,normal,high");
  app.add_option(
         "--draft-kv-memory", decode.draft_kv_bytes,
         "bytes for the KV of a draft model or MTP head, e.g. 1GB; 0: on the CPU 256 MiB, on "
         "a GPU what --draft-gpu-memory-utilization leaves")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 50))
      ->capture_default_str();
  app.add_option("--draft-gpu-memory-utilization", decode.draft_gpu_memory_utilization,
                 "share of a GPU's memory that a draft model or MTP head takes, out of "
                 "--gpu-memory-utilization")
      ->check(CLI::Range(0.001, 1.0))
      ->capture_default_str();
}

}  // namespace

void AddDecodeFlags(CLI::App& app, DecodeOptions& o) {
  security::AddWorkerTls(app, o.worker_tls);
  prefill::AddTierFlags(app, o.tiers);
  app.add_flag(
      "--serve-prefill,!--no-serve-prefill", o.serve_prefill,
      "also compute prompts that other workers answer, and score items, where routers find "
      "it cheaper (default on)");
  app.add_option("--local-prefill-max-tokens", o.local_prefill_max_tokens,
                 "compute a prompt here if at most this many of its tokens are not cached here; a "
                 "large value makes this worker compute all prompts itself")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  app.add_option("--host-kv-memory", o.host_kv_bytes,
                 "bytes of host memory for the KV of preempted sequences, e.g. 1GB; 0: recompute")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->capture_default_str();
  app.add_flag("--kv-write-back,!--no-kv-write-back", o.kv_write_back,
               "offer the KV of a finished answer to the prefill worker that computed its prompt, "
               "and send it to workers that ask (default off)");
  app.add_option("--long-context-tokens", o.long_context_tokens,
                 "requests of more tokens are long; 0: none")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  app.add_option("--long-context-share", o.long_context_share,
                 "share of the KV pool that long requests together may take, but for a lone one")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--max-tenant-requests", o.max_tenant_requests,
                 "most requests of one tenant, waiting and running; 0: no bound")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app.add_option("--max-tenant-tokens", o.max_tenant_tokens,
                 "most prompt tokens of one tenant, waiting and running; 0: no bound")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  AddSpeculationFlags(app, o);
}

}  // namespace baton::decode_worker
