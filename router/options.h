// The options of a router. main.cc fills them from flags.
#ifndef BATON_ROUTER_OPTIONS_H_
#define BATON_ROUTER_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/tls_files.h"
#include "common/tracing/options.h"

namespace baton::router {

// Values of Options::routing_policy: priced_policy.h has the first, policy.h the others.
inline constexpr const char* kRoutingPolicies[] = {"priced", "prefix_then_load", "round_robin"};

// Values of Options::reasoning_parser: whether chats' answers have their reasoning apart.
inline constexpr const char* kReasoningParsers[] = {"auto", "none"};

struct Options {
  std::string model_dir;          // the router loads only its tokenizer
  std::string served_model_name;  // empty: the last component of model_dir
  std::string listen = "127.0.0.1:50051";
  std::string listen_socket;   // Unix domain socket for gRPC without TLS; empty: none
  std::string http_listen;     // of the OpenAI endpoints; empty: none
  std::string metrics_listen;  // empty: no /metrics
  std::string address_file;    // see address_file.h; empty: none

  std::string api_keys;            // file of API keys (common/security); empty: calls need none
  std::string worker_secret_file;  // sent to workers; empty: none
  bool insecure = false;           // may listen beyond loopback without api_keys
  ServerTls tls;                   // of gRPC and HTTP
  ChannelTls worker_tls;           // of the channels to workers

  // The workers are all those in any of these lists. Without prefill workers, the decode workers
  // compute the prompts, too.
  std::vector<std::string> prefill_workers;
  std::vector<std::string> decode_workers;
  std::string workers_file;  // see WorkersFile; read again when it changes
  std::string prefill_dns;   // host:port: each address of the host is a worker at that port
  std::string decode_dns;
  int64_t dns_refresh_ms = 5'000;
  int64_t dns_answer_life_ms = 300'000;  // of the last addresses, once the name has none

  // Limits. Requests beyond them are refused with RESOURCE_EXHAUSTED and a retry time.
  int max_inflight_requests = 256;
  int64_t max_inflight_prompt_tokens = 1 << 20;    // of all concurrent requests together
  int64_t max_inflight_request_bytes = 256 << 20;  // bytes as they arrived, and as JSON values
  int max_queued_prompts = 256;                    // prompts that wait for a tokenizer thread
  int64_t max_prompt_bytes = 1 << 20;              // of a prompt that is sent as text
  int tokenizer_threads = 2;
  bool split_special_tokens = true;  // of chats that don't set GenerateRequest.split_special_tokens
  bool strict_fields = false;        // fields of HTTP requests that have no effect are refused
  // Origins whose pages may call the HTTP endpoints from a browser, "*" for all.
  std::vector<std::string> http_cors_origins;
  // auto: in the format that the chat template shows.
  std::string reasoning_parser = "auto";
  std::string rerank_template;  // RerankPrompt::Make's; empty: documents are not ranked
  std::string rerank_labels = "yes,no";
  int http_threads = 0;  // threads that serve HTTP connections; 0: one for each core
  int max_http_connections = 16'384;

  int default_max_tokens = 0;  // of requests that set none; 0: the model's, else the context's rest
  int max_output_tokens = 0;   // requests for longer answers are refused; 0: none
  std::string classes;         // file of tenants' classes, see request_class.h; empty: none

  int64_t default_deadline_ms = 600'000;  // of calls whose client sets none
  int64_t drain_grace_ms = 30'000;        // for running requests after SIGTERM
  // Retry time of refusals until a request has ended; later ones follow the rate at which requests
  // end.
  int64_t retry_after_ms = 1'000;

  tracing::TracingOptions tracing;
  int64_t tokenized_text_bytes = 64 << 20;  // of recent chats, whose tokens are reused; 0: none
  int64_t prompt_history_bytes = 64 << 20;  // of recent prompts, to explain cache misses; 0: none
  int64_t response_store_bytes = 64 << 20;  // of responses that /v1/responses may continue; 0: none
  int64_t response_store_ttl_ms = 3'600'000;  // since a response was last used
  int max_warm_prefixes = 64;                 // that are remembered and kept warm
  int explain_log_every = 0;                  // log every n-th routing decision in full; 0: none

  // A client that reads nothing of its answer for longer loses it. 1 or more.
  int64_t write_stall_timeout_ms = 30'000;
  // Memory for what clients have not read yet: of one answer's stream, and of all answers together.
  int64_t unread_answer_bytes = 64 << 20;
  int64_t unread_bytes = 512 << 20;

  // Failover. A request moves to other workers if its decode worker sends nothing for longer;
  // workers send something every second.
  int64_t stall_timeout_ms = 5'000;
  // How long a request that lost its worker waits while no decode worker is ready. If some are
  // ready but full, it waits until its own deadline.
  int64_t failover_wait_ms = 5'000;
  // Limits for retries, which do not count requests of dead workers. On average, this share of all
  // sequences may be retried.
  int retry_budget_percent = 10;
  // In a burst, this many may be retried: at the start, and at most, after a time without retries.
  int retry_budget_reserve = 32;
  int retry_budget_capacity = 128;

  // Routing: one of kRoutingPolicies.
  std::string routing_policy = "priced";
  // Refuses requests whose expected time to first token is longer. 0: none.
  int64_t ttft_slo_ms = 0;
  bool kv_fetch = false;
  double kv_fetch_bytes_per_second = 0;
  // Largest number of missing prompt tokens that a decode worker may compute, for itself or for
  // another one, if that is cheaper than a prefill worker and the KV transfer from there. 0: none.
  int max_local_prefill_tokens = 16'384;
  // Prompts of at least so many tokens, of classes without a pool, go to workers of this pool. 0,
  // empty: none do.
  int long_prompt_tokens = 0;
  std::string long_pool;
  bool pool_spill = true;  // RequestClass::spill where the class does not say
  // Expected bandwidth for KV from a prefill to a decode worker.
  int64_t kv_bytes_per_second = 1'000'000'000;

  // Targets of baton_desired_workers: see DemandTargets.
  int64_t scaling_ttft_ms = 2'500;
  double scaling_inter_token_ms = 100;
  double scaling_prefill_busy = 0.7;
  double scaling_decode_fill = 0.75;
};

// INVALID_ARGUMENT with the flag as its field. Fills served_model_name if it is empty.
absl::Status Validate(Options* options);

}  // namespace baton::router

#endif  // BATON_ROUTER_OPTIONS_H_
