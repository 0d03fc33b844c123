// The lines that a person types, or a script sends, to `baton chat`.
#ifndef BATON_CLI_LINE_READER_H_
#define BATON_CLI_LINE_READER_H_

#include <memory>
#include <string>

#include "common/base/shutdown_signal.h"

namespace baton::cli {

struct InputLine {
  enum class Kind {
    kText,
    kCancelled,  // Ctrl-C while it was typed
    kEnd,        // of the input
    kSignal,     // SIGINT or SIGTERM while it was awaited
  };
  Kind kind = Kind::kText;
  std::string text;  // without its newline
};

// One thread.
class LineReader {
 public:
  virtual ~LineReader() = default;
  virtual InputLine Read(const char* prompt) = 0;
};

// Reads a file or a pipe; shows no prompts. A line is cut at kMaxLineBytes.
inline constexpr size_t kMaxLineBytes = size_t{4} << 20;
// `fd` and `signals` must outlive the reader.
std::unique_ptr<LineReader> MakePipeReader(int fd, const ShutdownSignal& signals);

// Reads the terminal that is the standard input and output, with libedit's editor (~/.editrc
// counts) and a history, which is loaded from `history_file` and saved there after each line. An
// empty name means no file. `signals` must outlive the reader.
std::unique_ptr<LineReader> MakeTerminalReader(const std::string& history_file,
                                               const ShutdownSignal& signals);

// Several lines as one entry. A line that ends in a backslash continues on the next one. A line
// that begins with """ starts an entry that ends with the next """ at the end of a line; such an
// entry is literal: no command. The end of the input ends an entry, too.
struct Entry {
  InputLine line;
  bool literal = false;
};
Entry ReadEntry(LineReader& lines);

}  // namespace baton::cli

#endif  // BATON_CLI_LINE_READER_H_
