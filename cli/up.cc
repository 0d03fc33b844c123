#include "cli/up.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "cli/prefill_choice.h"
#include "cli/screen.h"
#include "cli/start_progress.h"
#include "common/base/exit_code.h"
#include "common/base/rpc/address_file.h"
#include "common/base/shutdown_signal.h"
#include "common/base/status_macros.h"
#include "common/base/usable_cores.h"
#include "common/engine/engine.h"

namespace baton::cli {
namespace {

constexpr absl::Duration kIdleTick = absl::Seconds(1);
constexpr char kRouter[] = "router";
constexpr int kFewCores = 2;  // where the default was measured, and lost

class Up {
 public:
  Up(const UpOptions& options, std::ostream& out, std::ostream& err)
      : options_(options),
        json_out_(out),
        out_(options.json ? err : out),
        progress_(out_, TerminalOf(options)) {}

  int Run() {
    absl::Status status = Start();
    progress_.End();
    bool stopped = absl::IsCancelled(status);
    if (status.ok()) {
      PrintEndpoints();
      if (options_.json) PrintJson();
      if (!options_.ready_file.empty()) {
        status = WriteAddressFile(options_.ready_file,
                                  {cluster_->address(kRouter), cluster_->metrics_address(kRouter),
                                   cluster_->http_address(kRouter)});
      }
    }
    while (status.ok() && !stopped) {
      stopped = cluster_->Listen(kIdleTick);
      if (!stopped) status = NoteEnds();
    }
    if (stopped) {
      signals_.Wait(absl::ZeroDuration());
      out_ << "Stopping." << std::endl;
    } else {
      out_ << "baton up: " << status.message() << std::endl;
    }
    // The router first: what runs may finish while the workers are still there.
    const std::vector<std::string> names =
        cluster_ != nullptr ? cluster_->names() : std::vector<std::string>();
    if (!names.empty() && names.back() == kRouter) Stop({kRouter});
    Stop(names);
    return stopped ? kExitOk : kExitFailure;
  }

 private:
  absl::Status Start() {
    ClusterOptions cluster = options_.cluster;
    cluster.stop_fd = signals_.fd();
    cluster.ready_timeout = absl::InfiniteDuration();
    if (options_.prefill == UpOptions::Prefill::kAuto) {
      BATON_ASSIGN_OR_RETURN(const PrefillChoice choice, ChoosePrefill(cluster, out_));
      cluster.prefill_workers = choice.prefill_workers;
      out_ << "baton up: --prefill " << choice.prefill_workers
           << (choice.prefill_workers == 0 ? " (decode workers compute the prompts): " : ": ")
           << choice.reason << std::endl;
    }
    std::vector<std::string> workers;
    for (int i = 0; i < cluster.prefill_workers; ++i)
      workers.push_back(absl::StrCat("prefill-", i));
    for (int i = 0; i < cluster.decode_workers; ++i) workers.push_back(absl::StrCat("decode-", i));
    progress_.Begin(workers);
    cluster_ = std::make_unique<LocalCluster>(WithOutput(std::move(cluster)));
    return cluster_->Start();
  }

  // Where lines may be written over. JSON is for programs.
  static std::optional<ScreenSize> TerminalOf(const UpOptions& options) {
    const bool terminal = isatty(options.json ? STDERR_FILENO : STDOUT_FILENO) == 1;
    if (!terminal || options.cluster.log_format == "json") return std::nullopt;
    return TerminalSize();
  }

  ClusterOptions WithOutput(ClusterOptions cluster) {
    const int64_t grace_ms = absl::ToInt64Milliseconds(options_.stop_grace) / 2;
    cluster.router_flags.insert(cluster.router_flags.end(),
                                {"--drain-grace-ms", absl::StrCat(grace_ms)});
    const std::vector<std::string> share = GpuShareFlags(cluster);
    cluster.worker_flags.insert(cluster.worker_flags.end(), share.begin(), share.end());
    cluster.on_line = [this](const std::string& name, const std::string& line) {
      PrintLine(name, line);
    };
    // `baton workers` lists, and `baton drain` takes, the names that are printed here.
    cluster.name_workers = true;
    return cluster;
  }

  bool json_logs() const { return options_.cluster.log_format == "json"; }

  // An error once the router has ended; the end of a worker is only reported.
  absl::Status NoteEnds() {
    for (const std::string& name : cluster_->names()) {
      if (cluster_->process(name).running()) continue;
      if (name == kRouter) return cluster_->EndOf(name);
      if (!ended_.insert(name).second) continue;
      out_ << "baton up: " << name << " " << cluster_->process(name).end()
           << "; the others keep running" << std::endl;
    }
    return absl::OkStatus();
  }

