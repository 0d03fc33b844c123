#include "router/request/prefix_warmer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/request_limits.h"
#include "common/base/status_macros.h"
#include "common/kv/prefix_key.h"
#include "router/fleet/roster.h"
#include "router/options.h"
#include "router/request/chat_prompt.h"
#include "router/request/generate_call.h"
#include "router/request/request_check.h"
#include "router/request/request_class.h"

namespace baton::router {
namespace {

constexpr int kMaxReplicas = 16'384;

absl::Duration WarmerPause(int failures) {
  return std::min(PrefixWarmer::kLongestPause,
                  PrefixWarmer::kFirstPause * (1 << std::clamp(failures - 1, 0, 10)));
}

uint64_t WeightOf(const std::string& id, const std::string& address) {
  return kv::RootPrefixKey(0, id, address);
}

absl::Status Stopped() {
  return MakeError(absl::StatusCode::kUnavailable, "DRAINING", "this router drains");
}

v1::GenerateRequest ToGenerateRequest(const v1::WarmPrefixRequest& request) {
  v1::GenerateRequest generate;
  generate.set_model(request.model());
  if (request.has_text()) generate.set_text(request.text());
  if (request.has_token_ids()) *generate.mutable_token_ids() = request.token_ids();
  if (request.has_messages()) *generate.mutable_messages() = request.messages();
  if (request.has_add_special_tokens()) {
    generate.set_add_special_tokens(request.add_special_tokens());
  }
  if (request.has_split_special_tokens()) {
    generate.set_split_special_tokens(request.split_special_tokens());
  }
  generate.set_cache_salt(request.cache_salt());
  generate.set_tenant(request.tenant());
  if (request.has_retention()) *generate.mutable_retention() = request.retention();
  generate.mutable_sampling()->set_temperature(0);
  generate.mutable_stop()->set_max_tokens(1);
  generate.mutable_stop()->set_ignore_eos(true);
  generate.set_priority(v1::PRIORITY_LOW);
  return generate;
}

}  // namespace

// One request to one worker. The call ends it under its lock, so it only notes the end; the warmer
// takes it at its next tick.
class PrefixWarmer::Computation final : public ResponseSink {
 public:
  struct End {
    absl::Status status;
    int cached_tokens = 0;
    absl::Duration took;
  };

  Computation(RouterParts& parts, const Incarnation& process, Caller caller,
              v1::GenerateRequest request)
      : clock_(parts.clock),
        request_(std::move(request)),
        call_(std::make_shared<GenerateCall>(parts, std::move(caller))) {
    call_->ComputeOn(process);
  }
  // It may have been dropped before it was started.
  ~Computation() override {
    call_->Cancel();
    call_->OnSinkGone();
  }

  void Start() {
    begun_ = clock_.SinceStart();
    call_->Start(std::move(request_), clock_.Now() + kDeadline, this);
  }
  void Cancel() { call_->Cancel(); }
  std::optional<End> end() const {
    absl::MutexLock lock(&mutex_);
    return end_;
  }

  void Send(const v1::GenerateResponse& delta) override {}
  void Finish(const v1::GenerateResponse& last, absl::Span<const int> token_counts) override {
    SetEnd(absl::OkStatus(), last.usage().cached_prompt_tokens());
  }
  void Fail(const absl::Status& error) override { SetEnd(error, 0); }

 private:
  void SetEnd(const absl::Status& status, int cached_tokens) {
    absl::MutexLock lock(&mutex_);
    end_ = End{status, cached_tokens, clock_.SinceStart() - begun_};
  }

