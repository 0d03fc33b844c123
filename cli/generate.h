// `baton generate`: sends one prompt and prints the answer on stdout.
#ifndef BATON_CLI_GENERATE_H_
#define BATON_CLI_GENERATE_H_

#include <ostream>
#include <string>

#include "cli/argument_names.h"
#include "cli/router_flags.h"
#include "client/cpp/client.h"

namespace baton::cli {

struct GenerateOptions {
  std::string address = "127.0.0.1:50051";
  RouterAccess access;
  client::GenerateRequest request;
  bool json = false;   // print one JSON object at the end instead of text
  bool stream = true;  // print text as it arrives; several choices are always printed at the end
  int64_t timeout_ms = 600'000;
};

// Returns the exit code (common/base/exit_code.h): 0 if the answer is complete, else the error and
// its reason are on `err`. Ctrl-C cancels the request.
int RunGenerate(const GenerateOptions& options, std::ostream& out, std::ostream& err);

// The output of --json.
std::string ToJson(const client::Completion& completion);

// One line with code, message, reason, retry time and request id. The message names what the user
// wrote for a field of the request, in this style.
std::string Describe(const absl::Status& status, ArgumentStyle style = ArgumentStyle::kFlag);

}  // namespace baton::cli

#endif  // BATON_CLI_GENERATE_H_
