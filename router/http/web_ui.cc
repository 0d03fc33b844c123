#include "router/http/web_ui.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/random_id.h"
#include "router/fleet/roster.h"
#include "router/fleet/worker.h"
#include "router/metrics.h"
#include "router/options.h"

namespace baton::router {
namespace {

nlohmann::ordered_json WorkerJson(const v1::WorkerStatus& worker) {
  // The router knows those of the free or evictable blocks that it has in its index.
  const int64_t cached = std::min<int64_t>(worker.indexed_blocks(), worker.free_blocks());
  return {{"address", worker.address()},
          {"role", std::string(RoleName(worker.role()))},
          {"state", std::string(StateName(worker.state()))},
          {"running", worker.running()},
          {"queued", worker.queued()},
          {"kv_blocks",
           {{"total", worker.total_blocks()},
            {"used", worker.total_blocks() - worker.free_blocks()},
            {"cached", cached},
            {"free", worker.free_blocks() - cached}}}};
}

nlohmann::ordered_json HistogramJson(const RouterMetrics::Histogram& histogram) {
  return {{"bounds_s", histogram.bounds_s}, {"counts", histogram.counts}};
}

}  // namespace

HttpResponse WebUiResponse() {
  const std::string nonce = RandomIdText();
  return {
      200,
      {{"Content-Type", "text/html; charset=utf-8"},
       {"Content-Security-Policy",
        absl::StrCat("default-src 'none'; script-src 'nonce-", nonce, "'; style-src 'nonce-", nonce,
                     "'; connect-src 'self'; img-src data:; base-uri 'none'; form-action "
                     "'none'; frame-ancestors 'none'")},
       {"X-Content-Type-Options", "nosniff"},
       {"Referrer-Policy", "no-referrer"},
       {"Cache-Control", "no-store"}},
      absl::StrReplaceAll(kWebUiSource, {{"@NONCE@", nonce}})};
}

HttpResponse StatusResponse(const RouterParts& parts) {
  nlohmann::ordered_json workers = nlohmann::ordered_json::array();
  for (const v1::WorkerStatus& worker : parts.roster.List()) workers.push_back(WorkerJson(worker));
  nlohmann::ordered_json status = {{"model", parts.options.served_model_name},
                                   {"ready", parts.roster.Ready()},
                                   {"workers", std::move(workers)},
                                   {"requests_inflight", nullptr},
                                   {"time_to_first_token", nullptr},
                                   {"inter_token_latency", nullptr}};
  if (const std::optional<RouterMetrics::Totals> totals = parts.metrics.ReadTotals()) {
    status["requests_inflight"] = totals->requests_inflight;
    status["time_to_first_token"] = HistogramJson(totals->time_to_first_token);
    status["inter_token_latency"] = HistogramJson(totals->inter_token_latency);
  }
  return {
      200, {{"Content-Type", "application/json"}, {"Cache-Control", "no-store"}}, status.dump()};
}

}  // namespace baton::router
