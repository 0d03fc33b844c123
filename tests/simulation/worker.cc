#include "tests/simulation/worker.h"

#include <prometheus/registry.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/prefill/request.h"
#include "common/transfer/checksum.h"
#include "common/worker/card.h"
#include "decode_worker/request.h"

namespace baton::simulation {
namespace {

constexpr Micros kReportInterval = 200 * kMillisecond;
constexpr Micros kReportHeartbeat = 250 * kMillisecond;

prometheus::Registry& Registry() {
  static auto* const registry = new prometheus::Registry();
  return *registry;
}

// Metrics have no effect on anything: one set for all.
prefill::PrefillMetrics& PrefillMetricsForAll() {
  static auto* const metrics = new prefill::PrefillMetrics(Registry(), "hash");
  return *metrics;
}
decode_worker::DecodeMetrics& DecodeMetricsForAll() {
  static auto* const registry = new prometheus::Registry();
  static auto* const metrics = new decode_worker::DecodeMetrics(*registry, "hash");
  return *metrics;
}

std::string DescribeLoad(const worker::WorkerLoad& load) {
  return absl::StrCat(load.running, " running, ", load.queued, " queued, ", load.running_jobs,
                      " jobs running, ", load.waiting_jobs, " waiting, ", load.counts.free,
                      " free, ", load.counts.active, " active, ", load.counts.cached, " cached, ",
                      load.counts.held, " held of ", load.counts.total, ", ", load.open_transfers,
                      " transfers");
}

bool IsIdle(const worker::WorkerLoad& load) {
  return load.running == 0 && load.queued == 0 && load.running_jobs == 0 &&
         load.waiting_jobs == 0 && load.open_transfers == 0 && load.counts.active == 0 &&
         load.counts.held == 0;
}

}  // namespace

Worker::Worker(World& world, v1::WorkerRole role, std::string address, const FrameFaults& faults)
    : world_(world),
      role_(role),
      address_(std::move(address)),
      faults_(faults),
      node_(world.AddNode()) {
  world_.Kill(node_, false);  // until it is started
}

void Worker::Start() {
  world_.SetAlive(node_);
  ++life_;
  journal_ = std::make_unique<worker::CacheJournal>();
  load_ = worker::WorkerLoad();
  busy_until_ = world_.now();
  StartLoop();
  worker::WorkerOptions options;
  options.model_dir = "hash";
  options.worker_id = address_;
  options.enable_prefix_caching = caches_prefixes();
  options.serves_prefill = serves_prefill();
  card_ = worker::MakeCard(role_, options, engine());
  card_.set_epoch(world_.random.Next() | 1);  // random by nature; here the same in every run
  load_.last_accepted_at = load_.read_at = world_.SinceStart();
  load_.counts.total = load_.counts.free = load_.free_blocks = engine().kv_pool().block_count;
}

void Worker::Kill(bool machine_gone) {
  if (!alive()) return;
  world_.Kill(node_, machine_gone);
  for (const std::weak_ptr<SimKvSender>& weak : senders_) {
    if (const auto sender = weak.lock()) sender->Kill();
  }
  senders_.clear();
  KillLoop();
  watchers_.clear();
  turn_at_ = report_at_ = -1;
  ++turn_ticket_;
}

void Worker::Wake() {
  idle_turns_ = 0;
  ScheduleTurn(world_.now());
}

void Worker::ScheduleTurn(Micros when) {
  if (!alive()) return;
  when = std::max({when, busy_until_, world_.frozen_until(node_), world_.now()});
  if (turn_at_ >= 0 && turn_at_ <= when) return;
  turn_at_ = when;
  const uint64_t ticket = ++turn_ticket_;
  world_.At(when, [this, ticket] { RunTurn(ticket); });
}

void Worker::RunTurn(uint64_t ticket) {
  if (ticket != turn_ticket_ || !alive()) return;
  turn_at_ = -1;
  if (world_.frozen_until(node_) > world_.now()) {
    ScheduleTurn(world_.now());
    return;
  }
  world_.BeginWork();
  const bool stepped = TurnLoop();
  busy_until_ = world_.EndWork();
  // A turn may have left messages for the next.
  if (stepped || ++idle_turns_ < 2) {
    ScheduleTurn(busy_until_);
  } else if (const Micros after = NextTurnAfter(); after >= 0) {
    ScheduleTurn(busy_until_ + after);
  }
}

void Worker::Publish(const worker::WorkerLoad& load) {
  load_ = load;
  if (load.drained && !(load.draining && IsIdle(load))) {
    world_.Fail(absl::StrCat(address_, " reports that it is drained: ", DescribeLoad(load)));
  }
  if (!watchers_.empty()) ScheduleReport(std::max(last_report_ + kReportInterval, world_.now()));
}

void Worker::ScheduleReport(Micros when) {
  if (report_at_ >= 0 && report_at_ <= when) return;
  report_at_ = when;
  world_.At(when, [this, when, life = life_] {
    if (life != life_ || report_at_ != when || !alive()) return;
    report_at_ = -1;
    Report();
  });
}

void Worker::Report() {
  if (const Micros frozen = world_.frozen_until(node_); frozen > world_.now()) {
    ScheduleReport(frozen);
    return;
  }
  watchers_.remove_if([](const Watcher& watcher) { return !watcher.stream->open(1); });
  if (watchers_.empty()) return;
  last_report_ = world_.now();
  for (Watcher& watcher : watchers_) {
    for (internal::v1::WatchResponse& message :
         watcher.report.Next(load_, std::max(world_.SinceStart(), load_.read_at))) {
      watcher.stream->Send(
          1, [deliver = watcher.deliver, message = std::move(message)] { deliver(message); });
    }
  }
  ScheduleReport(world_.now() + kReportHeartbeat);
}

void Worker::Watch(std::shared_ptr<Stream> stream,
                   std::function<void(const internal::v1::WatchResponse&)> deliver) {
  stream->OnLost(1, [] {});
  watchers_.push_back(
      {std::move(stream), std::move(deliver), worker::WatchReport(card_, *journal_)});
  ScheduleReport(world_.now());
}

void Worker::AcceptPrefill(const std::string& bytes, absl::Time deadline,
                           std::shared_ptr<Stream> stream, std::weak_ptr<SimPrefillCall> call) {
  internal::v1::PrefillRequest request;
  absl::Status status = request.ParseFromString(bytes)
                            ? prefill::CheckRequest(request, epoch(), engine())
                            : MakeError(absl::StatusCode::kDataLoss, "MALFORMED_REQUEST",
                                        "the message is no PrefillRequest");
  const uint64_t id = ++last_job_;
  transfer::FrameSender::Options options;
  options.transfer_id = request.transfer_id();
  options.epoch = epoch();
  options.layout = engine().kv_layout();
  options.pool = engine().kv_pool();
  options.on_peer_gone = [this, id] { jobs().Cancel(id); };
  auto sender = std::make_shared<SimKvSender>(std::move(options), world_, faults_, stream,
                                              std::move(call), [this] { Wake(); });
  stream->OnLost(1, [sender] { sender->PeerGone(); });
  senders_.remove_if([](const std::weak_ptr<SimKvSender>& weak) { return weak.expired(); });
  senders_.push_back(sender);
  if (!status.ok()) {
    sender->Finish(status);
    return;
  }
  std::unique_ptr<prefill::PrefillJob> job = prefill::MakeJob(request, deadline, engine());
  job->id = id;
  job->token_sink = std::make_shared<prefill::TransferSink>(sender);
  job->transfer->sender = std::move(sender);
  jobs().Submit(std::move(job));
  Wake();
}

PrefillWorker::PrefillWorker(World& world, std::string address, const HashEngineOptions& engine,
                             const prefill::LoopOptions& loop, const FrameFaults& faults)
    : Worker(world, v1::WORKER_ROLE_PREFILL, std::move(address), faults),
      engine_options_(engine),
      loop_options_(loop) {}

PrefillWorker::~PrefillWorker() {
  if (loop_ != nullptr) KillLoop();
}

void PrefillWorker::StartLoop() {
  engine_ = std::make_unique<HashEngine>(engine_options_, world_);
  loop_ = std::make_unique<prefill::PrefillLoop>(
      loop_options_, *engine_, *journal_, world_, PrefillMetricsForAll(),
      [this](const worker::WorkerLoad& load) { Publish(load); });
}

void PrefillWorker::KillLoop() {
  loop_->Stop();
  loop_.reset();
  engine_.reset();
}

bool PrefillWorker::TurnLoop() {
  const bool stepped = loop_->Turn(absl::ZeroDuration());
  loop_->CheckIntegrity();
  return stepped;
}

bool PrefillWorker::Idle() const { return !alive() || IsIdle(load_); }

std::string PrefillWorker::Describe() const {
  return absl::StrCat(address_, ": ", alive() ? DescribeLoad(load_) : "dead");
}

// The decode worker's end of a Decode call.
class SimDecodeStream final : public decode_worker::DecodeStream {
 public:
  SimDecodeStream(World& world, std::shared_ptr<Stream> stream, DecodeWorker::Caller caller)
      : world_(world), stream_(std::move(stream)), caller_(std::move(caller)) {}

