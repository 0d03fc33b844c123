// Lays a frame of `baton top` out as lines of text.
#ifndef BATON_CLI_TOP_VIEW_H_
#define BATON_CLI_TOP_VIEW_H_

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "baton/v1/admin.pb.h"
#include "cli/top_frame.h"

namespace baton::cli {

enum class Style { kPlain, kBold, kDim, kGreen, kYellow, kRed, kBlue, kMagenta, kCyan };
struct Span {
  Style style = Style::kPlain;
  std::string text;  // one column for each character
};
using TextLine = std::vector<Span>;

enum class TopOrder { kWorker, kQueue, kKv, kRate };

struct TopView {
  int width = 80;    // columns; lines are cut there. From 80 on, nothing is cut but long names
  int height = 0;    // rows at most; 0: no limit, and no line with the keys
  bool utf8 = true;  // else ASCII only
  TopOrder order = TopOrder::kWorker;
  v1::WorkerRole role =
      v1::WORKER_ROLE_UNSPECIFIED;  // the only one that is shown; unspecified: all
  std::string address;              // of the router
  absl::TimeZone zone;
};

// If the workers do not fit in `height`, the last line has the number of those that are missing.
// Text of workers is shown in printable ASCII characters, with '?' for others.
std::vector<TextLine> TopLines(const TopFrame& frame, const TopView& view);

// The line for a terminal, with escape sequences only if `color`.
std::string LineText(const TextLine& line, bool color);

}  // namespace baton::cli

#endif  // BATON_CLI_TOP_VIEW_H_
