#include "router/fleet/roster.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/request_limits.h"
#include "common/base/status_macros.h"
#include "router/fleet/capabilities.h"
#include "router/fleet/card_sizes.h"
#include "router/fleet/worker_costs.h"

namespace baton::router {
namespace {

namespace worker_pb = ::baton::internal::v1;

constexpr absl::Duration kNoWorkerRetryAfter = absl::Seconds(1);

absl::Status Refuse(absl::string_view reason, absl::string_view message) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason, message);
}

absl::Status BadStream(absl::string_view message) {
  return MakeError(absl::StatusCode::kInternal, "BAD_WATCH_STREAM", message);
}

std::string Hex(uint64_t value) { return absl::StrCat(absl::Hex(value, absl::kZeroPad16)); }

bool SameGeneration(const worker_pb::WorkerCard& a, const worker_pb::WorkerCard& b) {
  return absl::c_equal(a.eos_token_ids(), b.eos_token_ids()) &&
         a.generation_defaults().SerializeAsString() == b.generation_defaults().SerializeAsString();
}

std::string GenerationText(const worker_pb::WorkerCard& card) {
  return absl::StrCat("generation defaults {", card.generation_defaults().ShortDebugString(),
                      "} and end tokens ", absl::StrJoin(card.eos_token_ids(), ", "));
}

}  // namespace

Roster::Roster(uint64_t tokenizer_fingerprint, PrefixIndex& index, const Clock& clock)
    : tokenizer_fingerprint_(tokenizer_fingerprint),
      index_(index),
      clock_(clock),
      started_(clock.SinceStart()) {}

void Roster::SetObserver(RosterObserver* observer) {
  absl::MutexLock lock(&mutex_);
  observer_ = observer;
}

void Roster::OnStreamStarted(int worker) {
  absl::MutexLock lock(&mutex_);
  Worker& w = workers_[worker];
  w.stream_open = true;
  w.card_seen = w.snapshot_begun = w.snapshot_done = false;
  // A known worker stays silent until it reports: streams are tried again every second.
  if (w.card) return;
  w.last_event = clock_.SinceStart();
  w.signs.Restart(w.last_event);
}

absl::Status Roster::OnEvent(int worker, const worker_pb::WatchResponse& event) {
  {
    absl::MutexLock lock(&mutex_);
    Worker& w = workers_[worker];
    w.last_event = clock_.SinceStart();
    w.signs.Heard(w.last_event);
    if (event.has_card()) return OnCard(worker, event.card());
    if (!w.card_seen) return BadStream("the stream did not begin with the worker's card");
    if (event.has_snapshot()) {
      BATON_RETURN_IF_ERROR(BeginSnapshot(worker, event.snapshot()));
    } else if (event.has_delta()) {
      BATON_RETURN_IF_ERROR(BeginDelta(worker, event.delta()));
    } else {
      if (event.has_load()) {
        w.load = event.load();
        if (w.load.links_size() > 0) w.link_bytes_per_second = MeanLinkRate(w.load);
        w.load_at = w.last_event;
      }
      if (w.snapshot_done) SetServingState(worker);
      if (event.has_load()) observer_->OnLoad(worker, w.load, w.last_event);
      return absl::OkStatus();
    }
  }
  // Not under the lock: tens of thousands of keys may come at once, and requests must not wait.
  bool fits;
  if (event.has_snapshot()) {
    fits = index_.Add(worker, event.snapshot().keys());
  } else {
    // Removals first: they make room for the additions.
    index_.Remove(worker, event.delta().removed());
    fits = index_.Add(worker, event.delta().added());
  }
  absl::MutexLock lock(&mutex_);
  Worker& w = workers_[worker];
  if (!w.card_seen) {  // it expired meanwhile, and its keys were dropped
    index_.DropWorker(worker);
    return BadStream("the worker expired while it reported what it has cached");
  }
  if (!fits) return BadStream("more cached blocks than blocks");
  if (event.has_snapshot() && event.snapshot().last()) {
    w.snapshot_done = true;
    index_.Show(worker);
  }
  if (w.snapshot_done) SetServingState(worker);
  return absl::OkStatus();
}

// The state of a worker whose snapshot is complete, by its last report.
void Roster::SetServingState(int worker) {
  const Worker& w = workers_[worker];
  if (!w.listed) {
    SetState(worker, v1::WORKER_STATE_DRAINING, "no longer listed");
  } else if (w.load.drained()) {
    SetState(worker, v1::WORKER_STATE_DRAINED, "the worker drains, and has no work left");
  } else if (w.load.draining()) {
    SetState(worker, v1::WORKER_STATE_DRAINING, "the worker takes no new work");
  } else {
    SetState(worker, v1::WORKER_STATE_READY, "");
  }
}

