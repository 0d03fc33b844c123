#include "router/fleet/membership.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace baton::router {
namespace {

namespace worker_pb = ::baton::internal::v1;

// How often the books are tidied: this takes a pass over all workers.
constexpr absl::Duration kUpkeep = absl::Milliseconds(100);

absl::Status Refuse(absl::string_view reason, absl::string_view message) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason, message);
}

absl::Status BadStream(absl::string_view message) {
  return MakeError(absl::StatusCode::kInternal, "BAD_WATCH_STREAM", message);
}

std::string Hex(uint64_t value) { return absl::StrCat(absl::Hex(value, absl::kZeroPad16)); }

}  // namespace

absl::string_view RoleName(v1::WorkerRole role) {
  return role == v1::WORKER_ROLE_PREFILL  ? "prefill"
         : role == v1::WORKER_ROLE_DECODE ? "decode"
                                          : "unknown";
}

absl::string_view StateName(v1::WorkerState state) {
  switch (state) {
    case v1::WORKER_STATE_CONNECTING:
      return "connecting";
    case v1::WORKER_STATE_READY:
      return "ready";
    case v1::WORKER_STATE_SUSPECT:
      return "suspect";
    case v1::WORKER_STATE_EXPIRED:
      return "expired";
    case v1::WORKER_STATE_REFUSED:
      return "refused";
    case v1::WORKER_STATE_DRAINING:
      return "draining";
    default:
      return "unknown";
  }
}

void Membership::OnStreamStarted(int worker) {
  absl::MutexLock lock(&mutex_);
  Worker& w = workers_[worker];
  w.stream_open = true;
  w.card_seen = w.snapshot_begun = w.snapshot_done = false;
  w.last_event = clock_.SinceStart();
}

absl::Status Membership::OnEvent(int worker, const worker_pb::WatchResponse& event) {
  {
    absl::MutexLock lock(&mutex_);
    Worker& w = workers_[worker];
    w.last_event = clock_.SinceStart();
    if (event.has_card()) return OnCard(worker, event.card());
    if (!w.card_seen) return BadStream("the stream did not begin with the worker's card");
    if (event.has_snapshot()) {
      BATON_RETURN_IF_ERROR(BeginSnapshot(worker, event.snapshot()));
    } else if (event.has_delta()) {
      BATON_RETURN_IF_ERROR(BeginDelta(worker, event.delta()));
    } else {
      if (event.has_load()) w.load = event.load();
      if (w.snapshot_done) SetServingState(worker);
      if (event.has_load()) fleet_.OnReport(worker, w.load, w.last_event);
      return absl::OkStatus();
    }
  }
  // Not under the lock: tens of thousands of keys may come at once, and decisions do not wait.
  bool fits;
  if (event.has_snapshot()) {
    fits = index_.Add(worker, event.snapshot().keys());
  } else {
    // What goes makes room for what comes.
    index_.Remove(worker, event.delta().removed());
    fits = index_.Add(worker, event.delta().added());
  }
  absl::MutexLock lock(&mutex_);
  Worker& w = workers_[worker];
  if (!w.card_seen) {  // it expired meanwhile, and what it had was dropped
    index_.DropWorker(worker);
    return BadStream("the worker expired while it told what it has cached");
  }
  if (!fits) return BadStream("more cached blocks than blocks");
  if (event.has_snapshot() && event.snapshot().last()) {
    w.snapshot_done = true;
    index_.Show(worker);
  }
  if (w.snapshot_done) SetServingState(worker);
  return absl::OkStatus();
}

// Of a worker that has told all, as it last said.
void Membership::SetServingState(int worker) {
  const Worker& w = workers_[worker];
  if (!w.listed) {
    SetState(worker, v1::WORKER_STATE_DRAINING, "no longer listed");
  } else if (w.load.draining()) {
    SetState(worker, v1::WORKER_STATE_DRAINING, "the worker takes no new work");
  } else {
    SetState(worker, v1::WORKER_STATE_READY, "");
  }
}

absl::Status Membership::OnCard(int worker, const worker_pb::WorkerCard& card) {
  Worker& w = workers_[worker];
  if (w.card_seen) return BadStream("a second card on one stream");
  if (absl::Status fits = CheckCard(worker, card); !fits.ok()) {
    TellDeath(worker);
    DropKnowledge(worker);
    SetState(worker, v1::WORKER_STATE_REFUSED, std::string(fits.message()));
    return fits;
  }
  // Nothing of an earlier life of the process at this address holds for this one.
  if (w.card && (w.card->epoch() != card.epoch() || w.card->worker_id() != card.worker_id())) {
    TellDeath(worker);
    DropKnowledge(worker);
  }
  w.card = card;
  w.card_seen = true;
  index_.SetCapacity(worker, card.total_blocks());
  SetState(worker, v1::WORKER_STATE_CONNECTING, "telling what it has cached");
  return absl::OkStatus();
}

