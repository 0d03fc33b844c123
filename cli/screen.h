// The terminal of a program that fills it, as `baton top` does: the alternate screen, single keys,
// the size, and what may be written to it.
#ifndef BATON_CLI_SCREEN_H_
#define BATON_CLI_SCREEN_H_

#include <termios.h>

#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace baton::cli {

struct ScreenSize {
  int columns = 80;
  int rows = 24;
};
// The size of the terminal that is the standard output; otherwise $COLUMNS, and the default.
ScreenSize TerminalSize();

// Whether the locale of LC_CTYPE, which this takes from the environment, has UTF-8.
bool LocaleIsUtf8();
// Whether output to the terminal may have colours: NO_COLOR is unset or empty.
bool ColorsWanted();

// Changes of the terminal's size. One thread.
class ResizeSignal {
 public:
  // Blocks SIGWINCH in this thread and in those that it starts later: construct it before any.
  ResizeSignal();
  ~ResizeSignal();
  ResizeSignal(const ResizeSignal&) = delete;
  ResizeSignal& operator=(const ResizeSignal&) = delete;

  // For poll(): readable when the size has changed since the last Take().
  int fd() const { return fd_; }
  void Take();

 private:
  const int fd_;
};

// While it lives, the terminal shows the alternate screen without a cursor, and keys are read
// singly and without an echo. The keys that suspend a process or dump its core are off, because
// either would leave the terminal as it is. One thread, one at a time.
class Screen {
 public:
  // `out` is the standard output, a terminal. Without a terminal as the standard input there are no
  // keys.
  explicit Screen(std::ostream& out);
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  // Replaces what is shown. No line is longer than the screen, nor are there more lines than rows.
  void Draw(const std::vector<std::string>& lines);

  // For poll(): readable when a key was pressed; -1 without keys.
  int keys_fd() const { return keys_ ? 0 : -1; }
  // A key that was pressed; absent at the end of the input, after which there are no keys.
  std::optional<char> ReadKey();

 private:
  std::ostream& out_;
  bool keys_ = false;
  std::optional<termios> before_;  // the settings to restore
};

}  // namespace baton::cli

#endif  // BATON_CLI_SCREEN_H_
