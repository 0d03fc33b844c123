// The conversation of `baton chat`: its turns, parameters and commands.
#ifndef BATON_CLI_CHAT_SESSION_H_
#define BATON_CLI_CHAT_SESSION_H_

#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cli/line_reader.h"
#include "client/cpp/client.h"

namespace baton::cli {

// One thread. Signals must be blocked (ShutdownSignal): during an answer, one cancels it.
class ChatSession {
 public:
  struct Io {
    LineReader& lines;
    std::ostream& out;
    std::ostream& err;
    // A person reads along: errors and cancelled answers do not end the session, control characters
    // in answers are shown as ^X, and a line of figures follows each answer.
    bool terminal = false;
  };

  // `client` and what `io` refers to must outlive it. `request` has the parameters of each turn.
  ChatSession(client::Client& client, client::GenerateRequest request, std::string system, Io io);

  // Until the input ends, /exit, or, without a terminal, an error. Returns the exit code.
  int Run();

 private:
  absl::Status Handle(const Entry& entry);
  absl::Status Send(const std::string& text);
  absl::Status Command(absl::string_view line);
  absl::Status Set(absl::string_view arguments);
  absl::Status Save(const std::string& file) const;
  absl::Status Load(const std::string& file);
  absl::Status ShowModel(absl::string_view name);
  std::vector<client::ChatMessage> Conversation() const;

  client::Client& client_;
  client::GenerateRequest request_;
  std::string system_;
  std::vector<client::ChatMessage> turns_;  // user and assistant in turn
  const Io io_;
  bool leaving_ = false;
};

// A conversation as OpenAI's field `messages`.
std::string ConversationJson(const std::vector<client::ChatMessage>& messages);
// INVALID_ARGUMENT if `json` is not an array of objects with the texts `role` and `content`.
absl::StatusOr<std::vector<client::ChatMessage>> ParseConversation(const std::string& json);

// The text without the control characters that a terminal would obey: ^X for X, none for CR.
std::string ForTerminal(absl::string_view text);

}  // namespace baton::cli

#endif  // BATON_CLI_CHAT_SESSION_H_
