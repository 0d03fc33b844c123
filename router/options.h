// What a router is told at its start. main.cc fills it from flags; tests fill it by hand.
#ifndef BATON_ROUTER_OPTIONS_H_
#define BATON_ROUTER_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace baton::router {

struct Options {
  std::string model_dir;          // its tokenizer is all that the router loads
  std::string served_model_name;  // empty: the last part of model_dir
  std::string listen = "127.0.0.1:50051";
  std::string metrics_listen;  // empty: no /metrics
  std::string address_file;    // empty: none. Two lines: gRPC address, metrics address
  std::vector<std::string> prefill_workers;
  std::vector<std::string> decode_workers;

  // Bounds. What goes beyond is refused with RESOURCE_EXHAUSTED and the time to retry.
  int max_inflight_requests = 256;
  int max_queued_prompts = 256;        // waiting for a tokenizer thread
  int64_t max_prompt_bytes = 1 << 20;  // of text
  int tokenizer_threads = 2;

  int64_t default_deadline_ms = 600'000;  // of a call whose client sets none
  int64_t drain_grace_ms = 30'000;        // for running streams after SIGTERM
  int64_t retry_after_ms = 1'000;         // told to whoever is refused for load
};

// INVALID_ARGUMENT naming the flag. Fills served_model_name where it is empty.
absl::Status Validate(Options* options);

}  // namespace baton::router

#endif  // BATON_ROUTER_OPTIONS_H_