absl::Status Roster::OnCard(int worker, const worker_pb::WorkerCard& card) {
  Worker& w = workers_[worker];
  if (w.card_seen) return BadStream("a second card on one stream");
  if (absl::Status fits = CheckCard(worker, card); !fits.ok()) {
    ReportDeath(worker);
    Forget(worker);
    w.refused_id = card.worker_id();
    SetState(worker, v1::WORKER_STATE_REFUSED, std::string(fits.message()));
    return fits;
  }
  // Nothing of an earlier life of the process at this address holds for this one.
  if (w.card && (w.card->epoch() != card.epoch() || w.card->worker_id() != card.worker_id())) {
    ReportDeath(worker);
    Forget(worker);
    w.signs.Restart(w.last_event);
  }
  w.card = card;
  w.card_seen = true;
  index_.SetCapacity(worker, int64_t{card.total_blocks()} + card.kv_tier_max_segments());
  SetState(worker, v1::WORKER_STATE_CONNECTING, "reporting what it has cached");
  return absl::OkStatus();
}

absl::Status Roster::CheckCard(int worker, const worker_pb::WorkerCard& card) const {
  if (card.worker_id().empty() || card.epoch() == 0 || card.kv_layout().block_tokens() <= 0 ||
      card.max_model_len() <= 0 || card.kv_block_bytes() < 0) {
    return Refuse("BAD_WORKER_CARD",
                  "the worker's card lacks its id, epoch, block size or context length");
  }
  if (card.kv_tier_max_segments() < 0 || card.kv_tier_max_segments() > kv::kMostTierKeys ||
      card.kv_tier_segment_tokens() < 0 ||
      card.kv_tier_segment_tokens() % card.kv_layout().block_tokens() != 0) {
    return Refuse(
        "BAD_WORKER_CARD",
        absl::StrCat("the worker's card has ", card.kv_tier_max_segments(), " segments of ",
                     card.kv_tier_segment_tokens(), " tokens in KV tiers, expected at most ",
                     kv::kMostTierKeys, ", of whole blocks"));
  }
  if (!HasSaneShape(card)) {
    const worker_pb::BlockShape& shape = card.block_shape();
    return Refuse("BAD_WORKER_CARD",
                  absl::StrCat("the worker's card has KV blocks of ", shape.full_pages(),
                               " pages and ", shape.window_pages(), " window pages, ",
                               shape.window_bytes(), " bytes of windows in ", card.kv_block_bytes(),
                               ", expected 1 to ", kMostPagesOfBlock, " pages, and bytes within"));
  }
  if (!card.pool().empty() && !CheckPool("pool", card.pool()).ok()) {
    return Refuse("BAD_WORKER_CARD", "the worker's card has a pool with a name that is none");
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

absl::Status Roster::CheckSameModel(int worker, const worker_pb::WorkerCard& card) const {
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
    // What a request leaves open must not depend on which worker came first.
    if (!SameGeneration(card, first)) {
      return Refuse(
          "GENERATION_CONFIG_MISMATCH",
          absl::StrCat(GenerationText(card), ", but this cluster has ", GenerationText(first)));
    }
  }
  return absl::OkStatus();
}

absl::Status Roster::BeginSnapshot(int worker, const worker_pb::CacheSnapshot& snapshot) {
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

absl::Status Roster::BeginDelta(int worker, const worker_pb::CacheDelta& delta) {
  Worker& w = workers_[worker];
  if (!w.snapshot_done) return BadStream("a cache change before the end of the snapshot");
  if (delta.sequence() != w.sequence + 1) {
    return BadStream(
        absl::StrCat("cache change ", delta.sequence(), " after ", w.sequence, ": some were lost"));
  }
  w.sequence = delta.sequence();
  return absl::OkStatus();
}

bool IsAccessRefused(const absl::Status& why) {
  return absl::IsUnauthenticated(why) || absl::IsPermissionDenied(why);
}

void Roster::OnStreamLost(int worker, const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  Worker& w = workers_[worker];
  w.stream_open = false;
  ReportDeath(worker);
  if (IsAccessRefused(why)) {
    w.refused_id.clear();  // whose it was is unknown
    SetState(worker, v1::WORKER_STATE_REFUSED, std::string(why.message()));
    return;
  }
  // Those two say more than "lost" does. A refused worker that cannot be reached again is lost.
  if (w.state == v1::WORKER_STATE_EXPIRED) return;
  if (w.state == v1::WORKER_STATE_REFUSED && absl::IsFailedPrecondition(why)) return;
  SetState(worker, v1::WORKER_STATE_CONNECTING, std::string(why.message()));
}

std::vector<int> Roster::Tick() {
  const absl::Duration now = clock_.SinceStart();
  RosterObserver* observer;
  {
    absl::MutexLock lock(&mutex_);
    observer = observer_;
  }
  observer->OnTick(now);
  absl::MutexLock lock(&mutex_);
  hears_prefill_ = hears_decode_ = false;
  std::vector<int> expired;
  for (int i = 0; i < static_cast<int>(workers_.size()); ++i) {
    Worker& w = workers_[i];
    const absl::Duration silence = now - w.last_event;
    const bool known = w.card.has_value() || w.stream_open;
    if (known && silence > kExpireAfter) {
      if (w.stream_open) expired.push_back(i);
      Expire(i);
    } else if (Serving(w.state) &&
               (silence > kSuspectAfter || w.signs.Suspicion(now) >= SignsOfLife::kSuspicious)) {
      SetState(i, v1::WORKER_STATE_SUSPECT,
               absl::StrCat("silent for ",
                            absl::FormatDuration(absl::Trunc(silence, absl::Milliseconds(10)))));
      ReportDeath(i);
    } else if (w.state == v1::WORKER_STATE_READY &&
               now - w.signs.heard_at() < SignsOfLife::kPauseOfALivingWorker) {
      (w.role == v1::WORKER_ROLE_DECODE ? hears_decode_ : hears_prefill_) = true;
    }
  }
  return expired;
}

void Roster::Expire(int worker) {
  Worker& w = workers_[worker];
  const bool was_to_serve = w.card.has_value() && !w.load.draining();
  ReportDeath(worker);
  Forget(worker);
  w.stream_open = false;
  SetState(worker, v1::WORKER_STATE_EXPIRED,
           absl::StrCat("silent for ", absl::FormatDuration(kExpireAfter)));
  if (was_to_serve && on_expired_) on_expired_(w.role);
}

void Roster::SetOnDeath(std::function<void(const Incarnation&)> on_death) {
  absl::MutexLock lock(&mutex_);
  on_death_ = std::move(on_death);
}

void Roster::SetOnExpired(std::function<void(v1::WorkerRole)> on_expired) {
  absl::MutexLock lock(&mutex_);
  on_expired_ = std::move(on_expired);
}

// May be called more than once for a process.
void Roster::ReportDeath(int worker) {
  const Worker& w = workers_[worker];
  if (on_death_ && w.card) on_death_({worker, w.card->epoch()});
}

void Roster::Forget(int worker) {
  Worker& w = workers_[worker];
  index_.DropWorker(worker);
  observer_->OnForgotten(worker);
  w.card.reset();
  w.load.Clear();
  w.load_at.reset();
  w.link_bytes_per_second = 0;
  // What still comes on the stream has no card to stand on.
  w.card_seen = w.snapshot_begun = w.snapshot_done = false;
}

void Roster::SetState(int worker, v1::WorkerState state, std::string detail) {
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
    observer_->OnReady(w.Target(), *w.card);
  } else if (state == v1::WORKER_STATE_SUSPECT) {
    observer_->OnSuspect(worker);
  } else {
    observer_->OnUnavailable(worker);
  }
  const bool good = state == v1::WORKER_STATE_READY || state == v1::WORKER_STATE_CONNECTING;
  const LogLevel level = good ? LogLevel::kInfo : LogLevel::kWarning;
  if (!LogEnabled(level)) return;
  LogLine(level).stream() << RoleName(w.role) << " worker " << w.address << " is "
                          << StateName(state) << (w.detail.empty() ? "" : ": ") << w.detail;
}

ProcessLife Roster::LifeOf(const WorkerTarget& target) const {
  absl::MutexLock lock(&mutex_);
  return LifeOfLocked(target);
}

ProcessLife Roster::LifeOf(const WorkerTarget& target, absl::Duration heard_at) {
  absl::MutexLock lock(&mutex_);
  Worker& w = workers_[target.worker];
  if (w.card && w.card->epoch() == target.epoch) w.signs.Heard(heard_at);
  return LifeOfLocked(target);
}

ProcessLife Roster::LifeOfLocked(const WorkerTarget& target) const {
  const Worker& w = workers_[target.worker];
  if (w.state == v1::WORKER_STATE_EXPIRED || w.state == v1::WORKER_STATE_REFUSED ||
      (w.card && w.card->epoch() != target.epoch)) {
    return ProcessLife::kGone;
  }
  // If no other worker could take its requests, or all workers fall silent together, which points
  // to the network or to this process, the requests wait until the worker expires.
  const bool other = w.role == v1::WORKER_ROLE_DECODE ? hears_decode_ : hears_prefill_;
  return w.state == v1::WORKER_STATE_SUSPECT && other ? ProcessLife::kSuspect : ProcessLife::kLives;
}

bool Roster::Unheard(const Worker& w) const {
  return w.card && w.state == v1::WORKER_STATE_CONNECTING && !w.load.draining() &&
         clock_.SincePause() <= kHearAgain;
}

bool Roster::Awaited(v1::WorkerCapability capability) const {
  absl::MutexLock lock(&mutex_);
  for (const Worker& w : workers_) {
    if (!w.listed || !w.card || !Can(*w.card, capability) || w.load.draining()) continue;
    if (w.state == v1::WORKER_STATE_SUSPECT || Unheard(w)) return true;
  }
  return false;
}

double Roster::Suspicion(int worker) const {
  absl::MutexLock lock(&mutex_);
  return workers_[worker].signs.Suspicion(clock_.SinceStart());
}

bool Roster::LooksDead(const WorkerTarget& target) const {
  if (target.worker == kNoWorker) return false;
  absl::MutexLock lock(&mutex_);
  const Worker& w = workers_[target.worker];
  // A stream that has just been opened says nothing yet: the process may be gone.
  if (!w.stream_open || !w.card_seen || w.card->epoch() != target.epoch) return true;
  return w.state == v1::WORKER_STATE_SUSPECT;
}

absl::Duration Roster::SilenceOf(int worker) const {
  absl::MutexLock lock(&mutex_);
  return clock_.SinceStart() - workers_[worker].signs.heard_at();
}

std::vector<absl::Duration> Roster::Silences() const {
  const absl::Duration now = clock_.SinceStart();
  absl::MutexLock lock(&mutex_);
  std::vector<absl::Duration> silences;
  silences.reserve(workers_.size());
  for (const Worker& w : workers_) silences.push_back(now - w.signs.heard_at());
  return silences;
}

bool Roster::Ready() const {
  absl::MutexLock lock(&mutex_);
  bool prefill = false, prefill_listed = false, decode = false;
  for (const Worker& w : workers_) {
    if (!w.listed) continue;
    const bool ready = w.state == v1::WORKER_STATE_READY || Unheard(w);
    if (w.role == v1::WORKER_ROLE_DECODE) {
      decode = decode || ready;
    } else {
      prefill_listed = true;
      prefill = prefill || ready;
    }
  }
  const bool starting = clock_.SinceStart() - started_ <= kExpireAfter;
  return decode && (prefill || !prefill_listed || !starting);
}

absl::Status Roster::NoDecodeWorker() const {
  absl::MutexLock lock(&mutex_);
  std::map<absl::string_view, int> states;
  int listed = 0;
  for (const Worker& w : workers_) {
    if (w.role != v1::WORKER_ROLE_DECODE || !w.listed) continue;
    ++listed;
    ++states[w.state == v1::WORKER_STATE_READY ? "of a model that came since" : StateName(w.state)];
  }
  const std::string counts = absl::StrJoin(states, ", ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, entry.second, " ", entry.first);
  });
  return WithRetryAfter(
      MakeError(absl::StatusCode::kUnavailable, "NO_WORKER",
                absl::StrCat("no decode worker is ready (", listed, " listed: ", counts, ")")),
      kNoWorkerRetryAfter);
}

