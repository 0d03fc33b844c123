#include "simulator/simulation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/kv/fetch_rule.h"
#include "simulator/decode_simulation.h"
#include "simulator/event_queue.h"
#include "simulator/random.h"
#include "simulator/watch_wire.h"

namespace baton::simulator {
namespace {

namespace worker_pb = ::baton::internal::v1;

class Simulation {
 public:
  Simulation(const Trace& trace, const Scenario& scenario, const MakeRouter& make_router)
      : trace_(trace), scenario_(scenario) {
    RouterSetup setup;
    setup.trace = &trace;
    setup.workers = scenario.workers;
    setup.cache_blocks = scenario.cache_blocks;
    setup.cost = scenario.cost;
    setup.event_delay_us = scenario.event_delay_us;
    setup.fetch_bytes_per_second = scenario.fetch_bytes_per_second;
    setup.kv_bytes_per_token = scenario.kv_bytes_per_token;
    for (int i = 0; i < scenario.routers; ++i) {
      setup.seed = SplitMix64(scenario.seed * 1000 + i);
      routers_.push_back(make_router(setup));
    }
    for (int i = 0; i < scenario.workers; ++i) {
      workers_.emplace_back(trace, PrefillShapeOf(scenario, /*reported_blocks=*/1));
    }
    asked_.resize(trace.requests.size());
    SimRandom random(scenario.seed);
    for (Asked& asked : asked_) asked.router = random.Below(scenario.routers);
  }

  CellResult Run() {
    // Workers that are down from the start join later.
    std::vector<bool> absent(workers_.size());
    for (const Outage& outage : scenario_.outages) {
      if (outage.down_s <= 0) {
        absent[outage.worker] = true;
      } else {
        At(Us(outage.down_s), Kind::kKill, outage.worker);
      }
      At(Us(outage.up_s), Kind::kStart, outage.worker);
    }
    for (size_t i = 0; i < workers_.size(); ++i) {
      if (!absent[i]) StartWorker(static_cast<int>(i));
    }
    // Requests come once the routers know their workers.
    const int64_t warm_up_us = scenario_.event_delay_us + scenario_.report_every_us;
    for (size_t i = 0; i < asked_.size(); ++i) {
      asked_[i].at_us =
          warm_up_us + static_cast<int64_t>(trace_.requests[i].at_us / scenario_.speed);
    }
    open_ = static_cast<int64_t>(asked_.size());
    if (open_ > 0) At(asked_[0].at_us, Kind::kArrival, 0);
    while (open_ > 0) {
      const Event event = events_.Next();
      now_us_ = event.at_us;
      Handle(event);
    }
    return Result();
  }

 private:
  enum class Kind {
    kArrival,
    kRetry,
    kDone,
    kReport,
    kDeliver,
    kLost,
    kLossSeen,
    kKill,
    kStart,
    kFetched
  };
  using Event = EventQueue<Kind>::Event;
  struct Asked {
    int64_t at_us = 0;
    int router = 0;
    int worker = -1;  // where it is
    int failed = -1;  // where it was before
    int64_t ttft_us = -1;
    int cached_tokens = 0;
    int fetching_blocks = 0;  // of the prompt, from its start: they are on their way
  };

  static int64_t Us(double seconds) { return static_cast<int64_t>(seconds * 1e6); }
  void At(int64_t at_us, Kind kind, int subject, uint64_t epoch = 0, int message = -1) {
    events_.At(at_us, kind, subject, epoch, message);
  }