absl::Status Membership::CheckCard(int worker, const worker_pb::WorkerCard& card) const {
  if (card.worker_id().empty() || card.epoch() == 0 || card.kv_layout().block_tokens() <= 0 ||
      card.max_model_len() <= 0) {
    return Refuse("BAD_WORKER_CARD",
                  "the worker's card lacks its id, epoch, block size or context length");
  }
  if (card.role() != workers_[worker].role) {
    return Refuse("ROLE_MISMATCH",
                  absl::StrCat("listed as a ", RoleName(workers_[worker].role),
                               " worker, but it is a ", RoleName(card.role()), " worker"));
  }
  if (card.tokenizer_fingerprint() != tokenizer_fingerprint_) {
    return Refuse(
        "TOKENIZER_MISMATCH",
        absl::StrCat("tokenizer ", Hex(card.tokenizer_fingerprint()), " of model \"", card.model(),
                     "\", but the router's is ", Hex(tokenizer_fingerprint_)));
  }
  // One process that is known by two addresses would count twice, and a request that it has failed
  // would be sent there again.
  for (int i = 0; i < static_cast<int>(workers_.size()); ++i) {
    const Worker& other = workers_[i];
    if (i == worker || !other.card || !other.listed) continue;
    if (other.card->worker_id() != card.worker_id() || other.card->epoch() != card.epoch())
      continue;
    return Refuse("SAME_WORKER",
                  absl::StrCat("the process at ", other.address, ", which is listed already"));
  }
  return CheckSameModel(worker, card);
}

absl::Status Membership::CheckSameModel(int worker, const worker_pb::WorkerCard& card) const {
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (static_cast<int>(i) == worker || !workers_[i].card || !workers_[i].listed) continue;
    const worker_pb::WorkerCard& first = *workers_[i].card;
    if (card.model_fingerprint() != first.model_fingerprint()) {
      return Refuse("MODEL_MISMATCH",
                    absl::StrCat("model \"", card.model(), "\" ", Hex(card.model_fingerprint()),
                                 ", but this cluster serves \"", first.model(), "\" ",
                                 Hex(first.model_fingerprint())));
    }
    if (card.kv_layout().fingerprint() != first.kv_layout().fingerprint()) {
      return Refuse(
          "KV_LAYOUT_MISMATCH",
          absl::StrCat("KV layout {", card.kv_layout().ShortDebugString(),
                       "}, but this cluster has {", first.kv_layout().ShortDebugString(), "}"));
    }
  }
  return absl::OkStatus();
}

absl::Status Membership::BeginSnapshot(int worker, const worker_pb::CacheSnapshot& snapshot) {
  Worker& w = workers_[worker];
  if (w.snapshot_done) return BadStream("a second snapshot on one stream");
  if (!w.snapshot_begun) {
    index_.DropWorker(worker);
    index_.Hide(worker);
  }
  if (w.snapshot_begun && snapshot.sequence() != w.sequence) {
    return BadStream("two sequence numbers in one snapshot");
  }
  w.snapshot_begun = true;
  w.sequence = snapshot.sequence();
  return absl::OkStatus();
}

absl::Status Membership::BeginDelta(int worker, const worker_pb::CacheDelta& delta) {
  Worker& w = workers_[worker];
  if (!w.snapshot_done) return BadStream("a cache change before the end of the snapshot");
  if (delta.sequence() != w.sequence + 1) {
    return BadStream(
        absl::StrCat("cache change ", delta.sequence(), " after ", w.sequence, ": some were lost"));
  }
  w.sequence = delta.sequence();
  return absl::OkStatus();
}

void Membership::OnStreamLost(int worker, const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  Worker& w = workers_[worker];
  w.stream_open = false;
  TellDeath(worker);
  // Those two say more than "lost" does. A refused worker that cannot be reached again is lost.
  if (w.state == v1::WORKER_STATE_EXPIRED) return;
  if (w.state == v1::WORKER_STATE_REFUSED && absl::IsFailedPrecondition(why)) return;
  SetState(worker, v1::WORKER_STATE_CONNECTING, std::string(why.message()));
}

