#include "client/cpp/stream_call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/convert.h"
#include "common/base/error.h"
#include "common/base/random_id.h"

namespace baton::client {
namespace {

v1::GenerateRequest WithId(v1::GenerateRequest request) {
  if (request.request_id().empty()) request.set_request_id(RandomIdText());
  return request;
}

// The router sends empty messages while a request waits for another worker.
bool IsHeartbeat(const v1::GenerateResponse& response) {
  return response.text().empty() && response.token_ids().empty() && response.logprobs().empty() &&
         response.prompt_logprobs().empty() &&
         response.finish_reason() == v1::FINISH_REASON_UNSPECIFIED;
}

// With the router's reason for it.
absl::Status CancelledByCaller() {
  return MakeError(absl::StatusCode::kCancelled, "CANCELLED", "the caller cancelled");
}

}  // namespace

// Reads come from outside gRPC's callbacks, so a hold keeps the reactor until one has failed.
class StreamCall::Attempt final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  Attempt(std::shared_ptr<StreamCall> call, std::shared_ptr<grpc::ClientContext> context)
      : call_(std::move(call)), context_(std::move(context)) {}
  void Start() {
    call_->connection_->inference->async()->Generate(context_.get(), &call_->request_, this);
    AddHold();
    StartCall();
  }
  void Read() { StartRead(&response_); }

  void OnReadDone(bool ok) override {
    if (ok) return call_->OnMessage(response_);
    RemoveHold();
  }
  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<StreamCall> call = std::move(call_);
    delete this;
    call->OnAttemptEnd(status);
  }

 private:
  std::shared_ptr<StreamCall> call_;
  const std::shared_ptr<grpc::ClientContext> context_;
  v1::GenerateResponse response_;
};

StreamCall::StreamCall(std::shared_ptr<const Connection> connection, const GenerateRequest& request,
                       const CallOptions& call)
    : connection_(std::move(connection)),
      request_(WithId(ToProto(request))),
      timer_(connection_->environment.make_timer()),
      retries_(connection_->NewRetries(call)) {
  // The router refuses an n out of this range.
  completion_.choices.resize(static_cast<size_t>(std::clamp(request.n.value_or(1), 1, 16)));
  completion_.request_id = request_.request_id();
}

void StreamCall::Start() { Begin(); }

void StreamCall::Read(Done done) {
  done_ = std::move(done);
  attempt_->Read();
}

// gRPC is called without the lock: nothing here depends on which thread it calls back.
void StreamCall::Cancel() {
  std::shared_ptr<grpc::ClientContext> context;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    context = context_;
  }
  timer_->Cancel();
  if (context != nullptr) context->TryCancel();
}

bool StreamCall::Begin() {
  auto context = std::make_shared<grpc::ClientContext>();
  connection_->Prepare(retries_, context.get());
  {
    absl::MutexLock lock(&mutex_);
    if (cancelled_) return false;
    context_ = context;
  }
  attempt_ = new Attempt(shared_from_this(), std::move(context));
  attempt_->Start();
  return true;
}

bool StreamCall::cancelled() {
  absl::MutexLock lock(&mutex_);
  return cancelled_;
}

void StreamCall::OnMessage(const v1::GenerateResponse& response) {
  begun_ = true;
  if (!broken_.ok()) return attempt_->Read();
  if (!Merge(response, &completion_)) {
    broken_ = absl::InternalError(absl::StrCat("the router sent choice ", response.choice(), " of ",
                                               completion_.choices.size()));
    Cancel();
    return attempt_->Read();
  }
  if (IsHeartbeat(response)) return attempt_->Read();
  Delta delta;
  delta.text = response.text();
  delta.token_ids.assign(response.token_ids().begin(), response.token_ids().end());
  delta.usage = completion_.usage;
  delta.choice = response.choice();
  delta.logprobs = FromProto(response.logprobs());
  delta.prompt_logprobs = FromProto(response.prompt_logprobs());
  delta.finish_reason = FromProto(response.finish_reason());
  std::exchange(done_, nullptr)(std::move(delta));
}

void StreamCall::OnAttemptEnd(const grpc::Status& status) {
  attempt_ = nullptr;
  absl::Status error =
      InCallersNames(connection_->FromCall(status, completion_.request_id), request_);
  if (absl::IsCancelled(error) && ErrorReason(error).empty() && cancelled()) {
    error = CancelledByCaller();
  }
  const std::optional<absl::Duration> pause = begun_ ? std::nullopt : retries_.PauseAfter(error);
  if (!pause) return End(error);
  timer_->Start(*pause, [self = shared_from_this()] {
    if (self->Begin()) return self->attempt_->Read();
    self->End(CancelledByCaller());
  });
}

void StreamCall::End(absl::Status status) {
  const auto unfinished = std::find_if(
      completion_.choices.begin(), completion_.choices.end(),
      [](const Choice& choice) { return choice.finish_reason == FinishReason::kUnfinished; });
  const bool complete = unfinished == completion_.choices.end();
  if (!broken_.ok()) {
    status = broken_;
  } else if (complete && absl::IsCancelled(status)) {
    status = absl::OkStatus();  // only the end of the stream was missing
  } else if (!complete && status.ok()) {
    status =
        absl::InternalError(absl::StrCat("the stream ended without a finish reason for choice ",
                                         unfinished - completion_.choices.begin()));
  }
  status_ = WithRequestId(std::move(status), completion_.request_id);
  // What keeps the channel, while the stream's owner still does.
  {
    absl::MutexLock lock(&mutex_);
    context_ = nullptr;
  }
  connection_ = nullptr;
  std::exchange(done_, nullptr)(std::nullopt);
}

}  // namespace baton::client
