// Rows: workers lost one after another while many streams run, without a rest in between; and all
// workers of a role lost at once.
#include <signal.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/base/error.h"
#include "common/base/resident_memory.h"
#include "tests/cluster/faults/row.h"
#include "tests/testing/metrics_scrape.h"

namespace baton::testing {
namespace {

constexpr int kVictims = 30;  // in five minutes, one every …
constexpr absl::Duration kEvery = absl::Seconds(10);
constexpr absl::Duration kDown = absl::Seconds(1);     // between a kill and the start after it
constexpr absl::Duration kStopped = absl::Seconds(8);  // a router expires who is silent for 6 s
// Few, which clients ask again and again with new salts: the oracle computes each once.
constexpr int kCases = 12;
constexpr CaseShape kLongAnswers = {20, 120, 380, 420};
constexpr int kStreamBlocks = 36;  // of 16 tokens, for the longest prompt and answer, and growth
constexpr char kRouter[] = "router";

struct Storm {
  int streams;
  enum class Victim { kFullestDecode, kAny } victim;
  enum class Fault { kKill, kStop } fault;
};

// Any one worker of a role has room for all streams.
ClusterOptions RoomFor(int streams) {
  ClusterOptions options;
  options.worker_flags = {"--max-num-seqs",        absl::StrCat(std::max(64, streams)),
                          "--num-blocks",          absl::StrCat(streams * kStreamBlocks),
                          "--max-num-queued-reqs", absl::StrCat(2 * streams)};
  options.router_flags = {"--max-inflight-requests", absl::StrCat(2 * streams)};
  return options;
}

struct Failure {
  absl::Time end;
  absl::Status status;
  bool begun;  // it had tokens

  // What a client is owed that cannot be served now.
  bool Refused() const {
    return absl::IsUnavailable(status) && ErrorRetryAfter(status).has_value();
  }
};

// What clients saw. Thread-safe.
class Answers {
 public:
  void Add(const Answer& answer) {
    absl::MutexLock lock(&mutex_);
    for (size_t i = 1; i < answer.token_times.size(); ++i) {
      longest_pause_ = std::max(longest_pause_, answer.token_times[i] - answer.token_times[i - 1]);
    }
    if (!answer.status.ok()) {
      failures_.push_back({answer.end, answer.status, !answer.tokens.empty()});
    }
  }
  absl::Duration longest_pause() const {
    absl::MutexLock lock(&mutex_);
    return longest_pause_;
  }
  std::vector<Failure> failures() const {
    absl::MutexLock lock(&mutex_);
    return failures_;
  }

