// The other process of a test that needs two: the same program again, which runs one test of it.
//
//   TEST(Suite, TheChild) {
//     ParentEnd parent;
//     if (!parent) GTEST_SKIP() << "a part of another test";
//     ...
//   }
//   TEST(Suite, Test) { ChildProcess child("Suite.TheChild", "an argument"); ... }
#ifndef BATON_TESTS_TESTING_CHILD_PROCESS_H_
#define BATON_TESTS_TESTING_CHILD_PROCESS_H_

#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "common/base/check.h"

namespace baton::testing {

inline constexpr char kChildVariable[] = "BATON_TEST_CHILD";

// One end of the socket between the two processes.
class ProcessPipe {
 public:
  explicit ProcessPipe(int fd) : fd_(fd) {}
  ~ProcessPipe() { Close(); }
  ProcessPipe(const ProcessPipe&) = delete;
  ProcessPipe& operator=(const ProcessPipe&) = delete;
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  // The other end reads it, or has gone.
  void Send(const void* data, size_t bytes) {
    const char* at = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t sent = send(fd_, at, bytes, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent <= 0) return;
      at += sent;
      bytes -= static_cast<size_t>(sent);
    }
  }
  // False: the other end has gone.
  bool Receive(void* data, size_t bytes) {
    char* at = static_cast<char*>(data);
    while (bytes > 0) {
      const ssize_t size = recv(fd_, at, bytes, 0);
      if (size < 0 && errno == EINTR) continue;
      if (size <= 0) return false;
      at += size;
      bytes -= static_cast<size_t>(size);
    }
    return true;
  }
  void SendText(const std::string& text) {
    const uint64_t size = text.size();
    Send(&size, sizeof(size));
    Send(text.data(), text.size());
  }
  bool ReceiveText(std::string* text) {
    uint64_t size = 0;
    if (!Receive(&size, sizeof(size))) return false;
    text->resize(size);
    return Receive(text->data(), size);
  }

 private:
  int fd_;
};

// What the test that plays the child has: standard input is the socket.
class ParentEnd : public ProcessPipe {
 public:
  ParentEnd() : ProcessPipe(std::getenv(kChildVariable) != nullptr ? 0 : -1) {}
  explicit operator bool() const { return std::getenv(kChildVariable) != nullptr; }
  std::string argument() const { return std::getenv(kChildVariable); }
};

class ChildProcess : public ProcessPipe {
 public:
  ChildProcess(const std::string& test, const std::string& argument)
      : ChildProcess(test, argument, MakeSocket()) {}
  ~ChildProcess() {
    if (pid_ > 0) {
      Kill(SIGKILL);
      Wait();
    }
  }
  void Kill(int number) { kill(pid_, number); }
  // Its exit code; -1 if a signal ended it.
  int Wait() {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0) BATON_CHECK_EQ(errno, EINTR);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  struct Socket {
    int ours, theirs;
  };
  static Socket MakeSocket() {
    int ends[2];
    BATON_CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    return {ends[0], ends[1]};
  }
  ChildProcess(const std::string& test, const std::string& argument, Socket socket)
      : ProcessPipe(socket.ours) {
    std::string filter = "--gtest_filter=" + test;
    std::string program = "baton-test-child", variable = std::string(kChildVariable) + "=";
    std::vector<char*> arguments = {program.data(), filter.data(), nullptr};
    std::vector<char*> variables;
    for (char** one = environ; *one != nullptr; ++one) variables.push_back(*one);
    variable += argument;
    variables.push_back(variable.data());
    variables.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, socket.theirs, 0);
    BATON_CHECK_EQ(
        posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, arguments.data(), variables.data()),
        0);
    posix_spawn_file_actions_destroy(&actions);
    close(socket.theirs);
  }

  pid_t pid_ = 0;
};

}  // namespace baton::testing

#endif  // BATON_TESTS_TESTING_CHILD_PROCESS_H_