  const Clock& clock_;
  v1::GenerateRequest request_;
  absl::Duration begun_;
  const std::shared_ptr<GenerateCall> call_;
  mutable absl::Mutex mutex_;
  std::optional<End> end_ ABSL_GUARDED_BY(mutex_);
};

PrefixWarmer::PrefixWarmer(RouterParts& parts, int max_prefixes)
    : parts_(parts), max_prefixes_(static_cast<size_t>(max_prefixes)) {}

PrefixWarmer::~PrefixWarmer() { Stop(); }

absl::StatusOr<PrefixWarmer::Prefix> PrefixWarmer::Prepare(
    const v1::WarmPrefixRequest& request) const {
  BATON_RETURN_IF_ERROR(CheckRange("replicas", request.replicas(), 0, kMaxReplicas));
  Prefix prefix;
  prefix.request = ToGenerateRequest(request);
  BATON_RETURN_IF_ERROR(CheckRequest(prefix.request, parts_.options.served_model_name,
                                     parts_.options.max_prompt_bytes));
  // An operator asks for any tenant.
  if (parts_.access.has_keys()) prefix.caller = Caller{request.tenant(), true, {}};
  v1::GenerateRequest bound = prefix.request;
  BATON_RETURN_IF_ERROR(BindToTenant(prefix.caller, &bound));
  const RequestClass request_class = ClassOf(parts_, request.tenant());
  BATON_RETURN_IF_ERROR(RenderMessages(parts_, request_class, &bound).status());
  const std::optional<ModelInfo> model = parts_.roster.model();
  if (!model) return parts_.roster.NoDecodeWorker();
  PreparedRequest prepared;
  BATON_ASSIGN_OR_RETURN(prepared, PrepareRequest(bound, parts_.tokenizer, *model, request_class));
  *prefix.request.mutable_token_ids()->mutable_ids() = prepared.decode.tokens();
  prefix.request.clear_add_special_tokens();
  v1::WarmPrefix& description = prefix.description;
  description.set_id(absl::StrCat(
      absl::Hex(kv::NextPrefixKey(prepared.root, prepared.decode.tokens()), absl::kZeroPad16)));
  description.set_tokens(prepared.decode.tokens_size());
  description.set_tenant(request.tenant());
  description.set_replicas(request.replicas());
  if (request.has_retention()) *description.mutable_retention() = request.retention();
  description.set_created_unix_ms(absl::ToUnixMillis(parts_.clock.Now()));
  return prefix;
}

void PrefixWarmer::Warm(const v1::WarmPrefixRequest& request, absl::Time deadline, Done done) {
  absl::StatusOr<Prefix> prefix = Prepare(request);
  if (!prefix.ok()) return done(prefix.status());
  if (absl::Status kept = Remember(*std::move(prefix), Waiter{deadline, done}); !kept.ok()) {
    return done(kept);
  }
  OnTick();
}

absl::Status PrefixWarmer::Remember(Prefix prefix, Waiter waiter) {
  absl::MutexLock lock(&mutex_);
  if (stopped_) return Stopped();
  const std::string id = prefix.description.id();
  const auto known = prefixes_.find(id);
  if (known == prefixes_.end()) {
    if (prefixes_.size() >= max_prefixes_) {
      return MakeError(absl::StatusCode::kResourceExhausted, "TOO_MANY_WARM_PREFIXES",
                       absl::StrCat("this router remembers ", max_prefixes_,
                                    " prefixes, its limit (--max-warm-prefixes)"));
    }
    ready_version_ = -1;  // its places are to be chosen
    prefix.waiters.push_back(std::move(waiter));
    prefixes_.emplace(id, std::move(prefix));
    return absl::OkStatus();
  }
  ready_version_ = -1;
  Prefix& old = known->second;
  prefix.description.set_created_unix_ms(old.description.created_unix_ms());
  old.description = std::move(prefix.description);
  old.request = std::move(prefix.request);
  for (Place& place : old.places) {
    place.tried = place.warm = false;
    place.outdated = place.running != nullptr;
  }
  old.waiters.push_back(std::move(waiter));
  return absl::OkStatus();
}

std::vector<v1::WarmPrefix> PrefixWarmer::List() const {
  absl::MutexLock lock(&mutex_);
  std::vector<v1::WarmPrefix> list;
  for (const auto& [id, prefix] : prefixes_) list.push_back(Describe(prefix));
  return list;
}

absl::Status PrefixWarmer::Drop(const std::string& id) {
  Calls calls;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = prefixes_.find(id);
    if (found == prefixes_.end()) {
      return MakeError(absl::StatusCode::kNotFound, "UNKNOWN_PREFIX",
                       absl::StrCat("this router remembers no prefix \"", id.substr(0, 300),
                                    "\"; an id of ListWarmPrefixes expected"));
    }
    Prefix& prefix = found->second;
    for (Waiter& waiter : prefix.waiters) {
      calls.push_back(
          [done = std::move(waiter.done), described = Describe(prefix)] { done(described); });
    }
    for (Place& place : prefix.places) {
      if (place.running == nullptr) continue;
      --running_;
      calls.push_back([running = std::move(place.running)] { running->Cancel(); });
    }
    prefixes_.erase(found);
  }
  for (const auto& call : calls) call();
  return absl::OkStatus();
}

void PrefixWarmer::OnTick() {
  Calls calls;
  {
    absl::MutexLock lock(&mutex_);
    if (stopped_ || prefixes_.empty()) return;
    const int64_t version = parts_.roster.state_version();
    const bool changed = std::exchange(ready_version_, version) != version;
    if (changed) ready_ = ReadyWorkers();
    for (auto& [id, prefix] : prefixes_) {
      for (Place& place : prefix.places) Harvest(place, &calls);
      if (changed) ChoosePlaces(prefix);
      for (Place& place : prefix.places) Begin(prefix, place, &calls);
      Answer(prefix, &calls);
    }
  }
  for (const auto& call : calls) call();
}

