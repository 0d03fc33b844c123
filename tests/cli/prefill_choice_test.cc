#include "cli/prefill_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/cli/script_binaries.h"
#include "tests/testing/fake_cluster.h"

namespace baton::cli {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kNotKnown = std::numeric_limits<double>::infinity();

TEST(PrefillChoiceTest, TheRuleKnowsSharedDevices) {
  const auto reason = [](const std::vector<std::string>& flags, int cores, bool gpu) {
    const auto choice = ChoosePrefillByRule(flags, cores, gpu);
    EXPECT_EQ(choice ? choice->prefill_workers : 0, 0);
    return choice ? choice->reason : "";
  };
  EXPECT_EQ(reason({}, 2, true), "") << "the default is the CPU";
  EXPECT_EQ(reason({"--device", "cpu"}, 64, true), "");
  EXPECT_EQ(reason({"--device", "auto"}, 2, false), "");
  EXPECT_THAT(reason({"--device", "auto"}, 2, true), HasSubstr("share one GPU"));
  EXPECT_THAT(reason({"--threads", "2", "--device", "cuda:1"}, 2, false), HasSubstr("one GPU"));
  EXPECT_THAT(reason({}, 1, false), HasSubstr("share one core"));
}

TEST(PrefillChoiceTest, APrefillWorkerMustBeBetterByMoreThanNoise) {
  struct Row {
    AnswerTimes without, with;
    int prefill_workers;
  };
  // Answers, TTFT, whole answer, per token.
  const Row rows[] = {
      {{32, 200, 1120, 40}, {32, 600, 1470, 38}, 0},
      {{32, 16, 45, 1.27}, {32, 36, 45, 0.37}, 0},  // one core's time, moved
      {{32, 200, 1120, 40}, {32, 220, 680, 20}, 1},
      {{32, 200, 1000, 40}, {32, 200, 1000, 40}, 0},
      {{32, 200, 1000, 40}, {32, 200, 801, 33}, 0},
      {{32, 200, 1000, 40}, {32, 200, 799, 33}, 1},
      {{7, 5000, 8000, 500}, {32, 900, 2000, 50}, 0},  // too few to tell
      {{8, 5000, 8000, 500}, {7, 900, 2000, 50}, 0},
      {{8, 5000, 8000, 500}, {8, 900, 2000, 50}, 1},
      {{32, 900, 2000, 50}, {0, 5000, 8000, kNotKnown}, 0},
      {{0, kNotKnown, kNotKnown, kNotKnown}, {0, kNotKnown, kNotKnown, kNotKnown}, 0},
  };
  for (const Row& row : rows) {
    const PrefillChoice choice = ChoosePrefillByTimes(row.without, row.with, 2);
    EXPECT_EQ(choice.prefill_workers, row.prefill_workers) << choice.reason;
  }
}

TEST(PrefillChoiceTest, TheReasonHasWhatWasMeasured) {
  EXPECT_EQ(
      ChoosePrefillByTimes({31, 212.3, 1154.2, 40.96}, AnswerTimes{17, 1634.0, 2519.9, 38.5}, 2)
          .reason,
      "without a prefill worker 1154 ms an answer (TTFT 212 ms, 41 ms per token, 31 answers), "
      "with one 2520 ms an answer (TTFT 1634 ms, 38.5 ms per token, 17 answers); medians, 2 "
      "usable cores");
  EXPECT_THAT(ChoosePrefillByTimes({}, AnswerTimes{}, 2).reason,
              HasSubstr("without a prefill worker no answer in time, with one no answer in time; "
                        "medians, 2 usable cores; 8 answers were expected of each"));
  const PrefillChoice failed =
      ChoosePrefillByTimes({31, 212, 1154, 41}, absl::AbortedError("prefill-0 was killed"), 2);
  EXPECT_EQ(failed.prefill_workers, 0);
  EXPECT_THAT(failed.reason, HasSubstr("failed: prefill-0 was killed"));
}

TEST(PrefillChoiceTest, TimesAreMediansFromSendingOn) {
  const auto outcome = [](double sent_s, std::vector<double> token_s, double ended_s, bool ok) {
    Outcome made;
    made.due_s = 0;  // what waits here is not the cluster's time
    made.sent_s = sent_s;
    made.token_s = std::move(token_s);
    made.ended_s = ended_s;
    if (!ok) made.status = absl::DeadlineExceededError("");
    return made;
  };
  Outcome refused = outcome(5, {}, 5.001, false);
  refused.status = absl::ResourceExhaustedError("");
  const AnswerTimes times = AnswerTimesOf({
      outcome(1, {1.25, 1.5, 2.0}, 2, true),  // 375 ms per token
      outcome(2, {2.5, 2.75}, 7, false),      // cut off after 250 ms per token
      outcome(3, {3.75}, 4, true),            // a single token has no time per token
      outcome(4, {}, 9, false),               // waited 5 s for nothing
      refused,
  });
  EXPECT_EQ(times.answers, 2);
  EXPECT_DOUBLE_EQ(times.ttft_ms, (500 + 750) / 2.0);
  EXPECT_DOUBLE_EQ(times.answer_ms, (1000 + 5000) / 2.0);
  EXPECT_DOUBLE_EQ(times.tpot_ms, (375 + 250) / 2.0);
  EXPECT_EQ(AnswerTimesOf({}).ttft_ms, kNotKnown);
  EXPECT_EQ(AnswerTimesOf({outcome(4, {}, 9, false)}).tpot_ms, kNotKnown);
}

// Processes are scripts that say that they listen where workers and a router of this process do.
class MeasurePrefillTest : public ::testing::Test {
 protected:
  MeasurePrefillTest() {
    fakes_.SetReply([this](const testing::DecodeCall& call) { Answer(call); });
    binaries_.Write("baton-prefill-worker", WellBehaved({fakes_.prefill(0)->address(), ""}));
    binaries_.Write("baton-decode-worker", WellBehaved({fakes_.decode(0)->address(), ""}));
    binaries_.Write("baton-router", absl::StrCat("echo \"$*\" >> ", RouterFlags(), "\n",
                                                 WellBehaved({fakes_.server().address(), ""})));
    options_.model_dir = "/models/any";
    options_.bin_dir = binaries_.directory();
    options_.router_flags = {"--api-keys", "/keys"};
    EXPECT_EQ(pipe(stop_), 0);
    options_.stop_fd = stop_[0];
  }
  ~MeasurePrefillTest() override {
    for (const int fd : stop_) close(fd);
  }

