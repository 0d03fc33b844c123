#include "router/options.h"

#include <filesystem>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/error.h"
#include "common/base/host_port.h"
#include "common/base/request_limits.h"
#include "common/base/status_macros.h"
#include "common/security/listen_check.h"
#include "common/security/tls_check.h"
#include "router/fleet/worker_sources.h"

namespace baton::router {
namespace {

absl::Status BadFlag(absl::string_view flag, absl::string_view message) {
  return InvalidField("BAD_FLAG", absl::StrCat("--", flag), message);
}

absl::Status CheckAddress(absl::string_view flag, const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == address.size()) {
    return BadFlag(flag, absl::StrCat("\"", address, "\" is not host:port"));
  }
  return absl::OkStatus();
}

absl::Status CheckWorkerAddress(absl::string_view flag, const std::string& address) {
  const absl::Status fits = CheckHostPort(address);
  return fits.ok() ? fits : BadFlag(flag, fits.message());
}

absl::Status CheckPositive(absl::string_view flag, int64_t value) {
  if (value > 0) return absl::OkStatus();
  return BadFlag(flag, absl::StrCat(value, " given, 1 or more expected"));
}

absl::Status CheckWorkers(absl::string_view flag, const std::vector<std::string>& addresses,
                          std::set<std::string>* seen) {
  for (const std::string& address : addresses) {
    BATON_RETURN_IF_ERROR(CheckWorkerAddress(flag, address));
    if (!seen->insert(address).second) {
      return BadFlag(flag, absl::StrCat(address, " is listed twice; a worker has one role"));
    }
  }
  return absl::OkStatus();
}

// An origin as browsers write it into the header, with which it is compared.
bool IsOrigin(absl::string_view text) {
  const size_t end = text.find("://");
  if (end == absl::string_view::npos || end == 0) return false;
  const absl::string_view scheme = text.substr(0, end), host = text.substr(end + 3);
  const auto printable = [](char c) {
    return absl::ascii_isgraph(c) && !absl::ascii_isupper(c) && !absl::StrContains("/?#@,*\\\"", c);
  };
  if (host.empty() || !absl::c_all_of(host, printable)) return false;
  if (!absl::c_all_of(scheme, [](char c) {
        return absl::ascii_islower(c) || absl::ascii_isdigit(c) || absl::StrContains("+-.", c);
      })) {
    return false;
  }
  // Browsers leave out the scheme's own port.
  return !(scheme == "http" && absl::EndsWith(host, ":80")) &&
         !(scheme == "https" && absl::EndsWith(host, ":443")) && !absl::EndsWith(host, ":");
}

absl::Status CheckCorsOrigins(const std::vector<std::string>& origins) {
  for (const std::string& origin : origins) {
    if (origin == "*" || IsOrigin(origin)) continue;
    return BadFlag(
        "http-cors-origins",
        absl::StrCat("\"", origin,
                     "\" given, * or an origin as browsers send it expected: scheme://host, in "
                     "lower case, with a port unless it is the scheme's own, and without a path"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(Options* options) {
  if (options->model_dir.empty())
    return BadFlag("model", "a directory with tokenizer.json or a GGUF file expected");
  BATON_RETURN_IF_ERROR(CheckAddress("listen", options->listen));
  if (!options->metrics_listen.empty()) {
    BATON_RETURN_IF_ERROR(CheckAddress("metrics-listen", options->metrics_listen));
  }
  if (options->api_keys.empty() && !options->insecure) {
    const char* expected = "--api-keys FILE (`baton keys new` makes a key)";
    BATON_RETURN_IF_ERROR(security::CheckLoopback("--listen", options->listen, expected));
    if (!options->http_listen.empty()) {
      BATON_RETURN_IF_ERROR(
          security::CheckLoopback("--http-listen", options->http_listen, expected));
    }
  }
  BATON_RETURN_IF_ERROR(CheckCorsOrigins(options->http_cors_origins));
  BATON_RETURN_IF_ERROR(security::CheckTls(options->tls));
  BATON_RETURN_IF_ERROR(security::CheckTls(options->worker_tls));
  BATON_RETURN_IF_ERROR(tracing::Validate(options->tracing));
  std::set<std::string> seen;
  BATON_RETURN_IF_ERROR(CheckWorkers("prefill-workers", options->prefill_workers, &seen));
  BATON_RETURN_IF_ERROR(CheckWorkers("decode-workers", options->decode_workers, &seen));
  if (options->decode_workers.empty() && options->workers_file.empty() &&
      options->decode_dns.empty()) {
    return BadFlag("decode-workers",
                   "at least one host:port expected, or --workers-file, or --decode-dns");
  }
  if (!options->prefill_dns.empty()) {
    BATON_RETURN_IF_ERROR(CheckWorkerAddress("prefill-dns", options->prefill_dns));
  }
  if (!options->decode_dns.empty()) {
    BATON_RETURN_IF_ERROR(CheckWorkerAddress("decode-dns", options->decode_dns));
  }
  BATON_RETURN_IF_ERROR(CheckPositive("dns-refresh-ms", options->dns_refresh_ms));
  if (options->dns_answer_life_ms < 0) return BadFlag("dns-answer-life-ms", "0 or more expected");
  BATON_RETURN_IF_ERROR(CheckPositive("max-inflight-requests", options->max_inflight_requests));
  BATON_RETURN_IF_ERROR(
      CheckPositive("max-inflight-prompt-tokens", options->max_inflight_prompt_tokens));
  BATON_RETURN_IF_ERROR(
      CheckPositive("max-inflight-request-bytes", options->max_inflight_request_bytes));
  BATON_RETURN_IF_ERROR(CheckPositive("stall-timeout-ms", options->stall_timeout_ms));
  if (options->tokenized_text_bytes < 0) {
    return BadFlag("tokenized-text-memory", "0 or more expected");
  }
  if (options->prompt_history_bytes < 0) {
    return BadFlag("prompt-history-memory", "0 or more expected");
  }
  if (options->max_warm_prefixes < 0) return BadFlag("max-warm-prefixes", "0 or more expected");
  if (options->explain_log_every < 0) return BadFlag("explain-log-every", "0 or more expected");
  if (options->failover_wait_ms < 0) return BadFlag("failover-wait-ms", "0 or more expected");
  if (options->retry_budget_percent < 0 || options->retry_budget_percent > 100) {
    return BadFlag("retry-budget-percent", "0 to 100 expected");
  }
  if (options->retry_budget_reserve < 0)
    return BadFlag("retry-budget-reserve", "0 or more expected");
  if (options->retry_budget_capacity < options->retry_budget_reserve) {
    return BadFlag("retry-budget-capacity", "at least --retry-budget-reserve expected");
  }
  if (!absl::c_linear_search(kRoutingPolicies, options->routing_policy)) {
    return BadFlag("routing-policy",
                   absl::StrCat("\"", options->routing_policy, "\" given, one of ",
                                absl::StrJoin(kRoutingPolicies, ", "), " expected"));
  }
  if (!absl::c_linear_search(kReasoningParsers, options->reasoning_parser)) {
    return BadFlag("reasoning-parser",
                   absl::StrCat("\"", options->reasoning_parser, "\" given, one of ",
                                absl::StrJoin(kReasoningParsers, ", "), " expected"));
  }
  if (options->ttft_slo_ms < 0) return BadFlag("ttft-slo-ms", "0 or more expected");
  if (options->scaling_ttft_ms < 1) return BadFlag("scaling-ttft-ms", "1 or more expected");
  if (!(options->scaling_inter_token_ms > 0)) {
    return BadFlag("scaling-inter-token-ms", "more than 0 expected");
  }
  for (const auto& [flag, share] :
       {std::pair("scaling-prefill-busy", options->scaling_prefill_busy),
        std::pair("scaling-decode-fill", options->scaling_decode_fill)}) {
    if (!(share > 0 && share <= 1)) return BadFlag(flag, "above 0, and 1 at most, expected");
  }
  if (options->max_local_prefill_tokens < 0) {
    return BadFlag("max-local-prefill-tokens", "0 or more expected");
  }
  if (options->default_max_tokens < 0) return BadFlag("default-max-tokens", "0 or more expected");
  if (options->max_output_tokens < 0) return BadFlag("max-output-tokens", "0 or more expected");
  if (options->long_prompt_tokens < 0) return BadFlag("long-prompt-tokens", "0 or more expected");
  if ((options->long_prompt_tokens > 0) == options->long_pool.empty()) {
    return BadFlag("long-pool", "expected together with --long-prompt-tokens");
  }
  if (!options->long_pool.empty()) {
    BATON_RETURN_IF_ERROR(CheckPool("--long-pool", options->long_pool));
  }
  BATON_RETURN_IF_ERROR(CheckPositive("kv-bytes-per-second", options->kv_bytes_per_second));
  BATON_RETURN_IF_ERROR(CheckPositive("max-queued-prompts", options->max_queued_prompts));
  BATON_RETURN_IF_ERROR(CheckPositive("max-prompt-bytes", options->max_prompt_bytes));
  BATON_RETURN_IF_ERROR(CheckPositive("tokenizer-threads", options->tokenizer_threads));
  BATON_RETURN_IF_ERROR(CheckPositive("default-deadline-ms", options->default_deadline_ms));
  BATON_RETURN_IF_ERROR(CheckPositive("write-stall-timeout-ms", options->write_stall_timeout_ms));
  BATON_RETURN_IF_ERROR(CheckPositive("unread-answer-memory", options->unread_answer_bytes));
  BATON_RETURN_IF_ERROR(CheckPositive("unread-memory", options->unread_bytes));
  if (options->drain_grace_ms < 0) return BadFlag("drain-grace-ms", "0 or more expected");
  if (options->served_model_name.empty()) {
    std::filesystem::path path = std::filesystem::path(options->model_dir).lexically_normal();
    // The filename of "dir/" is empty.
    if (!path.has_filename()) path = path.parent_path();
    options->served_model_name = path.filename().string();
  }
  return absl::OkStatus();
}

}  // namespace baton::router
