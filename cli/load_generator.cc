#include "cli/load_generator.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/base/named_thread.h"
#include "common/base/rpc/channel.h"
#include "common/base/rpc/grpc_status.h"
#include "common/base/status_macros.h"

namespace baton::cli {
namespace {

constexpr absl::Duration kListWithin = absl::Seconds(10);

// Deletes itself when its call has ended.
class Call : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  Call(v1::InferenceService::Stub* stub, const LoadRequest& load, double due_s,
       std::function<void(Outcome)> done)
      : done_(std::move(done)),
        on_tokens_(load.on_tokens),
        context_(load.context != nullptr ? load.context : std::make_shared<grpc::ClientContext>()),
        request_(load.request),
        keep_text_(load.keep_text) {
    outcome_.kind = load.kind;
    outcome_.max_tokens = request_.stop().max_tokens();
    outcome_.due_s = due_s;
    outcome_.sent_s = NowSeconds();
    outcome_.timeout_s = absl::ToDoubleSeconds(load.timeout);
    if (load.timeout < absl::InfiniteDuration()) {
      context_->set_deadline(absl::ToChronoTime(absl::Now() + load.timeout));
    }
    stub->async()->Generate(context_.get(), &request_, this);
    StartRead(&response_);
    StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    const double now_s = NowSeconds();
    if (response_.has_usage()) outcome_.usage = response_.usage();
    if (response_.has_timings()) outcome_.timings = response_.timings();
    outcome_.tokens.insert(outcome_.tokens.end(), response_.token_ids().begin(),
                           response_.token_ids().end());
    if (keep_text_) outcome_.text += response_.text();
    // Usage may be ahead of the ids that come with it.
    const size_t tokens =
        request_.return_token_ids() ? outcome_.tokens.size() : outcome_.usage.generated_tokens();
    if (tokens > outcome_.token_s.size()) {
      outcome_.token_s.resize(tokens, now_s);
      if (on_tokens_ && !on_tokens_(static_cast<int>(tokens))) context_->TryCancel();
    }
    if (response_.finish_reason() != v1::FINISH_REASON_UNSPECIFIED) {
      outcome_.finish = response_.finish_reason();
    }
    StartRead(&response_);
  }

  void OnDone(const grpc::Status& status) override {
    outcome_.ended_s = NowSeconds();
    outcome_.status = FromGrpcStatus(status);
    if (status.ok() && outcome_.finish == v1::FINISH_REASON_UNSPECIFIED) {
      outcome_.status = absl::InternalError("the stream ended without a finish reason");
    }
    const std::function<void(Outcome)> done = std::move(done_);
    Outcome outcome = std::move(outcome_);
    delete this;
    done(std::move(outcome));
  }

 private:
  std::function<void(Outcome)> done_;
  const std::function<bool(int)> on_tokens_;
  const std::shared_ptr<grpc::ClientContext> context_;
  const v1::GenerateRequest request_;
  const bool keep_text_;
  v1::GenerateResponse response_;
  Outcome outcome_;
};

}  // namespace

double NowSeconds() { return absl::ToDoubleSeconds(Clock::Real().SinceStart()); }

std::string ReasonOf(const absl::Status& status) {
  const std::string reason = ErrorReason(status);
  return absl::StrCat(absl::StatusCodeToString(status.code()), reason.empty() ? "" : " ", reason);
}

LoadGenerator::LoadGenerator(const std::vector<std::string>& routers) {
  for (const std::string& router : routers) {
    stubs_.push_back(v1::InferenceService::NewStub(MakeChannel(router, kClientChannel)));
  }
}

LoadGenerator::LoadGenerator(const std::shared_ptr<grpc::Channel>& router) {
  stubs_.push_back(v1::InferenceService::NewStub(router));
}

void LoadGenerator::Send(const LoadRequest& request, double due_s,
                         std::function<void(Outcome)> done) {
  new Call(stubs_[sent_++ % stubs_.size()].get(), request, due_s, std::move(done));
}

Outcome LoadGenerator::SendAndWait(const LoadRequest& request) {
  Outcome outcome;
  absl::Notification ended;
  Send(request, NowSeconds(), [&](Outcome got) {
    outcome = std::move(got);
    ended.Notify();
  });
  ended.WaitForNotification();
  return outcome;
}

