// Rows: workers killed at a chosen byte or token, workers that stop for a while.
#include <signal.h>

#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "tests/cluster/faults/row.h"

namespace baton::testing {
namespace {

using Way = Flow::Way;

constexpr absl::Duration kMayTakeToBeUsed = absl::Seconds(2);  // after a restart
constexpr absl::Duration kMayTakeToEject = absl::Seconds(6);

// Starts what was killed again; how long until the router has it ready.
absl::Duration RestartAndMeet(RowRun& run, ProcessCluster& cluster, const std::string& name) {
  absl::Status status = cluster.Restart(name);
  const absl::Time listening = absl::Now();
  if (status.ok()) status = cluster.AwaitReady("router");
  if (!status.ok()) run.Fail(status.ToString());
  return absl::Now() - listening;
}

void KillPrefill(RowRun& run) {
  ProcessCluster* cluster = run.StartCluster();
  if (cluster == nullptr) return;
  const std::vector<Case> cases = run.Cases(40, {250, 500, 8, 16});
  const std::vector<int> percents = {0, 25, 50, 99};
  const int count = run.Count(200, static_cast<int>(percents.size()));
  absl::Duration worst_met;
  int missed = 0;
  for (int i = 0; i < count && run.result().passed(); ++i) {
    const Case& c = cases[i % cases.size()];
    const int percent = percents[i % percents.size()];
    std::string victim;
    absl::Time killed_at;
    absl::Notification tripped;
    const auto kill_it = [&](const std::string&, const std::string& target) {
      victim = target;
      killed_at = absl::Now();
      kill(cluster->pid(target), SIGKILL);
      tripped.Notify();
      return TripEnd::kReset;
    };
    if (percent == 0) {
      // The request has arrived, in part at least, and no KV has left.
      cluster->proxy().Arm({"decode-*", "prefill-*", Way::kToTarget}, 300, kill_it);
    } else {
      cluster->proxy().Arm({"decode-*", "prefill-*", Way::kToOpener},
                           KvBytes(run, c) * percent / 100, kill_it);
    }
    ClientCall call;
    ClientCall::Options options;
    options.cache_salt = NewSalt();
    const Answer answer = call.Run(cluster->channel("router"), c, options);
    run.tally().Count(c, answer);
    cluster->proxy().Disarm();
    if (!tripped.HasBeenNotified()) {
      ++missed;
      continue;
    }
    run.Injected();
    std::vector<std::string> survivors = cluster->workers();
    survivors.erase(std::find(survivors.begin(), survivors.end(), victim));
    run.AwaitFreed(std::max(killed_at, answer.end), survivors);
    worst_met = std::max(worst_met, RestartAndMeet(run, *cluster, victim));
  }
  run.Measure("restarted worker ready after", worst_met);
  run.RequireTime(worst_met <= kMayTakeToBeUsed, "a restarted worker was not used within 2 s");
  run.Require(missed * 10 <= count, absl::StrCat(missed, " kills did not come about"));
  run.Judge();
}

void KillDecode(RowRun& run) {
  ProcessCluster* cluster = run.StartCluster();
  if (cluster == nullptr) return;
  constexpr int kTokens = 24;
  const std::vector<Case> cases = run.Cases(40, {20, 300, kTokens, kTokens});
  const std::vector<int> at_tokens = {1, 2, kTokens / 2, kTokens - 1};
  const int count = run.Count(200, static_cast<int>(at_tokens.size()));
  absl::Duration worst_gap, worst_met;
  for (int i = 0; i < count; ++i) {
    const Case& c = cases[i % cases.size()];
    const int at = at_tokens[i % at_tokens.size()];
    cluster->proxy().Heal();
    // Slow enough that the kill comes before the tokens that follow.
    cluster->proxy().Set({"router*", "decode-*", Way::kToOpener},
                         {absl::ZeroDuration(), 8'000, false, 0});
    // Who decodes: the one whose stream to the router carries most bytes.
    std::vector<std::pair<std::string, int64_t>> before;
    for (const std::string name : {"decode-0", "decode-1"}) {
      before.emplace_back(name, cluster->proxy().BytesPassed({"router*", name, Way::kToTarget}));
    }
    std::string victim;
    absl::Time killed_at = absl::InfiniteFuture();
    ClientCall call;
    ClientCall::Options options;
    options.cache_salt = NewSalt();
    options.on_tokens = [&](int tokens) {
      if (tokens < at || !victim.empty()) return;
      int64_t most = -1;
      for (const auto& [name, bytes] : before) {
        const int64_t grown =
            cluster->proxy().BytesPassed({"router*", name, Way::kToTarget}) - bytes;
        if (grown > most) victim = name;
        most = std::max(most, grown);
      }
      killed_at = absl::Now();
      kill(cluster->pid(victim), SIGKILL);
      cluster->proxy().Reset("router*", victim);  // what it had said is not heard any more
    };
    const Answer answer = call.Run(cluster->channel("router"), c, options);
    run.tally().Count(c, answer);
    if (victim.empty()) continue;
    run.Injected();
    for (size_t t = 1; t < answer.token_times.size(); ++t) {
      worst_gap = std::max(worst_gap, answer.token_times[t] - answer.token_times[t - 1]);
    }
    std::vector<std::string> survivors = cluster->workers();
    survivors.erase(std::find(survivors.begin(), survivors.end(), victim));
    run.AwaitFreed(std::max(killed_at, answer.end), survivors);
    worst_met = std::max(worst_met, RestartAndMeet(run, *cluster, victim));
  }
  run.Measure("longest pause between tokens", worst_gap);
  run.Measure("restarted worker ready after", worst_met);
  run.RequireTime(worst_met <= kMayTakeToBeUsed, "a restarted worker was not used within 2 s");
  run.Judge();
}

// A worker that is stopped holds its streams open and says nothing. Half the time a decode worker.
void StopAndResume(RowRun& run) {
  ProcessCluster* cluster = run.StartCluster();
  if (cluster == nullptr) return;
  const std::vector<Case> cases = run.Cases(40, {20, 300, 20, 60});
  const int count = run.Count(100, 1);
  const absl::Duration stop_for = run.Scaled(absl::Seconds(30), absl::Seconds(9));
  absl::Duration worst_eject, worst_back;
  std::atomic<int64_t> slowest_ms{0};
  for (int i = 0; i < count; ++i) {
    const std::string victim =
        absl::StrCat((i + run.seed()) % 2 == 0 ? "prefill-" : "decode-", run.random()() % 2);
    BackgroundLoad::Options load_options;
    load_options.clients = 4;
    load_options.pause = absl::Milliseconds(500);
    load_options.seed = run.seed() + i;
    load_options.on_answer = [&](const Answer& answer) {
      const int64_t took = absl::ToInt64Milliseconds(answer.end - answer.begin);
      int64_t seen = slowest_ms;
      while (took > seen && !slowest_ms.compare_exchange_weak(seen, took)) {
      }
    };
    BackgroundLoad load(cluster->channel("router"), cases, load_options, run.tally());
    load.AwaitRight(4);
    const absl::Time stopped_at = absl::Now();
    cluster->Signal(victim, SIGSTOP);
    run.Injected();
    const absl::Status ejected = cluster->AwaitState(
        "router", victim, [](const auto& w) { return w.state != "ready"; }, absl::Seconds(20));
    run.Require(ejected.ok(), ejected.ToString());
    worst_eject = std::max(worst_eject, absl::Now() - stopped_at);
    absl::SleepFor(stopped_at + stop_for - absl::Now());  // the fault's own length
    cluster->Signal(victim, SIGCONT);
    const absl::Time resumed_at = absl::Now();
    const absl::Status ready = cluster->AwaitReady("router");
    run.Require(ready.ok(), ready.ToString());
    worst_back = std::max(worst_back, absl::Now() - resumed_at);
    load.Stop();
    run.AwaitFreed(absl::Now());
  }
  run.Measure("ejected after", worst_eject);
  run.Measure("used again after", worst_back);
  run.Measure("slowest request", absl::Milliseconds(slowest_ms.load()));
  run.MeasureSeconds("stopped for", stop_for);
  run.RequireTime(worst_eject <= kMayTakeToEject, "ejected after more than 6 s");
  run.Judge();
}

}  // namespace

std::vector<Row> KillRows() {
  return {
      {"kill_prefill", "kill -9 prefill at 0/25/50/99 % of a transfer", "200",
       "with 2 prefill workers: 0 client errors, tokens equal the oracle's, D's blocks freed ≤ 1 s",
       KillPrefill},
      {"kill_decode", "kill -9 decode at token 1, 2, n/2, n−1", "200",
       "no token lost or repeated; text equals the oracle's", KillDecode},
      {"stop_resume", "SIGSTOP 30 s, then resume", "100",
       "ejected ≤ 6 s; late frames refused by epoch, 0 stale tokens", StopAndResume},
  };
}

}  // namespace baton::testing
