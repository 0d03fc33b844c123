#include "simulator/decode_simulation.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "simulator/asked_request.h"
#include "simulator/event_queue.h"
#include "simulator/log_histogram.h"
#include "simulator/random.h"
#include "simulator/sim_links.h"
#include "simulator/watch_wire.h"

namespace baton::simulator {
namespace {

namespace worker_pb = ::baton::internal::v1;

constexpr int64_t kSampleUs = 50'000;  // how often loads are compared

class DecodeSimulation {
 public:
  DecodeSimulation(const Trace& trace, const Scenario& scenario, const MakeRouter& make_router)
      : trace_(trace), scenario_(scenario) {
    BATON_CHECK(scenario.outages.empty()) << "only decode workers are killed here";
    RouterSetup setup;
    setup.trace = &trace;
    setup.workers = scenario.workers;
    setup.cache_blocks = scenario.cache_blocks;
    setup.cost = scenario.cost;
    setup.event_delay_us = scenario.event_delay_us;
    setup.decode_workers = tier_.workers;
    setup.decode_cache_blocks = tier_.shape.kv_blocks / kKvBlocksPerSimBlock;
    setup.reported_blocks = kKvBlocksPerSimBlock;
    setup.kv_bytes_per_token = scenario.kv_bytes_per_token;
    for (int i = 0; i < scenario.routers; ++i) {
      setup.seed = SplitMix64(scenario.seed * 1000 + i);
      routers_.push_back(make_router(setup));
    }
    for (int i = 0; i < scenario.workers; ++i) {
      prefill_.emplace_back(trace, PrefillShapeOf(scenario, kKvBlocksPerSimBlock));
    }
    for (int i = 0; i < tier_.workers; ++i) {
      const bool other = i % 2 == 1 && tier_.other_shape.has_value();
      decode_.emplace_back(trace, other ? *tier_.other_shape : tier_.shape,
                           SplitMix64(scenario.seed ^ SplitMix64(i + 1)));
    }
    if (!tier_.links.empty()) {
      BATON_CHECK(scenario.workers > 0) << "links lead to prefill workers";
      links_.emplace(tier_.links, scenario.kv_layers);
    }
    asked_.resize(trace.requests.size());
    SimRandom random(scenario.seed);
    for (size_t i = 0; i < asked_.size(); ++i) {
      asked_[i].router = random.Below(scenario.routers);
      for (const SimDecodeWorker& worker : decode_) {
        BATON_CHECK(worker.Fits(static_cast<int>(i))) << "request " << i << " fits nowhere";
      }
    }
  }

  CellResult Run() {
    const int64_t warm_up_us = scenario_.event_delay_us + scenario_.report_every_us;
    Schedule(warm_up_us);
    for (size_t i = 0; i < asked_.size(); ++i) {
      asked_[i].at_us =
          warm_up_us +
          static_cast<int64_t>(static_cast<double>(trace_.requests[i].at_us) / scenario_.speed);
    }
    open_ = static_cast<int64_t>(asked_.size());
    if (open_ > 0) At(asked_[0].at_us, Kind::kArrival, 0);
    while (open_ > 0) Handle(events_.Next());
    return Result();
  }

 private:
  enum class Kind {
    kArrival,
    kRetry,
    kPrefilled,    // a request's prompt, of its attempt `epoch`
    kPrefillDone,  // whatever a prefill worker computes
    kArrived,      // a request's KV, of its attempt `epoch`
    kStepDone,
    kReport,
    kDeliver,
    kLost,
    kLossSeen,
    kKill,
    kStart,
    kSlow,
    kRecover,
    kSample,
    kSnapshot,
  };
  using Event = EventQueue<Kind>::Event;
  using Asked = AskedRequest;

  int64_t now_us() const { return events_.now_us(); }
  static int64_t Us(double seconds) { return static_cast<int64_t>(seconds * 1e6); }
  void At(int64_t at_us, Kind kind, int subject, uint64_t epoch = 0, int message = -1) {
    events_.At(at_us, kind, subject, epoch, message);
  }
  // Decode workers are numbered behind the prefill workers, towards the routers.
  int NumberOf(int decode_worker) const { return scenario_.workers + decode_worker; }
  bool Lives(int decode_worker, uint64_t epoch) const {
    return decode_[decode_worker].alive() && decode_[decode_worker].epoch() == epoch;
  }

