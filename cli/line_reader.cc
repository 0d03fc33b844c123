#include "cli/line_reader.h"

#include <histedit.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cwchar>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"

namespace baton::cli {
namespace {

constexpr char kPrompt[] = "> ";
constexpr char kMorePrompt[] = "... ";
constexpr char kQuotes[] = "\"\"\"";
constexpr wchar_t kCtrlC = 3;
constexpr int kHistoryLines = 1000;

// Waits until `fd` can be read; the number of a signal that comes first, else 0.
int AwaitInput(int fd, const ShutdownSignal& signals) {
  pollfd fds[] = {{fd, POLLIN, 0}, {signals.fd(), POLLIN, 0}};
  while (poll(fds, 2, -1) < 0) BATON_CHECK_EQ(errno, EINTR);
  signalfd_siginfo info;
  if (fds[1].revents == 0 || read(signals.fd(), &info, sizeof info) != sizeof info) return 0;
  return static_cast<int>(info.ssi_signo);
}

class PipeReader final : public LineReader {
 public:
  PipeReader(int fd, const ShutdownSignal& signals) : fd_(fd), signals_(signals) {}

  InputLine Read(const char*) override {
    while (true) {
      const size_t newline = buffer_.find('\n', searched_);
      if (newline != std::string::npos) return Take(newline, newline + 1);
      searched_ = buffer_.size();
      if (buffer_.size() >= kMaxLineBytes) return Take(kMaxLineBytes, kMaxLineBytes);
      if (AwaitInput(fd_, signals_) != 0) return {InputLine::Kind::kSignal, ""};
      char bytes[4096];
      const ssize_t count = read(fd_, bytes, sizeof bytes);
      if (count > 0) {
        buffer_.append(bytes, static_cast<size_t>(count));
      } else if (!buffer_.empty()) {
        return Take(buffer_.size(), buffer_.size());
      } else if (count == 0 || errno != EINTR) {
        return {InputLine::Kind::kEnd, ""};
      }
    }
  }

 private:
  InputLine Take(size_t size, size_t used) {
    InputLine line = {InputLine::Kind::kText, buffer_.substr(0, size)};
    buffer_.erase(0, used);
    searched_ = 0;
    return line;
  }

  const int fd_;
  const ShutdownSignal& signals_;
  std::string buffer_;
  size_t searched_ = 0;  // no newline before
};

class TerminalReader final : public LineReader {
 public:
  TerminalReader(std::string history_file, const ShutdownSignal& signals)
      : signals_(signals),
        history_file_(std::move(history_file)),
        editor_(el_init("baton", stdin, stdout, stderr)),
        history_(history_init()) {
    BATON_CHECK(editor_ != nullptr && history_ != nullptr) << "libedit does not start";
    HistEvent event;
    history(history_, &event, H_SETSIZE, kHistoryLines);
    history(history_, &event, H_SETUNIQUE, 1);
    if (!history_file_.empty()) history(history_, &event, H_LOAD, history_file_.c_str());
    el_set(editor_, EL_CLIENTDATA, this);
    el_set(editor_, EL_HIST, history, history_);
    el_set(editor_, EL_PROMPT, &TerminalReader::Prompt);
    el_set(editor_, EL_GETCFN, &TerminalReader::GetCharacter);
    el_set(editor_, EL_SIGNAL, 1);  // of those that are not blocked: Ctrl-Z, a resized window
    el_set(editor_, EL_EDITOR, "emacs");
    el_source(editor_, nullptr);
    // While a line is edited, Ctrl-C is a key.
    el_set(editor_, EL_SETTY, "-d", "intr=", nullptr);
    // During an answer, Ctrl-D is no key: the terminal would keep it as an end of file, which the
    // editor, in its own mode, would then read as a null byte.
    el_set(editor_, EL_SETTY, "-x", "eof=", nullptr);
    el_set(editor_, EL_ADDFN, "baton-cancel-line", "Drop the line", &TerminalReader::CancelLine);
    el_set(editor_, EL_BIND, "^C", "baton-cancel-line", nullptr);
  }
  ~TerminalReader() override {
    history_end(history_);
    el_end(editor_);
  }
  TerminalReader(const TerminalReader&) = delete;
  TerminalReader& operator=(const TerminalReader&) = delete;

