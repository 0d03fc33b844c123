// A redis-server of a test's own, on a free port, without a disk.
#ifndef BATON_TESTS_COMMON_KV_STORE_REDIS_SERVER_H_
#define BATON_TESTS_COMMON_KV_STORE_REDIS_SERVER_H_

#include <poll.h>
#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/child_process.h"
#include "common/base/check.h"
#include "tests/common/kv_store/store_cases.h"
#include "tests/testing/listening_socket.h"

namespace baton::kv_store {

class RedisServer {
 public:
  explicit RedisServer(std::vector<std::string> flags = {}, int port = 0) : port_(port) {
    // Between the choice of the port and the bind, another process may take it.
    for (int attempt = 0; attempt < 10 && process_ == nullptr; ++attempt) {
      if (port == 0) port_ = FreePort();
      Start(flags);
    }
    BATON_CHECK(process_ != nullptr) << "redis-server does not start";
  }

  int port() const { return port_; }
  void Signal(int signal) { process_->Signal(signal); }
  void Kill() {
    process_->Signal(SIGKILL);
    BATON_CHECK(process_->AwaitEnd(absl::Seconds(30)));
  }

 private:
  static int FreePort() {
    const std::string address = testing::ListeningSocket().address();
    return std::stoi(address.substr(address.rfind(':') + 1));
  }

  void Start(const std::vector<std::string>& flags) {
    std::vector<std::string> argv = {"/usr/bin/redis-server",
                                     "--port",
                                     absl::StrCat(port_),
                                     "--bind",
                                     "127.0.0.1",
                                     "--save",
                                     "",
                                     "--appendonly",
                                     "no",
                                     "--dir",
                                     directory_.path()};
    argv.insert(argv.end(), flags.begin(), flags.end());
    auto process = cli::ChildProcess::Start("redis", argv, "");
    BATON_CHECK(process.ok()) << process.status();
    bool ready = false;
    while (!ready && (*process)->output_fd() >= 0) {
      pollfd output = {(*process)->output_fd(), POLLIN, 0};
      poll(&output, 1, 1000);
      (*process)->ReadLines([&ready](const std::string& line) {
        ready = ready || line.find("Ready to accept connections") != std::string::npos;
      });
    }
    if (ready) process_ = *std::move(process);
  }

  TemporaryDirectory directory_;
  int port_;
  std::unique_ptr<cli::ChildProcess> process_;
};

}  // namespace baton::kv_store

#endif  // BATON_TESTS_COMMON_KV_STORE_REDIS_SERVER_H_