  // What will happen to workers; those that are down from the start join later.
  void Schedule(int64_t first_arrival_us) {
    std::vector<bool> absent(decode_.size());
    for (const Outage& outage : tier_.outages) {
      if (outage.down_s <= 0) {
        absent[outage.worker] = true;
      } else {
        At(first_arrival_us + Us(outage.down_s), Kind::kKill, outage.worker);
      }
      At(first_arrival_us + Us(outage.up_s), Kind::kStart, outage.worker);
    }
    for (size_t i = 0; i < tier_.slow.size(); ++i) {
      At(first_arrival_us + Us(tier_.slow[i].from_s), Kind::kSlow, static_cast<int>(i));
      At(first_arrival_us + Us(tier_.slow[i].to_s), Kind::kRecover, static_cast<int>(i));
    }
    for (int i = 0; i < scenario_.workers; ++i) {
      prefill_[i].Start();
      Introduce(i, prefill_[i].Card(absl::StrCat("p", i)), prefill_[i].Snapshot());
    }
    for (size_t i = 0; i < decode_.size(); ++i) {
      if (!absent[i]) StartWorker(static_cast<int>(i));
    }
    for (const auto& [worker, steps] : tier_.past) decode_[worker].Measure(steps, 0);
    At(first_arrival_us, Kind::kSample, 0);
    if (tier_.snapshot_s >= 0) At(first_arrival_us + Us(tier_.snapshot_s), Kind::kSnapshot, 0);
  }

  void Handle(const Event& event) {
    const int subject = event.subject;
    switch (event.kind) {
      case Kind::kArrival:
        if (subject + 1 < static_cast<int>(asked_.size())) {
          At(asked_[subject + 1].at_us, Kind::kArrival, subject + 1);
        } else {
          all_arrived_ = true;
        }
        return Dispatch(subject);
      case Kind::kRetry:
        return Dispatch(subject);
      case Kind::kPrefilled:
        if (asked_[subject].attempt == event.epoch) Prefilled(subject);
        return;
      case Kind::kPrefillDone:
        return PrefillDone(subject);
      case Kind::kArrived:
        if (asked_[subject].attempt == event.epoch) Arrived(subject);
        return;
      case Kind::kStepDone:
        if (Lives(subject, event.epoch)) StepDone(subject);
        return;
      case Kind::kReport:
        return Report(subject, event.epoch);
      case Kind::kDeliver:
        return wire_.Deliver(subject, event.epoch, event.message, now_us());
      case Kind::kLost:
        return Lost(subject);
      case Kind::kLossSeen:
        return wire_.Lose(subject, event.epoch, now_us());
      case Kind::kKill:
        if (decode_[subject].alive()) KillWorker(subject);
        return;
      case Kind::kStart:
        if (!decode_[subject].alive()) StartWorker(subject);
        return;
      case Kind::kSlow:
        return decode_[tier_.slow[subject].worker].SetSlowness(tier_.slow[subject].factor);
      case Kind::kRecover:
        return decode_[tier_.slow[subject].worker].SetSlowness(1);
      case Kind::kSample:
        return Sample();
      case Kind::kSnapshot:
        for (const SimDecodeWorker& worker : decode_) snapshot_.push_back(worker.sequences());
        return;
    }
  }

  // ---- Workers, and what they tell.

  void Introduce(int number, const worker_pb::WorkerCard& card,
                 const worker_pb::CacheSnapshot& snapshot) {
    worker_pb::WatchResponse event;
    *event.mutable_card() = card;
    Send(number, card.epoch(), event);
    event.Clear();
    *event.mutable_snapshot() = snapshot;
    Send(number, card.epoch(), event);
    // Workers do not report in step.
    At(now_us() + scenario_.report_every_us * number / (scenario_.workers + tier_.workers),
       Kind::kReport, number, card.epoch());
  }

