#include "benchmarks/serving/traffic.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "baton/v1/inference.grpc.pb.h"
#include "common/base/clock.h"
#include "common/base/rpc/grpc_status.h"
#include "common/base/rpc/server.h"
#include "common/base/status_macros.h"

namespace baton::benchmarks {
namespace {

constexpr int kMaxTokens = 1 << 20;

absl::Status BadMix(const std::string& text) {
  return absl::InvalidArgumentError(
      absl::StrCat("mix \"", text, "\": expected WEIGHT:LOW-HIGH:LOW-HIGH,..., lengths from 1"));
}

bool ParseRange(absl::string_view text, int* low, int* high) {
  const std::vector<absl::string_view> ends = absl::StrSplit(text, '-');
  return ends.size() <= 2 && absl::SimpleAtoi(ends.front(), low) &&
         absl::SimpleAtoi(ends.back(), high) && 1 <= *low && *low <= *high && *high <= kMaxTokens;
}

// Deletes itself when its call has ended.
class Call : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  Call(v1::InferenceService::Stub* stub, const Ask& ask, double due_s,
       std::function<void(Outcome)> done)
      : done_(std::move(done)), on_tokens_(ask.on_tokens) {
    request_.mutable_token_ids()->mutable_ids()->Add(ask.prompt.begin(), ask.prompt.end());
    request_.mutable_stop()->set_max_tokens(ask.max_tokens);
    request_.mutable_stop()->set_ignore_eos(true);
    request_.mutable_sampling()->set_temperature(0);
    request_.mutable_sampling()->set_seed(ask.seed);
    // Then no token is held back for want of whole UTF-8.
    request_.set_return_token_ids(true);
    outcome_.shape = ask.shape;
    outcome_.due_s = due_s;
    outcome_.sent_s = NowSeconds();
    outcome_.timeout_s = absl::ToDoubleSeconds(ask.timeout);
    if (ask.timeout < absl::InfiniteDuration()) {
      context_.set_deadline(absl::ToChronoTime(absl::Now() + ask.timeout));
    }
    stub->async()->Generate(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    const double now_s = NowSeconds();
    for (int32_t id : response_.token_ids()) {
      outcome_.tokens.push_back(id);
      outcome_.token_s.push_back(now_s);
    }
    if (on_tokens_ && response_.token_ids_size() > 0) {
      on_tokens_(static_cast<int>(outcome_.tokens.size()));
    }
    if (response_.has_usage()) {
      outcome_.prompt_tokens = response_.usage().prompt_tokens();
      outcome_.cached_prompt_tokens = response_.usage().cached_prompt_tokens();
    }
    finished_ = finished_ || response_.finish_reason() != v1::FINISH_REASON_UNSPECIFIED;
    StartRead(&response_);
  }

  void OnDone(const grpc::Status& status) override {
    outcome_.ended_s = NowSeconds();
    outcome_.status = FromGrpcStatus(status);
    if (status.ok() && !finished_) {
      outcome_.status = absl::InternalError("the stream ended without a finish reason");
    }
    const std::function<void(Outcome)> done = std::move(done_);
    Outcome outcome = std::move(outcome_);
    delete this;
    done(std::move(outcome));
  }

 private:
  std::function<void(Outcome)> done_;
  const std::function<void(int)> on_tokens_;
  grpc::ClientContext context_;
  v1::GenerateRequest request_;
  v1::GenerateResponse response_;
  Outcome outcome_;
  bool finished_ = false;
};

}  // namespace

double Random::Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

int Random::Between(int low, int high) {
  return low + static_cast<int>(Next() % static_cast<uint64_t>(high - low + 1));
}

double Random::Exponential(double rate) { return -std::log1p(-Uniform()) / rate; }

std::vector<int32_t> Random::Tokens(int count, int vocab_size) {
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = Between(0, vocab_size - 1);
  return ids;
}

absl::StatusOr<TrafficMix> TrafficMix::Parse(const std::string& text) {
  TrafficMix mix;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> fields = absl::StrSplit(part, ':');
    Kind kind;
    const bool well_formed = fields.size() == 3 && absl::SimpleAtod(fields[0], &kind.weight) &&
                             kind.weight > 0 && std::isfinite(kind.weight) &&
                             ParseRange(fields[1], &kind.prompt_low, &kind.prompt_high) &&
                             ParseRange(fields[2], &kind.answer_low, &kind.answer_high);
    if (!well_formed) return BadMix(text);
    mix.kinds_.push_back(kind);
    mix.total_weight_ += kind.weight;
  }
  return mix;
}

