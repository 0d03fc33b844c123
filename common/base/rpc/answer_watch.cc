#include "common/base/rpc/answer_watch.h"

#include <grpc/grpc.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/named_thread.h"
#include "common/base/stall_watch.h"

namespace baton {

using grpc::experimental::InterceptionHookPoints;

void CutCall(grpc_call* call, const absl::Status& why) {
  // Such an end has no details: the reason goes into the message.
  const std::string message = absl::StrCat(ErrorReason(why), ": ", why.message());
  grpc_call_cancel_with_status(call, static_cast<grpc_status_code>(why.code()), message.c_str(),
                               nullptr);
}

// Watches the answer of one call, and is destroyed with the call. The answer is under way as soon
// as its status is, because both go out together.
class AnswerWatch::Answer final : public grpc::experimental::Interceptor {
 public:
  Answer(AnswerWatch& watch, grpc::ServerContextBase* context)
      : watch_(watch), context_(context), stall_(watch.limit_) {}
  ~Answer() override {
    if (call_ == nullptr) return;
    watch_.Remove(this);
    grpc_call_unref(call_);
  }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_MESSAGE)) {
      bytes_ = methods->GetSerializedSendMessage()->Length();
    }
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS) &&
        call_ == nullptr) {
      // gRPC gives up the call before its context.
      call_ = context_->c_call();
      grpc_call_ref(call_);
      stall_.Begin(watch_.clock_.SinceStart());
      watch_.Add(this);
    }
    methods->Proceed();
  }

  // The watch calls this under its lock.
  bool Stalled(absl::Duration now) { return stall_.Look(now, /*moved=*/false, bytes_); }
  grpc_call* call() const { return call_; }

 private:
  AnswerWatch& watch_;
  grpc::ServerContextBase* const context_;
  grpc_call* call_ = nullptr;  // null before the answer
  size_t bytes_ = 0;
  StallWatch stall_;
};

class AnswerWatch::Factory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit Factory(AnswerWatch& watch) : watch_(watch) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    if (info->type() != grpc::experimental::ServerRpcInfo::Type::UNARY) return nullptr;
    return new Answer(watch_, info->server_context());
  }

 private:
  AnswerWatch& watch_;
};

AnswerWatch::AnswerWatch(absl::Duration limit, const Clock& clock, std::function<void()> on_stalled)
    : limit_(limit),
      clock_(clock),
      on_stalled_(std::move(on_stalled)),
      thread_(NamedThread("answer-watch", [this] { Run(); })) {}

AnswerWatch::~AnswerWatch() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> AnswerWatch::MakeFactory() {
  return std::make_unique<Factory>(*this);
}

void AnswerWatch::Add(Answer* answer) {
  absl::MutexLock lock(&mutex_);
  answers_.insert(answer);
}

void AnswerWatch::Remove(Answer* answer) {
  absl::MutexLock lock(&mutex_);
  answers_.erase(answer);
}

void AnswerWatch::Run() {
  const absl::Duration period = StallWatch(limit_).period();
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), period)) return;
    }
    Look();
  }
}

void AnswerWatch::Look() {
  std::vector<grpc_call*> stalled;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Duration now = clock_.SinceStart();
    std::erase_if(answers_, [&](Answer* answer) {
      const bool over = answer->Stalled(now);
      if (over) {
        grpc_call_ref(answer->call());
        stalled.push_back(answer->call());
      }
      return over;
    });
  }
  for (grpc_call* call : stalled) {
    CutCall(call, ReaderStalled(limit_));
    grpc_call_unref(call);
    if (on_stalled_) on_stalled_();
  }
}

}  // namespace baton
