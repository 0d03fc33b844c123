#include "cli/chat.h"

#include <unistd.h>

#include <clocale>
#include <cstdlib>
#include <memory>

#include "absl/strings/str_cat.h"
#include "cli/chat_session.h"
#include "cli/generate.h"
#include "cli/line_reader.h"
#include "common/base/exit_code.h"
#include "common/base/shutdown_signal.h"

namespace baton::cli {
namespace {

// As the XDG base directories have it; empty without a home.
std::string HistoryFile() {
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && state[0] == '/') return absl::StrCat(state, "/baton/chat_history");
  const char* home = std::getenv("HOME");
  if (home == nullptr || home[0] == '\0') return "";
  return absl::StrCat(home, "/.local/state/baton/chat_history");
}

}  // namespace

int RunChat(const ChatOptions& options, std::ostream& out, std::ostream& err) {
  const auto fail = [&err](const absl::Status& status) {
    err << "baton chat: " << Describe(status) << std::endl;
    return ExitCode(status);
  };
  client::ClientOptions client_options;
  client_options.timeout = absl::Milliseconds(options.timeout_ms);
  client_options.wait_for_ready = false;
  auto client = RouterClient(options.address, options.access, client_options);
  if (!client.ok()) return fail(client.status());
  const ShutdownSignal signals(BrokenPipe::kDefault);
  const bool terminal = isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
  std::unique_ptr<LineReader> lines;
  if (terminal) {
    // Before anything is typed: is there a router?
    const auto models = (*client)->ListModels();
    if (!models.ok()) return fail(models.status());
    if (!models->empty()) out << "Model " << models->front().id << ". ";
    out << "/help lists the commands, Ctrl-D leaves." << std::endl;
    std::setlocale(LC_CTYPE, "");  // for the editor
    lines = MakeTerminalReader(HistoryFile(), signals);
  } else {
    lines = MakePipeReader(STDIN_FILENO, signals);
  }
  return ChatSession(**client, options.request, options.system, {*lines, out, err, terminal}).Run();
}

}  // namespace baton::cli
