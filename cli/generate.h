// `baton generate`: one prompt, its answer on stdout.
#ifndef BATON_CLI_GENERATE_H_
#define BATON_CLI_GENERATE_H_

#include <ostream>
#include <string>

#include "client/cpp/client.h"

namespace baton::cli {

struct GenerateOptions {
  std::string address = "127.0.0.1:50051";
  client::GenerateRequest request;
  bool json = false;   // one JSON object at the end, nothing before it
  bool stream = true;  // text as it comes; otherwise, and that of several choices, at the end
  int64_t timeout_ms = 600'000;
};

// The exit code: 0 if the answer is complete, else 1 with the error and its reason on `err`. Ctrl-C
// cancels.
int RunGenerate(const GenerateOptions& options, std::ostream& out, std::ostream& err);

// What --json prints.
std::string ToJson(const client::Completion& completion);

// One line for people: code, message, reason, field, when to retry.
std::string Describe(const absl::Status& status);

}  // namespace baton::cli

#endif  // BATON_CLI_GENERATE_H_
