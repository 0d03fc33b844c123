#include "common/base/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/base/exit_code.h"
#include "common/base/utf8.h"

namespace baton {
namespace {

constexpr size_t kMostCloseNames = 3;
constexpr size_t kMostNameBytes = 64;  // longer words are no name that was misspelled
constexpr size_t kLettersForASlip = 3;
constexpr size_t kMostSlips = 3;
constexpr size_t kFewestLettersOfABeginning = 3;
const std::function<bool(const CLI::App*)> kAll;  // a filter of commands

std::string Plain(absl::string_view name) {
  while (absl::ConsumePrefix(&name, "-")) continue;
  return absl::StrReplaceAll(absl::AsciiStrToLower(name), {{"_", "-"}});
}

// The fewest letters to insert, delete, replace or swap with their neighbour that make `b` of `a`,
// no letter more than once.
size_t Slips(absl::string_view a, absl::string_view b) {
  std::vector<size_t> before_last, last, row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    before_last = std::exchange(last, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

// A word of the command line as an error shows it.
std::string Shown(absl::string_view word) { return ClipToUtf8(word, kMostNameBytes); }

std::vector<std::string> FlagsOf(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  return flags;
}

std::vector<std::string> CommandsOf(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands(kAll)) names.push_back(command->get_name());
  return names;
}

// "; did you mean a, b or c?"
std::string DidYouMean(const std::vector<std::string>& names) {
  if (names.empty()) return "";
  const std::string all_but_last = absl::StrJoin(names.begin(), names.end() - 1, ", ");
  return absl::StrCat("; did you mean ", all_but_last, all_but_last.empty() ? "" : " or ",
                      names.back(), "?");
}

// A flag may be one of a command, and stand before its name.
std::string UnknownFlag(const CLI::App& app, const std::string& flag) {
  std::string line = absl::StrCat("unknown flag ", Shown(flag));
  for (const CLI::App* command : app.get_subcommands(kAll)) {
    const std::vector<std::string> flags = FlagsOf(*command);
    if (std::find(flags.begin(), flags.end(), flag) == flags.end()) continue;
    return absl::StrCat(line, " before the command: flags of a command come after its name");
  }
  return absl::StrCat(line, DidYouMean(CloseNames(flag, FlagsOf(app))));
}

std::string UnknownCommand(const CLI::App& app, const std::string& word) {
  const std::vector<std::string> commands = CommandsOf(app);
  const std::vector<std::string> close = CloseNames(word, commands);
  return absl::StrCat("unknown command \"", Shown(word), "\"",
                      close.empty() ? "; expected one of " + absl::StrJoin(commands, ", ") : "",
                      DidYouMean(close));
}

// What the command line has and neither `app` nor the commands that were given know; empty:
// nothing.
std::vector<std::string> Unknown(const CLI::App& app) {
  std::vector<std::string> lines;
  const std::vector<std::string> words = app.remaining();
  const std::vector<CLI::App*> given = app.get_subcommands();
  const auto is_flag = [](const std::string& word) {
    const bool number = word.size() > 1 && (absl::ascii_isdigit(word[1]) || word[1] == '.');
    return absl::StartsWith(word, "-") && word != "-" && word != "--" && !number;
  };
  // What follows a command belongs to it.
  if (given.empty() && !CommandsOf(app).empty() && !words.empty() && !is_flag(words.front())) {
    return {UnknownCommand(app, words.front())};
  }
  for (const std::string& word : words) {
    if (is_flag(word)) lines.push_back(UnknownFlag(app, word.substr(0, word.find('='))));
  }
  // Words behind an unknown flag may be its values.
  if (lines.empty() && !words.empty()) {
    lines.push_back(absl::StrCat("unexpected argument \"", Shown(words.front()), "\""));
  }
  for (const CLI::App* command : given) {
    for (std::string& line : Unknown(*command)) lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace

std::vector<std::string> CloseNames(absl::string_view name, absl::Span<const std::string> known) {
  const std::string written = Plain(name);
  if (written.empty() || written.size() > kMostNameBytes) return {};
  std::vector<std::pair<size_t, std::string>> close;
  for (const std::string& other : known) {
    const std::string plain = Plain(other);
    if (written.size() >= kFewestLettersOfABeginning && absl::StartsWith(plain, written)) {
      close.emplace_back(0, other);
      continue;
    }
    const size_t most = std::clamp<size_t>(
        std::min(written.size(), plain.size()) / kLettersForASlip, 1, kMostSlips);
    const size_t slips = Slips(written, plain);
    // One letter has nothing in common with another.
    if (slips <= most && slips < std::max(written.size(), plain.size())) {
      close.emplace_back(slips, other);
    }
  }
  std::sort(close.begin(), close.end());
  std::vector<std::string> names;
  for (auto& [slips, other] : close) {
    // Others are unlikely beside one that is much closer.
    if (names.size() < kMostCloseNames && slips <= close.front().first + 1) {
      names.push_back(std::move(other));
    }
  }
  return names;
}

int ReportParseError(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> unknown =
      error.get_exit_code() == 0 ? std::vector<std::string>() : Unknown(app);
  if (unknown.empty()) return ExitCodeOfParse(app.exit(error));
  return ExitCodeOfParse(
      app.exit(CLI::ExtrasError(absl::StrJoin(unknown, "\n"), CLI::ExitCodes::ExtrasError)));
}

}  // namespace baton