  void Push(internal::v1::DecodeResponse response) override {
    if (finished_) world_.Fail("a decode stream went on after its end");
    stream_->Send(
        1, [caller = caller_.response, response = std::move(response)] { caller(response); });
  }
  void Finish(const absl::Status& status) override {
    if (finished_) world_.Fail("a decode stream was finished twice");
    finished_ = true;
    if (!status.ok()) stream_->Discard(1);
    stream_->Send(1, [caller = caller_.status, status] { caller(status); });
  }

 private:
  World& world_;
  const std::shared_ptr<Stream> stream_;
  const DecodeWorker::Caller caller_;
  bool finished_ = false;
};

DecodeWorker::DecodeWorker(World& world, std::string address, const HashEngineOptions& engine,
                           const decode_worker::LoopOptions& loop, const FrameFaults& faults,
                           FindWorker find_worker, bool serves_prefill,
                           const HashEngineOptions& draft_engine)
    : Worker(world, v1::WORKER_ROLE_DECODE, std::move(address), faults),
      engine_options_(engine),
      draft_engine_options_(draft_engine),
      loop_options_(loop),
      find_worker_(std::move(find_worker)),
      serves_prefill_(serves_prefill) {}

DecodeWorker::~DecodeWorker() {
  if (loop_ != nullptr) KillLoop();
}

void DecodeWorker::StartLoop() {
  engine_ = std::make_unique<HashEngine>(engine_options_, world_);
  decode_worker::LoopOptions options = loop_options_;
  if (options.speculation.mode == decode_worker::SpeculationOptions::Mode::kDraft) {
    draft_engine_ = std::make_unique<HashEngine>(draft_engine_options_, world_);
    options.draft_engine = draft_engine_.get();
  }
  loop_ = std::make_unique<decode_worker::DecodeLoop>(
      options, *engine_, *journal_, world_, DecodeMetricsForAll(),
      [this](const decode_worker::PrefillPeer& peer, const internal::v1::PrefillRequest& request,
             absl::Time deadline, transfer::TransferPlan plan, transfer::PrefillEvents events) {
        return StartPrefill(peer, request, deadline, std::move(plan), std::move(events));
      },
      [this](const worker::WorkerLoad& load) { Publish(load); });
}

void DecodeWorker::KillLoop() {
  preemptions_ += LivePreemptions();
  accepted_drafts_ += loop_->accepted_draft_tokens();
  for (const std::shared_ptr<SimPrefillCall>& call : calls_) call->Kill();
  calls_.clear();
  loop_->Stop();
  loop_.reset();
  draft_engine_.reset();
  engine_.reset();
}

bool DecodeWorker::TurnLoop() {
  const bool stepped = loop_->Turn(absl::ZeroDuration());
  loop_->CheckIntegrity();
  return stepped;
}

Micros DecodeWorker::NextTurnAfter() const {
  const absl::Duration next = loop_->UntilNextHeartbeat();
  return next == absl::InfiniteDuration() ? -1 : absl::ToInt64Microseconds(next);
}

bool DecodeWorker::Idle() const { return !alive() || IsIdle(load_); }

std::string DecodeWorker::Describe() const {
  return absl::StrCat(address_, ": ", alive() ? DescribeLoad(load_) : "dead");
}

void DecodeWorker::Accept(const internal::v1::DecodeRequest& request, absl::Time deadline,
                          std::shared_ptr<Stream> stream, Caller caller) {
  auto answer = std::make_shared<SimDecodeStream>(world_, stream, std::move(caller));
  if (const absl::Status status = decode_worker::CheckRequest(request, epoch(), *engine_);
      !status.ok()) {
    answer->Finish(status);
    return;
  }
  const uint64_t id = ++last_call_;
  std::unique_ptr<decode_worker::Sequence> sequence =
      decode_worker::MakeSequence(request, deadline, *engine_);
  sequence->call->id = id;
  sequence->call->stream = std::move(answer);
  stream->OnLost(1, [this, id] {
    loop_->Cancel(id);
    Wake();
  });
  loop_->Submit(std::move(sequence));
  Wake();
}

std::shared_ptr<transfer::PrefillCall> DecodeWorker::StartPrefill(
    const decode_worker::PrefillPeer& peer, internal::v1::PrefillRequest request,
    absl::Time deadline, transfer::TransferPlan plan, transfer::PrefillEvents events) {
  // Random by nature; here it must be the same in every run.
  request.set_transfer_id(world_.random.Next());
  request.set_checksum(transfer::RequestChecksum(request));
  plan.transfer_id = request.transfer_id();
  Worker* const computes = find_worker_(peer.address);
  std::shared_ptr<Stream> stream = world_.Open(node(), computes->node());
  auto call = std::make_shared<SimPrefillCall>(world_, faults_, stream, std::move(plan),
                                               std::move(events), [this] { Wake(); });
  calls_.remove_if([](const std::shared_ptr<SimPrefillCall>& old) { return old->done(); });
  calls_.push_back(call);
  std::string bytes = request.SerializeAsString();
  if (world_.random.Chance(faults_.flip)) {
    bytes[static_cast<size_t>(world_.random.Below(static_cast<int>(bytes.size())))] ^=
        static_cast<char>(1 << world_.random.Below(8));
  }
  const std::weak_ptr<SimPrefillCall> weak = call;
  const std::weak_ptr<Stream> weak_stream = stream;
  call->Begin(
      deadline,
      [computes, bytes = std::move(bytes), deadline, weak, weak_stream] {
        if (const auto live = weak_stream.lock()) {
          computes->AcceptPrefill(bytes, deadline, live, weak);
        }
      },
      [weak_stream] {
        if (const auto live = weak_stream.lock()) live->Break(0, 0);
      });
  return call;
}

}  // namespace baton::simulation