 private:
  mutable absl::Mutex mutex_;
  absl::Duration longest_pause_ ABSL_GUARDED_BY(mutex_);
  std::vector<Failure> failures_ ABSL_GUARDED_BY(mutex_);
};

BackgroundLoad::Options StreamsOf(int count, uint64_t seed, Answers* answers) {
  BackgroundLoad::Options options;
  options.clients = count;
  options.seed = seed;
  options.timeout = absl::Minutes(10);  // hundreds of streams share two cores
  options.on_answer = [answers](const Answer& answer) { answers->Add(answer); };
  return options;
}

int Running(const ProcessCluster& cluster, const std::string& decode_worker) {
  return static_cast<int>(
      MetricSum(cluster.metrics_address(decode_worker), "baton_active_sequences"));
}

// Of each decode worker; the one that holds most first.
std::vector<std::pair<int, std::string>> ByStreams(const ProcessCluster& cluster) {
  std::vector<std::pair<int, std::string>> held;
  for (const std::string& worker : cluster.workers("decode")) {
    held.emplace_back(Running(cluster, worker), worker);
  }
  std::sort(held.rbegin(), held.rend());
  return held;
}

double DecodedTokens(const ProcessCluster& cluster) {
  double tokens = 0;
  for (const std::string& worker : cluster.workers("decode")) {
    tokens += MetricSum(cluster.metrics_address(worker), "baton_decode_tokens_total");
  }
  return tokens;
}

// Until most of the streams run, and have tokens: victims then have something to lose.
void AwaitStreams(RowRun& run, const ProcessCluster& cluster, int streams) {
  constexpr int kTokensEach = 8;
  const absl::Time end = absl::Now() + absl::Minutes(1);
  const double enough = DecodedTokens(cluster) + kTokensEach * streams;
  for (;;) {
    int running = 0;
    for (const auto& [held, worker] : ByStreams(cluster)) running += held;
    if (4 * running >= 3 * streams && DecodedTokens(cluster) >= enough) return;
    if (absl::Now() >= end) {
      run.Fail(absl::StrCat(running, " of ", streams, " streams run after a minute"));
      return;
    }
    absl::SleepFor(absl::Milliseconds(20));  // nothing announces it
  }
}

// Sent to another pair, before or after the first token.
int64_t MovedByRouter(const ProcessCluster& cluster) {
  const std::string metrics = cluster.metrics_address(kRouter);
  return static_cast<int64_t>(MetricSum(metrics, "baton_retries_total") +
                              MetricSum(metrics, "baton_failovers_total"));
}

// Kills, or stops until the router has given it up, and brings it back.
absl::Status Strike(RowRun& run, ProcessCluster& cluster, Storm::Fault fault,
                    const std::string& victim) {
  const absl::Time struck_at = absl::Now();
  if (fault == Storm::Fault::kKill) {
    cluster.Signal(victim, SIGKILL);
    absl::SleepFor(kDown);  // the fault's own length
    if (absl::Status status = cluster.Restart(victim); !status.ok()) return status;
  } else {
    cluster.Signal(victim, SIGSTOP);
    const absl::Status given_up = cluster.AwaitState(kRouter, victim, [](const auto& worker) {
      return worker.state != "ready" && worker.state != "suspect";
    });
    absl::SleepFor(struck_at + run.Scaled(kStopped, absl::ZeroDuration()) - absl::Now());
    cluster.Signal(victim, SIGCONT);
    if (!given_up.ok()) return given_up;
  }
  return cluster.AwaitReady(kRouter);
}

void RunStorm(RowRun& run, const Storm& storm) {
  ProcessCluster* cluster = run.StartCluster(RoomFor(storm.streams));
  if (cluster == nullptr) return;
  const std::vector<Case> cases = run.Cases(kCases, kLongAnswers);
  const int count = run.Count(kVictims, storm.fault == Storm::Fault::kKill ? 2 : 1);
  const absl::Duration every = run.Scaled(kEvery, absl::Seconds(1));
  Answers answers;
  int64_t held = 0;
  BackgroundLoad load(cluster->channel(kRouter), cases,
                      StreamsOf(storm.streams, run.seed(), &answers), run.tally());
  AwaitStreams(run, *cluster, storm.streams);
  for (int i = 0; i < count; ++i) {
    const absl::Time struck_at = absl::Now();
    const std::vector<std::pair<int, std::string>> by_streams = ByStreams(*cluster);
    std::string victim = by_streams.front().second;
    if (storm.victim == Storm::Victim::kAny) {
      const std::vector<std::string> workers = cluster->workers();
      victim = workers[run.random()() % workers.size()];
    }
    for (const auto& [streams, worker] : by_streams) held += worker == victim ? streams : 0;
    const absl::Status back = Strike(run, *cluster, storm.fault, victim);
    run.Require(back.ok(), absl::StrCat(victim, ": ", back.ToString()));
    if (!back.ok()) break;
    run.Injected();
    absl::SleepFor(struck_at + every - absl::Now());
  }
  load.Stop();
  run.AwaitFreed(absl::Now());
  run.Measure("longest pause between tokens", answers.longest_pause());
  run.MeasureCount("streams on decode workers when they were struck", held);
  run.MeasureCount("sent to another pair", MovedByRouter(*cluster));
  run.Judge();
}

// Fails the row if any of the failures is not allowed; how many are.
template <class Allowed>
int64_t AllowFailures(RowRun& run, const std::vector<Failure>& failures, const std::string& when,
                      Allowed allowed) {
  int64_t others = 0;
  std::string example;
  for (const Failure& failure : failures) {
    if (allowed(failure)) continue;
    if (others++ == 0) example = failure.status.ToString();
  }
  run.Require(others == 0, absl::StrCat(when, ": ", others, " failed otherwise, e.g. ", example));
  return static_cast<int64_t>(failures.size()) - others;
}

void Revive(RowRun& run, ProcessCluster& cluster, const std::vector<std::string>& workers) {
  for (const std::string& worker : workers) {
    const absl::Status status = cluster.Restart(worker);
    run.Require(status.ok(), status.ToString());
  }
  const absl::Status ready = cluster.AwaitReady(kRouter);
  run.Require(ready.ok(), ready.ToString());
}

// Kills all workers of one role after the other's, and starts them again at once. Only requests
// that have no token yet may end, and then with a time to retry: nothing has been sent to them.
int64_t DieAndComeBack(RowRun& run, ProcessCluster& cluster, const std::vector<Case>& cases,
                       int streams) {
  const int count = run.Count(kVictims, 2);
  const absl::Duration every = run.Scaled(kEvery, absl::Seconds(1));
  Answers answers;
  BackgroundLoad load(cluster.channel(kRouter), cases, StreamsOf(streams, run.seed(), &answers),
                      run.tally());
  for (int i = 0; i < count; ++i) {
    AwaitStreams(run, cluster, streams);
    const absl::Time struck_at = absl::Now();
    const std::vector<std::string> role = cluster.workers(i % 2 == 0 ? "decode" : "prefill");
    for (const std::string& worker : role) cluster.Signal(worker, SIGKILL);
    Revive(run, cluster, role);
    run.Injected();
    absl::SleepFor(struck_at + every - absl::Now());
  }
  load.Stop();
  run.Measure("longest pause between tokens", answers.longest_pause());
  const int64_t refused =
      AllowFailures(run, answers.failures(), "back in time",
                    [](const Failure& failure) { return failure.Refused() && !failure.begun; });
  run.MeasureCount("refused before their first token", refused);
  return refused;
}

// Kills all decode workers and leaves them dead for twice the time that a stream waits for one.
int64_t StayDead(RowRun& run, ProcessCluster& cluster, const std::vector<Case>& cases, int streams,
                 absl::Duration wait) {
  constexpr int64_t kMostGrowth = 64 << 20;
  Answers answers;
  BackgroundLoad load(cluster.channel(kRouter), cases, StreamsOf(streams, run.seed() + 1, &answers),
                      run.tally());
  AwaitStreams(run, cluster, streams);
  const int64_t moved = MovedByRouter(cluster);
  const int64_t bytes = ResidentBytesOf(cluster.pid(kRouter));
  const std::vector<std::string> decode = cluster.workers("decode");
  const absl::Time killed_at = absl::Now();
  for (const std::string& worker : decode) cluster.Signal(worker, SIGKILL);
  absl::SleepFor(2 * wait);  // the fault's own length
  const int64_t more_moved = MovedByRouter(cluster) - moved;
  const int64_t more_bytes = ResidentBytesOf(cluster.pid(kRouter)) - bytes;
  Revive(run, cluster, decode);
  const absl::Time back_at = absl::Now();
  run.Injected();
  load.Stop();
  const int64_t refused =
      AllowFailures(run, answers.failures(), "left dead", [&](const Failure& failure) {
        return failure.Refused() && killed_at <= failure.end &&
               failure.end <= back_at + absl::Seconds(1);
      });
  run.Require(refused >= streams, absl::StrCat(refused, " of ", streams, " streams were ended"));
  run.Require(answers.longest_pause() < 2 * wait, "a stream outlasted all its workers");
  // One that was lost may have been sent to the other worker a moment before that died, too.
  run.Require(more_moved <= 2 * streams, absl::StrCat(more_moved, " retries without a worker"));
  run.Require(more_bytes <= kMostGrowth, absl::StrCat("the router grew by ", more_bytes, " bytes"));
  run.MeasureCount("refused without a worker", refused);
  run.MeasureCount("retries then", more_moved);
  run.Measure({"router grew by", Measured::Of::kLargest,
               static_cast<double>(more_bytes) / (1 << 20), 1, " MiB"});
  return refused;
}

// All workers of a role die at once.
void AllDie(RowRun& run) {
  constexpr int kStreams = 24;
  const absl::Duration wait = run.Scaled(absl::Seconds(5), absl::Seconds(2));
  ClusterOptions options = RoomFor(kStreams);
  for (const std::string& word :
       {std::string("--failover-wait-ms"), absl::StrCat(absl::ToInt64Milliseconds(wait))}) {
    options.router_flags.push_back(word);
  }
  ProcessCluster* cluster = run.StartCluster(options);
  if (cluster == nullptr) return;
  const std::vector<Case> cases = run.Cases(kCases, {20, 120, 180, 220});
  int64_t refused = DieAndComeBack(run, *cluster, cases, kStreams);
  refused += StayDead(run, *cluster, cases, kStreams, wait);
  {
    constexpr int kFew = 4;
    Answers answers;
    BackgroundLoad load(cluster->channel(kRouter), cases, StreamsOf(kFew, run.seed() + 2, &answers),
                        run.tally());
    run.Require(load.AwaitRight(kFew), "it does not serve again");
  }
  run.AwaitFreed(absl::Now());
  run.Judge(/*allowed_errors=*/refused);
}

Row StormRow(const std::string& kind, const std::string& fault, const Storm& storm) {
  Row row = {absl::StrCat("storm_", kind, "_", storm.streams),
             absl::StrCat(fault, ", every 10 s for 5 min, ", storm.streams, " streams"),
             absl::StrCat(kVictims),
             "0 failed while a survivor has room, 0 wrong tokens, 0 blocks leaked",
             [storm](RowRun& run) { RunStorm(run, storm); }};
  // The others are like this one, or take longer.
  row.in_tests = storm.streams <= 24 && storm.victim == Storm::Victim::kFullestDecode &&
                 storm.fault == Storm::Fault::kKill;
  return row;
}

}  // namespace

std::vector<Row> StormRows() {
  using Victim = Storm::Victim;
  using Fault = Storm::Fault;
  std::vector<Row> rows;
  for (const int streams : {24, 100, 400}) {
    rows.push_back(StormRow("decode", "kill -9 of the decode worker that holds most streams",
                            {streams, Victim::kFullestDecode, Fault::kKill}));
  }
  for (const int streams : {24, 100, 400}) {
    rows.push_back(StormRow("both", "kill -9 of any worker of either role",
                            {streams, Victim::kAny, Fault::kKill}));
  }
  for (const int streams : {24, 100, 400}) {
    rows.push_back(StormRow("stop",
                            "SIGSTOP of the decode worker that holds most streams, for 8 s or "
                            "until it is expired",
                            {streams, Victim::kFullestDecode, Fault::kStop}));
  }
  rows.push_back(
      {"all_decode_die",
       "kill -9 of all decode workers at once, and of all prefill workers, in turn, back "
       "at once; then all decode workers for 10 s, 24 streams",
       absl::StrCat(kVictims, " + 1"),
       "0 streams cut where they are back within the failover wait of 5 s (requests without a "
       "token may be refused with RetryInfo); else all end UNAVAILABLE with RetryInfo, and retries "
       "and the router's memory stay bounded",
       AllDie});
  return rows;
}

}  // namespace baton::testing
