#include "cli/top_view.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/admin.h"
#include "cli/generate.h"

namespace baton::cli {
namespace {

constexpr int kLeastWorker = 21;  // columns of an address with an IPv4 host
constexpr int kLeastBar = 12;

std::string TopPrintable(absl::string_view text) {
  std::string shown(text);
  for (char& c : shown) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  }
  return shown;
}

// At most five columns.
std::string Count(double value) {
  if (!std::isfinite(value) || value < 0) return "-";
  if (value < 9.95 && value != std::floor(value)) return absl::StrFormat("%.1f", value);
  if (value < 99'999.5) return absl::StrFormat("%.0f", value);
  for (const char unit : {'k', 'M', 'G'}) {
    value /= 1000;
    if (value < 99.95) return absl::StrFormat("%.1f%c", value, unit);
    if (value < 9'999.5) return absl::StrFormat("%.0f%c", value, unit);
  }
  return absl::StrFormat("%.0fT", std::min(value / 1000, 9'999.0));
}
std::string Count(const std::optional<double>& value) { return value ? Count(*value) : "-"; }

// Three digits, at most seven columns below 10,000 s.
std::string Seconds(const std::optional<double>& seconds) {
  if (!seconds || !std::isfinite(*seconds) || *seconds < 0) return "-";
  const bool ms = *seconds < 0.9995;
  const double value = ms ? *seconds * 1000 : *seconds;
  const int digits = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return absl::StrFormat("%.*f %s", digits, value, ms ? "ms" : "s");
}

std::string Percent(double share) { return absl::StrFormat("%.0f%%", 100 * share); }

std::string Left(std::string text, int width) {
  const auto columns = static_cast<size_t>(width);
  const bool too_long = text.size() > columns;
  text.resize(columns, ' ');
  if (too_long) text.back() = '~';
  return text;
}
// An address that is too long loses its middle: the port distinguishes workers of one host.
std::string Address(const std::string& address, int width) {
  constexpr size_t kTail = 6;
  std::string text = TopPrintable(address);
  const auto columns = static_cast<size_t>(width);
  if (text.size() > columns) {
    text = absl::StrCat(text.substr(0, columns - kTail - 1), "~", text.substr(text.size() - kTail));
  }
  return Left(std::move(text), width);
}
std::string Right(const std::string& text, int width) {
  return absl::StrCat(std::string(std::max(0, width - static_cast<int>(text.size())), ' '), text);
}

Style StyleOf(v1::WorkerState state) {
  switch (state) {
    case v1::WORKER_STATE_READY:
      return Style::kGreen;
    case v1::WORKER_STATE_DRAINING:
    case v1::WORKER_STATE_DRAINED:
    case v1::WORKER_STATE_CONNECTING:
      return Style::kYellow;
    default:
      return Style::kRed;
  }
}

// The states of KV blocks in the order of the bar.
struct BlockState {
  const char* name;
  const char* utf8;
  const char* ascii;
  Style style;
};
constexpr BlockState kBlockStates[] = {{"active", "█", "#", Style::kBlue},
                                       {"held", "▓", "+", Style::kMagenta},
                                       {"cached", "▒", "-", Style::kCyan},
                                       {"free", "░", ".", Style::kDim}};
constexpr int kStates = std::size(kBlockStates);
using Blocks = std::array<int64_t, kStates>;

Blocks BlocksOf(const v1::WorkerLoad& load) {
  return {std::max(0, load.active_blocks()), std::max(0, load.held_blocks()),
          std::max(0, load.cached_blocks()), std::max(0, load.free_blocks())};
}
int64_t TotalOf(const Blocks& blocks) { return blocks[0] + blocks[1] + blocks[2] + blocks[3]; }
double UsedShare(const Blocks& blocks) {
  const int64_t total = TotalOf(blocks);
  return total == 0 ? 0 : static_cast<double>(blocks[0] + blocks[1]) / static_cast<double>(total);
}

// The columns of each state, `width` together. A state with any block has one at least.
std::array<int, kStates> BarColumns(const Blocks& blocks, int width) {
  std::array<int, kStates> columns{};
  const auto total = static_cast<double>(TotalOf(blocks));
  int sum = 0;
  for (int i = 0; i < kStates; ++i) {
    if (blocks[i] == 0) continue;
    columns[i] =
        std::max(1, static_cast<int>(std::lround(static_cast<double>(blocks[i]) * width / total)));
    sum += columns[i];
  }
  *std::max_element(columns.begin(), columns.end()) += width - sum;
  return columns;
}

void AddBar(const Blocks& blocks, int width, bool utf8, TextLine* line) {
  if (TotalOf(blocks) == 0) {
    line->push_back({Style::kPlain, std::string(static_cast<size_t>(width), ' ')});
    return;
  }
  const std::array<int, kStates> columns = BarColumns(blocks, width);
  for (int i = 0; i < kStates; ++i) {
    Span span = {kBlockStates[i].style, ""};
    for (int n = 0; n < columns[i]; ++n) {
      span.text += utf8 ? kBlockStates[i].utf8 : kBlockStates[i].ascii;
    }
    if (columns[i] > 0) line->push_back(std::move(span));
  }
}

// --- The table of workers.

struct Column {
  const char* name;
  int width;
  std::string (*text)(const TopFrame::Worker& worker);
};
constexpr Column kColumns[] = {
    {"USED", 4, [](const TopFrame::Worker& w) { return Percent(UsedShare(BlocksOf(w.load))); }},
    {"RUN", 4, [](const TopFrame::Worker& w) { return Count(w.load.running()); }},
    {"QUE", 4, [](const TopFrame::Worker& w) { return Count(w.load.queued()); }},
    {"Q.TOK", 5,
     [](const TopFrame::Worker& w) { return Count(static_cast<double>(w.load.queued_tokens())); }},
    {"TOK/S", 5,
     [](const TopFrame::Worker& w) {
       if (!w.prefill_tokens_per_s && !w.decode_tokens_per_s) return std::string("-");
       return Count(w.prefill_tokens_per_s.value_or(0) + w.decode_tokens_per_s.value_or(0));
     }},
    // From here on, only if there is room.
    {"XFER", 4, [](const TopFrame::Worker& w) { return Count(w.load.open_transfers()); }},
    {"CTX", 5,
     [](const TopFrame::Worker& w) { return Count(static_cast<double>(w.load.context_tokens())); }},
    {"WORK", 7,
     [](const TopFrame::Worker& w) { return Seconds(w.load.remaining_work_ms() / 1000); }},
    {"AGE", 7, [](const TopFrame::Worker& w) { return Seconds(w.load.age_ms() / 1000); }},
    {"SPEC", 4,
     [](const TopFrame::Worker& w) {
       return w.accepted_draft_share ? Percent(*w.accepted_draft_share) : std::string();
     }},
    {"ID", 16, [](const TopFrame::Worker& w) { return TopPrintable(w.load.worker_id()); }},
};
constexpr int kNarrowColumns = 5;

struct Layout {
  int worker = kLeastWorker;
  int bar = kLeastBar;
  int columns = kNarrowColumns;  // the first ones of kColumns
};

// At 80 columns, the least of each.
Layout LayoutFor(const std::vector<TopFrame::Worker>& workers, int width) {
  Layout layout;
  int left = std::max(0, width - 80);
  while (layout.columns < static_cast<int>(std::size(kColumns)) &&
         kColumns[layout.columns].width + 1 <= left) {
    left -= kColumns[layout.columns++].width + 1;
  }
  int longest = 0;
  for (const TopFrame::Worker& worker : workers) {
    longest =
        std::max(longest, static_cast<int>(std::min<size_t>(worker.load.address().size(), 255)));
  }
  const int more = std::clamp(longest - layout.worker, 0, left);
  layout.worker += more;
  layout.bar += left - more;
  return layout;
}

TextLine TableHead(const Layout& layout) {
  std::string text = absl::StrCat(Left("ROLE", 8), Left("WORKER", layout.worker), " ",
                                  Left("STATE", 11), Left("KV", layout.bar));
  for (int i = 0; i < layout.columns; ++i) {
    absl::StrAppend(&text, " ", Right(kColumns[i].name, kColumns[i].width));
  }
  return {{Style::kBold, text}};
}

TextLine WorkerLine(const TopFrame::Worker& worker, const Layout& layout, bool utf8) {
  const v1::WorkerLoad& load = worker.load;
  const std::string state = absl::AsciiStrToUpper(Short(load.state()));
  TextLine line = {{Style::kPlain, absl::StrCat(Left(Short(load.role()), 8),
                                                Address(load.address(), layout.worker), " ")},
                   {StyleOf(load.state()), Left(state, 10)},
                   {Style::kPlain, " "}};
  AddBar(load.has_age_ms() ? BlocksOf(load) : Blocks{}, layout.bar, utf8, &line);
  std::string rest;
  for (int i = 0; i < layout.columns; ++i) {
    const Column& column = kColumns[i];
    const std::string text = load.has_age_ms() ? column.text(worker) : "-";
    absl::StrAppend(&rest, " ",
                    static_cast<int>(text.size()) > column.width ? Left(text, column.width)
                                                                 : Right(text, column.width));
  }
  absl::StripTrailingAsciiWhitespace(&rest);  // the last cell may be empty
  line.push_back({Style::kPlain, std::move(rest)});
  return line;
}

std::vector<TopFrame::Worker> Sorted(const TopFrame& frame, const TopView& view) {
  std::vector<TopFrame::Worker> workers;
  for (const TopFrame::Worker& worker : frame.workers) {
    if (view.role == v1::WORKER_ROLE_UNSPECIFIED || worker.load.role() == view.role) {
      workers.push_back(worker);
    }
  }
  const auto key = [&view](const TopFrame::Worker& worker) -> double {
    switch (view.order) {
      case TopOrder::kWorker:
        return 0;
      case TopOrder::kQueue:
        return static_cast<double>(worker.load.queued_tokens());
      case TopOrder::kKv:
        return UsedShare(BlocksOf(worker.load));
      case TopOrder::kRate:
        return worker.prefill_tokens_per_s.value_or(0) + worker.decode_tokens_per_s.value_or(0);
    }
    return 0;
  };
  std::sort(workers.begin(), workers.end(), [&key](const auto& a, const auto& b) {
    return std::tuple(-key(a), a.load.role(), std::string_view(a.load.address())) <
           std::tuple(-key(b), b.load.role(), std::string_view(b.load.address()));
  });
  return workers;
}

// --- The lines above it.

constexpr int kLabel = 11;

std::string StatesText(const std::vector<TopFrame::Worker>& workers) {
  std::map<v1::WorkerState, int> counts;
  for (const TopFrame::Worker& worker : workers) ++counts[worker.load.state()];
  std::vector<std::string> parts;
  for (const auto& [state, count] : counts) parts.push_back(absl::StrCat(count, " ", Short(state)));
  return absl::StrCat(workers.size(), workers.size() == 1 ? " worker" : " workers",
                      parts.empty() ? "" : ": ", absl::StrJoin(parts, ", "));
}

TextLine TitleLine(const TopFrame& frame, const TopView& view) {
  const std::string time = absl::FormatTime("%H:%M:%S", frame.time, view.zone);
  const int width = std::max(view.width, 80) - static_cast<int>(time.size());
  return {
      {Style::kBold, Left("baton top", kLabel)},
      {Style::kPlain,
       absl::StrCat(Left(absl::StrCat(TopPrintable(view.address), "  ", StatesText(frame.workers)),
                         width - kLabel - 1),
                    " ", time)}};
}

TextLine LatencyLine(const std::string& name, const TopFrame::Percentiles& values) {
  return {{Style::kBold, Left(name, kLabel)},
          {Style::kPlain, absl::StrFormat("p50 %-9s p95 %-9s p99 %s", Seconds(values.p50),
                                          Seconds(values.p95), Seconds(values.p99))}};
}

TextLine KvLine(const std::vector<TopFrame::Worker>& workers, bool utf8) {
  Blocks blocks{};
  for (const TopFrame::Worker& worker : workers) {
    const Blocks more = BlocksOf(worker.load);
    for (int i = 0; i < kStates; ++i) blocks[i] += more[i];
  }
  TextLine line = {{Style::kBold, Left("KV blocks", kLabel)}};
  for (int i = 0; i < kStates; ++i) {
    const BlockState& state = kBlockStates[i];
    line.push_back({state.style, utf8 ? state.utf8 : state.ascii});
    line.push_back({Style::kPlain, absl::StrFormat(" %s %-7s", state.name,
                                                   Count(static_cast<double>(blocks[i])))});
  }
  line.push_back({Style::kPlain, absl::StrCat("of ", Count(static_cast<double>(TotalOf(blocks))))});
  return line;
}

std::vector<TextLine> HeadLines(const TopFrame& frame, const TopView& view) {
  std::vector<TextLine> lines = {TitleLine(frame, view)};
  if (!frame.status.ok()) {
    lines.push_back(
        {{Style::kRed, TopPrintable(absl::StrFormat(
                           "No answer from the router, figures are %.0f s old: %s",
                           absl::ToDoubleSeconds(frame.age), Describe(frame.status)))}});
  }
  const v1::RouterLoad& router = frame.router;
  lines.push_back(
      {{Style::kBold, Left("Requests", kLabel)},
       {Style::kPlain,
        absl::StrFormat("%d/%d in flight, %d before first token, ended %s/s, refused %s/s",
                        router.requests(), router.max_requests(),
                        router.requests_before_first_token(), Count(frame.requests_per_s),
                        Count(frame.refused_per_s))}});
  lines.push_back(
      {{Style::kBold, Left("Tokens/s", kLabel)},
       {Style::kPlain,
        absl::StrFormat("prefill %-9s decode %-9s prefix cache hits %s",
                        Count(frame.prefill_tokens_per_s), Count(frame.decode_tokens_per_s),
                        frame.cached_prompt_share ? Percent(*frame.cached_prompt_share) : "-")}});
  lines.push_back(LatencyLine("TTFT", frame.time_to_first_token));
  lines.push_back(LatencyLine("ITL", frame.inter_token_latency));
  lines.push_back(KvLine(frame.workers, view.utf8));
  lines.emplace_back();
  return lines;
}

const char* OrderText(TopOrder order) {
  switch (order) {
    case TopOrder::kWorker:
      return "worker";
    case TopOrder::kQueue:
      return "queued tokens";
    case TopOrder::kKv:
      return "KV used";
    case TopOrder::kRate:
      return "tokens/s";
  }
  return "";
}

// Cuts the line, whose characters have one column each.
void Cut(int width, TextLine* line) {
  int left = width;
  for (Span& span : *line) {
    size_t end = 0;
    while (end < span.text.size()) {
      const bool begins = (static_cast<unsigned char>(span.text[end]) & 0xC0) != 0x80;
      if (begins && left == 0) break;
      left -= begins ? 1 : 0;
      ++end;
    }
    span.text.resize(end);
  }
}

}  // namespace

std::vector<TextLine> TopLines(const TopFrame& frame, const TopView& view) {
  std::vector<TextLine> lines = HeadLines(frame, view);
  const std::vector<TopFrame::Worker> workers = Sorted(frame, view);
  const Layout layout = LayoutFor(workers, view.width);
  const std::string role = view.role == v1::WORKER_ROLE_UNSPECIFIED ? "" : Short(view.role) + " ";
  lines.push_back(TableHead(layout));
  if (workers.empty()) {
    lines.push_back({{Style::kPlain, absl::StrCat("The router knows no ", role, "worker.")}});
  }
  size_t shown = workers.size();
  if (view.height > 0) {
    const int room = view.height - static_cast<int>(lines.size()) - 1;
    shown = std::min(shown, static_cast<size_t>(std::max(0, room)));
  }
  for (size_t i = 0; i < shown; ++i) lines.push_back(WorkerLine(workers[i], layout, view.utf8));
  if (view.height > 0) {
    TextLine keys;
    if (shown < workers.size()) {
      keys.push_back({Style::kBold,
                      absl::StrCat(workers.size() - shown, " more ", role, "workers not shown  ")});
    }
    keys.push_back({Style::kDim, absl::StrCat("q quit  s sort: ", OrderText(view.order),
                                              "  r role: ", role.empty() ? "all" : role)});
    lines.push_back(std::move(keys));
    if (static_cast<int>(lines.size()) > view.height) lines.resize(view.height);
  }
  for (TextLine& line : lines) Cut(std::max(1, view.width), &line);
  return lines;
}

std::string LineText(const TextLine& line, bool color) {
  static constexpr const char* kCodes[] = {"", "1", "2", "32", "33", "31", "34", "35", "36"};
  std::string text;
  for (const Span& span : line) {
    const char* code = kCodes[static_cast<int>(span.style)];
    if (color && *code != '\0' && !span.text.empty()) {
      absl::StrAppend(&text, "\x1b[", code, "m", span.text, "\x1b[0m");
    } else {
      text += span.text;
    }
  }
  if (!color) absl::StripTrailingAsciiWhitespace(&text);
  return text;
}

}  // namespace baton::cli
