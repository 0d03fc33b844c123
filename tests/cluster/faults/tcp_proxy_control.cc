// What a TcpProxy is told and asked, from any thread.
#include <algorithm>
#include <utility>

#include "tests/cluster/faults/tcp_proxy.h"
#include "tests/cluster/faults/tcp_proxy_parts.h"

namespace baton::testing {

void TcpProxy::Set(const Flow& flow, const LinkFaults& faults) {
  {
    absl::MutexLock lock(&mutex_);
    rules_.erase(std::remove_if(rules_.begin(), rules_.end(),
                                [&](const Rule& rule) {
                                  return rule.flow.opener == flow.opener &&
                                         rule.flow.target == flow.target &&
                                         rule.flow.way == flow.way;
                                }),
                 rules_.end());
    rules_.push_back({flow, faults});
  }
  Wake();
}

void TcpProxy::Heal() {
  {
    absl::MutexLock lock(&mutex_);
    rules_.clear();
    trips_.clear();
    for (const auto& connection : connections_) {
      for (Pipe& pipe : connection->pipes) {
        pipe.held = false;
        pipe.trips.clear();
      }
    }
  }
  Wake();
}

void TcpProxy::Reset(const std::string& opener, const std::string& target) {
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& connection : connections_) {
      if (connection->Matches({opener, target})) connection->broken = true;
    }
  }
  Wake();
}

void TcpProxy::Arm(const Flow& flow, int64_t after_bytes, Action action) {
  absl::MutexLock lock(&mutex_);
  auto trip = std::make_shared<Trip>(Trip{flow, after_bytes, std::move(action)});
  trips_.push_back(trip);
  for (const auto& connection : connections_) {
    if (!connection->Matches(flow)) continue;
    Pipe& pipe = connection->pipe(flow.way);
    pipe.trips.emplace_back(trip, pipe.passed);
  }
}

void TcpProxy::Disarm() {
  absl::MutexLock lock(&mutex_);
  trips_.clear();
  for (const auto& connection : connections_) {
    for (Pipe& pipe : connection->pipes) pipe.trips.clear();
  }
}

int64_t TcpProxy::BytesPassed(const Flow& flow) const {
  absl::MutexLock lock(&mutex_);
  int64_t bytes = 0;
  for (const auto& [ended, passed] : passed_before_) {
    const auto& [opener, target, way] = ended;
    if (NameMatches(flow.opener, opener) && NameMatches(flow.target, target) && flow.way == way) {
      bytes += passed;
    }
  }
  for (const auto& connection : connections_) {
    if (connection->Matches(flow)) bytes += connection->pipe(flow.way).passed;
  }
  return bytes;
}

int TcpProxy::open_connections() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(connections_.size());
}

}  // namespace baton::testing
