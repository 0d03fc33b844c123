#include "cli/screen.h"

#include <langinfo.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdlib>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"

namespace baton::cli {
namespace {

// These are xterm's sequences, which all terminals of today understand.
constexpr char kEnter[] = "\x1b[?1049h\x1b[?25l";  // the alternate screen, no cursor
constexpr char kLeave[] = "\x1b[?25h\x1b[?1049l";
constexpr char kHome[] = "\x1b[H";
constexpr char kClearLine[] = "\x1b[K";
constexpr char kClearRest[] = "\x1b[J";

int OpenResizeFd() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGWINCH);
  BATON_CHECK_EQ(pthread_sigmask(SIG_BLOCK, &set, nullptr), 0);
  const int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  BATON_CHECK_GE(fd, 0) << "signalfd: errno " << errno;
  return fd;
}

}  // namespace

ScreenSize TerminalSize() {
  ScreenSize size;
  winsize window = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0 && window.ws_row > 0) {
    size = {window.ws_col, window.ws_row};
  } else if (const char* columns = std::getenv("COLUMNS"); columns != nullptr) {
    int given = 0;
    if (absl::SimpleAtoi(columns, &given) && given > 0 && given <= 10'000) size.columns = given;
  }
  return size;
}

bool LocaleIsUtf8() {
  std::setlocale(LC_CTYPE, "");
  return std::strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
}

bool ColorsWanted() {
  const char* no_color = std::getenv("NO_COLOR");
  return no_color == nullptr || *no_color == '\0';
}

ResizeSignal::ResizeSignal() : fd_(OpenResizeFd()) {}

ResizeSignal::~ResizeSignal() { close(fd_); }

void ResizeSignal::Take() {
  signalfd_siginfo taken;
  while (read(fd_, &taken, sizeof taken) == sizeof taken) {
  }
}

Screen::Screen(std::ostream& out) : out_(out) {
  termios settings;
  if (tcgetattr(STDIN_FILENO, &settings) == 0) {
    before_ = settings;
    settings.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    settings.c_cc[VMIN] = 1;
    settings.c_cc[VTIME] = 0;
    settings.c_cc[VSUSP] = _POSIX_VDISABLE;
    settings.c_cc[VQUIT] = _POSIX_VDISABLE;
    keys_ = tcsetattr(STDIN_FILENO, TCSANOW, &settings) == 0;
  }
  out_ << kEnter << std::flush;
}

Screen::~Screen() {
  out_ << kLeave << std::flush;
  // Keys that nothing has read are not for the shell.
  if (before_) (void)tcsetattr(STDIN_FILENO, TCSAFLUSH, &*before_);
}

void Screen::Draw(const std::vector<std::string>& lines) {
  const std::string end = std::string(kClearLine) + "\r\n";
  out_ << kHome << absl::StrJoin(lines, end) << kClearLine << kClearRest << std::flush;
}

std::optional<char> Screen::ReadKey() {
  char key = 0;
  const ssize_t count = read(STDIN_FILENO, &key, 1);
  if (count == 1) return key;
  if (count == 0 || errno != EINTR) keys_ = false;
  return std::nullopt;
}

}  // namespace baton::cli
