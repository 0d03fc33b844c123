#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <memory>
#include <vector>

#include "baton/internal/v1/prefill.grpc.pb.h"
#include "benchmarks/kv_plane_work.h"
#include "common/backend/cpu/mapped_memory.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/rpc/server.h"
#include "common/transfer/kv_sender.h"
#include "common/transfer/shared_pool_server.h"

namespace baton::benchmarks {
namespace {

// The plane `stream`: what gRPC does with the slices of the frames.
class SliceStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  SliceStream(const Work& work, std::byte* base) {
    const backend::KvPool pool = work.Pool(base);
    ForEachFrame(work, [&](int layer, absl::Span<const kv::BlockId> blocks) {
      std::vector<grpc::Slice> slices;
      for (absl::Span<const char> segment : FrameSegments(work, pool, layer, blocks)) {
        slices.emplace_back(segment.data(), segment.size(), grpc::Slice::STATIC_SLICE);
      }
      messages_.emplace_back(slices.data(), slices.size());
    });
    Next();
  }
  void OnWriteDone(bool ok) override {
    if (ok) {
      Next();
    } else {
      Finish(grpc::Status::CANCELLED);
    }
  }
  void OnDone() override { delete this; }

 private:
  void Next() {
    if (next_ == messages_.size()) {
      Finish(grpc::Status::OK);
    } else {
      StartWrite(&messages_[next_++]);
    }
  }
  std::vector<grpc::ByteBuffer> messages_;
  size_t next_ = 0;
};

class Sender final : public internal::v1::PrefillService::WithRawCallbackMethod_Prefill<
                         internal::v1::PrefillService::Service> {
 public:
  explicit Sender(const backend::MappedMemory& memory)
      : base_(static_cast<std::byte*>(memory.data())) {
    for (const KvShape& shape : kKvShapes) {
      const kv::KvLayout layout = LayoutOf(shape);
      backend::KvPool pool =
          PoolAt(base_, layout,
                 static_cast<int>(static_cast<int64_t>(memory.size_bytes()) / layout.BlockBytes()));
      pool.shared_file = memory.file();
      auto server = transfer::SharedPoolServer::Start(pool, layout, Clock::Real(), {});
      BATON_CHECK(server.ok()) << server.status();
      shared_.push_back(*std::move(server));
    }
  }
  void Fill(SenderProcess::Ends* ends) const {
    for (size_t i = 0; i < shared_.size(); ++i) {
      std::strncpy(ends->shared[i].socket, shared_[i]->socket().c_str(),
                   sizeof(ends->shared[i].socket) - 1);
      std::memcpy(ends->shared[i].token, shared_[i]->token().data(), shared_[i]->token().size());
    }
  }

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Prefill(grpc::CallbackServerContext*,
                                                      const grpc::ByteBuffer* bytes) override {
    internal::v1::PrefillRequest request;
    grpc::ByteBuffer copy(*bytes);
    BATON_CHECK(
        grpc::SerializationTraits<internal::v1::PrefillRequest>::Deserialize(&copy, &request).ok());
    const Work work = FromInts(request.tokens());
    if (work.plane == kStream) return new SliceStream(work, base_);
    transfer::GrpcKvSender::Options options;
    options.transfer_id = request.transfer_id();
    options.epoch = request.prefill_epoch();
    options.layout = work.layout();
    options.pool = work.Pool(base_);
    options.max_payload_bytes = work.frame_bytes;
    options.layer_runs = true;
    if (work.plane == kShm || work.plane == kShmUnchecked) {
      options.lease = shared_[static_cast<size_t>(work.shape)]->Open(
          request.shared_memory().connection(), request.transfer_id());
      BATON_CHECK(options.lease != nullptr);
      options.check_shared = work.plane == kShm;
    }
    auto sender = std::make_shared<transfer::GrpcKvSender>(std::move(options));
    auto* reactor = transfer::GrpcKvSender::Open(sender);
    const auto pin = std::make_shared<const transfer::PinnedBlocks>(work.ChannelBlocks(), [] {});
    const int count = static_cast<int>(pin->pages().size());
    sender->SendAccepted(count, 0);
    for (int layer = 0; layer < work.layout().layers; ++layer) {
      sender->SendLayer(layer, 0, count, pin, nullptr);
    }
    sender->SendFirstToken(1, {});
    sender->SendCommit(0, 0);
    sender->Finish(absl::OkStatus());
    return reactor;
  }

 private:
  std::byte* const base_;
  std::vector<std::unique_ptr<transfer::SharedPoolServer>> shared_;
};

int ListenTcp(int* port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  BATON_CHECK_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  BATON_CHECK_EQ(listen(fd, 1), 0);
  socklen_t size = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  *port = ntohs(address.sin_port);
  return fd;
}

void SendRaw(int fd, const std::byte* base) {
  int64_t job[2];  // bytes, bytes of a write
  while (recv(fd, job, sizeof(job), MSG_WAITALL) == sizeof(job)) {
    for (int64_t at = 0; at < job[0];) {
      const int64_t sent =
          send(fd, base + at, static_cast<size_t>(std::min(job[1], job[0] - at)), MSG_NOSIGNAL);
      if (sent <= 0) return;
      at += sent;
    }
  }
}

// The child: serves both transports until the parent ends.
[[noreturn]] void RunSender(int pipe_fd, int64_t pool_bytes) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::vector<std::byte> content = MakePool(pool_bytes);
  auto pool = backend::MappedMemory::MapShared(content.size());
  BATON_CHECK(pool.ok()) << pool.status();
  std::memcpy(pool->data(), content.data(), content.size());
  Sender service(*pool);
  auto server = RpcServer::Start({}, {&service}, {"baton.internal.v1.PrefillService"});
  BATON_CHECK(server.ok()) << server.status();
  SenderProcess::Ends ends;
  ends.grpc_port = (*server)->port();
  const int listener = ListenTcp(&ends.tcp_port);
  service.Fill(&ends);
  BATON_CHECK_EQ(write(pipe_fd, &ends, sizeof(ends)), static_cast<ssize_t>(sizeof(ends)));
  SendRaw(accept(listener, nullptr, nullptr), static_cast<std::byte*>(pool->data()));
  _exit(0);
}

}  // namespace

SenderProcess StartSender(int64_t pool_bytes) {
  int pipe_fds[2];
  BATON_CHECK_EQ(pipe(pipe_fds), 0);
  SenderProcess sender;
  sender.pid = fork();
  if (sender.pid == 0) RunSender(pipe_fds[1], pool_bytes);
  BATON_CHECK_EQ(read(pipe_fds[0], &sender.ends, sizeof(sender.ends)),
                 static_cast<ssize_t>(sizeof(sender.ends)));
  return sender;
}

}  // namespace baton::benchmarks
