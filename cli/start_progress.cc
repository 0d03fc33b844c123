#include "cli/start_progress.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace baton::cli {
namespace {

constexpr absl::Duration kBetweenLines = absl::Seconds(10);
constexpr int kBar = 20;
// What workers log at start (common/worker).
constexpr absl::string_view kLoading = "loading weights ", kServes = " serves ";

std::optional<int> PercentIn(absl::string_view line) {
  const size_t at = line.find(kLoading);
  if (at == absl::string_view::npos) return std::nullopt;
  const absl::string_view rest = line.substr(at + kLoading.size());
  int percent = 0;
  if (!absl::SimpleAtoi(rest.substr(0, rest.find(' ')), &percent)) return std::nullopt;
  return std::clamp(percent, 0, 100);
}

}  // namespace

StartProgress::StartProgress(std::ostream& out, std::optional<ScreenSize> terminal,
                             const Clock& clock)
    : out_(out), terminal_(terminal), clock_(clock) {}

void StartProgress::Begin(const std::vector<std::string>& workers) {
  Erase();
  for (const std::string& name : workers) starting_.push_back({name});
  Draw();
}

void StartProgress::Line(const std::string& name, const std::string& line) {
  const auto worker = std::find_if(starting_.begin(), starting_.end(),
                                   [&name](const Worker& one) { return one.name == name; });
  if (worker != starting_.end()) {
    if (const std::optional<int> percent = PercentIn(line)) {
      worker->percent = *percent;
      if (terminal_) {
        Erase();
        Draw();
        return;
      }
      if (clock_.SinceStart() < worker->next) return;
      worker->next = clock_.SinceStart() + kBetweenLines;
    } else if (absl::StrContains(line, kServes)) {
      Erase();
      starting_.erase(worker);
    }
  }
  Print(absl::StrCat("[", name, "] ", line));
}

void StartProgress::Print(absl::string_view line) {
  Erase();
  out_ << line << "\n";
  Draw();
  out_ << std::flush;
}

void StartProgress::End() {
  Erase();
  starting_.clear();
  out_ << std::flush;
}

void StartProgress::Erase() {
  if (drawn_ > 0) out_ << "\033[" << drawn_ << "A\r\033[J";
  drawn_ = 0;
}

// No more lines than can be erased: what has left the screen at its top stays.
void StartProgress::Draw() {
  if (!terminal_) return;
  const int count = static_cast<int>(starting_.size());
  const int most = std::max(terminal_->rows - 1, 1);
  const int shown = count <= most ? count : most - 1;
  for (int i = 0; i < shown; ++i) {
    // One column is left, where a cursor may wait without a new line.
    out_ << Text(starting_[i]).substr(0, std::max(terminal_->columns - 1, 0)) << "\n";
  }
  if (shown < count) out_ << "and " << count - shown << " more\n";
  drawn_ = shown + (shown < count ? 1 : 0);
  out_ << std::flush;
}

std::string StartProgress::Text(const Worker& worker) const {
  if (worker.percent < 0) return absl::StrFormat("%-12s starts", worker.name);
  if (worker.percent == 100) return absl::StrFormat("%-12s weights loaded", worker.name);
  const int filled = worker.percent * kBar / 100;
  return absl::StrFormat("%-12s loading weights [%s%s] %3d %%", worker.name,
                         std::string(filled, '='), std::string(kBar - filled, ' '), worker.percent);
}

}  // namespace baton::cli
