#include "cli/explain.h"

#include <grpcpp/grpcpp.h>

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "baton/v1/admin.grpc.pb.h"
#include "cli/admin.h"
#include "cli/generate.h"
#include "common/base/exit_code.h"
#include "common/base/rpc/grpc_status.h"
#include "common/base/status_macros.h"

namespace baton::cli {
namespace {

struct Explained {
  std::vector<v1::Decision> decisions;
  std::optional<v1::CacheMiss> miss;
};

absl::StatusOr<Explained> Ask(const ExplainOptions& options) {
  BATON_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel,
                         RouterChannel(options.address, options.access));
  const auto admin = v1::AdminService::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Milliseconds(options.timeout_ms)));
  if (!options.text.empty()) {
    v1::ExplainRequest request;
    request.mutable_request()->set_text(options.text);
    request.mutable_request()->set_model(options.model);
    request.mutable_request()->set_cache_salt(options.cache_salt);
    request.mutable_request()->set_tenant(options.tenant);
    request.mutable_request()->set_explain_cache(options.cache);
    v1::ExplainResponse response;
    const grpc::Status status = admin->Explain(&context, request, &response);
    if (!status.ok()) return FromGrpcStatus(status);
    Explained explained{{response.decision()}, std::nullopt};
    if (response.has_cache_miss()) explained.miss = response.cache_miss();
    return explained;
  }
  v1::ListDecisionsRequest request;
  request.set_request_id(options.request_id);
  request.set_max_decisions(options.last);
  v1::ListDecisionsResponse response;
  const grpc::Status status = admin->ListDecisions(&context, request, &response);
  if (!status.ok()) return FromGrpcStatus(status);
  return Explained{{response.decisions().begin(), response.decisions().end()}, std::nullopt};
}

std::string Ms(double seconds) {
  const double ms = seconds * 1e3;
  return ms < 1e4 ? absl::StrFormat("%.4g ms", ms) : absl::StrFormat("%.0f ms", ms);
}

}  // namespace

std::string DecisionTable(const v1::Decision& decision) {
  std::string table = absl::StrFormat(
      "%s%d prompt tokens: %s, policy %s%s\n",
      decision.request_id().empty() ? "" : absl::StrCat("request ", decision.request_id(), ", "),
      decision.prompt_tokens(), decision.decision(), decision.policy(),
      decision.kappa() > 0 ? absl::StrFormat(" (kappa %.3g s per s of service)", decision.kappa())
                           : "");
  absl::StrAppendFormat(&table, "  cached: %d tokens predicted",
                        decision.predicted_cached_tokens());
  if (decision.has_actual_cached_tokens()) {
    absl::StrAppend(&table, ", ", decision.actual_cached_tokens(), " tokens found");
  }
  if (decision.predicted_ttft_seconds() > 0) {
    absl::StrAppend(&table, "; time to first token: ", Ms(decision.predicted_ttft_seconds()),
                    " predicted");
  }
  if (decision.has_actual_ttft_seconds()) {
    absl::StrAppend(&table, ", ", Ms(decision.actual_ttft_seconds()), " measured");
  }
  if (!decision.kv_holder_address().empty()) {
    absl::StrAppend(&table, "; ", decision.kv_holder_tokens(), " tokens may be fetched from ",
                    decision.kv_holder_address());
  }
  if (!decision.pool().empty()) absl::StrAppend(&table, "; pool ", decision.pool());
  for (const int role : decision.spilled()) {
    absl::StrAppend(&table, "; spilled to a ",
                    role == v1::WORKER_ROLE_PREFILL ? "prefill" : "decode",
                    " worker of another pool");
  }
  absl::StrAppendFormat(&table, "\n    %-8s %-24s %14s %12s %12s %12s\n", "role", "worker",
                        "cached", "queue", "service", "cost");
  int shown[3] = {0, 0, 0};
  for (const v1::DecisionCandidate& c : decision.candidates()) {
    const bool prefill = c.role() == v1::WORKER_ROLE_PREFILL;
    const bool chosen =
        c.address() == decision.computes_address() || c.address() == decision.answers_address();
    ++shown[prefill ? 1 : 2];
    absl::StrAppendFormat(
        &table, "  %s %-8s %-24s %14s %12s %12s %12s%s%s%s%s\n", chosen ? "*" : " ",
        prefill ? "prefill" : "decode", c.address(), absl::StrCat(c.cached_tokens(), " tokens"),
        Ms(c.queue_seconds()), Ms(c.service_seconds()), Ms(c.cost()),
        c.tier_tokens() > 0 ? absl::StrCat("  ", c.tier_tokens(), " tokens from tiers") : "",
        c.transfer_seconds() > 0 ? absl::StrCat("  KV ", Ms(c.transfer_seconds())) : "",
        c.pool().empty() ? "" : "  pool " + c.pool(),
        c.excluded().empty() ? "" : "  " + c.excluded());
  }
  const int more =
      decision.prefill_candidates() - shown[1] + decision.decode_candidates() - shown[2];
  if (more > 0) absl::StrAppend(&table, "    and ", more, " more workers\n");
  if (decision.computes_address() == decision.answers_address()) {
    absl::StrAppend(&table, "  one worker computes the prompt and answers\n");
  }
  return table;
}

std::string CacheMissText(const v1::CacheMiss& miss) {
  std::string text = "  cache: ";
  switch (miss.cause()) {
    case v1::CACHE_MISS_CAUSE_CHANGED:
      absl::StrAppend(&text, "differs from an earlier prompt at token ",
                      miss.first_different_token());
      break;
    case v1::CACHE_MISS_CAUSE_EVICTED:
      absl::StrAppend(&text, "the worker does not have what an earlier prompt left");
      break;
    default:
      absl::StrAppend(&text, "an earlier prompt with another cache salt has this beginning");
  }
  absl::StrAppendFormat(&text, "; %d tokens lost, about %.1f ms\n", miss.lost_tokens(),
                        miss.lost_ms());
  if (miss.cause() == v1::CACHE_MISS_CAUSE_CHANGED) {
    absl::StrAppend(&text, "    now:     \"", absl::Utf8SafeCEscape(miss.text()), "\"\n",
                    "    earlier: \"", absl::Utf8SafeCEscape(miss.earlier_text()), "\"\n");
  }
  if (!miss.earlier_request_id().empty()) {
    absl::StrAppend(&text, "    earlier request: ", miss.earlier_request_id(), "\n");
  }
  return text;
}

int RunExplain(const ExplainOptions& options, std::ostream& out, std::ostream& err) {
  const auto explained = Ask(options);
  if (!explained.ok()) {
    err << "baton explain: " << Describe(explained.status()) << std::endl;
    return ExitCode(explained.status());
  }
  for (const v1::Decision& decision : explained->decisions) {
    out << (options.json ? JsonLine(decision) + "\n" : DecisionTable(decision));
  }
  if (options.cache && explained->miss) {
    out << (options.json ? JsonLine(*explained->miss) + "\n" : CacheMissText(*explained->miss));
  } else if (options.cache && !options.json) {
    out << "  cache: all is cached that an earlier prompt of this tenant would have allowed\n";
  }
  out << std::flush;
  return kExitOk;
}

}  // namespace baton::cli
