// What a TcpProxy is made of. For tcp_proxy.cc and tcp_proxy_control.cc alone.
#ifndef BATON_TESTS_CLUSTER_FAULTS_TCP_PROXY_PARTS_H_
#define BATON_TESTS_CLUSTER_FAULTS_TCP_PROXY_PARTS_H_

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "tests/cluster/faults/tcp_proxy.h"

namespace baton::testing {

// "decode-*" stands for all that begin so.
inline bool NameMatches(const std::string& pattern, const std::string& name) {
  if (!pattern.empty() && pattern.back() == '*') {
    return absl::StartsWith(name, absl::string_view(pattern).substr(0, pattern.size() - 1));
  }
  return pattern == name;
}

struct TcpProxy::Rule {
  Flow flow;
  LinkFaults faults;
};

struct TcpProxy::Trip {
  Flow flow;
  int64_t after_bytes;
  Action action;
};

struct TcpProxy::Listener {
  int fd;
  std::string name;
  uint16_t port;         // ours
  uint16_t target_port;  // the process'
};

struct TcpProxy::Pipe {
  struct Piece {
    absl::Time due;
    std::string bytes;
  };
  int from = -1, to = -1;
  Flow::Way way = Flow::Way::kToTarget;
  std::deque<Piece> pieces;
  size_t buffered = 0;
  size_t offset = 0;                            // of the first piece, already passed
  bool ended = false;                           // `from` has nothing more to say
  bool shut = false;                            // and `to` has been told
  bool blocked = false;                         // `to` takes nothing now
  bool held = false;                            // by a trip
  absl::Time next_pass = absl::InfinitePast();  // on a narrow link
  int64_t passed = 0;
  std::vector<std::pair<std::shared_ptr<Trip>, int64_t>> trips;  // with `passed` when it was armed
};

struct TcpProxy::Connection {
  bool Matches(const Flow& flow) const {
    return NameMatches(flow.opener, opener) && NameMatches(flow.target, target);
  }
  Pipe& pipe(Flow::Way way) { return pipes[static_cast<int>(way)]; }

  std::string opener, target;
  std::array<Pipe, 2> pipes;  // by Way
  std::array<int, 2> fds = {-1, -1};
  std::array<uint32_t, 2> watched = {0, 0};  // epoll events asked for
  bool connecting = true;
  bool broken = false;
};

}  // namespace baton::testing

#endif  // BATON_TESTS_CLUSTER_FAULTS_TCP_PROXY_PARTS_H_