  void Stop(const std::vector<std::string>& names) {
    const auto any_runs = [&] {
      return std::any_of(names.begin(), names.end(), [this](const std::string& name) {
        return cluster_->process(name).running();
      });
    };
    const auto signal_all = [&](int signal) {
      for (const std::string& name : names) cluster_->Signal(name, signal);
    };
    signal_all(SIGTERM);
    const absl::Time end = absl::Now() + options_.stop_grace;
    while (any_runs() && absl::Now() < end) {
      if (!cluster_->Listen(options_.cluster.tick)) continue;
      signals_.Wait(absl::ZeroDuration());
      signal_all(SIGTERM);  // their second: they stop at once
    }
    signal_all(SIGKILL);
    while (any_runs()) cluster_->Listen(options_.cluster.tick);
  }

  void PrintLine(const std::string& name, const std::string& line) {
    if (json_logs() && absl::StartsWith(line, "{")) {
      out_ << line << std::endl;
    } else {
      progress_.Line(name, line);
    }
  }

  void PrintEndpoints() {
    out_ << "\n"
         << EndpointLines(options_.cluster, cluster_->address(kRouter),
                          cluster_->http_address(kRouter));
    out_ << "  metrics:\n";
    for (const std::string& name : cluster_->names()) {
      const std::string& metrics = cluster_->metrics_address(name);
      if (!metrics.empty()) out_ << "    " << name << "  http://" << metrics << "/metrics\n";
    }
    if (options_.prefill == UpOptions::Prefill::kDefault && UsableCores() <= kFewCores) {
      out_ << "On few cores a prefill worker may cost more than it gives: --prefill auto measures "
              "that.\n";
    }
    out_ << "Ctrl-C stops it.\n" << std::endl;
  }

  void PrintJson() {
    nlohmann::ordered_json json = {{"address", cluster_->address(kRouter)},
                                   {"http_address", cluster_->http_address(kRouter)}};
    for (const std::string& name : cluster_->names()) {
      json["processes"].push_back({{"name", name},
                                   {"pid", cluster_->pid(name)},
                                   {"address", cluster_->address(name)},
                                   {"metrics_address", cluster_->metrics_address(name)}});
    }
    json_out_ << json.dump() << std::endl;
  }

  const UpOptions& options_;
  std::ostream& json_out_;
  ShutdownSignal signals_{BrokenPipe::kDefault};
  std::ostream& out_;
  StartProgress progress_;
  std::set<std::string> ended_;
  std::unique_ptr<LocalCluster> cluster_;  // null: not yet started
};

}  // namespace

std::string EndpointLines(const ClusterOptions& cluster, const std::string& grpc,
                          const std::string& http) {
  const auto given = [&cluster](const char* flag) {
    const auto& flags = cluster.router_flags;
    return std::find(flags.begin(), flags.end(), flag) != flags.end();
  };
  const bool tls = cluster.router_tls, keys = given("--api-keys");
  const bool certificates = given("--tls-client-ca");
  std::string text =
      absl::StrCat("Baton is ready: gRPC at ", grpc, "\n  try: ", keys ? "BATON_API_KEY=KEY " : "",
                   "baton generate \"Hello\" --address ", grpc, tls ? " --tls-ca CA.pem" : "",
                   certificates ? " --tls-cert CLIENT.pem --tls-key CLIENT.key" : "", "\n");
  if (!http.empty()) {
    const std::string url = absl::StrCat(tls ? "https://" : "http://", http);
    absl::StrAppend(&text, "  OpenAI clients: base_url ", url, "/v1", keys ? ", api_key KEY" : "",
                    "\n  try: curl ", tls ? "--cacert CA.pem " : "",
                    certificates ? "--cert CLIENT.pem --key CLIENT.key " : "",
                    keys ? "-H 'Authorization: Bearer KEY' " : "", url,
                    R"(/v1/completions -d '{"prompt": "Hello", "max_tokens": 16}')", "\n");
  }
  if (keys) {
    absl::StrAppend(&text,
                    "  KEY is an API key; `baton keys new` makes one, and its line for the "
                    "file of --api-keys\n");
  }
  return text;
}

std::vector<std::string> GpuShareFlags(const ClusterOptions& cluster) {
  const int workers = cluster.prefill_workers + cluster.decode_workers;
  const auto& flags = cluster.worker_flags;
  const auto device = std::find(flags.begin(), flags.end(), "--device");
  const bool on_cpu = device != flags.end() && device + 1 != flags.end() && device[1] == "cpu";
  const char* const flag = "--gpu-memory-utilization";
  if (workers < 2 || on_cpu || std::find(flags.begin(), flags.end(), flag) != flags.end()) {
    return {};
  }
  const double alone = engine::EngineOptions().backend.gpu_memory_utilization;
  return {flag, absl::StrFormat("%.4f", alone / workers)};
}

int RunUp(const UpOptions& options, std::ostream& out, std::ostream& err) {
  return Up(options, out, err).Run();
}

}  // namespace baton::cli