  void StartWorker(int worker) {
    SimDecodeWorker& w = decode_[worker];
    const auto cold = std::find_if(tier_.cold.begin(), tier_.cold.end(),
                                   [worker](const ColdStart& c) { return c.worker == worker; });
    if (cold == tier_.cold.end()) {
      w.Start();
    } else {
      w.Start(cold->steps, Us(cold->step_s));
    }
    worker_pb::CacheSnapshot empty;
    empty.set_last(true);
    Introduce(NumberOf(worker), w.Card(absl::StrCat("d", worker)), empty);
  }

  void KillWorker(int worker) {
    const uint64_t epoch = decode_[worker].epoch();
    for (const SimDecodeWorker::Lost& lost : decode_[worker].Kill()) {
      Asked& asked = asked_[lost.request];
      ++asked.attempt;
      asked.prefilling = false;
      asked.generated_tokens = std::max(lost.generated_tokens, asked.first_token_us >= 0 ? 1 : 0);
      if (lost.last_token_us >= 0) asked.last_token_us = lost.last_token_us;
      At(now_us() + scenario_.event_delay_us, Kind::kLost, lost.request);
    }
    At(now_us() + scenario_.event_delay_us, Kind::kLossSeen, NumberOf(worker), epoch);
  }

  void Send(int number, uint64_t epoch, const worker_pb::WatchResponse& event) {
    At(now_us() + scenario_.event_delay_us, Kind::kDeliver, number, epoch,
       wire_.Send(number, epoch, event));
  }

  void Report(int number, uint64_t epoch) {
    report_.Clear();
    const int worker = number - scenario_.workers;
    if (worker < 0) {
      *report_.mutable_load() = prefill_[number].Load(now_us());
    } else if (Lives(worker, epoch)) {
      *report_.mutable_load() = decode_[worker].Load(now_us());
      if (links_) links_->Report(worker, now_us(), report_.mutable_load());
    } else {
      return;
    }
    Send(number, epoch, report_);
    At(now_us() + scenario_.report_every_us, Kind::kReport, number, epoch);
  }

  void SendDelta(int worker) {
    delta_.Clear();
    if (!decode_[worker].TakeDelta(delta_.mutable_delta())) return;
    Send(NumberOf(worker), decode_[worker].epoch(), delta_);
  }

  // ---- Requests.

  void Dispatch(int request) {
    Asked& asked = asked_[request];
    const auto begin = std::chrono::steady_clock::now();
    const SimRoute route = routers_[asked.router]->Choose(request, asked.failed, now_us());
    decision_ns_ += std::chrono::duration_cast<std::chrono::nanoseconds>(
                        std::chrono::steady_clock::now() - begin)
                        .count();
    ++decisions_;
    if (!route.found()) {
      if (now_us() - asked.at_us < kPatienceUs) {
        At(now_us() + kRetryAfterUs, Kind::kRetry, request);
      } else {
        --open_;
      }
      return;
    }
    asked.route = route;
    asked.told = false;
    const int worker = route.decode - scenario_.workers;
    if (!decode_[worker].alive()) return At(now_us() + kConnectFailsUs, Kind::kLost, request);
    decode_[worker].Accept(request, asked.generated_tokens, now_us(), ComputesAlone(route));
    Advance(worker);
  }

  void Lost(int request) {
    Asked& asked = asked_[request];
    ++retries_;
    routers_[asked.router]->OnLoss(request, asked.route, now_us());
    asked.failed = asked.route.decode;
    Dispatch(request);
  }

  // The decode worker computes the prompt, so nothing moves, also after a preemption.
  bool ComputesAlone(const SimRoute& route) const {
    return tier_.shape.computes_prompts && route.prefill < 0;
  }

  // Lets in what has room, and begins a step if none is under way.
  void Advance(int worker) {
    SimDecodeWorker& w = decode_[worker];
    for (const SimDecodeWorker::Entered& entered : w.Admit(now_us())) Entered(entered);
    SendDelta(worker);
    const int64_t done_us = w.Begin(now_us());
    if (done_us < 0) return;
    for (int request : w.started()) asked_[request].began_us = now_us();
    SendDelta(worker);
    At(done_us, Kind::kStepDone, worker, w.epoch());
  }

