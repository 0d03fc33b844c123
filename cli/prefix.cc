#include "cli/prefix.h"

#include <grpcpp/grpcpp.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "baton/v1/admin.grpc.pb.h"
#include "cli/admin.h"
#include "cli/generate.h"
#include "cli/prefix_lint.h"
#include "cli/shared_flags.h"
#include "common/base/exit_code.h"
#include "common/base/rpc/grpc_status.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"

namespace baton::cli {
namespace {

std::string PrefixText(const v1::WarmPrefix& prefix) {
  std::string text = absl::StrFormat("%s  %d tokens", prefix.id(), prefix.tokens());
  if (!prefix.tenant().empty()) absl::StrAppend(&text, ", tenant ", prefix.tenant());
  if (prefix.has_retention()) {
    absl::StrAppend(&text, ", priority ", prefix.retention().priority(), " for ",
                    prefix.retention().ttl_ms(), " ms");
  }
  absl::StrAppend(&text, "\n");
  for (const v1::WarmedWorker& worker : prefix.workers()) {
    absl::StrAppend(&text, "  ", worker.address(), "  ",
                    !worker.error().empty() ? worker.error()
                    : worker.duration_ms() == 0
                        ? "not computed yet"
                        : absl::StrFormat("%d tokens were cached, %.0f ms", worker.cached_tokens(),
                                          worker.duration_ms()),
                    "\n");
  }
  return text;
}

class PrefixCalls {
 public:
  PrefixCalls(const PrefixOptions& options, const std::shared_ptr<grpc::Channel>& channel,
              std::ostream& out)
      : options_(options), out_(out), stub_(v1::AdminService::NewStub(channel)) {
    context_.set_deadline(absl::ToChronoTime(absl::Now() + absl::Milliseconds(options.timeout_ms)));
  }

  absl::Status Warm() {
    v1::WarmPrefixRequest request;
    request.set_text(options_.text);
    if (!options_.file.empty()) {
      std::ifstream file(options_.file, std::ios::binary);
      if (!file) return absl::InvalidArgumentError(options_.file + " cannot be read");
      const std::string text(std::istreambuf_iterator<char>(file), {});
      request.set_text(std::string(WithoutByteOrderMark(text)));
    }
    request.set_model(options_.model);
    request.set_cache_salt(options_.cache_salt);
    request.set_tenant(options_.tenant);
    request.set_replicas(options_.replicas);
    request.mutable_retention()->set_priority(options_.priority);
    request.mutable_retention()->set_ttl_ms(options_.ttl_ms);
    if (options_.until_token) request.mutable_retention()->set_until_token(*options_.until_token);
    v1::WarmPrefixResponse response;
    const grpc::Status status = stub_->WarmPrefix(&context_, request, &response);
    if (!status.ok()) return FromGrpcStatus(status);
    out_ << (options_.json ? JsonLine(response) + "\n" : PrefixText(response.prefix()))
         << std::flush;
    for (const v1::WarmedWorker& worker : response.prefix().workers()) {
      if (worker.error().empty()) continue;
      return absl::UnavailableError("not all workers have computed the prefix; the router goes on");
    }
    return absl::OkStatus();
  }

  absl::Status List() {
    v1::ListWarmPrefixesResponse response;
    const grpc::Status status =
        stub_->ListWarmPrefixes(&context_, v1::ListWarmPrefixesRequest(), &response);
    if (!status.ok()) return FromGrpcStatus(status);
    if (options_.json) {
      out_ << JsonLine(response) << "\n";
    } else {
      for (const v1::WarmPrefix& prefix : response.prefixes()) out_ << PrefixText(prefix);
    }
    out_ << std::flush;
    return absl::OkStatus();
  }

  absl::Status Drop() {
    v1::DropWarmPrefixRequest request;
    request.set_id(options_.id);
    v1::DropWarmPrefixResponse response;
    return FromGrpcStatus(stub_->DropWarmPrefix(&context_, request, &response));
  }

 private:
  const PrefixOptions& options_;
  std::ostream& out_;
  const std::unique_ptr<v1::AdminService::Stub> stub_;
  grpc::ClientContext context_;
};

absl::Status CallRouter(const std::string& command, const PrefixOptions& options,
                        std::ostream& out) {
  BATON_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel,
                         RouterChannel(options.address, options.access));
  PrefixCalls calls(options, channel, out);
  return command == "warm" ? calls.Warm() : command == "list" ? calls.List() : calls.Drop();
}

void AddWarm(CLI::App* warm, PrefixOptions* options) {
  CLI::Option* text = warm->add_option("text", options->text, "The prefix");
  CLI::Option* file = warm->add_option("--file", options->file, "File with the prefix");
  text->excludes(file);
  warm->add_option("--model", options->model,
                   "Name of the model; empty: the one that the router serves");
  warm->add_option("--replicas", options->replicas,
                   "Number of prefill workers that are to have it; 0: all")
      ->check(CLI::Range(0, 16'384));
  warm->add_option("--priority", options->priority,
                   "Retention priority; 0: blocks are evicted as others are")
      ->check(CLI::Range(0, 100));
  warm->add_option("--ttl-ms", options->ttl_ms,
                   "How long the blocks are retained after their last use")
      ->check(CLI::Range(int64_t{1}, int64_t{604'800'000}));
  warm->add_option("--until-token", options->until_token,
                   "Retain the tokens before this one; absent: all")
      ->check(CLI::Range(1, 1 << 30));
  warm->add_option("--cache-salt", options->cache_salt, "Cache salt of the requests it is for");
  warm->add_option("--tenant", options->tenant, "Tenant whose requests it is for");
}

}  // namespace

void AddPrefix(CLI::App* app, PrefixCommands* commands) {
  app->require_subcommand(1);
  const std::pair<const char*, const char*> descriptions[] = {
      {"warm", "Compute a prefix on prefill workers, and again on those that join or restart"},
      {"list", "List the prefixes that the router keeps warm"},
      {"drop", "Keep a prefix warm no longer"},
      {"lint", "Find timestamps, ids, counters and JSON keys in changing order in files"}};
  for (const auto& [name, description] : descriptions) {
    CLI::App* command = app->add_subcommand(name, description);
    PrefixOptions& options = (*commands)[name];
    command->add_flag("--json", options.json, "Print one JSON object instead of text");
    if (command->get_name() == "lint") {
      command->add_option("files", options.files, "Texts that should be stable")->required();
      continue;
    }
    AddAddress(command, &options.address, &options.access);
    command->add_option("--timeout-ms", options.timeout_ms, "Limit for the call")
        ->check(CLI::Range(int64_t{1}, int64_t{86'400'000}));
    if (command->get_name() == "warm") AddWarm(command, &options);
    if (command->get_name() == "drop") {
      command->add_option("id", options.id, "Id of the prefix")->required();
    }
  }
}

int RunPrefix(const std::string& command, const PrefixOptions& options, std::ostream& out,
              std::ostream& err) {
  if (command == "lint") return RunPrefixLint(options.files, options.json, out, err);
  const absl::Status status = CallRouter(command, options, out);
  if (status.ok()) return kExitOk;
  err << "baton prefix " << command << ": " << Describe(status) << std::endl;
  return ExitCode(status);
}

}  // namespace baton::cli
