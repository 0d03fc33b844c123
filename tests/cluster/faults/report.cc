#include "tests/cluster/faults/report.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"

namespace baton::testing {
namespace {

constexpr char kBegin[] = "<!-- fault table: written by fault_campaign -->";
constexpr char kEnd[] = "<!-- end of the fault table -->";
constexpr char kMachine[] = "Machine of the last run: ";
constexpr char kHead[] =
    "| row | fault (volume) | must hold | injected | requests | errors seen | wrong answers | "
    "blocks "
    "leaked | worst time to free | measured | result | run |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|\n";

// Bars would end the cell.
std::string Cell(const std::string& text) {
  return absl::StrReplaceAll(text, {{"|", "/"}, {"\n", " "}});
}

}  // namespace

std::string ToTableLine(const RowResult& r, const std::string& run) {
  const std::string free =
      r.worst_free > absl::ZeroDuration()
          ? absl::StrFormat("%.0f ms", absl::ToDoubleMilliseconds(r.worst_free))
          : "–";
  const std::string verdict =
      r.passed() ? "holds" : absl::StrCat("**does not hold**: ", absl::StrJoin(r.failures, "; "));
  const std::vector<std::string> cells = {absl::StrCat("`", r.name, "`"),
                                          absl::StrCat(r.fault, " (", r.volume, ")"),
                                          r.must_hold,
                                          absl::StrCat(r.count),
                                          absl::StrCat(r.requests),
                                          absl::StrCat(r.client_errors),
                                          absl::StrCat(r.wrong),
                                          absl::StrCat(r.leaked_blocks),
                                          free,
                                          r.MeasuredText(),
                                          verdict,
                                          run};
  std::string line = "|";
  for (const std::string& cell : cells) absl::StrAppend(&line, " ", Cell(cell), " |");
  return line;
}

std::string MachineDescription() {
  std::ifstream cpus("/proc/cpuinfo");
  std::string line, model = "unknown processor";
  while (std::getline(cpus, line)) {
    if (!absl::StartsWith(line, "model name")) continue;
    model = std::string(absl::StripAsciiWhitespace(line.substr(line.find(':') + 1)));
    break;
  }
  return absl::StrCat(std::thread::hardware_concurrency(), " cores of ", model,
                      ", all processes on loopback");
}

std::string Merged(const std::string& text, const std::vector<std::string>& order,
                   const std::vector<std::pair<std::string, std::string>>& lines,
                   const std::string& machine) {
  std::string before = text, after;
  std::map<std::string, std::string> by_name;
  const size_t begin = text.find(kBegin), end = text.find(kEnd);
  if (begin != std::string::npos && end != std::string::npos && begin < end) {
    before = text.substr(0, begin);
    after = text.substr(end + sizeof(kEnd) - 1);
    for (absl::string_view line : absl::StrSplit(text.substr(begin, end - begin), '\n')) {
      absl::string_view rest = line;
      if (!absl::ConsumePrefix(&rest, "| `")) continue;
      by_name[std::string(rest.substr(0, rest.find('`')))] = std::string(line);
    }
  }
  for (const auto& [name, line] : lines) by_name[name] = line;
  if (after.empty()) after.push_back('\n');
  std::string table = absl::StrCat(kBegin, "\n", kMachine, machine, ".\n\n", kHead);
  for (const std::string& name : order) {
    const auto found = by_name.find(name);
    if (found != by_name.end()) absl::StrAppend(&table, found->second, "\n");
  }
  return absl::StrCat(before, table, kEnd, after);
}

std::string RunText(const RowResult& result, const CampaignOptions& options, int pieces) {
  std::string text = absl::StrFormat("%s, scale %g, seed %d",
                                     absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone()),
                                     options.scale, options.seed);
  const int of = options.piece.of;
  if (pieces < of) {
    absl::StrAppend(&text, ", **", pieces, " of ", of, " pieces**");
  } else if (of > 1) {
    absl::StrAppend(&text, ", in ", of, " pieces");
  }
  const absl::Duration seconds = absl::Floor(result.wall, absl::Seconds(1));
  return absl::StrCat(text, ", ", absl::FormatDuration(seconds));
}

absl::Status MergeIntoReport(const std::string& path, const std::vector<Row>& all,
                             const RowResult& result, const std::string& run) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return absl::UnavailableError(absl::StrCat("cannot open ", path));
  flock(fd, LOCK_EX);  // until closed: others read what is written here
  std::string text;
  {
    std::ifstream file(path);
    std::ostringstream all_of_it;
    all_of_it << file.rdbuf();
    text = all_of_it.str();
  }
  std::vector<std::string> order;
  for (const Row& row : all) order.push_back(row.name);
  std::ofstream file(path, std::ios::trunc);
  file << Merged(text, order, {{result.name, ToTableLine(result, run)}}, MachineDescription());
  file.close();
  close(fd);
  if (!file) return absl::UnavailableError(absl::StrCat("cannot write ", path));
  return absl::OkStatus();
}

}  // namespace baton::testing