std::vector<int> Membership::Tick() {
  const absl::Duration now = clock_.SinceStart();
  bool upkeep;
  {
    absl::MutexLock lock(&mutex_);
    upkeep = now >= next_upkeep_;
    if (upkeep) {
      next_upkeep_ = now + kUpkeep;
      fleet_.Tick(now);
    }
  }
  if (upkeep) {
    // Decisions wait for none of it.
    dispatched_.Expire(now);
    for (int i = 0; i < KeyTable::kSegments / 64 && !index_.swept(); ++i) index_.Sweep(1);
  }
  absl::MutexLock lock(&mutex_);
  std::vector<int> expired;
  for (int i = 0; i < static_cast<int>(workers_.size()); ++i) {
    Worker& w = workers_[i];
    const absl::Duration silence = now - w.last_event;
    const bool known = w.card.has_value() || w.stream_open;
    if (known && silence > kExpireAfter) {
      TellDeath(i);
      DropKnowledge(i);
      if (w.stream_open) expired.push_back(i);
      w.stream_open = false;
      SetState(i, v1::WORKER_STATE_EXPIRED,
               absl::StrCat("silent for ", absl::FormatDuration(kExpireAfter)));
    } else if (silence > kSuspectAfter &&
               (w.state == v1::WORKER_STATE_READY || w.state == v1::WORKER_STATE_DRAINING)) {
      SetState(i, v1::WORKER_STATE_SUSPECT,
               absl::StrCat("silent for ", absl::FormatDuration(kSuspectAfter)));
      TellDeath(i);
    }
  }
  return expired;
}

void Membership::SetOnDeath(std::function<void(const Incarnation&)> on_death) {
  absl::MutexLock lock(&mutex_);
  on_death_ = std::move(on_death);
}

// Of the process whose card is here. It may be told more than once.
void Membership::TellDeath(int worker) {
  const Worker& w = workers_[worker];
  if (on_death_ && w.card) on_death_({worker, w.card->epoch()});
}

void Membership::DropKnowledge(int worker) {
  Worker& w = workers_[worker];
  index_.DropWorker(worker);
  dispatched_.DropWorker(worker);
  fleet_.Forget(worker);
  health_.Forget(worker);
  w.card.reset();
  w.load.Clear();
  // Whatever still comes on the stream no longer stands on a card.
  w.card_seen = w.snapshot_begun = w.snapshot_done = false;
}

void Membership::SetState(int worker, v1::WorkerState state, std::string detail) {
  Worker& w = workers_[worker];
  const bool news = w.state != state;
  if (news && w.role == v1::WORKER_ROLE_DECODE) {
    ready_decode_workers_ +=
        (state == v1::WORKER_STATE_READY ? 1 : 0) - (w.state == v1::WORKER_STATE_READY ? 1 : 0);
  }
  w.state = state;
  w.detail = std::move(detail);
  if (!news) return;
  ++state_version_;
  if (state == v1::WORKER_STATE_READY) {
    fleet_.Serves(worker, {w.role, w.card->model_fingerprint(), kv::RootPrefixKey(0, w.address, ""),
                           w.card->total_blocks(), w.card->kv_layout().block_tokens(),
                           w.card->max_num_seqs(), w.card->device()});
  } else if (state == v1::WORKER_STATE_SUSPECT) {
    fleet_.Doubt(worker);
  } else {
    fleet_.Rests(worker);
  }
  const bool good = state == v1::WORKER_STATE_READY || state == v1::WORKER_STATE_CONNECTING;
  const LogLevel level = good ? LogLevel::kInfo : LogLevel::kWarning;
  if (!LogEnabled(level)) return;
  LogLine(level).stream() << RoleName(w.role) << " worker " << w.address << " is "
                          << StateName(state) << (w.detail.empty() ? "" : ": ") << w.detail;
}

std::optional<ModelInfo> Membership::model() const {
  absl::MutexLock lock(&mutex_);
  std::optional<ModelInfo> model;
  for (const Worker& w : workers_) {
    if (!w.card || !w.listed) continue;
    if (model) {
      model->max_model_len = std::min(model->max_model_len, w.card->max_model_len());
      continue;
    }
    model.emplace();
    model->fingerprint = w.card->model_fingerprint();
    model->kv_layout_fingerprint = w.card->kv_layout().fingerprint();
    model->block_tokens = w.card->kv_layout().block_tokens();
    model->max_model_len = w.card->max_model_len();
    model->eos_token_ids.assign(w.card->eos_token_ids().begin(), w.card->eos_token_ids().end());
    model->defaults = w.card->generation_defaults();
  }
  return model;
}

std::vector<v1::WorkerStatus> Membership::List() const {
  absl::MutexLock lock(&mutex_);
  std::vector<v1::WorkerStatus> list;
  for (int i = 0; i < static_cast<int>(workers_.size()); ++i) {
    const Worker& w = workers_[i];
    if (w.hold == nullptr) continue;
    v1::WorkerStatus& status = list.emplace_back();
    status.set_address(w.address);
    status.set_role(w.role);
    status.set_state(w.state);
    status.set_detail(w.detail);
    if (w.card) {
      status.set_worker_id(w.card->worker_id());
      status.set_epoch(w.card->epoch());
      status.set_total_blocks(w.card->total_blocks());
    }
    status.set_running(w.load.running());
    status.set_queued(w.load.queued());
    status.set_free_blocks(w.load.free_blocks());
    status.set_indexed_blocks(index_.key_count(i));
  }
  return list;
}

}  // namespace baton::router