Shape TrafficMix::Draw(Random* random) const {
  double at = random->Uniform() * total_weight_;
  size_t chosen = 0;
  while (chosen + 1 < kinds_.size() && at >= kinds_[chosen].weight) at -= kinds_[chosen++].weight;
  const Kind& kind = kinds_[chosen];
  Shape shape;
  shape.prompt_tokens = random->Between(kind.prompt_low, kind.prompt_high);
  shape.answer_tokens = random->Between(kind.answer_low, kind.answer_high);
  shape.mix_class = static_cast<int>(chosen);
  return shape;
}

int TrafficMix::longest() const {
  int longest = 0;
  for (const Kind& kind : kinds_) longest = std::max(longest, kind.prompt_high + kind.answer_high);
  return longest;
}

Ask MakeAsk(const Shape& shape, int vocab_size, Random* random) {
  Ask ask;
  ask.prompt = random->Tokens(shape.prompt_tokens, vocab_size);
  ask.max_tokens = shape.answer_tokens;
  ask.seed = random->Next();
  ask.shape = shape;
  return ask;
}

double NowSeconds() { return absl::ToDoubleSeconds(Clock::Real().SinceStart()); }

struct LoadClient::Connection {
  explicit Connection(const std::string& address)
      : stub(v1::InferenceService::NewStub(MakeChannel(address))) {}
  const std::unique_ptr<v1::InferenceService::Stub> stub;
};

LoadClient::LoadClient(const std::string& address)
    : connection_(std::make_unique<Connection>(address)) {}
LoadClient::~LoadClient() = default;

void LoadClient::Send(const Ask& ask, double due_s, std::function<void(Outcome)> done) {
  new Call(connection_->stub.get(), ask, due_s, std::move(done));
}

Outcome LoadClient::SendAndWait(const Ask& ask) {
  Outcome outcome;
  absl::Notification ended;
  Send(ask, NowSeconds(), [&](Outcome got) {
    outcome = std::move(got);
    ended.Notify();
  });
  ended.WaitForNotification();
  return outcome;
}

absl::StatusOr<int> LoadClient::VocabSize() {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(10)));
  v1::ListModelsResponse response;
  BATON_RETURN_IF_ERROR(
      FromGrpcStatus(connection_->stub->ListModels(&context, v1::ListModelsRequest(), &response)));
  if (response.models().empty() || response.models(0).vocab_size() < 1) {
    return absl::UnavailableError("the router serves no model");
  }
  return response.models(0).vocab_size();
}

std::vector<Outcome> RunOpenLoop(LoadClient* client, const TrafficMix& mix,
                                 const LoadOptions& options) {
  Random random(options.seed);
  absl::Mutex mutex;
  std::vector<Outcome> outcomes;  // guarded by mutex
  size_t sent = 0;
  const double start_s = NowSeconds();
  for (double at_s = random.Exponential(options.rate); at_s < options.duration_s;
       at_s += random.Exponential(options.rate)) {
    const Shape shape = mix.Draw(&random);
    Ask ask = MakeAsk(shape, options.vocab_size, &random);
    if (options.timeout) ask.timeout = options.timeout(shape);
    const double due_s = start_s + at_s;
    absl::SleepFor(absl::Seconds(std::max(0.0, due_s - NowSeconds())));
    ++sent;
    client->Send(ask, due_s, [&](Outcome outcome) {
      absl::MutexLock lock(&mutex);
      outcomes.push_back(std::move(outcome));
    });
  }
  absl::MutexLock lock(&mutex);
  const auto all_ended = [&] { return outcomes.size() == sent; };
  mutex.Await(absl::Condition(&all_ended));
  return outcomes;
}

std::vector<Outcome> RunClosedLoop(LoadClient* client, const TrafficMix& mix, int concurrency,
                                   const LoadOptions& options) {
  const double end_s = NowSeconds() + options.duration_s;
  std::vector<std::vector<Outcome>> of_caller(concurrency);
  std::vector<std::thread> callers;
  for (int i = 0; i < concurrency; ++i) {
    callers.emplace_back([&, i] {
      Random random(options.seed + 1'000'003 * static_cast<uint64_t>(i + 1));
      while (NowSeconds() < end_s) {
        const Shape shape = mix.Draw(&random);
        Ask ask = MakeAsk(shape, options.vocab_size, &random);
        if (options.timeout) ask.timeout = options.timeout(shape);
        of_caller[i].push_back(client->SendAndWait(ask));
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  std::vector<Outcome> outcomes;
  for (std::vector<Outcome>& some : of_caller) {
    for (Outcome& outcome : some) outcomes.push_back(std::move(outcome));
  }
  return outcomes;
}

}  // namespace baton::benchmarks
