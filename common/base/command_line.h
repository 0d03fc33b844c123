// What every program says of a command line that CLI11 refuses: unknown flags and commands are
// named, each with the known names that are spelled much alike.
#ifndef BATON_COMMON_BASE_COMMAND_LINE_H_
#define BATON_COMMON_BASE_COMMAND_LINE_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace baton {

// Returns the `known` names that someone who wrote `name` may have meant, at most three, the
// likeliest first: those a few slips away (a letter that is missing, added, wrong or swapped with
// the next one; more slips in longer names), and those that begin with `name`. Case, leading
// dashes, and whether words are joined by "-" or "_" make no difference. Empty if nothing is close.
std::vector<std::string> CloseNames(absl::string_view name, absl::Span<const std::string> known);

// Prints `error`, with which app.parse() has failed, on stderr, or the help or version that was
// asked for on stdout; returns the exit code of the program. Where the command line has unknown
// flags or an unknown command, these are printed instead: another error, such as a required flag
// that is missing, may be their consequence.
int ReportParseError(const CLI::App& app, const CLI::ParseError& error);

}  // namespace baton

#endif  // BATON_COMMON_BASE_COMMAND_LINE_H_
