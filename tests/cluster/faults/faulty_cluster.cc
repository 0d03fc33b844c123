// A cluster of real processes whose links and processes something else breaks, such as a test in
// Python.
//   faulty_cluster --model models/demo --decode-flags=--num-blocks,64
// It prints one line of JSON with the router's addresses and its processes once all workers are
// ready. Then it does what each line of standard input says, and answers it with a line: "ok", or
// what went wrong, with spaces for line ends. It stops the cluster at the end of its input.
//   signal NAME NUMBER          to the process
//   restart NAME...             ends them and starts them at their addresses; the answer comes when
//                               all workers are ready
//   flip OPENER TARGET SHARE    bits of what the target sends on connections of the opener: the
//                               share of bytes that get one flipped; names may end in '*'
//   heal                        no bit is flipped any more
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "tests/cluster/faults/process_cluster.h"

namespace baton::testing {
namespace {

constexpr char kRouter[] = "router";

std::string Description(const ProcessCluster& cluster) {
  nlohmann::ordered_json json = {{"address", cluster.address(kRouter)}};
  for (const std::string& name : cluster.names()) {
    json["processes"].push_back(
        {{"name", name}, {"metrics_address", cluster.metrics_address(name)}});
  }
  return json.dump();
}

absl::Status CheckName(const ProcessCluster& cluster, const std::string& name) {
  if (cluster.pids().contains(name)) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("no process has the name \"", name, "\""));
}

absl::Status BadCommand(const std::string& line) {
  constexpr char kExpected[] =
      "\"signal NAME NUMBER\", \"restart NAME...\", \"flip OPENER TARGET SHARE\" or \"heal\"";
  return absl::InvalidArgumentError(
      absl::StrCat("\"", line, "\" is no command; expected ", kExpected));
}

absl::Status Obey(ProcessCluster& cluster, const std::string& line) {
  const std::vector<std::string> words = absl::StrSplit(line, ' ');
  if (words[0] == "signal" && words.size() == 3) {
    int number = 0;
    BATON_RETURN_IF_ERROR(CheckName(cluster, words[1]));
    if (!absl::SimpleAtoi(words[2], &number)) return BadCommand(line);
    cluster.Signal(words[1], number);
    return absl::OkStatus();
  }
  if (words[0] == "restart" && words.size() >= 2) {
    for (size_t i = 1; i < words.size(); ++i) {
      BATON_RETURN_IF_ERROR(CheckName(cluster, words[i]));
      BATON_RETURN_IF_ERROR(cluster.Restart(words[i]));
    }
    return cluster.AwaitReady(kRouter);
  }
  if (words[0] == "flip" && words.size() == 4) {
    LinkFaults faults;
    if (!absl::SimpleAtod(words[3], &faults.flip_rate)) return BadCommand(line);
    cluster.proxy().Set({words[1], words[2], Flow::Way::kToOpener}, faults);
    return absl::OkStatus();
  }
  if (words[0] == "heal" && words.size() == 1) {
    cluster.proxy().Heal();
    return absl::OkStatus();
  }
  return BadCommand(line);
}

int Run(const ClusterOptions& options) {
  const auto cluster = ProcessCluster::Start(options);
  if (!cluster.ok()) {
    std::cerr << cluster.status() << std::endl;
    return 1;
  }
  std::cout << Description(**cluster) << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    const absl::Status done = Obey(**cluster, line);
    // A message may have several lines, from a log or a peer; an answer is one line.
    std::cout << (done.ok() ? "ok"
                            : absl::StrReplaceAll(done.message(), {{"\n", " "}, {"\r", " "}}))
              << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace baton::testing

int main(int argc, char** argv) {
  baton::testing::ClusterOptions options;
  CLI::App app("Runs a cluster, and breaks what standard input says");
  app.add_option("--model", options.model_dir)->capture_default_str();
  app.add_option("--bin-dir", options.bin_dir, "of the product's binaries; default: found");
  app.add_option("--log-dir", options.log_dir, "of the processes; default: removed at the end");
  app.add_option("--worker-flags", options.worker_flags, "of all workers")->delimiter(',');
  app.add_option("--decode-flags", options.decode_flags, "of decode workers")->delimiter(',');
  app.add_option("--router-flags", options.router_flags, "of the router")->delimiter(',');
  app.add_option("--workers-file", options.workers_file,
                 "made, and read by the router beside its flags");
  CLI11_PARSE(app, argc, argv);
  return baton::testing::Run(options);
}