std::vector<Outcome> LoadGenerator::SendAll(const std::vector<LoadRequest>& requests) {
  std::vector<Outcome> outcomes(requests.size());
  absl::BlockingCounter ended(static_cast<int>(requests.size()));
  const double due_s = NowSeconds();
  for (size_t i = 0; i < requests.size(); ++i) {
    Send(requests[i], due_s, [&, i](Outcome outcome) {
      outcomes[i] = std::move(outcome);
      ended.DecrementCount();
    });
  }
  ended.Wait();
  return outcomes;
}

void LoadGenerator::RunClosedLoop(int callers,
                                  const std::function<std::optional<LoadRequest>(int)>& next,
                                  const std::function<void(int, Outcome)>& done) {
  std::vector<std::thread> threads;
  for (int i = 0; i < callers; ++i) {
    threads.push_back(NamedThread("load", [&, i] {
      while (const std::optional<LoadRequest> request = next(i)) done(i, SendAndWait(*request));
    }));
  }
  for (std::thread& thread : threads) thread.join();
}

std::vector<Outcome> RunOpenLoop(const std::function<std::optional<TimedSend>()>& next,
                                 const OpenLoopOptions& options) {
  const absl::Notification never;
  const absl::Notification& stop = options.stop != nullptr ? *options.stop : never;
  absl::Mutex mutex;
  std::vector<Outcome> outcomes;  // guarded by mutex
  size_t sent = 0;
  const double start_s = NowSeconds();
  while (const std::optional<TimedSend> request = next()) {
    const double due_s = start_s + request->at_s;
    const absl::Duration early = absl::Seconds(std::max(0.0, due_s - NowSeconds()));
    if (stop.WaitForNotificationWithTimeout(early)) break;
    {
      absl::MutexLock lock(&mutex);
      const auto has_room = [&] {
        return sent - outcomes.size() < static_cast<size_t>(options.max_concurrency);
      };
      mutex.Await(absl::Condition(&has_room));
    }
    if (stop.HasBeenNotified()) break;
    ++sent;
    request->send(due_s, [&](Outcome outcome) {
      absl::MutexLock lock(&mutex);
      if (options.on_end) options.on_end(outcome);
      outcomes.push_back(std::move(outcome));
    });
  }
  absl::MutexLock lock(&mutex);
  const auto all_ended = [&] { return outcomes.size() == sent; };
  mutex.Await(absl::Condition(&all_ended));
  return outcomes;
}

std::vector<Outcome> LoadGenerator::RunOpenLoop(
    const std::function<std::optional<Arrival>()>& next) {
  return cli::RunOpenLoop(
      [&]() -> std::optional<TimedSend> {
        std::optional<Arrival> arrival = next();
        if (!arrival) return std::nullopt;
        const double at_s = arrival->at_s;
        return TimedSend{at_s, [this, request = std::move(arrival->request)](
                                   double due_s, std::function<void(Outcome)> done) {
                           Send(request, due_s, std::move(done));
                         }};
      },
      {});
}

absl::StatusOr<std::vector<int32_t>> LoadGenerator::Tokenize(const std::string& text,
                                                             bool add_special_tokens) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kListWithin));
  v1::TokenizeRequest request;
  request.set_text(text);
  request.set_add_special_tokens(add_special_tokens);
  v1::TokenizeResponse response;
  BATON_RETURN_IF_ERROR(FromGrpcStatus(stubs_[0]->Tokenize(&context, request, &response)));
  return std::vector<int32_t>(response.token_ids().begin(), response.token_ids().end());
}

absl::StatusOr<v1::Model> LoadGenerator::GetModel() {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kListWithin));
  v1::ListModelsResponse response;
  BATON_RETURN_IF_ERROR(
      FromGrpcStatus(stubs_[0]->ListModels(&context, v1::ListModelsRequest(), &response)));
  if (response.models().empty() || response.models(0).vocab_size() < 1) {
    return absl::UnavailableError("the router serves no model");
  }
  return response.models(0);
}

}  // namespace baton::cli
