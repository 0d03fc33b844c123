#include "benchmarks/serving/cluster_flags.h"

#include <errno.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/file_limit.h"

namespace baton::benchmarks {

void Die(const absl::Status& status) {
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name,
               std::string(status.message()).c_str());
  std::fflush(nullptr);
  // Without destructors, which would wait for threads such as this one. The kernel kills the
  // clusters' processes when this one ends.
  std::_Exit(1);
}

void AppendFlags(const std::string& text, std::vector<std::string>* flags) {
  for (absl::string_view word : absl::StrSplit(text, ' ', absl::SkipWhitespace())) {
    flags->emplace_back(word);
  }
}

void AddClusterFlags(CLI::App* app, ClusterOptions* options) {
  app->add_option("--model", options->model_dir, "Hugging Face directory of the model")
      ->check(CLI::ExistingDirectory);
  app->add_option("--bin-dir", options->bin_dir, "Where baton's programs are; beside this one");
  const auto add_flags = [app](const char* name, std::vector<std::string>* flags,
                               const char* help) {
    const auto replace = [flags](const std::string& text) {
      flags->clear();
      AppendFlags(text, flags);
    };
    app->add_option_function<std::string>(name, replace, help)
        ->default_str(absl::StrJoin(*flags, " "));
  };
  add_flags("--worker-flags", &options->worker_flags, "For workers of both kinds");
  add_flags("--prefill-flags", &options->prefill_flags, "For prefill workers");
  add_flags("--decode-flags", &options->decode_flags, "For decode workers");
  add_flags("--router-flags", &options->router_flags, "For the router");
}

std::unique_ptr<LocalCluster> StartCluster(const ClusterOptions& options) {
  RaiseFileLimit();
  auto cluster = std::make_unique<LocalCluster>(options);
  if (absl::Status status = cluster->Start(); !status.ok()) Die(status);
  return cluster;
}

}  // namespace baton::benchmarks
