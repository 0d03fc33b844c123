#include "tests/simulation/router.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/kv/prefix_key.h"
#include "common/worker/token_sampling.h"

namespace baton::simulation {
namespace {

using internal::v1::DecodeResponse;

constexpr Micros kLongestPause = kSecond;  // between attempts
constexpr Micros kStallBound = 5 * kSecond;

std::vector<std::string> Addresses(const auto& workers) {
  std::vector<std::string> addresses;
  for (const auto* worker : workers) addresses.push_back(worker->address());
  return addresses;
}

bool SameLogprobs(const v1::TokenLogprobs& found, const model::SampledToken& expected) {
  if (found.token_id() != expected.token_id || found.logprob() != expected.logprob ||
      found.top_size() != static_cast<int>(expected.top.size())) {
    return false;
  }
  for (int i = 0; i < found.top_size(); ++i) {
    const model::TokenLogprob& top = expected.top[static_cast<size_t>(i)];
    if (found.top(i).token_id() != top.token_id || found.top(i).logprob() != top.logprob) {
      return false;
    }
  }
  return true;
}

bool CanNeverFit(const absl::Status& status) {
  const std::string reason = ErrorReason(status);
  return reason == "KV_POOL_TOO_SMALL" || reason == "TOO_MANY_CHOICES";
}

}  // namespace

struct Router::Request {
  RequestSpec spec;
  std::string id;
  std::vector<Answer> expected;
  std::vector<model::SampledToken> expected_prompt_logprobs;
  std::vector<std::vector<int32_t>> tokens;  // of each choice
  std::vector<bool> finished;
  std::vector<router::Incarnation> avoid;
  std::vector<std::weak_ptr<Leg>> legs;
  int failures = 0;   // attempts that were not just refused for load
  bool busy = false;  // refused for load
  bool ended = false;
  bool prompt_logprobs_seen = false;
};

// One Decode call.
struct Router::Leg {
  std::shared_ptr<Request> request;
  int first_choice = 0;
  int n = 1;
  router::Route route;
  std::shared_ptr<Stream> stream;
  Micros last_message = 0;
  bool closed = false;
};

Router::Router(World& world, std::vector<PrefillWorker*> prefill, std::vector<DecodeWorker*> decode)
    : world_(world),
      prefill_(std::move(prefill)),
      decode_(std::move(decode)),
      node_(world.AddNode()),
      fleet_(Addresses(prefill_), Addresses(decode_), 0x70c, policy_, world) {
  watches_.resize(prefill_.size() + decode_.size());
  calls_.resize(decode_.size());
  for (size_t i = 0; i < watches_.size(); ++i) OpenWatch(static_cast<int>(i));
  Tick();
}

Router::~Router() = default;

Worker& Router::worker(int index) const {
  const size_t at = static_cast<size_t>(index);
  if (at < prefill_.size()) return *prefill_[at];
  return *decode_[at - prefill_.size()];
}

void Router::OpenWatch(int index) {
  std::shared_ptr<Stream>& watch = watches_[static_cast<size_t>(index)];
  if (watch != nullptr) return;
  watch = world_.Open(node_, worker(index).node());
  fleet_.roster.OnStreamStarted(index);
  const std::weak_ptr<Stream> weak = watch;
  watch->OnLost(0, [this, index] { LoseWatch(index, absl::UnavailableError("lost")); });
  watch->Send(0, [this, index, weak] {
    const auto stream = weak.lock();
    if (stream == nullptr) return;
    worker(index).Watch(stream, [this, index](const internal::v1::WatchResponse& response) {
      const absl::Status status = fleet_.roster.OnEvent(index, response);
      if (status.ok()) return;
      world_.Fail(absl::StrCat("a worker's report was refused: ", status.ToString()));
    });
  });
}

void Router::LoseWatch(int index, const absl::Status& why) {
  std::shared_ptr<Stream>& watch = watches_[static_cast<size_t>(index)];
  if (watch == nullptr) return;
  watch->Close(0);
  watch->Break(0, 0);
  watch = nullptr;
  fleet_.roster.OnStreamLost(index, why);
  world_.At(world_.now() + world_.random.Time(200 * kMillisecond, kSecond),
            [this, index] { OpenWatch(index); });
}

void Router::Tick() {
  for (const int index : fleet_.roster.Tick()) LoseWatch(index, absl::UnavailableError("silent"));
  world_.At(world_.now() + 500 * kMillisecond, [this] { Tick(); });
}

void Router::Submit(const RequestSpec& spec) {
  auto request = std::make_shared<Request>();
  request->spec = spec;
  request->id = absl::StrCat("request-", ++request_count_);
  request->expected = OracleAnswers(spec);
  request->expected_prompt_logprobs = OraclePromptLogprobs(spec);
  request->tokens.resize(static_cast<size_t>(spec.n));
  request->finished.resize(static_cast<size_t>(spec.n));
  ++open_requests_;
  world_.At(spec.start, [this, request] { Attempt(request, 0, request->spec.n); });
  world_.At(spec.deadline, [this, request] {
    EndRequest(*request, absl::DeadlineExceededError("the deadline passed"));
  });
  if (spec.cancel_at < 0) return;
  world_.At(spec.cancel_at,
            [this, request] { EndRequest(*request, absl::CancelledError("by the client")); });
}

void Router::Attempt(const std::shared_ptr<Request>& request, int first_choice, int n) {
  if (request->ended) return;
  const RequestSpec& spec = request->spec;
  std::vector<int32_t> tokens = spec.prompt;
  int sent = 0;
  if (n == 1) {
    const std::vector<int32_t>& answer = request->tokens[static_cast<size_t>(first_choice)];
    tokens.insert(tokens.end(), answer.begin(), answer.end());
    sent = static_cast<int>(answer.size());
    if (sent > 0) ++counts_.resumed;
    if (sent > 0 && loses_a_token && sent + 1 < spec.max_tokens) {
      tokens.push_back(request->expected[static_cast<size_t>(first_choice)]
                           .tokens[static_cast<size_t>(sent)]
                           .token_id);
      ++sent;
    }
  }
  const kv::PrefixKey root = kv::RootPrefixKey(0xba70, spec.cache_salt, "");
  const std::vector<kv::PrefixKey> keys = kv::PrefixKeys(root, tokens, kBlockTokens);
  router::RouteRequest query;
  query.model_fingerprint = 0xba70;
  query.keys = keys;
  query.prompt_tokens = static_cast<int>(tokens.size());
  query.avoid = request->avoid;
  query.avoided_prefill_may_do = request->busy;
  const absl::StatusOr<router::Route> route = fleet_.planner.Choose(query);
  if (!route.ok()) {
    world_.At(world_.now() + 300 * kMillisecond,
              [this, request, first_choice, n] { Attempt(request, first_choice, n); });
    return;
  }
  internal::v1::DecodeRequest decode;
  decode.set_request_id(request->id);
  decode.set_model_fingerprint(0xba70);
  decode.set_decode_epoch(route->decode.epoch);
  if (!spec.aggregated && route->prefill.worker != router::kNoWorker) {
    decode.mutable_prefill()->set_address(route->prefill.address);
    decode.mutable_prefill()->set_worker_id(route->prefill.worker_id);
    decode.mutable_prefill()->set_epoch(route->prefill.epoch);
  }
  decode.mutable_tokens()->Add(tokens.begin(), tokens.end());
  model::SamplingParams sampling = spec.sampling;
  sampling.choice += static_cast<uint32_t>(first_choice);
  *decode.mutable_sampling() = worker::ToProto(sampling);
  decode.set_prompt_tokens(static_cast<int>(spec.prompt.size()));
  decode.set_max_tokens(spec.max_tokens - sent);
  decode.set_min_tokens(std::max(0, spec.min_tokens - sent));
  decode.mutable_stop_token_ids()->Add(spec.stop_token_ids.begin(), spec.stop_token_ids.end());
  decode.set_n(n);
  decode.set_beam_width(spec.beam_width);
  decode.set_length_penalty(spec.length_penalty);
  if (spec.prompt_logprobs && sent == 0) decode.set_prompt_logprobs(*spec.prompt_logprobs);
  decode.set_priority(spec.priority);
  decode.set_tenant(spec.tenant);
  decode.set_cache_salt(spec.cache_salt);
  decode.set_continuation(request->failures > 0);

  auto leg = std::make_shared<Leg>();
  leg->request = request;
  leg->first_choice = first_choice;
  leg->n = n;
  leg->route = *route;
  leg->last_message = world_.now();
  const size_t number = static_cast<size_t>(route->decode.worker) - prefill_.size();
  DecodeWorker* target = decode_[number];
  ++calls_[number];
  leg->stream = world_.Open(node_, target->node());
  request->legs.push_back(leg);
  leg->stream->OnLost(0, [this, leg] {
    OnStatus(leg, MakeError(absl::StatusCode::kUnavailable, "WORKER_LOST", "connection broke"));
  });
  DecodeWorker::Caller caller;
  caller.response = [this, leg](const DecodeResponse& response) { OnResponse(leg, response); };
  caller.status = [this, leg](const absl::Status& status) { OnStatus(leg, status); };
  const absl::Time deadline = absl::UnixEpoch() + absl::Microseconds(spec.deadline);
  const std::weak_ptr<Stream> weak = leg->stream;
  leg->stream->Send(
      0, [target, decode = std::move(decode), deadline, weak, caller = std::move(caller)] {
        if (const auto stream = weak.lock()) target->Accept(decode, deadline, stream, caller);
      });
  CheckStall(leg);
}

void Router::OnResponse(const std::shared_ptr<Leg>& leg, const DecodeResponse& response) {
  Request& request = *leg->request;
  if (leg->closed || request.ended) return;
  leg->last_message = world_.now();
  if (response.prompt_logprobs_size() > 0) {
    const auto& expected = request.expected_prompt_logprobs;
    bool same = response.prompt_logprobs_size() == static_cast<int>(expected.size());
    for (int i = 0; same && i < response.prompt_logprobs_size(); ++i) {
      same = SameLogprobs(response.prompt_logprobs(i), expected[static_cast<size_t>(i)]);
    }
    if (!same) world_.Fail(absl::StrCat(request.id, ": wrong prompt logprobs"));
    request.prompt_logprobs_seen = true;
  }
  if (response.token_ids().empty() && response.finish() == DecodeResponse::FINISH_UNSPECIFIED) {
    return;
  }
  const int choice = response.choice();
  if (choice < leg->first_choice || choice >= leg->first_choice + leg->n) {
    world_.Fail(absl::StrCat(request.id, ": tokens of choice ", choice));
    return;
  }
  const size_t at = static_cast<size_t>(choice);
  const Answer& expected = request.expected[at];
  std::vector<int32_t>& tokens = request.tokens[at];
  for (int i = 0; i < response.token_ids_size(); ++i) {
    const size_t position = tokens.size();
    if (position >= expected.tokens.size() || request.finished[at] ||
        response.token_ids(i) != expected.tokens[position].token_id) {
      world_.Fail(absl::StrCat(
          request.id, ", choice ", choice, ": token ", position, " is ", response.token_ids(i),
          ", expected ",
          position < expected.tokens.size() ? expected.tokens[position].token_id : -1, " of ",
          expected.tokens.size(), " behind a prompt of ", request.spec.prompt.size(), ", from ",
          leg->route.decode.address, " and ", leg->route.prefill.address));
      return;
    }
    if (request.spec.sampling.logprobs &&
        (response.logprobs_size() != response.token_ids_size() ||
         !SameLogprobs(response.logprobs(i), expected.tokens[position]))) {
      world_.Fail(absl::StrCat(request.id, ": wrong log probabilities of token ", position));
    }
    tokens.push_back(response.token_ids(i));
    ++counts_.tokens;
  }
  if (response.finish() == DecodeResponse::FINISH_UNSPECIFIED) return;
  const bool stopped = response.finish() == DecodeResponse::FINISH_STOP;
  if (response.beam_score() != expected.beam_score) {
    world_.Fail(absl::StrCat(request.id, ", choice ", choice, ": a beam of another score"));
  }
  if (tokens.size() != expected.tokens.size() || stopped != expected.stopped) {
    world_.Fail(absl::StrCat(request.id, ", choice ", choice, ": finish ", response.finish(),
                             " after ", tokens.size(), " of ", expected.tokens.size(), " tokens"));
  }
  request.finished[at] = true;
  if (std::find(request.finished.begin(), request.finished.end(), false) ==
      request.finished.end()) {
    if (request.spec.prompt_logprobs && request.spec.prompt.size() > 1 &&
        !request.prompt_logprobs_seen) {
      world_.Fail(absl::StrCat(request.id, ": no prompt logprobs"));
    }
    fleet_.planner.OnRouteWorked(leg->route, /*kv_moved=*/true);
    EndRequest(request, absl::OkStatus());
  }
}

void Router::OnStatus(const std::shared_ptr<Leg>& leg, const absl::Status& status) {
  Request& request = *leg->request;
  if (leg->closed || request.ended) return;
  CloseLeg(*leg);
  const std::string reason = ErrorReason(status);
  switch (status.code()) {
    case absl::StatusCode::kOk:
      for (int choice = leg->first_choice; choice < leg->first_choice + leg->n; ++choice) {
        if (request.finished[static_cast<size_t>(choice)]) continue;
        world_.Fail(absl::StrCat(request.id, ": OK without the end of choice ", choice));
      }
      fleet_.planner.OnRouteWorked(leg->route, /*kv_moved=*/true);
      return;
    case absl::StatusCode::kUnavailable:
      fleet_.planner.OnRouteFailed(leg->route, reason == "WORKER_LOST"
                                                   ? router::Blame::kDecodeWorker
                                               : reason == "DRAINING" ? router::Blame::kNone
                                                                      : router::Blame::kPair);
      request.avoid = {leg->route.decode.incarnation(), leg->route.prefill.incarnation()};
      Retry(leg, Pause(request));
      return;
    case absl::StatusCode::kResourceExhausted: {
      if (CanNeverFit(status)) {
        EndRequest(request, status);
        return;
      }
      const std::optional<absl::Duration> after = ErrorRetryAfter(status);
      request.busy = true;
      if (!after) world_.Fail(absl::StrCat("no RetryInfo: ", status.ToString()));
      Retry(leg, absl::ToInt64Microseconds(after.value_or(absl::Seconds(1))));
      return;
    }
    case absl::StatusCode::kDeadlineExceeded:
      if (world_.now() + 10 * kSecond < request.spec.deadline) {
        world_.Fail(absl::StrCat(request.id, ": ", status.ToString(), " long before it"));
      }
      EndRequest(request, status);
      return;
    default:
      world_.Fail(absl::StrCat(request.id, ": ", status.ToString()));
  }
}

void Router::CheckStall(const std::shared_ptr<Leg>& leg) {
  if (leg->closed || leg->request->ended) return;
  const Micros look_again = leg->last_message + kStallBound;
  if (world_.now() <= look_again && fleet_.roster.MayLive(leg->route.decode)) {
    world_.At(std::min(look_again + 1, world_.now() + kSecond), [this, leg] { CheckStall(leg); });
    return;
  }
  fleet_.planner.OnRouteFailed(leg->route, router::Blame::kDecodeWorker);
  leg->request->avoid = {leg->route.decode.incarnation()};
  CloseLeg(*leg);
  Retry(leg, Pause(*leg->request));
}

Micros Router::Pause(Request& request) {
  const Micros most = (20 * kMillisecond) << std::min(request.failures++, 10);
  return world_.random.Time(0, std::min(most, kLongestPause));
}

void Router::Retry(const std::shared_ptr<Leg>& leg, Micros after) {
  const std::shared_ptr<Request>& request = leg->request;
  const int end = leg->first_choice + leg->n;
  if (request->spec.beam_width > 0) {
    // A search begins anew, and must find the same.
    request->tokens.assign(request->tokens.size(), {});
    request->finished.assign(request->finished.size(), false);
  }
  bool begun = false;
  for (int choice = leg->first_choice; choice < end; ++choice) {
    begun |= !request->tokens[static_cast<size_t>(choice)].empty();
  }
  const Micros when = world_.now() + after;
  if (!begun) {
    const int first = leg->first_choice;
    world_.At(when, [this, request, first, n = leg->n] { Attempt(request, first, n); });
    return;
  }
  // Each from where it is.
  for (int choice = leg->first_choice; choice < end; ++choice) {
    if (request->finished[static_cast<size_t>(choice)]) continue;
    world_.At(when, [this, request, choice] { Attempt(request, choice, 1); });
  }
}

void Router::CloseLeg(Leg& leg) {
  if (leg.closed) return;
  leg.closed = true;
  leg.stream->Send(0, [weak = std::weak_ptr<Stream>(leg.stream)] {
    if (const auto stream = weak.lock()) stream->Break(0, 0);
  });
  leg.stream->Close(0);
}

void Router::EndRequest(Request& request, const absl::Status& status) {
  if (request.ended) return;
  request.ended = true;
  --open_requests_;
  for (const std::weak_ptr<Leg>& weak : request.legs) {
    if (const auto leg = weak.lock()) CloseLeg(*leg);
  }
  if (status.ok()) {
    ++counts_.finished;
  } else if (absl::IsCancelled(status)) {
    ++counts_.cancelled;
  } else {
    ++counts_.failed;
    const std::string reason = ErrorReason(status);
    ++failed_by_reason_[reason.empty() ? absl::StatusCodeToString(status.code()) : reason];
    if (!CanNeverFit(status) && request.spec.deadline - request.spec.start >= kAmpleTime) {
      world_.Fail(absl::StrCat(request.id, " failed with time enough: ", status.ToString()));
    }
  }
}

}  // namespace baton::simulation