  void Entered(const SimDecodeWorker::Entered& entered) {
    Asked& asked = asked_[entered.request];
    meter_.Waited(entered.waited_us);
    (entered.waited_for_kv ? asked.kv_us : asked.slot_us) += entered.waited_us;
    asked.entered_us = now_us();
    asked.moved_tokens = ComputesAlone(asked.route) ? 0 : entered.missing_tokens;
    if (entered.here) return;
    if (scenario_.workers > 0 && asked.first_token_us < 0) {
      asked.prefilling = true;
      prefill_[asked.route.prefill].Accept(entered.request);
      return BeginPrefill(asked.route.prefill);
    }
    const int cached = entered.context_tokens - entered.missing_tokens;
    asked.began_us = now_us();
    const auto took_us =
        static_cast<int64_t>(tier_.ample_prefill.Us(cached, entered.missing_tokens));
    At(now_us() + took_us, Kind::kPrefilled, entered.request, asked.attempt);
  }

  double BytesMoved(const Asked& asked) const {
    return static_cast<double>(asked.moved_tokens) * scenario_.kv_bytes_per_token;
  }

  void BeginPrefill(int worker) {
    const int64_t done_us = prefill_[worker].Begin(now_us());
    if (done_us < 0) return;
    for (int request : prefill_[worker].started()) asked_[request].began_us = now_us();
    At(done_us, Kind::kPrefillDone, worker);
  }

  void PrefillDone(int worker) {
    const SimWorker::Step step = prefill_[worker].End();
    if (!step.changes.added.empty() || !step.changes.removed.empty()) {
      worker_pb::WatchResponse event;
      *event.mutable_delta() = prefill_[worker].Delta(step.changes);
      Send(worker, prefill_[worker].epoch(), event);
    }
    for (const SimWorker::Ended& ended : step.ended) {
      // Else it was lost meanwhile, and is asked for elsewhere.
      const Asked& asked = asked_[ended.request];
      if (asked.prefilling && asked.route.prefill == worker) Prefilled(ended.request);
    }
    BeginPrefill(worker);
  }

  void Prefilled(int request) {
    Asked& asked = asked_[request];
    asked.prefilling = false;
    NoteFirstToken(request);
    const double bytes = BytesMoved(asked);
    asked.moved_us = ComputesAlone(asked.route) ? 0 : tier_.transfer_latency_us;
    if (links_ && asked.route.prefill >= 0) {
      asked.moved_us += links_->Move(asked.route.prefill, asked.route.decode - scenario_.workers,
                                     bytes, asked.began_us, now_us());
    } else {
      asked.moved_us += static_cast<int64_t>(1e6 * bytes / tier_.bytes_per_second);
    }
    At(now_us() + asked.moved_us, Kind::kArrived, request, asked.attempt);
  }

  void NoteFirstToken(int request) {
    Asked& asked = asked_[request];
    if (!asked.told) routers_[asked.router]->OnAnswer(request, asked.route, now_us());
    asked.told = true;
    if (asked.first_token_us >= 0) return;
    asked.first_token_us = now_us();
    if (static_cast<double>(asked.first_token_us - asked.at_us) <= scenario_.slo_s * 1e6) return;
    ++late_.requests;
    late_.slot_s += static_cast<double>(asked.slot_us) * 1e-6;
    late_.kv_s += static_cast<double>(asked.kv_us) * 1e-6;
    late_.prefill_s += static_cast<double>(asked.began_us - asked.entered_us) * 1e-6;
    late_.computing_s += static_cast<double>(asked.first_token_us - asked.began_us) * 1e-6;
  }

  void Arrived(int request) {
    const Asked& asked = asked_[request];
    const int worker = asked.route.decode - scenario_.workers;
    if (links_ && asked.route.prefill >= 0)
      links_->Moved(asked.route.prefill, worker, BytesMoved(asked), now_us());
    decode_[worker].Arrive(request);
    Advance(worker);
  }

  void StepDone(int worker) {
    const SimDecodeWorker::Step step = decode_[worker].End(now_us());
    meter_.Gaps(step.us, step.sequences - static_cast<int64_t>(step.joined.size()));
    for (const SimDecodeWorker::Joined& joined : step.joined) {
      Asked& asked = asked_[joined.request];
      if (asked.second_token_us < 0) {
        asked.second_token_us = now_us();
        meter_.FirstGap(now_us() - asked.first_token_us);
      } else {
        meter_.GapOfPreempted(now_us() - std::max(joined.last_token_us, asked.last_token_us));
      }
    }
    for (int request : step.computed) NoteFirstToken(request);
    for (int request : step.ended) Ended(request);
    SendDelta(worker);
    Advance(worker);
  }

