#include "cli/top_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "tests/cli/top_frames.h"

namespace baton::cli {
namespace {

using ::baton::testing::LoadOf;
using ::baton::testing::WorkerWish;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TopFrame FrameOf(const std::vector<WorkerWish>& workers) {
  TopFrame frame;
  frame.time = absl::FromUnixSeconds(3 * 3600 + 25 * 60 + 45);
  frame.between = absl::Seconds(2);
  for (const WorkerWish& worker : workers) {
    TopFrame::Worker& added = frame.workers.emplace_back();
    added.load = LoadOf(worker);
    if (worker.role == v1::WORKER_ROLE_PREFILL) added.prefill_tokens_per_s = worker.computed;
    if (worker.role == v1::WORKER_ROLE_DECODE) added.decode_tokens_per_s = worker.generated;
    if (worker.drafted > 0) {
      added.accepted_draft_share =
          static_cast<double>(worker.accepted) / static_cast<double>(worker.drafted);
    }
  }
  frame.router.set_requests(12);
  frame.router.set_max_requests(256);
  frame.router.set_requests_before_first_token(3);
  frame.prefill_tokens_per_s = 12'345.6;
  frame.decode_tokens_per_s = 321.4;
  frame.requests_per_s = 4.5;
  frame.refused_per_s = 0;
  frame.cached_prompt_share = 0.625;
  frame.time_to_first_token = {0.0123, 0.0456, 1.234};
  frame.inter_token_latency = {0.00812, 0.0123, std::nullopt};
  return frame;
}

TopFrame Busy() {
  return FrameOf({
      {.role = v1::WORKER_ROLE_DECODE,
       .address = "10.0.0.3:50053",
       .active = 60,
       .held = 1,
       .cached = 20,
       .free = 19,
       .running = 32,
       .queued = 4,
       .queued_tokens = 2048,
       .generated = 321,
       .drafted = 300,
       .accepted = 219},
      {.role = v1::WORKER_ROLE_PREFILL,
       .address = "10.0.0.1:50052",
       .active = 10,
       .cached = 90,
       .free = 0,
       .running = 2,
       .queued = 31,
       .queued_tokens = 123'456,
       .computed = 12'346},
      {.role = v1::WORKER_ROLE_PREFILL,
       .address = "10.0.0.2:50052",
       .state = v1::WORKER_STATE_SUSPECT},
      {.role = v1::WORKER_ROLE_DECODE,
       .address = "decode-17.workers.example.com:50053",
       .state = v1::WORKER_STATE_DRAINING,
       .active = 100,
       .free = 0,
       .running = 100},
  });
}

TopView ViewOf(int width, int height = 0) {
  TopView view;
  view.width = width;
  view.height = height;
  view.address = "127.0.0.1:50051";
  view.zone = absl::UTCTimeZone();
  return view;
}

std::string TextOf(const TopFrame& frame, const TopView& view, bool color = false) {
  std::string text;
  for (const TextLine& line : TopLines(frame, view))
    absl::StrAppend(&text, LineText(line, color), "\n");
  return text;
}

int Columns(const std::string& line) {
  return static_cast<int>(
      std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

TEST(TopViewTest, EightyColumns) {
  EXPECT_EQ("\n" + TextOf(Busy(), ViewOf(80)), R"(
baton top  127.0.0.1:50051  4 workers: 2 ready, 1 suspect, 1 draining   03:25:45
Requests   12/256 in flight, 3 before first token, ended 4.5/s, refused 0/s
Tokens/s   prefill 12346     decode 321       prefix cache hits 62%
TTFT       p50 12.3 ms   p95 45.6 ms   p99 1.23 s
ITL        p50 8.12 ms   p95 12.3 ms   p99 -
KV blocks  █ active 170    ▓ held 1      ▒ cached 110    ░ free 119    of 400

ROLE    WORKER                STATE      KV           USED  RUN  QUE Q.TOK TOK/S
prefill 10.0.0.1:50052        READY      █▒▒▒▒▒▒▒▒▒▒▒  10%    2   31  123k 12346
prefill 10.0.0.2:50052        SUSPECT    ░░░░░░░░░░░░   0%    0    0     0     0
decode  10.0.0.3:50053        READY      ███████▓▒▒░░  61%   32    4  2048   321
decode  decode-17.work~:50053 DRAINING   ████████████ 100%  100    0     0     0
)");
}

TEST(TopViewTest, AHundredAndTwentyColumnsInAscii) {
  TopView view = ViewOf(120);
  view.utf8 = false;
  EXPECT_EQ("\n" + TextOf(Busy(), view), R"(
baton top  127.0.0.1:50051  4 workers: 2 ready, 1 suspect, 1 draining                                           03:25:45
Requests   12/256 in flight, 3 before first token, ended 4.5/s, refused 0/s
Tokens/s   prefill 12346     decode 321       prefix cache hits 62%
TTFT       p50 12.3 ms   p95 45.6 ms   p99 1.23 s
ITL        p50 8.12 ms   p95 12.3 ms   p99 -
KV blocks  # active 170    + held 1      - cached 110    . free 119    of 400

ROLE    WORKER                        STATE      KV           USED  RUN  QUE Q.TOK TOK/S XFER   CTX    WORK     AGE SPEC
prefill 10.0.0.1:50052                READY      #-----------  10%    2   31  123k 12346    0   200  61.7 s 40.0 ms
prefill 10.0.0.2:50052                SUSPECT    ............   0%    0    0     0     0    0     0 0.00 ms 40.0 ms
decode  10.0.0.3:50053                READY      #######+--..  61%   32    4  2048   321    0  3200  1.02 s 40.0 ms  73%
decode  decode-17.workers.exam~:50053 DRAINING   ############ 100%  100    0     0     0    0 10000 0.00 ms 40.0 ms
)");
}

TEST(TopViewTest, NoWorkersAndNothingMeasured) {
  EXPECT_EQ("\n" + TextOf(TopFrame(), ViewOf(80)), R"(
baton top  127.0.0.1:50051  0 workers                                   00:00:00
Requests   0/0 in flight, 0 before first token, ended -/s, refused -/s
Tokens/s   prefill -         decode -         prefix cache hits -
TTFT       p50 -         p95 -         p99 -
ITL        p50 -         p95 -         p99 -
KV blocks  █ active 0      ▓ held 0      ▒ cached 0      ░ free 0      of 0

ROLE    WORKER                STATE      KV           USED  RUN  QUE Q.TOK TOK/S
The router knows no worker.
)");
  TopView view = ViewOf(80);
  view.role = v1::WORKER_ROLE_PREFILL;
  EXPECT_THAT(TextOf(FrameOf({WorkerWish()}), view), HasSubstr("knows no prefill worker."));
}

TEST(TopViewTest, NoLineIsWiderThanTheScreenNorAreThereMoreThanItsRows) {
  TopFrame frame = Busy();
  frame.status = absl::UnavailableError(std::string(300, 'x'));
  for (const int width : {1, 2, 40, 79, 80, 81, 99, 100, 120, 137, 138, 200, 1000}) {
    for (const int height : {1, 5, 9, 10, 11, 12, 13, 14, 50}) {
      for (const bool utf8 : {false, true}) {
        TopView view = ViewOf(width, height);
        view.utf8 = utf8;
        const std::vector<TextLine> lines = TopLines(frame, view);
        EXPECT_LE(static_cast<int>(lines.size()), height);
        for (const TextLine& line : lines) EXPECT_LE(Columns(LineText(line, false)), width);
      }
    }
  }
}

TEST(TopViewTest, TheLastRowSaysHowManyWorkersAreNotShown) {
  std::vector<WorkerWish> workers;
  for (int i = 0; i < 64; ++i)
    workers.push_back({.address = absl::StrCat("10.0.0.", 100 + i, ":1")});
  TopView view = ViewOf(80, 24);
  const std::vector<TextLine> lines = TopLines(FrameOf(workers), view);
  ASSERT_EQ(lines.size(), 24u);
  EXPECT_THAT(LineText(lines[22], false), HasSubstr("10.0.0.114:1"));
  EXPECT_EQ(LineText(lines[23], false),
            "49 more workers not shown  q quit  s sort: worker  r role: all");
  view.height = 9 + 64;
  EXPECT_THAT(TextOf(FrameOf(workers), view),
              AllOf(HasSubstr("10.0.0.163:1"), Not(HasSubstr("not shown"))));
  EXPECT_THAT(TextOf(FrameOf(workers), ViewOf(80)),
              AllOf(HasSubstr("10.0.0.163:1"), Not(HasSubstr("quit"))));
}

TEST(TopViewTest, SortsAndFilters) {
  const auto order = [](TopOrder by, v1::WorkerRole role = v1::WORKER_ROLE_UNSPECIFIED) {
    TopView view = ViewOf(80, 24);
    view.order = by;
    view.role = role;
    std::vector<std::string> shown;
    for (const TextLine& line : TopLines(Busy(), view)) {
      const std::string text = LineText(line, false);
      for (const char* worker : {"10.0.0.1", "10.0.0.2", "10.0.0.3", "decode-17"}) {
        if (text.find(worker) == 8) shown.push_back(worker);
      }
    }
    return absl::StrJoin(shown, " ");
  };
  EXPECT_EQ(order(TopOrder::kWorker), "10.0.0.1 10.0.0.2 10.0.0.3 decode-17");
  EXPECT_EQ(order(TopOrder::kQueue), "10.0.0.1 10.0.0.3 10.0.0.2 decode-17");
  EXPECT_EQ(order(TopOrder::kKv), "decode-17 10.0.0.3 10.0.0.1 10.0.0.2");
  EXPECT_EQ(order(TopOrder::kRate), "10.0.0.1 10.0.0.3 10.0.0.2 decode-17");
  EXPECT_EQ(order(TopOrder::kWorker, v1::WORKER_ROLE_DECODE), "10.0.0.3 decode-17");
}

TEST(TopViewTest, AnErrorIsShownAboveTheOldFigures) {
  TopFrame frame = Busy();
  frame.status = absl::UnavailableError("connection\x1b[2J refused");
  frame.age = absl::Seconds(6);
  EXPECT_THAT(TextOf(frame, ViewOf(120)),
              HasSubstr("\nNo answer from the router, figures are 6 s old: UNAVAILABLE: "
                        "connection?[2J refused\n"));
}

TEST(TopViewTest, NamesHaveNoControlCharacters) {
  TopFrame frame = FrameOf({{.address = "evil\x1b]0;x\a\r\n\xC2\x9B:1"}});
  frame.workers[0].load.set_worker_id("\x1b[2J");
  const std::string text = TextOf(frame, ViewOf(200), /*color=*/false);
  EXPECT_THAT(text, HasSubstr("evil?]0;x?????:1 "));
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_EQ(text.find("\xC2\x9B"), std::string::npos);
}

TEST(TopViewTest, ColoursAreTheOnlyDifference) {
  const std::vector<TextLine> lines = TopLines(Busy(), ViewOf(80));
  std::string colored = TextOf(Busy(), ViewOf(80), /*color=*/true);
  EXPECT_THAT(colored,
              AllOf(HasSubstr("\x1b[32mREADY     \x1b[0m"), HasSubstr("\x1b[31mSUSPECT   \x1b[0m"),
                    HasSubstr("\x1b[33mDRAINING  \x1b[0m"), HasSubstr("\x1b[34m█")));
  for (const char* code : {"0", "1", "2", "31", "32", "33", "34", "35", "36"}) {
    colored = absl::StrReplaceAll(colored, {{absl::StrCat("\x1b[", code, "m"), ""}});
  }
  EXPECT_EQ(colored, TextOf(Busy(), ViewOf(80)));
}

// A bar is full, and each state that has a block is seen.
TEST(TopViewTest, BarsShowEveryState) {
  TopView view = ViewOf(80);
  view.utf8 = false;
  const auto bar = [&](int active, int held, int cached, int free) {
    TopFrame frame = FrameOf({{.active = active, .held = held, .cached = cached, .free = free}});
    return LineText(TopLines(frame, view).back(), false).substr(41, 12);
  };
  EXPECT_EQ(bar(0, 0, 0, 100), "............");
  EXPECT_EQ(bar(1, 1, 1, 100'000), "#+-.........");
  EXPECT_EQ(bar(25, 25, 25, 25), "###+++---...");
  EXPECT_EQ(bar(100'000, 1, 0, 0), "###########+");
  EXPECT_EQ(bar(50, 0, 50, 1), "#####------.");
  EXPECT_EQ(bar(0, 0, 0, 0), "            ");
}

}  // namespace
}  // namespace baton::cli
