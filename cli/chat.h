// `baton chat`: a conversation with the model, on a terminal or from a script.
#ifndef BATON_CLI_CHAT_H_
#define BATON_CLI_CHAT_H_

#include <cstdint>
#include <ostream>
#include <string>

#include "cli/router_flags.h"
#include "client/cpp/client.h"

namespace baton::cli {

struct ChatOptions {
  std::string address = "127.0.0.1:50051";
  RouterAccess access;
  std::string system;               // the system prompt; empty: none
  client::GenerateRequest request;  // of each turn, without a prompt
  int64_t timeout_ms = 600'000;     // for each answer
};

// Reads lines from the standard input until it ends. On a terminal, with an editor and a history.
// Otherwise without prompts, and the first error ends it. Returns the exit code
// (common/base/exit_code.h). docs/cli.md has the commands.
int RunChat(const ChatOptions& options, std::ostream& out, std::ostream& err);

}  // namespace baton::cli

#endif  // BATON_CLI_CHAT_H_