  void Ended(int request) {
    Asked& asked = asked_[request];
    const int tokens = std::max(trace_.requests[request].output_tokens, 2);
    meter_.Ended(tokens, now_us() - asked.second_token_us);
    const double mean_gap_us = static_cast<double>(now_us() - asked.first_token_us) / (tokens - 1);
    good_ += static_cast<double>(asked.first_token_us - asked.at_us) <= scenario_.slo_s * 1e6 &&
             mean_gap_us <= scenario_.slo_gap_s * 1e6;
    last_token_us_ = now_us();
    answers_.Add(now_us() - asked.at_us);
    --open_;
    ++ended_;
    routers_[asked.router]->OnEnd(request, asked.route,
                                  {tokens, asked.moved_tokens, asked.moved_us}, now_us());
  }

  // ---- Figures.

  void Sample() {
    if (all_arrived_) return;
    At(now_us() + kSampleUs, Kind::kSample, 0);
    meter_.Sample(decode_);
  }

  CellResult Result() const {
    CellResult result;
    LogHistogram ttft, second;
    for (const Asked& asked : asked_) {
      if (asked.second_token_us >= 0) second.Add(asked.second_token_us - asked.at_us);
      if (asked.first_token_us >= 0) ttft.Add(asked.first_token_us - asked.at_us);
    }
    result.mean_ttft_s = ttft.mean_s();
    result.p50_ttft_s = ttft.Quantile_s(0.5);
    result.p99_ttft_s = ttft.Quantile_s(0.99);
    result.mean_answer_s = answers_.mean_s();
    result.p50_second_s = second.Quantile_s(0.5);
    result.p99_second_s = second.Quantile_s(0.99);
    result.retries = retries_;
    result.unanswered = static_cast<int64_t>(asked_.size()) - ended_;
    result.ns_per_decision =
        static_cast<double>(decision_ns_) / static_cast<double>(std::max<int64_t>(decisions_, 1));
    const int64_t passed_us = asked_.empty() ? 0 : last_token_us_ - asked_[0].at_us;
    result.decode = meter_.Figures(decode_, passed_us);
    result.decode.snapshot = snapshot_;
    result.late = late_;
    result.goodput =
        asked_.empty() ? 0 : static_cast<double>(good_) / static_cast<double>(asked_.size());
    double busy_us = 0;
    for (const SimWorker& worker : prefill_) busy_us += static_cast<double>(worker.busy_us());
    if (passed_us > 0 && !prefill_.empty()) {
      result.prefill_busy =
          busy_us / (static_cast<double>(passed_us) * static_cast<double>(prefill_.size()));
    }
    return result;
  }

  const Trace& trace_;
  const Scenario scenario_;
  const DecodeTier& tier_ = scenario_.decode;
  std::vector<std::unique_ptr<SimRouter>> routers_;
  std::vector<SimWorker> prefill_;
  std::vector<SimDecodeWorker> decode_;
  std::optional<SimLinks> links_;
  WatchWire wire_{&routers_, scenario_.workers + tier_.workers};
  std::vector<Asked> asked_;
  EventQueue<Kind> events_;
  worker_pb::WatchResponse report_, delta_;
  bool all_arrived_ = false;
  int64_t open_ = 0, ended_ = 0, retries_ = 0, decisions_ = 0, decision_ns_ = 0;
  int64_t last_token_us_ = 0;
  DecodeMeter meter_{scenario_.slo_gap_s};
  LateFirstTokens late_;
  int64_t good_ = 0;
  LogHistogram answers_;  // from arrival to last token
  std::vector<int> snapshot_;
};

}  // namespace

CellResult SimulateDecode(const Trace& trace, const Scenario& scenario,
                          const MakeRouter& make_router) {
  return DecodeSimulation(trace, scenario, make_router).Run();
}

}  // namespace baton::simulator