  void Handle(const Event& event) {
    const int subject = event.subject;
    switch (event.kind) {
      case Kind::kArrival:
        if (subject + 1 < static_cast<int>(asked_.size())) {
          At(asked_[subject + 1].at_us, Kind::kArrival, subject + 1);
        } else {
          index_bytes_ = routers_[0]->IndexBytes();
        }
        return Dispatch(subject);
      case Kind::kRetry:
        return Dispatch(subject);
      case Kind::kDone:
        if (workers_[subject].epoch() == event.epoch && workers_[subject].alive()) Done(subject);
        return;
      case Kind::kReport:
        if (workers_[subject].epoch() == event.epoch && workers_[subject].alive()) Report(subject);
        return;
      case Kind::kDeliver:
        return wire_.Deliver(subject, event.epoch, event.message, now_us_);
      case Kind::kLost: {
        Asked& asked = asked_[subject];
        ++retries_;
        routers_[asked.router]->OnLoss(subject, {asked.worker, -1}, now_us_);
        asked.failed = asked.worker;
        asked.worker = -1;
        return Dispatch(subject);
      }
      case Kind::kLossSeen:
        return wire_.Lose(subject, event.epoch, now_us_);
      case Kind::kKill: {
        if (!workers_[subject].alive()) return;
        for (int request : workers_[subject].Kill()) {
          At(now_us_ + scenario_.event_delay_us, Kind::kLost, request);
        }
        At(now_us_ + scenario_.event_delay_us, Kind::kLossSeen, subject, workers_[subject].epoch());
        return;
      }
      case Kind::kFetched:
        if (asked_[subject].worker < 0 || workers_[asked_[subject].worker].epoch() != event.epoch ||
            !workers_[asked_[subject].worker].alive()) {
          return At(now_us_ + scenario_.event_delay_us, Kind::kLost, subject);
        }
        return Fetched(subject);
      case Kind::kStart:
        if (!workers_[subject].alive()) StartWorker(subject);
        return;
    }
  }

  void StartWorker(int worker) {
    SimWorker& w = workers_[worker];
    w.Start();
    worker_pb::WatchResponse event;
    *event.mutable_card() = w.Card(absl::StrCat("p", worker));
    Send(worker, event);
    event.Clear();
    *event.mutable_snapshot() = w.Snapshot();
    Send(worker, event);
    // Workers do not report in step.
    At(now_us_ + scenario_.report_every_us * worker / scenario_.workers, Kind::kReport, worker,
       w.epoch());
  }

  void Send(int worker, const worker_pb::WatchResponse& event) {
    const uint64_t epoch = workers_[worker].epoch();
    At(now_us_ + scenario_.event_delay_us, Kind::kDeliver, worker, epoch,
       wire_.Send(worker, epoch, event));
  }

  void Report(int worker) {
    report_.Clear();
    *report_.mutable_load() = workers_[worker].Load(now_us_);
    Send(worker, report_);
    At(now_us_ + scenario_.report_every_us, Kind::kReport, worker, workers_[worker].epoch());
  }

  void Dispatch(int request) {
    Asked& asked = asked_[request];
    const auto begin = std::chrono::steady_clock::now();
    const SimRoute route = routers_[asked.router]->Choose(request, asked.failed, now_us_);
    decision_ns_ += std::chrono::duration_cast<std::chrono::nanoseconds>(
                        std::chrono::steady_clock::now() - begin)
                        .count();
    ++decisions_;
    if (!route.found()) {
      if (now_us_ - asked.at_us < kPatienceUs) {
        At(now_us_ + kRetryAfterUs, Kind::kRetry, request);
      } else {
        --open_;
      }
      return;
    }
    const int worker = asked.worker = route.prefill;
    if (!workers_[worker].alive()) return At(now_us_ + kConnectFailsUs, Kind::kLost, request);
    if (Fetch(request, route)) return;
    workers_[worker].Accept(request);
    Begin(worker);
  }

  // False: the worker computes what it lacks. By the rule and the arithmetic of real workers.
  bool Fetch(int request, const SimRoute& route) {
    if (scenario_.fetch_bytes_per_second <= 0 || route.holder < 0 ||
        !workers_[route.holder].alive()) {
      return false;
    }
    const SimRequest& r = trace_.requests[request];
    const int cached = workers_[route.prefill].Match(request);
    const int held =
        std::min(workers_[route.holder].Match(request), (r.prompt_tokens - 1) / kSimBlockTokens);
    const int blocks = kv::BlocksToFetch(held, cached, scenario_.cache_blocks);
    if (blocks == 0) return false;
    const double tokens = blocks * kSimBlockTokens;
    const double fetch_us =
        tokens * scenario_.kv_bytes_per_token / scenario_.fetch_bytes_per_second * 1e6;
    if (fetch_us >= scenario_.cost.Us(cached * kSimBlockTokens, tokens)) return false;
    asked_[request].fetching_blocks = held;
    fetched_tokens_ += blocks * kSimBlockTokens;
    At(now_us_ + static_cast<int64_t>(fetch_us), Kind::kFetched, request,
       workers_[route.prefill].epoch());
    return true;
  }

  void Fetched(int request) {
    const int worker = asked_[request].worker;
    Tell(worker, workers_[worker].Fetched(request, asked_[request].fetching_blocks));
    workers_[worker].Accept(request);
    Begin(worker);
  }