std::vector<PrefixWarmer::Ready> PrefixWarmer::ReadyWorkers() const {
  const auto workers = parts_.roster.List();
  const bool any_prefill = absl::c_any_of(workers, [](const v1::WorkerStatus& worker) {
    return worker.role() == v1::WORKER_ROLE_PREFILL;
  });
  const v1::WorkerRole role = any_prefill ? v1::WORKER_ROLE_PREFILL : v1::WORKER_ROLE_DECODE;
  std::vector<Ready> ready;
  for (const v1::WorkerStatus& worker : workers) {
    if (worker.role() != role || worker.state() != v1::WORKER_STATE_READY) continue;
    // It may have gone since.
    const absl::StatusOr<WorkerTarget> target = parts_.roster.Find(worker.address());
    if (target.ok() && target->epoch == worker.epoch()) {
      ready.push_back({target->incarnation(), worker.address()});
    }
  }
  return ready;
}

// Workers that are ready and have the prefix keep it; others take the places that are left.
void PrefixWarmer::ChoosePlaces(Prefix& prefix) const {
  std::vector<Place>& places = prefix.places;
  places.erase(std::remove_if(places.begin(), places.end(),
                              [this](const Place& place) {
                                mutex_.AssertHeld();
                                return place.running == nullptr &&
                                       absl::c_none_of(ready_, [&place](const Ready& ready) {
                                         return ready.process == place.process;
                                       });
                              }),
               places.end());
  const std::string& id = prefix.description.id();
  std::vector<const Ready*> others;
  for (const Ready& ready : ready_) {
    const bool has_place = absl::c_any_of(
        places, [&ready](const Place& place) { return place.process == ready.process; });
    if (!has_place) others.push_back(&ready);
  }
  absl::c_sort(others, [&id](const Ready* a, const Ready* b) {
    return WeightOf(id, a->address) > WeightOf(id, b->address);
  });
  const int replicas = prefix.description.replicas();
  const size_t wanted = replicas == 0 ? ready_.size() : static_cast<size_t>(replicas);
  for (const Ready* other : others) {
    if (places.size() >= wanted) break;
    Place& place = places.emplace_back();
    place.process = other->process;
    place.result.set_address(other->address);
  }
  while (places.size() > wanted && places.back().running == nullptr) places.pop_back();
}

void PrefixWarmer::Harvest(Place& place, Calls* calls) {
  if (place.running == nullptr) return;
  const std::optional<Computation::End> end = place.running->end();
  if (!end) return;
  // Not destroyed under the lock: that calls into the request.
  calls->push_back([ended = std::move(place.running)] {});
  place.running = nullptr;
  --running_;
  if (std::exchange(place.outdated, false)) return;  // the next one counts
  place.tried = true;
  place.warm = end->status.ok();
  place.result.set_duration_ms(absl::ToDoubleMilliseconds(end->took));
  place.result.set_cached_tokens(end->cached_tokens);
  place.result.set_error(std::string(end->status.message()));
  place.failures = place.warm ? 0 : place.failures + 1;
  if (!place.warm) place.next_at = parts_.clock.SinceStart() + WarmerPause(place.failures);
}

void PrefixWarmer::Begin(Prefix& prefix, Place& place, Calls* calls) {
  if (place.warm || place.running != nullptr || running_ >= kMaxRunning ||
      parts_.clock.SinceStart() < place.next_at) {
    return;
  }
  v1::GenerateRequest request = prefix.request;
  request.set_request_id(absl::StrCat("warm-", prefix.description.id(), "-", ++started_));
  BATON_LOG(Info) << "warms prefix " << prefix.description.id() << " on " << place.result.address();
  place.running =
      std::make_shared<Computation>(parts_, place.process, prefix.caller, std::move(request));
  ++running_;
  calls->push_back([started = place.running] { started->Start(); });
}

void PrefixWarmer::Answer(Prefix& prefix, Calls* calls) const {
  const bool all_tried =
      absl::c_all_of(prefix.places, [](const Place& place) { return place.tried; });
  const absl::Time now = parts_.clock.Now();
  std::vector<Waiter> left;
  for (Waiter& waiter : prefix.waiters) {
    if (all_tried || now >= waiter.deadline) {
      calls->push_back(
          [done = std::move(waiter.done), described = Describe(prefix)] { done(described); });
    } else {
      left.push_back(std::move(waiter));
    }
  }
  prefix.waiters = std::move(left);
}

void PrefixWarmer::Stop() {
  Calls calls;
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
    for (auto& [id, prefix] : prefixes_) {
      for (Waiter& waiter : prefix.waiters) {
        calls.push_back([done = std::move(waiter.done)] { done(Stopped()); });
      }
      for (Place& place : prefix.places) {
        if (place.running == nullptr) continue;
        calls.push_back([running = std::move(place.running)] { running->Cancel(); });
      }
    }
    prefixes_.clear();
    running_ = 0;
  }
  for (const auto& call : calls) call();
}

v1::WarmPrefix PrefixWarmer::Describe(const Prefix& prefix) {
  v1::WarmPrefix described = prefix.description;
  for (const Place& place : prefix.places) *described.add_workers() = place.result;
  return described;
}

}  // namespace baton::router
