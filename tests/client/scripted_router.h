// A router that answers as the test has written, and a client of it whose time the test controls.
#ifndef BATON_TESTS_CLIENT_SCRIPTED_ROUTER_H_
#define BATON_TESTS_CLIENT_SCRIPTED_ROUTER_H_

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "baton/v1/inference.grpc.pb.h"
#include "client/cpp/connection.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/rpc/grpc_status.h"
#include "common/base/rpc/server.h"
#include "tests/router/fake_clock.h"

namespace baton::testing {

inline constexpr absl::Duration kScriptPatience = absl::Seconds(60);  // no expectation

inline v1::GenerateResponse Piece(const char* text, int choice = 0) {
  v1::GenerateResponse response;
  response.set_choice(choice);
  response.set_text(text);
  return response;
}
inline v1::GenerateResponse Last(const char* text, int choice = 0) {
  v1::GenerateResponse response = Piece(text, choice);
  response.set_finish_reason(v1::FINISH_REASON_STOP);
  return response;
}

struct ScriptedAnswer {
  std::vector<v1::GenerateResponse> messages;
  absl::Status status;  // after the messages
  bool hangs = false;   // instead of a status: until the client cancels
};

inline ScriptedAnswer Failing(absl::Status status) { return {{}, std::move(status), false}; }

// Calls of Generate and Tokenize take the answers in turn. Thread-safe.
class ScriptedRouter final : public v1::InferenceService::CallbackService {
 public:
  explicit ScriptedRouter(const std::string& address = "127.0.0.1:0") {
    RpcServerOptions options;
    options.address = address;
    auto server = RpcServer::Start(options, {this}, {v1::InferenceService::service_full_name()});
    BATON_CHECK(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  ~ScriptedRouter() override { server_->Stop(absl::ZeroDuration()); }

  std::string address() const { return server_->address(); }
  void Reply(ScriptedAnswer answer) {
    absl::MutexLock lock(&mutex_);
    answers_.push_back(std::move(answer));
  }
  // All that have arrived, in order.
  std::vector<v1::GenerateRequest> requests() const {
    absl::MutexLock lock(&mutex_);
    return requests_;
  }
  // Until so many have.
  void AwaitArrived(size_t calls) {
    absl::MutexLock lock(&mutex_);
    const auto enough = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return requests_.size() >= calls;
    };
    BATON_CHECK(mutex_.AwaitWithTimeout(absl::Condition(&enough), kScriptPatience));
  }
  // Bytes of messages that the connection has taken for the call of this number.
  size_t taken_bytes(size_t call) const {
    absl::MutexLock lock(&mutex_);
    return call < taken_bytes_.size() ? taken_bytes_[call] : 0;
  }
  // Seconds that each of these had until its deadline.
  std::vector<double> seconds_left() const {
    absl::MutexLock lock(&mutex_);
    return seconds_left_;
  }
  // False if so many calls have not been cancelled in time.
  bool AwaitCancelled(int calls) {
    absl::MutexLock lock(&mutex_);
    const auto enough = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return cancelled_ >= calls; };
    return mutex_.AwaitWithTimeout(absl::Condition(&enough), kScriptPatience);
  }

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override {
    size_t number;
    ScriptedAnswer answer = Arrive(*context, *request, &number);
    return new Writer(*this, std::move(answer), number);
  }
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override {
    response->add_token_ids(7);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(ToGrpcStatus(Arrive(*context, {}).status));
    return reactor;
  }

 private:
  class Writer final : public grpc::ServerWriteReactor<v1::GenerateResponse> {
   public:
    Writer(ScriptedRouter& router, ScriptedAnswer answer, size_t number)
        : router_(router), answer_(std::move(answer)), number_(number) {
      Step(/*write_ok=*/true);
    }
    void OnWriteDone(bool ok) override {
      if (ok) router_.OnTaken(number_, answer_.messages[next_ - 1].ByteSizeLong());
      Step(ok);
    }
    void OnCancel() override {
      bool idle;
      {
        absl::MutexLock lock(&router_.mutex_);
        ++router_.cancelled_;
        cancelled_ = true;
        idle = hanging_;
      }
      if (idle) Finish(grpc::Status::CANCELLED);
    }
    void OnDone() override { delete this; }

   private:
    // Starts one operation at most: nothing may follow Finish(), and OnCancel() comes at any time.
    void Step(bool write_ok) {
      bool cancelled;
      {
        absl::MutexLock lock(&router_.mutex_);
        cancelled = cancelled_ || !write_ok;
        hanging_ = !cancelled && answer_.hangs && next_ == answer_.messages.size();
        if (hanging_) return;
      }
      if (cancelled) return Finish(grpc::Status::CANCELLED);
      if (next_ < answer_.messages.size()) return StartWrite(&answer_.messages[next_++]);
      Finish(ToGrpcStatus(answer_.status));
    }

    ScriptedRouter& router_;
    const ScriptedAnswer answer_;
    const size_t number_;  // number of the call
    size_t next_ = 0;
    bool cancelled_ = false;  // guarded by router_.mutex_, as is the next one
    bool hanging_ = false;
  };

  ScriptedAnswer Arrive(const grpc::CallbackServerContext& context,
                        const v1::GenerateRequest& request, size_t* number = nullptr) {
    absl::MutexLock lock(&mutex_);
    if (number != nullptr) *number = requests_.size();
    requests_.push_back(request);
    seconds_left_.push_back(
        absl::ToDoubleSeconds(absl::FromChrono(context.deadline()) - absl::Now()));
    BATON_CHECK(!answers_.empty()) << "a call that the test does not expect";
    ScriptedAnswer answer = std::move(answers_.front());
    answers_.pop_front();
    return answer;
  }

  void OnTaken(size_t call, size_t bytes) {
    absl::MutexLock lock(&mutex_);
    if (call >= taken_bytes_.size()) taken_bytes_.resize(call + 1);
    taken_bytes_[call] += bytes;
  }

  mutable absl::Mutex mutex_;
  std::vector<size_t> taken_bytes_ ABSL_GUARDED_BY(mutex_);  // by call
  std::deque<ScriptedAnswer> answers_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::GenerateRequest> requests_ ABSL_GUARDED_BY(mutex_);
  std::vector<double> seconds_left_ ABSL_GUARDED_BY(mutex_);
  int cancelled_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<RpcServer> server_;
};

// A clock that moves by the pauses of the clients that use it, which take no time; random numbers
// are always a half.
class FakeTime {
 public:
  client::Environment environment() {
    client::Environment fake;
    fake.clock = &clock_;
    fake.random = [] { return 0.5; };
    fake.make_timer = [this] { return std::make_unique<FakeTimer>(*this); };
    return fake;
  }
  std::vector<absl::Duration> slept() const {
    absl::MutexLock lock(&mutex_);
    return slept_;
  }

 private:
  class FakeTimer final : public client::Timer {
   public:
    explicit FakeTimer(FakeTime& time) : time_(time) {}
    void Start(absl::Duration pause, std::function<void()> done) override {
      time_.clock_.Advance(pause);
      {
        absl::MutexLock lock(&time_.mutex_);
        time_.slept_.push_back(pause);
      }
      done();
    }
    void Cancel() override {}

   private:
    FakeTime& time_;
  };

  FakeClock clock_;
  mutable absl::Mutex mutex_;
  std::vector<absl::Duration> slept_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::testing

#endif  // BATON_TESTS_CLIENT_SCRIPTED_ROUTER_H_