std::optional<ModelInfo> Roster::model() const {
  absl::MutexLock lock(&mutex_);
  std::optional<ModelInfo> model;
  for (const Worker& w : workers_) {
    if (!w.card || !w.listed) continue;
    if (!model) {
      model.emplace();
      model->fingerprint = w.card->model_fingerprint();
      model->kv_layout_fingerprint = w.card->kv_layout().fingerprint();
      model->block_tokens = w.card->kv_layout().block_tokens();
      model->block_shape = KvSizesOf(*w.card).shape;
      model->max_model_len = w.card->max_model_len();
      model->eos_token_ids.assign(w.card->eos_token_ids().begin(), w.card->eos_token_ids().end());
      model->defaults = w.card->generation_defaults();
      if (w.card->has_embeddings()) model->embeddings = w.card->embeddings();
    }
    model->max_model_len = std::min(model->max_model_len, w.card->max_model_len());
    if (Can(*w.card, v1::WORKER_CAPABILITY_ANSWER)) {
      model->grammar_level = std::min(model->grammar_level, w.card->grammar_level());
    }
    // Most fleets have one size, or a few.
    const int pages = w.role == v1::WORKER_ROLE_DECODE ? w.card->total_blocks() : 0;
    std::vector<int>& sizes = model->decode_pages;
    if (pages > 0 && (sizes.empty() || sizes.back() != pages)) sizes.push_back(pages);
  }
  return model;
}

}  // namespace baton::router
