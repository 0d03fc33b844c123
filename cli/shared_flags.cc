#include "cli/shared_flags.h"

#include <CLI/CLI.hpp>

namespace baton::cli {

void AddAddress(CLI::App* app, std::string* address, RouterAccess* access) {
  app->add_option("--address", *address, "Address of the router, host:port")
      ->envname("BATON_ADDRESS");
  AddRouterAccess(app, access);
}

void AddSampling(CLI::App* app, client::Sampling* sampling) {
  app->add_option("--temperature", sampling->temperature, "0 to 2; 0: greedy");
  app->add_option("--top-p", sampling->top_p, "Above 0, at most 1; 1: no limit");
  app->add_option("--top-k", sampling->top_k,
                  "Number of most probable tokens to sample from; -1 or 0: no limit");
  app->add_option("--min-p", sampling->min_p,
                  "0 to 1, relative to the most probable token; 0: no limit");
  app->add_option("--repetition-penalty", sampling->repetition_penalty,
                  "Above 0, at most 2: for tokens in the prompt or the answer; 1: none");
  app->add_option("--frequency-penalty", sampling->frequency_penalty,
                  "-2 to 2: per occurrence of a token in the answer; 0: none");
  app->add_option("--presence-penalty", sampling->presence_penalty,
                  "-2 to 2: for tokens that occur in the answer; 0: none");
}

}  // namespace baton::cli
