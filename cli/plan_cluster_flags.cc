#include "cli/plan_cluster_flags.h"

#include <CLI/CLI.hpp>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace baton::cli {
namespace {

constexpr int kMostLength = 1 << 20;

void AddLoad(CLI::App* app, ClusterPlanOptions* cluster, ClusterPlanFlags* flags) {
  app->add_option("--trace", cluster->trace,
                  "The load: JSON lines with timestamp (ms), input_length, output_length and "
                  "hash_ids (one per 512 tokens; may be missing)")
      ->type_name("PATH");
  app->add_option("--rate", cluster->rate,
                  "Instead of a trace: requests a second, with Poisson's gaps, which share nothing")
      ->check(CLI::Range(1e-6, 1e6));
  app->add_option("--prompt-lengths", flags->prompt_lengths,
                  "MIN,MAX: tokens of prompts with --rate, each factor of two as likely")
      ->delimiter(',')
      ->expected(2)
      ->check(CLI::Range(1, kMostLength));
  app->add_option("--answer-lengths", flags->answer_lengths,
                  "MIN,MAX: tokens of answers with --rate, each factor of two as likely")
      ->delimiter(',')
      ->expected(2)
      ->check(CLI::Range(2, kMostLength));
  app->add_option("--requests", cluster->requests,
                  "The first so many of the trace; 0: all. With --rate: so many; 0: 2000")
      ->check(CLI::Range(0, 10'000'000));
  app->add_option("--speed", cluster->speed, "Requests come so many times as fast as in the load")
      ->check(CLI::Range(1e-3, 1e3));
  app->add_option("--answer-tokens", cluster->answer_tokens,
                  "Tokens of answers for which the trace has no output_length; 0: an error")
      ->check(CLI::Range(0, kMostLength));
  app->add_option("--seed", cluster->shape.seed, "Of a load by --rate, and of the simulation");
}

void AddCosts(CLI::App* app, ClusterPlanOptions* cluster) {
  app->add_option("--costs-of", cluster->costs_of,
                  "Costs and sizes of workers as this router's have measured them, host:port");
  AddRouterAccess(app, &cluster->access);
  app->add_option("--costs", cluster->costs_file, "Costs and sizes of workers from --save-costs")
      ->type_name("PATH");
  app->add_option("--save-costs", cluster->save_costs, "Write the costs and sizes to this file")
      ->type_name("PATH");
  app->add_option("--efficiency", cluster->efficiency,
                  "Without measured costs: the share of the GPU's rates that steps reach")
      ->check(CLI::Range(0.01, 1.0));
  app->add_option("--link-gbits", cluster->link_gbits,
                  "Gbit/s between a prefill and a decode worker; 0: as measured, else 10")
      ->check(CLI::Range(0.0, 1e5));
}

}  // namespace

void AddClusterPlan(CLI::App* app, ClusterPlanOptions* cluster, ClusterPlanFlags* flags) {
  CLI::Option* wanted =
      app->add_flag("--cluster", cluster->wanted,
                    "Simulate clusters: how many prefill and decode workers does a load need? The "
                    "flags below are for this");
  const size_t others = app->get_options().size();
  AddLoad(app, cluster, flags);
  AddCosts(app, cluster);
  const auto positive = CLI::Range(1e-3, 1e9);
  app->add_option("--slo-ttft-ms", cluster->slo_ttft_ms,
                  "99 % of the first tokens must come within this time")
      ->check(positive);
  app->add_option("--slo-inter-token-ms", cluster->slo_inter_token_ms,
                  "99 % of the gaps between tokens must be at most this long")
      ->check(positive);
  app->add_option("--prefill-price", cluster->prefill_price, "Of a prefill worker")
      ->check(CLI::Range(0.0, 1e9));
  app->add_option("--decode-price", cluster->decode_price, "Of a decode worker")
      ->check(CLI::Range(0.0, 1e9));
  app->add_option("--most-prefill", cluster->most_prefill, "The most prefill workers to try")
      ->check(CLI::Range(1, 1024));
  app->add_option("--most-decode", cluster->most_decode, "The most decode workers to try")
      ->check(CLI::Range(1, 1024));
  app->add_option("--max-local-prefill-tokens", cluster->max_local_prefill_tokens,
                  "As for a router: the longest part of a prompt that a decode worker computes, "
                  "where that is cheaper; 0: none, all prompts go to prefill workers")
      ->check(CLI::Range(0, 1 << 24));
  app->add_option("--routers", cluster->routers, "Routers, among which requests are drawn")
      ->check(CLI::Range(1, 64));
  const std::vector<CLI::Option*> options = app->get_options();
  for (size_t i = others; i < options.size(); ++i) {
    // A variable may be set for other commands.
    if (options[i]->get_envname().empty()) options[i]->needs(wanted);
  }
}

bool FinishClusterPlan(const ClusterPlanFlags& flags, ClusterPlanOptions* cluster) {
  if (cluster->trace.empty() == (cluster->rate == 0)) {
    throw CLI::ValidationError("--cluster", "expected one of --trace and --rate");
  }
  if (cluster->slo_ttft_ms == 0 || cluster->slo_inter_token_ms == 0) {
    throw CLI::ValidationError("--cluster",
                               "expected --slo-ttft-ms and --slo-inter-token-ms with it");
  }
  if (!cluster->costs_of.empty() && !cluster->costs_file.empty()) {
    throw CLI::ValidationError("--costs", "expected only one of --costs-of and --costs");
  }
  // CLI::Range accepts NaN.
  for (const double value :
       {cluster->rate, cluster->speed, cluster->slo_ttft_ms, cluster->slo_inter_token_ms,
        cluster->efficiency, cluster->link_gbits, cluster->prefill_price, cluster->decode_price}) {
    if (std::isnan(value)) throw CLI::ValidationError("--cluster", "a number is not a number");
  }
  for (const std::vector<int>* lengths : {&flags.prompt_lengths, &flags.answer_lengths}) {
    if ((*lengths)[0] <= (*lengths)[1]) continue;
    throw CLI::ValidationError("--cluster",
                               absl::StrCat("lengths of ", (*lengths)[0], " to ", (*lengths)[1],
                                            ", expected the smaller first"));
  }
  cluster->shape.least_prompt = flags.prompt_lengths[0];
  cluster->shape.prompt_end = flags.prompt_lengths[1] + 1;
  cluster->shape.least_answer = flags.answer_lengths[0];
  cluster->shape.answer_end = flags.answer_lengths[1] + 1;
  return cluster->costs_of.empty() && cluster->costs_file.empty();
}

}  // namespace baton::cli
