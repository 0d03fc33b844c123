// What the tests of shared pools have in common.
#ifndef BATON_TESTS_COMMON_TRANSFER_POOL_ENDS_H_
#define BATON_TESTS_COMMON_TRANSFER_POOL_ENDS_H_

#include <poll.h>
#include <sys/socket.h>

#include <cstring>
#include <deque>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/random_id.h"
#include "common/transfer/kv_sender.h"
#include "common/transfer/shared_pool.h"

namespace baton::transfer {

// Items of a sender's queue as messages, in order.
class CollectingSender : public FrameSender {
 public:
  explicit CollectingSender(Options options) : FrameSender(std::move(options)) {}
  void Finish(const absl::Status&) override {}

  bool holds = false;  // until Release, as a stream that is not ready does
  void Release() {
    while (!waiting_.empty()) {
      SendItem item = std::move(waiting_.front());
      waiting_.pop_front();
      while (!waiting_.empty() && JoinLayers(item, waiting_.front())) waiting_.pop_front();
      Send(std::move(item));
    }
  }
  std::vector<grpc::ByteBuffer> messages;

 protected:
  virtual void OnMessage(const grpc::ByteBuffer& message) {}

 private:
  void PushItem(SendItem item, bool) override {
    if (!holds) return Send(std::move(item));
    waiting_.push_back(std::move(item));
  }
  void Send(SendItem item) {
    messages.emplace_back();
    EncodeItem(std::move(item), &messages.back());
    OnMessage(messages.back());
  }
  std::deque<SendItem> waiting_;
};

// What a server sends that is not ours, or faulty.
class FaultyServer {
 public:
  // Answers one connection with the welcome (a SocketWelcome or DeviceWelcome) and the files.
  template <class Welcome>
  FaultyServer(const Welcome& welcome, std::vector<int> files)
      : name(absl::StrCat("baton-test-", RandomIdText())),
        listener_(*OpenAbstractSocket(name, SocketEnd::kListen)),
        thread_([this, files = std::move(files),
                 bytes = std::string(reinterpret_cast<const char*>(&welcome), sizeof(welcome))] {
          Serve(bytes, files);
        }) {}
  ~FaultyServer() { thread_.join(); }
  const std::string name;
  FileDescriptor connection;  // once Connect has returned

 private:
  void Serve(std::string welcome, const std::vector<int>& files) {
    pollfd ready{listener_.get(), POLLIN, 0};
    BATON_CHECK_EQ(poll(&ready, 1, -1), 1);
    connection = FileDescriptor(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    iovec data{welcome.data(), welcome.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    if (!files.empty()) {
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(files.size() * sizeof(int));
      cmsghdr* part = CMSG_FIRSTHDR(&message);
      part->cmsg_level = SOL_SOCKET;
      part->cmsg_type = SCM_RIGHTS;
      part->cmsg_len = CMSG_LEN(files.size() * sizeof(int));
      std::memcpy(CMSG_DATA(part), files.data(), files.size() * sizeof(int));
    }
    BATON_CHECK_GT(sendmsg(connection.get(), &message, MSG_NOSIGNAL), 0);
  }
  FileDescriptor listener_;
  std::thread thread_;
};

}  // namespace baton::transfer

#endif  // BATON_TESTS_COMMON_TRANSFER_POOL_ENDS_H_