  InputLine Read(const char* prompt) override {
    prompt_ = prompt;
    cancelled_ = false;
    // Before the prompt is shown: libedit does it after that, and the terminal itself would take a
    // Ctrl-D or Ctrl-C that is typed at once.
    el_set(editor_, EL_PREP_TERM, 1);
    int count = 0;
    const char* text = el_gets(editor_, &count);
    if (signalled_) return {InputLine::Kind::kSignal, ""};
    if (cancelled_) {
      std::fputs("^C\n", stdout);
      std::fflush(stdout);
      return {InputLine::Kind::kCancelled, ""};
    }
    if (text == nullptr || count <= 0) return {InputLine::Kind::kEnd, ""};
    InputLine line = {InputLine::Kind::kText,
                      std::string(absl::StripSuffix(absl::string_view(text, count), "\n"))};
    if (!line.text.empty()) Remember(text);
    return line;
  }

 private:
  static TerminalReader& Of(EditLine* editor) {
    void* reader = nullptr;
    el_get(editor, EL_CLIENTDATA, &reader);
    return *static_cast<TerminalReader*>(reader);
  }
  static char* Prompt(EditLine* editor) { return const_cast<char*>(Of(editor).prompt_); }
  static unsigned char CancelLine(EditLine* editor, int) {
    Of(editor).cancelled_ = true;
    return CC_NEWLINE;
  }
  // libedit's reads one, too, but would not see a signal.
  static int GetCharacter(EditLine* editor, wchar_t* character) {
    TerminalReader& reader = Of(editor);
    std::mbstate_t state = {};
    while (true) {
      const int signal = AwaitInput(STDIN_FILENO, reader.signals_);
      if (signal == SIGINT) {  // Ctrl-C before the editor has set up the terminal
        *character = kCtrlC;
        return 1;
      }
      if (signal != 0) {
        reader.signalled_ = true;
        return 0;
      }
      char byte = 0;
      if (read(STDIN_FILENO, &byte, 1) != 1) return 0;
      const size_t used = std::mbrtowc(character, &byte, 1, &state);
      if (used == static_cast<size_t>(-1)) state = {};  // a byte of no character: dropped
      if (used <= 1) return 1;
    }
  }

  void Remember(const char* line) {
    HistEvent event;
    history(history_, &event, H_ENTER, line);
    if (!history_file_.empty()) history(history_, &event, H_SAVE, history_file_.c_str());
  }

  const ShutdownSignal& signals_;
  const std::string history_file_;
  EditLine* const editor_;
  History* const history_;
  const char* prompt_ = "";
  bool cancelled_ = false;
  bool signalled_ = false;
};

// Adds the lines up to the one that ends the entry.
void ReadQuoted(LineReader& lines, Entry* entry) {
  std::string text = std::move(entry->line.text).substr(sizeof kQuotes - 1);
  while (!absl::EndsWith(text, kQuotes)) {
    InputLine more = lines.Read(kMorePrompt);
    if (more.kind == InputLine::Kind::kEnd) break;
    if (more.kind != InputLine::Kind::kText) {
      entry->line = std::move(more);
      return;
    }
    text += (text.empty() ? "" : "\n") + more.text;
  }
  entry->line.text = std::string(absl::StripSuffix(absl::StripSuffix(text, kQuotes), "\n"));
  entry->literal = true;
}

}  // namespace

std::unique_ptr<LineReader> MakePipeReader(int fd, const ShutdownSignal& signals) {
  return std::make_unique<PipeReader>(fd, signals);
}

std::unique_ptr<LineReader> MakeTerminalReader(const std::string& history_file,
                                               const ShutdownSignal& signals) {
  if (!history_file.empty()) {
    std::error_code ignored;  // then there is no history
    std::filesystem::create_directories(std::filesystem::path(history_file).parent_path(), ignored);
  }
  return std::make_unique<TerminalReader>(history_file, signals);
}

Entry ReadEntry(LineReader& lines) {
  Entry entry = {lines.Read(kPrompt)};
  if (entry.line.kind != InputLine::Kind::kText) return entry;
  if (absl::StartsWith(entry.line.text, kQuotes)) {
    ReadQuoted(lines, &entry);
    return entry;
  }
  while (absl::EndsWith(entry.line.text, "\\")) {
    entry.line.text.back() = '\n';
    InputLine more = lines.Read(kMorePrompt);
    if (more.kind == InputLine::Kind::kEnd) break;
    if (more.kind != InputLine::Kind::kText) return {std::move(more)};
    entry.line.text += more.text;
  }
  return entry;
}

}  // namespace baton::cli