  // What has entered the cache, and what made room.
  void Tell(int worker, const SimWorker::CacheChanges& changes) {
    if (changes.added.empty() && changes.removed.empty()) return;
    worker_pb::WatchResponse event;
    *event.mutable_delta() = workers_[worker].Delta(changes);
    Send(worker, event);
  }

  void Begin(int worker) {
    const int64_t done_us = workers_[worker].Begin(now_us_);
    if (done_us >= 0) At(done_us, Kind::kDone, worker, workers_[worker].epoch());
  }

  void Done(int worker) {
    const SimWorker::Step step = workers_[worker].End();
    for (const SimWorker::Ended& ended : step.ended) {
      Asked& asked = asked_[ended.request];
      asked.ttft_us = now_us_ - asked.at_us;
      asked.cached_tokens = ended.cached_tokens;
      --open_;
      routers_[asked.router]->OnAnswer(ended.request, {worker, -1}, now_us_);
    }
    Tell(worker, step.changes);
    Begin(worker);
  }

  CellResult Result() const {
    CellResult result;
    std::vector<int64_t> ttft;
    int64_t hit = 0, tokens = 0, in_time = 0;
    double sum = 0;
    for (size_t i = 0; i < asked_.size(); ++i) {
      tokens += trace_.requests[i].prompt_tokens;
      if (asked_[i].ttft_us < 0) {
        ++result.unanswered;
        continue;
      }
      ttft.push_back(asked_[i].ttft_us);
      sum += static_cast<double>(asked_[i].ttft_us);
      hit += asked_[i].cached_tokens;
      in_time += static_cast<double>(asked_[i].ttft_us) <= scenario_.slo_s * 1e6;
    }
    if (ttft.empty()) return result;
    std::sort(ttft.begin(), ttft.end());
    const auto at = [&ttft](double q) {
      return static_cast<double>(ttft[static_cast<size_t>(q * (ttft.size() - 1))]) * 1e-6;
    };
    result.mean_ttft_s = sum * 1e-6 / static_cast<double>(ttft.size());
    result.p50_ttft_s = at(0.5);
    result.p99_ttft_s = at(0.99);
    result.hit_rate = static_cast<double>(hit) / static_cast<double>(tokens);
    result.goodput = static_cast<double>(in_time) / static_cast<double>(asked_.size());
    double busy = 0, squares = 0;
    for (const SimWorker& worker : workers_) busy += static_cast<double>(worker.busy_us());
    const double mean = busy / static_cast<double>(workers_.size());
    for (const SimWorker& worker : workers_) {
      squares += std::pow(static_cast<double>(worker.busy_us()) - mean, 2);
    }
    result.busy_variation =
        mean > 0 ? std::sqrt(squares / static_cast<double>(workers_.size())) / mean : 0;
    result.index_bytes = index_bytes_;
    result.ns_per_decision =
        static_cast<double>(decision_ns_) / static_cast<double>(std::max<int64_t>(decisions_, 1));
    result.retries = retries_;
    result.fetched_tokens = fetched_tokens_;
    result.computed_tokens = tokens - hit;
    return result;
  }

  const Trace& trace_;
  const Scenario scenario_;
  std::vector<std::unique_ptr<SimRouter>> routers_;
  std::vector<SimWorker> workers_;
  WatchWire wire_{&routers_, scenario_.workers};
  std::vector<Asked> asked_;
  EventQueue<Kind> events_;
  worker_pb::WatchResponse report_;
  int64_t now_us_ = 0, open_ = 0, retries_ = 0, decisions_ = 0, decision_ns_ = 0;
  int64_t index_bytes_ = 0, fetched_tokens_ = 0;
};

}  // namespace

PrefillWorkerShape PrefillShapeOf(const Scenario& scenario, int reported_blocks) {
  PrefillWorkerShape shape;
  shape.cost = scenario.cost;
  shape.cache_blocks = scenario.cache_blocks;
  shape.step_tokens = scenario.prefill_step_tokens;
  shape.most_jobs = scenario.prefill_most_jobs;
  shape.reported_blocks = reported_blocks;
  shape.kv_bytes_per_token = scenario.kv_bytes_per_token;
  return shape;
}

CellResult Simulate(const Trace& trace, const Scenario& scenario, const MakeRouter& make_router) {
  if (scenario.decode.workers > 0) return SimulateDecode(trace, scenario, make_router);
  return Simulation(trace, scenario, make_router).Run();
}

}  // namespace baton::simulator
