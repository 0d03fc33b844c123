// Rows: pairs of workers that lose each other, links that are slow.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/cluster/faults/row.h"

namespace baton::testing {
namespace {

using Way = Flow::Way;

constexpr int kLinkClients = 4;
// No request of these rows comes near it unless something holds it.
constexpr absl::Duration kStalled = absl::Seconds(3);

struct Seen {
  absl::Time begin, end;
  bool bad;  // failed, or stalled
};

// Bad requests that began after the second bad one had ended. Of a pair that is avoided they are
// tries, whether it works again.
struct Tries {
  int count = 0;
  bool at_once = false;  // two of them at the same time
};

Tries TriesIn(std::vector<Seen> seen) {
  const auto good = [](const Seen& s) { return !s.bad; };
  seen.erase(std::remove_if(seen.begin(), seen.end(), good), seen.end());
  Tries tries;
  if (seen.size() < 2) return tries;
  std::sort(seen.begin(), seen.end(), [](auto& a, auto& b) { return a.end < b.end; });
  const absl::Time second = seen[1].end;
  std::sort(seen.begin(), seen.end(), [](auto& a, auto& b) { return a.begin < b.begin; });
  absl::Time last_end = absl::InfinitePast();
  for (const Seen& s : seen) {
    if (s.begin <= second) continue;
    ++tries.count;
    tries.at_once = tries.at_once || s.begin < last_end;
    last_end = std::max(last_end, s.end);
  }
  return tries;
}

// How often a pair that is cut for `length` can be tried at most: the first failures take kStalled
// at least, as does each try, and the router waits 2 s before the first and twice as long before
// each that follows.
int MostTries(absl::Duration length) {
  int tries = 0;
  absl::Duration wait = absl::Seconds(2);
  for (absl::Duration at = kStalled + wait; at < length; at += kStalled + wait) {
    ++tries;
    wait *= 2;
  }
  return tries;
}

// One decode and one prefill worker cannot hear each other; all others, and the router, can.
void Partition(RowRun& run) {
  ProcessCluster* cluster = run.StartCluster();
  if (cluster == nullptr) return;
  const std::vector<Case> cases = run.Cases(40, {20, 300, 5, 30});
  const int count = run.Count(100, 1);
  const absl::Duration length = run.Scaled(absl::Seconds(20), absl::Seconds(6));
  const LinkFaults lost = {absl::ZeroDuration(), 0, true, 0};
  int tried = 0, bad = 0;
  absl::Duration slowest;
  for (int i = 0; i < count; ++i) {
    const std::string prefill = absl::StrCat("prefill-", run.random()() % 2);
    const std::string decode = absl::StrCat("decode-", run.random()() % 2);
    absl::Mutex mutex;
    std::vector<Seen> seen;
    BackgroundLoad::Options options;
    options.clients = kLinkClients;
    options.timeout = absl::Seconds(20);
    options.pause = absl::Milliseconds(500);
    options.seed = run.seed() * 1000 + i;
    options.on_answer = [&](const Answer& answer) {
      const absl::Duration took = answer.end - answer.begin;
      absl::MutexLock lock(&mutex);
      const bool stalled = run.times_judged() && took > kStalled;
      seen.push_back({answer.begin, answer.end, !answer.status.ok() || stalled});
      slowest = std::max(slowest, took);
    };
    BackgroundLoad load(cluster->channel("router"), cases, options, run.tally());
    const absl::Time cut_at = absl::Now();
    const uint64_t kind = (i + run.seed()) % 3;  // both ways, or one of them
    if (kind != 1) cluster->proxy().Set({decode, prefill, Way::kToTarget}, lost);
    if (kind != 2) cluster->proxy().Set({decode, prefill, Way::kToOpener}, lost);
    absl::SleepFor(cut_at + length - absl::Now());  // the fault's own length
    cluster->proxy().Heal();
    load.Stop();
    run.AwaitFreed(absl::Now());
    run.Injected();
    absl::MutexLock lock(&mutex);
    const Tries tries = TriesIn(seen);
    run.Require(!tries.at_once, "a pair that is avoided was tried by several requests at once");
    run.Require(tries.count <= MostTries(length),
                absl::StrCat("a pair was used ", tries.count, " times more after two failures"));
    tried += tries.count;
    const auto all =
        static_cast<int>(std::count_if(seen.begin(), seen.end(), [](auto& s) { return s.bad; }));
    // Two failures, what the other clients had on the pair meanwhile, and the tries.
    run.Require(all - tries.count <= 2 + kLinkClients - 1,
                absl::StrCat(all, " requests were bad, more than can have been on the pair"));
    bad += all;
  }
  run.MeasureSeconds("cut for", length);
  run.MeasureCount("requests failed or held over 3 s", bad);
  run.MeasureCount("of these, tries whether the pair works again", tried);
  run.Measure("slowest request", slowest);
  // Each client may have had one request on the pair when it was cut.
  run.Judge(/*allowed_errors=*/int64_t{count} * kLinkClients);
}

void SlowLink(RowRun& run) {
  ProcessCluster* cluster = run.StartCluster();
  if (cluster == nullptr) return;
  const std::vector<Case> cases = run.Cases(40, {200, 400, 20, 60});
  const int count = run.Count(50, 1);
  const absl::Duration observed = run.Scaled(absl::Seconds(4), absl::Seconds(2));
  constexpr absl::Duration kDeadline = absl::Seconds(3);
  std::vector<Answer> fast, slow;
  absl::Duration worst_lateness;
  for (int i = 0; i < 2 * count; ++i) {
    const bool narrow = i % 2 == 1;
    absl::Mutex mutex;
    BackgroundLoad::Options options;
    options.clients = kLinkClients;
    options.timeout = kDeadline;
    options.seed = run.seed() * 1000 + i / 2;
    options.on_answer = [&](const Answer& answer) {
      Answer kept = answer;
      // The second token waits for the transfer: what counts is how those go on that have theirs.
      if (!kept.token_times.empty()) kept.token_times.erase(kept.token_times.begin());
      absl::MutexLock lock(&mutex);
      worst_lateness = std::max(worst_lateness, answer.end - answer.begin - kDeadline);
      (narrow ? slow : fast).push_back(std::move(kept));
    };
    if (narrow) {
      const LinkFaults thin = {absl::Milliseconds(200), 125'000, false, 0};
      cluster->proxy().Set({"decode-0", "prefill-0", Way::kToOpener}, thin);
      cluster->proxy().Set({"decode-0", "prefill-0", Way::kToTarget}, thin);
      run.Injected();
    }
    BackgroundLoad load(cluster->channel("router"), cases, options, run.tally());
    absl::SleepFor(observed);  // how long it is observed
    load.Stop();
    run.AwaitFreed(absl::Now());
    cluster->proxy().Heal();
  }
  const absl::Duration before = GapQuantile(fast, 0.99), during = GapQuantile(slow, 0.99);
  run.Measure("p99 between tokens without", before, 1);
  run.Measure("with", during, 1);
  run.Measure("latest end after a deadline", std::max(worst_lateness, absl::ZeroDuration()));
  run.RequireTime(during <= before * 1.2, "other streams slowed down by more than 20 %");
  run.RequireTime(worst_lateness <= absl::Milliseconds(300), "a deadline was not kept");
  // Over the slow link a prompt takes longer than its deadline: that error is the right answer.
  run.Judge(/*allowed_errors=*/run.tally().requests());
}

}  // namespace

std::vector<Row> LinkRows() {
  return {
      {"partition", "P↔D partition, both ways and one way", "100",
       "the pair is avoided after 2 failures; others unaffected", Partition},
      {"slow_link", "slow link (1 Mbit/s, +200 ms)", "50",
       "deadline kept; other streams' p99 token time ≤ +20 %", SlowLink},
  };
}

}  // namespace baton::testing
