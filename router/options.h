// What a router is told at its start. main.cc fills it from flags; tests fill it by hand.
#ifndef BATON_ROUTER_OPTIONS_H_
#define BATON_ROUTER_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace baton::router {

// What Options::routing_policy may be: priced_policy.h has the first, policy.h the others.
inline constexpr const char* kRoutingPolicies[] = {"priced", "prefix_then_load", "round_robin"};

struct Options {
  std::string model_dir;          // its tokenizer is all that the router loads
  std::string served_model_name;  // empty: the last part of model_dir
  std::string listen = "127.0.0.1:50051";
  std::string metrics_listen;  // empty: no /metrics
  std::string address_file;    // empty: none. Two lines: gRPC address, metrics address

  // Who the workers are: all that any of these list. Without prefill workers, the decode workers
  // compute the prompts, too.
  std::vector<std::string> prefill_workers;
  std::vector<std::string> decode_workers;
  std::string workers_file;  // see WorkersFile; followed as it changes
  std::string prefill_dns;   // host:port: each address of the host is a worker, at that port
  std::string decode_dns;
  int64_t dns_refresh_ms = 5'000;
  int64_t dns_answer_life_ms = 300'000;  // of the last answer, while the name has no address

  // Bounds. What goes beyond is refused with RESOURCE_EXHAUSTED and the time to retry.
  int max_inflight_requests = 256;
  int64_t max_inflight_prompt_tokens = 1 << 20;  // of the requests inside, together
  int max_queued_prompts = 256;                  // waiting for a tokenizer thread
  int64_t max_prompt_bytes = 1 << 20;            // of text
  int tokenizer_threads = 2;

  int64_t default_deadline_ms = 600'000;  // of a call whose client sets none
  int64_t drain_grace_ms = 30'000;        // for running streams after SIGTERM
  // Told to whoever is refused for load while no request has ended yet, whose pace says it better.
  int64_t retry_after_ms = 1'000;

  int explain_log_every = 0;  // each so-many-th routing decision is logged in full; 0: none

  // Failover. A stream that has begun must be heard of at least so often; workers send something
  // every second.
  int64_t stall_timeout_ms = 5'000;
  // How long a request whose worker was lost waits for another one while no decode worker is ready.
  // For room on those that are, it waits until its own deadline.
  int64_t failover_wait_ms = 5'000;
  // What a dead worker had is asked for again anyway. Of the sequences asked for, how many more may
  // be, in the long run …
  int retry_budget_percent = 10;
  // … and how many at once, in the short run: at the start, and after a quiet time.
  int retry_budget_reserve = 32;
  int retry_budget_capacity = 128;

  // Routing: one of kRoutingPolicies.
  std::string routing_policy = "priced";
  // Requests whose first token is expected later than this are refused. 0: none.
  int64_t ttft_slo_ms = 0;
  // What a decode worker lacks of a prompt it may compute itself up to so many tokens, where that
  // is cheaper than a prefill worker and the way from there. 0: never.
  int max_local_prefill_tokens = 512;
  // Of KV on the way from a prefill to a decode worker.
  int64_t kv_bytes_per_second = 1'000'000'000;
};

// INVALID_ARGUMENT naming the flag. Fills served_model_name where it is empty.
absl::Status Validate(Options* options);

}  // namespace baton::router

#endif  // BATON_ROUTER_OPTIONS_H_
