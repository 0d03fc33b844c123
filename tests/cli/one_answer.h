// An HTTP server for one connection, whose answer the test writes out.
#ifndef BATON_TESTS_CLI_ONE_ANSWER_H_
#define BATON_TESTS_CLI_ONE_ANSWER_H_

#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/testing/listening_socket.h"

namespace baton::cli {

class OneAnswer {
 public:
  // Sends `answer` after a request's headers, then closes the connection.
  explicit OneAnswer(std::string answer)
      : thread_([this, answer = std::move(answer)] {
          const int connection = socket_.Accept();
          char buffer[4096];
          while (!absl::StrContains(request_, "\r\n\r\n")) {
            const ssize_t bytes = recv(connection, buffer, sizeof(buffer), 0);
            if (bytes <= 0) break;
            request_.append(buffer, static_cast<size_t>(bytes));
          }
          send(connection, answer.data(), answer.size(), MSG_NOSIGNAL);
          shutdown(connection, SHUT_WR);
          // To the client's end: unread bytes would turn the close into a reset.
          for (ssize_t bytes; (bytes = recv(connection, buffer, sizeof(buffer), 0)) > 0;) {
            request_.append(buffer, static_cast<size_t>(bytes));
          }
          close(connection);
        }) {}
  ~OneAnswer() {
    socket_.Shutdown();
    if (thread_.joinable()) thread_.join();
  }

  std::string url() const { return absl::StrCat("http://", socket_.address()); }
  // All that the client sent. Waits until the client has closed the connection.
  const std::string& request() {
    thread_.join();
    return request_;
  }

 private:
  testing::ListeningSocket socket_;
  std::string request_;
  std::thread thread_;  // the last member
};

}  // namespace baton::cli

#endif  // BATON_TESTS_CLI_ONE_ANSWER_H_
