#include "tests/cluster/faults/frame_proxy.h"

#include <atomic>
#include <deque>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "baton/internal/v1/prefill.pb.h"
#include "common/base/check.h"
#include "common/base/rpc/channel.h"

namespace baton::testing {
namespace {

std::string ToString(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  BATON_CHECK(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

grpc::ByteBuffer ToBuffer(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace

// One call on both sides. Requests go up as they come; of the answer no more is read than has been
// written on, so that back-pressure passes through.
class FrameProxy::Bridge final : public grpc::ServerGenericBidiReactor {
 public:
  Bridge(FrameProxy& proxy, grpc::GenericCallbackServerContext* context)
      : proxy_(proxy),
        is_prefill_(absl::EndsWith(context->method(), "PrefillService/Prefill")),
        upstream_(*this) {
    upstream_context_.set_deadline(context->deadline());
    proxy_.stub_.PrepareBidiStreamingCall(&upstream_context_, context->method(), {}, &upstream_);
    // Reads and writes are started from the other side's reactions: one hold for each.
    upstream_.AddMultipleHolds(2);
    upstream_.StartCall();
    StartRead(&request_);
    Pump();
  }

 private:
  class Upstream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
   public:
    explicit Upstream(Bridge& bridge) : bridge_(bridge) {}
    void OnReadDone(bool ok) override { bridge_.OnAnswer(ok); }
    void OnWriteDone(bool ok) override { bridge_.StartRead(&bridge_.request_); }
    void OnDone(const grpc::Status& status) override { bridge_.OnAnswerEnd(status); }

   private:
    Bridge& bridge_;
  };

  // --- Towards the target.
  void OnReadDone(bool ok) override {
    if (ok) {
      if (is_prefill_) {
        absl::MutexLock lock(&mutex_);
        fault_ = proxy_.FaultFor(request_);
      }
      upstream_.StartWrite(&request_);
      return;
    }
    upstream_.StartWritesDone();
    upstream_.RemoveHold();
  }
  void OnCancel() override { upstream_context_.TryCancel(); }

  // --- Back.
  void OnAnswer(bool ok) {
    bool over = false;
    {
      absl::MutexLock lock(&mutex_);
      reading_ = false;
      if (ok && fault_ != nullptr) {
        for (std::string& frame : fault_->OnFrame(ToString(answer_))) {
          queue_.push_back(ToBuffer(frame));
        }
      } else if (ok) {
        queue_.push_back(answer_);
      }
      over = !ok;
      read_ended_ = over;
    }
    Pump();
    if (over) upstream_.RemoveHold();
  }
  void OnAnswerEnd(const grpc::Status& status) {
    {
      absl::MutexLock lock(&mutex_);
      end_ = status;
      if (status.ok() && fault_ != nullptr) {
        for (const std::string& frame : fault_->OnEnd()) queue_.push_back(ToBuffer(frame));
      }
    }
    Pump();
    Unref();
  }
  void OnWriteDone(bool ok) override {
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
      if (!ok) queue_.clear();
    }
    Pump();
  }

  // Writes the next, or reads, or ends. The flags say who acts, so nothing is started under the
  // lock.
  void Pump() {
    enum { kNothing, kWrite, kRead, kFinish } next = kNothing;
    {
      absl::MutexLock lock(&mutex_);
      if (writing_ || finished_) return;
      if (!queue_.empty()) {
        written_ = std::move(queue_.front());
        queue_.pop_front();
        writing_ = true;
        next = kWrite;
      } else if (end_) {
        finished_ = true;
        next = kFinish;
      } else if (!reading_ && !read_ended_) {
        reading_ = true;
        next = kRead;
      }
    }
    if (next == kWrite) StartWrite(&written_);
    if (next == kRead) upstream_.StartRead(&answer_);
    if (next == kFinish) Finish(*end_);
  }

  void OnDone() override { Unref(); }

  // Each side is done once, in either order.
  void Unref() {
    if (--users_ > 0) return;
    FrameProxy& proxy = proxy_;
    delete this;
    absl::MutexLock lock(&proxy.mutex_);
    --proxy.open_bridges_;
  }

  FrameProxy& proxy_;
  const bool is_prefill_;
  std::atomic<int> users_{2};
  grpc::ClientContext upstream_context_;
  Upstream upstream_;
  grpc::ByteBuffer request_, answer_, written_;
  absl::Mutex mutex_;
  std::unique_ptr<FrameFault> fault_ ABSL_GUARDED_BY(mutex_);
  std::deque<grpc::ByteBuffer> queue_ ABSL_GUARDED_BY(mutex_);
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool read_ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> end_;  // set once, before `finished_`
};

absl::StatusOr<std::unique_ptr<FrameProxy>> FrameProxy::Start(const std::string& target,
                                                              const ChannelSecurity& security) {
  std::unique_ptr<FrameProxy> proxy(new FrameProxy(target, security));
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.SetMaxReceiveMessageSize(16 << 20);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  builder.RegisterCallbackGenericService(proxy.get());
  proxy->server_ = builder.BuildAndStart();
  if (proxy->server_ == nullptr) return absl::UnavailableError("no free port on loopback");
  proxy->address_ = absl::StrCat("127.0.0.1:", port);
  return proxy;
}

FrameProxy::FrameProxy(const std::string& target, const ChannelSecurity& security)
    : channel_(MakeChannel(target, kPeerChannel, security)), stub_(channel_) {}

FrameProxy::~FrameProxy() {
  if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(
      +[](int* open) { return *open == 0; }, &open_bridges_));
}

void FrameProxy::SetFaults(MakeFault make_fault) {
  absl::MutexLock lock(&mutex_);
  make_fault_ = std::move(make_fault);
}

grpc::ServerGenericBidiReactor* FrameProxy::CreateReactor(
    grpc::GenericCallbackServerContext* context) {
  {
    absl::MutexLock lock(&mutex_);
    ++open_bridges_;
  }
  return new Bridge(*this, context);
}

std::unique_ptr<FrameFault> FrameProxy::FaultFor(const grpc::ByteBuffer& request) {
  MakeFault make_fault;
  {
    absl::MutexLock lock(&mutex_);
    make_fault = make_fault_;
  }
  internal::v1::PrefillRequest parsed;
  if (!make_fault || !parsed.ParseFromString(ToString(request))) return nullptr;
  return make_fault(parsed.request_id());
}

}  // namespace baton::testing
