#include "cli/bench/flags.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cli/shared_flags.h"

namespace baton::cli {
namespace {

constexpr int kMostFlagTokens = 1 << 24;

void AddTarget(CLI::App* app, BenchOptions* bench, ServeFlags* flags) {
  TargetOptions& target = bench->target;
  target.address = "127.0.0.1:50051";
  app->add_option("--backend,--endpoint-type", target.backend,
                  "Server: baton (gRPC), or openai, openai-chat (HTTP; vllm is openai)")
      ->check(CLI::IsMember(kBackends));
  AddAddress(app, &target.address, &target.access);
  app->add_option("--base-url", flags->base_url, "HTTP: URL of the server, instead of --host");
  app->add_option("--host", flags->host, "HTTP: host of the server");
  app->add_option("--port", flags->port, "HTTP: port of the server")->check(CLI::Range(1, 65535));
  app->add_option("--endpoint", target.endpoint,
                  "HTTP: path; empty: /v1/completions or /v1/chat/completions");
  app->add_option("--header", flags->headers, "HTTP: KEY=VALUE of a header; several may follow");
  app->add_option("--model", target.model,
                  "Name of the model; empty: the first that the server lists");
  app->add_option("--vocab-size", bench->vocab_size,
                  "Random token ids are below it; 0: as the router reports")
      ->check(CLI::Range(0, 1 << 24));
  AddSampling(app, &target.sampling);
  app->add_flag("--ignore-eos,!--no-ignore-eos", flags->ignore_eos,
                "Continue after the end-of-sequence token; the default for random and trace");
}

void AddDataset(CLI::App* app, BenchOptions* bench, ServeFlags* flags) {
  DatasetOptions& dataset = bench->dataset;
  const auto tokens = CLI::Range(1, kMostFlagTokens);
  const auto tokens_or_none = CLI::Range(0, kMostFlagTokens);
  app->add_option("--dataset-name", dataset.name, "Where prompts come from")
      ->transform(CLI::Transformer(std::map<std::string, std::string>{{"timed_trace", "trace"}}))
      ->check(CLI::IsMember(kDatasets));
  app->add_option("--dataset-path", dataset.path, "File of sharegpt, custom or trace");
  app->add_option("--num-prompts", bench->dataset.num_prompts, "Number of requests")
      ->check(CLI::Range(1, 1 << 24));
  app->add_option("--seed", dataset.seed, "Seed of prompts, arrivals and sampling");
  app->add_flag("--disable-shuffle", flags->disable_shuffle, "Keep the order of the file");
  app->add_flag("--no-oversample", flags->no_oversample,
                "Do not repeat prompts of a file that has fewer than --num-prompts");
  app->add_option("--input-len", flags->input_len, "As --random-input-len")->check(tokens);
  app->add_option("--output-len", flags->output_len, "Tokens to generate, for any dataset")
      ->check(tokens);
  app->add_option("--random-prefix-len", dataset.random_prefix_len,
                  "random: tokens that all prompts share, before --random-input-len")
      ->check(tokens_or_none);
  app->add_option("--random-input-len", dataset.random_input_len, "random: tokens of a prompt")
      ->check(tokens);
  app->add_option("--random-output-len", dataset.random_output_len, "random: tokens to generate")
      ->check(tokens);
  app->add_option("--random-range-ratio", dataset.random_range_ratio,
                  "random: lengths are uniform within length * (1 +- ratio)")
      ->check(CLI::Range(0.0, 0.999999));
  app->add_option("--prefix-repetition-prefix-len", dataset.prefix_repetition_prefix_len,
                  "prefix_repetition: tokens of a prefix")
      ->check(tokens_or_none);
  app->add_option("--prefix-repetition-suffix-len", dataset.prefix_repetition_suffix_len,
                  "prefix_repetition: tokens after the prefix")
      ->check(tokens);
  app->add_option("--prefix-repetition-num-prefixes", dataset.prefix_repetition_num_prefixes,
                  "prefix_repetition: number of prefixes")
      ->check(CLI::Range(1, 1 << 20));
  app->add_option("--prefix-repetition-output-len", dataset.prefix_repetition_output_len,
                  "prefix_repetition: tokens to generate")
      ->check(tokens);
  app->add_option("--sharegpt-output-len", dataset.sharegpt_output_len,
                  "sharegpt: tokens to generate, instead of as many as the answer in the file has")
      ->check(tokens);
  app->add_option("--custom-output-len", dataset.custom_output_len,
                  "custom: tokens to generate; -1: output_tokens of each line")
      ->check(CLI::Range(-1, kMostFlagTokens));
  app->add_option("--timed-trace-chunk-hash-size", dataset.trace_block_tokens,
                  "trace: tokens of an entry of hash_ids")
      ->check(CLI::Range(1, 1 << 20));
  app->add_option("--timed-trace-sec-multiplier", dataset.trace_seconds,
                  "trace: seconds of a unit of timestamp")
      ->check(CLI::Range(1e-9, 1e9));
  app->add_flag("--self-timed,!--no-self-timed", bench->self_timed,
                "trace: send at its timestamps (default), not at --request-rate");
}

void AddLoad(CLI::App* app, BenchOptions* bench) {
  app->add_option("--request-rate", bench->request_rate, "Requests a second; inf: all at once");
  app->add_option("--burstiness", bench->burstiness,
                  "Shape of the gamma distribution of gaps: 1: a Poisson process; less: burstier");
  app->add_option("--max-concurrency", bench->max_concurrency,
                  "Requests that run at once; more wait in the client")
      ->check(CLI::Range(1, 1 << 20));
  app->add_option("--num-warmups", bench->num_warmups, "Requests before the measured ones")
      ->check(CLI::Range(0, 1 << 20));
}

void AddReport(CLI::App* app, BenchOptions* bench, ServeFlags* flags) {
  app->add_option("--percentile-metrics", flags->percentile_metrics,
                  absl::StrCat("Of ", absl::StrJoin(kBenchMetrics, ","), ": which to report"));
  app->add_option("--metric-percentiles", flags->metric_percentiles,
                  "Percentiles to report, e.g. 50,90,99.9");
  app->add_option("--goodput", flags->goodput,
                  "Goals in milliseconds, e.g. ttft:200 tpot:50 e2el:2000: reports the requests a "
                  "second that meet all");
  app->add_flag("--save-detailed", bench->report.detailed,
                "The result has lengths, times, text and error of each request");
  AddOutput(app, "throughput over time, distributions of TTFT and ITL", &bench->output,
            &flags->output);
}

std::pair<std::string, std::string> KeyAndValue(const std::string& flag, const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
  if (parts.size() != 2 || parts[0].empty()) {
    throw CLI::ValidationError(flag, absl::StrCat("\"", text, "\": expected KEY=VALUE"));
  }
  return {parts[0], parts[1]};
}

ReportOptions ParseReport(const ServeFlags& flags, bool detailed) {
  ReportOptions report;
  report.detailed = detailed;
  report.metrics = absl::StrSplit(flags.percentile_metrics, ',');
  for (const std::string& metric : report.metrics) {
    if (absl::c_linear_search(kBenchMetrics, metric)) continue;
    throw CLI::ValidationError(
        "--percentile-metrics",
        absl::StrCat("\"", metric, "\": expected some of ", absl::StrJoin(kBenchMetrics, ",")));
  }
  report.percentiles = ParsePercentiles(flags.metric_percentiles);
  for (const std::string& goal : flags.goodput) {
    const std::vector<std::string> parts = absl::StrSplit(goal, ':');
    double most_ms = 0;
    if (parts.size() != 2 || (parts[0] != "ttft" && parts[0] != "tpot" && parts[0] != "e2el") ||
        !absl::SimpleAtod(parts[1], &most_ms) || !(most_ms >= 0)) {
      throw CLI::ValidationError(
          "--goodput",
          absl::StrCat("\"", goal, "\": expected ttft:MS, tpot:MS or e2el:MS, from 0"));
    }
    report.goodput_ms[parts[0]] = most_ms;
  }
  return report;
}

void FinishDataset(const CLI::App& app, const ServeFlags& flags, BenchOptions* bench) {
  DatasetOptions& dataset = bench->dataset;
  dataset.shuffle = !flags.disable_shuffle;
  dataset.oversample = !flags.no_oversample;
  if (flags.input_len) dataset.random_input_len = *flags.input_len;
  if (flags.output_len) {
    dataset.random_output_len = dataset.prefix_repetition_output_len = *flags.output_len;
    dataset.custom_output_len = *flags.output_len;
    dataset.sharegpt_output_len = flags.output_len;
  }
  if (dataset.custom_output_len == 0) {
    throw CLI::ValidationError("--custom-output-len", "expected -1, or from 1");
  }
  const bool from_file = dataset.name != "random" && dataset.name != "prefix_repetition";
  if (from_file == dataset.path.empty()) {
    throw CLI::ValidationError("--dataset-path",
                               absl::StrCat("expected ", from_file ? "with" : "without",
                                            " --dataset-name ", dataset.name));
  }
  if (app.count("--self-timed") > 0 && dataset.name != "trace") {
    throw CLI::ValidationError("--self-timed", "expected with --dataset-name trace");
  }
}

void FinishTarget(const CLI::App& app, const ServeFlags& flags, BenchOptions* bench) {
  TargetOptions& target = bench->target;
  const DatasetOptions& dataset = bench->dataset;
  const bool has_text = dataset.name == "sharegpt" || dataset.name == "custom";
  if (target.backend == "openai-chat" && app.count("--vocab-size") > 0) {
    throw CLI::ValidationError(
        "--vocab-size",
        "--backend openai-chat sends texts of words, not token ids: expected without");
  }
  if (target.backend != "baton" && dataset.name == "sharegpt" && !dataset.sharegpt_output_len) {
    throw CLI::ValidationError(
        "--dataset-name",
        "sharegpt over HTTP has nothing that counts tokens: expected --sharegpt-output-len");
  }
  for (const char* flag : {"--base-url", "--host", "--port", "--endpoint", "--header"}) {
    if (target.backend == "baton" && app.count(flag) > 0) {
      throw CLI::ValidationError(flag, "expected --backend openai or openai-chat with it");
    }
  }
  target.base_url = flags.base_url.empty() ? absl::StrCat("http://", flags.host, ":", flags.port)
                                           : flags.base_url;
  for (const std::string& header : flags.headers) {
    const auto [key, value] = KeyAndValue("--header", header);
    target.headers.push_back(absl::StrCat(key, ": ", value));
  }
  target.sampling.seed = dataset.seed;
  target.ignore_eos = app.count("--ignore-eos") > 0 ? flags.ignore_eos : !has_text;
  target.keep_text = bench->report.detailed;
}

}  // namespace

void AddOutput(CLI::App* app, const std::string& plot, OutputOptions* output, OutputFlags* flags) {
  app->add_option("--label", output->label, "Name of the run, in the result");
  app->add_option("--metadata", flags->metadata, "KEY=VALUE for the result; several may follow");
  app->add_flag("--save-result", output->save_result, "Write the result as JSON");
  app->add_option("--result-dir", output->result_dir, "Directory for the result; empty: this one")
      ->type_name("DIR");
  app->add_option("--result-filename", output->result_filename,
                  "Name of the result; empty: made of label, model, date and so on");
  app->add_option("--plot", output->plot, absl::StrCat("File for an SVG: ", plot));
  app->add_flag("--disable-tqdm", flags->disable_tqdm, "No progress bar on a terminal");
  app->add_flag("--json", output->json, "Print one JSON object instead of lines");
}

void FinishOutput(const OutputFlags& flags, OutputOptions* output) {
  for (const std::string& pair : flags.metadata) {
    output->metadata.push_back(KeyAndValue("--metadata", pair));
  }
  output->progress = !flags.disable_tqdm && isatty(STDERR_FILENO) == 1;
}

std::vector<double> ParsePercentiles(const std::string& text) {
  std::vector<double> percentiles;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    double percent = 0;
    if (!absl::SimpleAtod(part, &percent) || !(percent >= 0 && percent <= 100)) {
      throw CLI::ValidationError("--metric-percentiles",
                                 absl::StrCat("\"", part, "\": expected 0 to 100"));
    }
    percentiles.push_back(percent);
  }
  return percentiles;
}

void AddServe(CLI::App* app, BenchOptions* bench, ServeFlags* flags) {
  AddTarget(app, bench, flags);
  AddDataset(app, bench, flags);
  AddLoad(app, bench);
  AddReport(app, bench, flags);
}

void FinishServe(const CLI::App& app, const ServeFlags& flags, BenchOptions* bench) {
  FinishDataset(app, flags, bench);
  FinishTarget(app, flags, bench);
  if (!(bench->request_rate > 0)) throw CLI::ValidationError("--request-rate", "expected above 0");
  if (!(bench->burstiness > 0)) throw CLI::ValidationError("--burstiness", "expected above 0");
  bench->report = ParseReport(flags, bench->report.detailed);
  FinishOutput(flags.output, &bench->output);
}

}  // namespace baton::cli