  void Answer(testing::DecodeCall call) {
    if (stops_ && answered_++ == 3) {
      EXPECT_EQ(write(stop_[1], "x", 1), 1);
    }
    call.SendTokens({65, 66});
    call.Finish({67}, internal::v1::DecodeResponse::FINISH_LENGTH);
  }
  std::string RouterFlags() const { return binaries_.directory() + "/router-flags"; }
  std::string RoutersStarted() const {
    std::ifstream file(RouterFlags());
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  absl::StatusOr<PrefillChoice> Measure() { return MeasurePrefill(options_, 2, progress_); }

  int stop_[2];
  bool stops_ = false;  // the fourth request is answered after a signal to stop
  std::atomic<int> answered_{0};
  ScriptBinaries binaries_;
  testing::FakeCluster fakes_;
  ClusterOptions options_;
  std::ostringstream progress_;
};

TEST_F(MeasurePrefillTest, BothClustersAnswerTheSamePrompts) {
  const auto choice = Measure();
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_THAT(choice->prefill_workers, AnyOf(0, 1));
  EXPECT_THAT(choice->reason,
              AllOf(HasSubstr("ms an answer (TTFT"), HasSubstr("32 answers), with one")));
  EXPECT_THAT(progress_.str(), HasSubstr("baton up: measuring"));
  const std::vector<std::string> routers = absl::StrSplit(RoutersStarted(), '\n');
  ASSERT_EQ(routers.size(), 3u);
  EXPECT_THAT(routers[0], AllOf(HasSubstr("--decode-workers"), Not(HasSubstr("--prefill-workers")),
                                Not(HasSubstr("--api-keys")), HasSubstr("--listen 127.0.0.1:")));
  EXPECT_THAT(routers[1], AllOf(HasSubstr("--prefill-workers"), Not(HasSubstr("--api-keys"))));
}

TEST_F(MeasurePrefillTest, APrefillWorkerThatDoesNotStartIsNotChosen) {
  binaries_.Write("baton-prefill-worker", "echo no memory for the weights; exit 1");
  const auto choice = Measure();
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->prefill_workers, 0);
  EXPECT_THAT(choice->reason, HasSubstr("no memory for the weights"));
}

TEST_F(MeasurePrefillTest, ADecodeWorkerThatDoesNotStartIsAnError) {
  binaries_.Write("baton-decode-worker", "echo no such dtype; exit 1");
  const auto choice = Measure();
  EXPECT_TRUE(absl::IsAborted(choice.status())) << choice.status();
  EXPECT_THAT(std::string(choice.status().message()), HasSubstr("no such dtype"));
}

TEST_F(MeasurePrefillTest, ASignalEndsIt) {
  stops_ = true;
  const auto choice = Measure();
  EXPECT_TRUE(absl::IsCancelled(choice.status())) << choice.status();
  EXPECT_EQ(absl::StrSplit(RoutersStarted(), '\n').begin()->substr(0, 2), "--");
  EXPECT_THAT(RoutersStarted(), Not(HasSubstr("--prefill-workers"))) << "the second is not started";
}

}  // namespace
}  // namespace baton::cli
