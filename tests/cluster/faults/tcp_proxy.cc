#include "tests/cluster/faults/tcp_proxy.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/splitmix64.h"
#include "tests/cluster/faults/tcp_proxy_parts.h"

namespace baton::testing {
namespace {

using Way = Flow::Way;

constexpr size_t kMaxBufferedBytes = 1 << 20;  // one way of one connection; more is not read
constexpr size_t kReadBytes = 64 << 10;
// A narrow link passes its bytes in slices of this length.
constexpr absl::Duration kSlice = absl::Milliseconds(10);

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

int NewSocket() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  BATON_CHECK(fd >= 0) << strerror(errno);
  return fd;
}

void NoDelay(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

// The peer gets a RST instead of an orderly end.
void CloseWithReset(int fd) {
  const linger now = {1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  close(fd);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TcpProxy>> TcpProxy::Start(Identify identify, uint64_t seed) {
  std::unique_ptr<TcpProxy> proxy(new TcpProxy(std::move(identify), seed));
  proxy->epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  proxy->wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (proxy->epoll_fd_ < 0 || proxy->wake_fd_ < 0) {
    return absl::ResourceExhaustedError(absl::StrCat("epoll, eventfd: ", strerror(errno)));
  }
  epoll_event event = {EPOLLIN, {.fd = proxy->wake_fd_}};
  epoll_ctl(proxy->epoll_fd_, EPOLL_CTL_ADD, proxy->wake_fd_, &event);
  proxy->thread_ = std::thread([raw = proxy.get()] { raw->Run(); });
  return proxy;
}

TcpProxy::TcpProxy(Identify identify, uint64_t seed)
    : identify_(std::move(identify)), random_(seed) {}

TcpProxy::~TcpProxy() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  Wake();
  if (thread_.joinable()) thread_.join();
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& connection : connections_) Close(*connection);
    for (const auto& listener : listeners_) close(listener->fd);
  }
  if (wake_fd_ >= 0) close(wake_fd_);
  if (epoll_fd_ >= 0) close(epoll_fd_);
}

void TcpProxy::Wake() const {
  if (wake_fd_ < 0) return;
  const uint64_t one = 1;
  (void)!write(wake_fd_, &one, sizeof(one));
}

absl::StatusOr<std::string> TcpProxy::AddTarget(const std::string& name, uint16_t port) {
  const int fd = NewSocket();
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(fd, 128) != 0 || getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    close(fd);
    return absl::UnavailableError(absl::StrCat("proxy for ", name, ": ", strerror(errno)));
  }
  auto listener = std::make_unique<Listener>();
  *listener = {fd, name, ntohs(address.sin_port), port};
  const std::string text = absl::StrCat("127.0.0.1:", listener->port);
  absl::MutexLock lock(&mutex_);
  epoll_event event = {EPOLLIN, {.fd = fd}};
  epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event);
  listeners_.push_back(std::move(listener));
  return text;
}

void TcpProxy::Run() {
  std::array<epoll_event, 64> events;
  absl::Duration wait = absl::ZeroDuration();
  while (true) {
    const int timeout_ms = wait == absl::InfiniteDuration()
                               ? -1
                               : static_cast<int>(std::ceil(absl::ToDoubleMilliseconds(wait)));
    const int count = epoll_wait(epoll_fd_, events.data(), static_cast<int>(events.size()),
                                 std::clamp(timeout_ms, -1, 60'000));
    absl::MutexLock lock(&mutex_);
    if (stopping_) return;
    for (int i = 0; i < count; ++i) {
      const int fd = events[i].data.fd;
      uint64_t taken;
      if (fd == wake_fd_) (void)!read(wake_fd_, &taken, sizeof(taken));
      for (size_t l = 0; l < listeners_.size(); ++l) {
        if (listeners_[l]->fd == fd) Accept(*listeners_[l]);
      }
    }
    // A cluster has a few dozen connections: each is looked at, whichever the event was for.
    for (auto it = connections_.begin(); it != connections_.end();) {
      if (Pump(**it)) {
        Watch(**it);
        ++it;
      } else {
        Close(**it);
        it = connections_.erase(it);
      }
    }
    wait = std::max(absl::ZeroDuration(), NextDue() - absl::Now());
  }
}

void TcpProxy::Accept(Listener& listener) {
  while (true) {
    sockaddr_in peer = {};
    socklen_t size = sizeof(peer);
    const int fd = accept4(listener.fd, reinterpret_cast<sockaddr*>(&peer), &size,
                           SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    auto connection = std::make_unique<Connection>();
    connection->opener = identify_(ntohs(peer.sin_port), listener.port);
    connection->target = listener.name;
    const int target_fd = NewSocket();
    NoDelay(fd);
    NoDelay(target_fd);
    const sockaddr_in address = Loopback(listener.target_port);
    if (connect(target_fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 &&
        errno != EINPROGRESS) {
      CloseWithReset(fd);
      close(target_fd);
      continue;
    }
    connection->fds = {fd, target_fd};
    for (const Way way : {Way::kToTarget, Way::kToOpener}) {
      Pipe& pipe = connection->pipe(way);
      pipe.way = way;
      pipe.from = way == Way::kToTarget ? fd : target_fd;
      pipe.to = way == Way::kToTarget ? target_fd : fd;
      for (const std::shared_ptr<Trip>& trip : trips_) {
        if (trip->flow.way == way && connection->Matches(trip->flow)) {
          pipe.trips.emplace_back(trip, 0);
        }
      }
    }
    connections_.push_back(std::move(connection));
  }
}

bool TcpProxy::Pump(Connection& connection) {
  if (connection.broken) return false;
  if (connection.connecting) {
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(connection.fds[1], SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return false;  // refused: the opener gets a reset
    sockaddr_in peer;
    socklen_t peer_size = sizeof(peer);
    connection.connecting =
        getpeername(connection.fds[1], reinterpret_cast<sockaddr*>(&peer), &peer_size) != 0;
    if (connection.connecting) return true;
  }
  if (!PumpWay(connection, Way::kToTarget) || !PumpWay(connection, Way::kToOpener)) return false;
  return !(connection.pipes[0].shut && connection.pipes[1].shut);
}

bool TcpProxy::PumpWay(Connection& connection, Way way) {
  Pipe& pipe = connection.pipe(way);
  pipe.blocked = false;
  return Fill(connection, pipe) && Drain(connection, pipe);
}

bool TcpProxy::Fill(Connection& connection, Pipe& pipe) {
  const LinkFaults faults = FaultsOf(connection, pipe.way);
  while (!pipe.ended && !faults.hold && !pipe.held && pipe.buffered < kMaxBufferedBytes) {
    std::string bytes(kReadBytes, '\0');
    const ssize_t count = read(pipe.from, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno == EAGAIN;  // else reset by the peer: the other end gets one too
    if (count == 0) {
      pipe.ended = true;
      break;
    }
    bytes.resize(count);
    if (faults.flip_rate > 0) {
      for (char& byte : bytes) {
        const uint64_t random = NextSplitMix64(&random_);
        if (static_cast<double>(random >> 11) * 0x1p-53 < faults.flip_rate) {
          byte = static_cast<char>(byte ^ (1 << (random & 7)));
        }
      }
    }
    pipe.buffered += bytes.size();
    pipe.pieces.push_back({absl::Now() + faults.delay, std::move(bytes)});
  }
  return true;
}

bool TcpProxy::Drain(Connection& connection, Pipe& pipe) {
  while (!pipe.pieces.empty()) {
    const LinkFaults faults = FaultsOf(connection, pipe.way);
    const absl::Time now = absl::Now();
    if (faults.hold || pipe.held || pipe.pieces.front().due > now ||
        (faults.bytes_per_second > 0 && pipe.next_pass > now)) {
      return true;
    }
    int64_t may_pass = static_cast<int64_t>(pipe.pieces.front().bytes.size() - pipe.offset);
    if (faults.bytes_per_second > 0) {
      const double slice =
          static_cast<double>(faults.bytes_per_second) * absl::ToDoubleSeconds(kSlice);
      may_pass = std::min(may_pass, std::max<int64_t>(1, static_cast<int64_t>(slice)));
    }
    if (!TripsNow(connection, pipe, &may_pass)) return false;
    if (pipe.held || may_pass == 0) continue;
    const ssize_t count = send(pipe.to, pipe.pieces.front().bytes.data() + pipe.offset,
                               static_cast<size_t>(may_pass), MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      pipe.blocked = errno == EAGAIN;
      return pipe.blocked;
    }
    pipe.passed += count;
    pipe.offset += count;
    pipe.buffered -= count;
    if (faults.bytes_per_second > 0) {
      pipe.next_pass =
          std::max(pipe.next_pass, now) +
          absl::Seconds(static_cast<double>(count) / static_cast<double>(faults.bytes_per_second));
    }
    if (pipe.offset == pipe.pieces.front().bytes.size()) {
      pipe.pieces.pop_front();
      pipe.offset = 0;
    }
  }
  if (pipe.ended && !pipe.shut) {
    pipe.shut = true;
    shutdown(pipe.to, SHUT_WR);
  }
  return true;
}

// Lowers *may_pass to what may go before the next trip, and springs those that are due. False if
// one of them resets the connection.
bool TcpProxy::TripsNow(Connection& connection, Pipe& pipe, int64_t* may_pass) {
  for (size_t i = 0; i < pipe.trips.size();) {
    const auto [trip, armed_at] = pipe.trips[i];
    if (std::find(trips_.begin(), trips_.end(), trip) == trips_.end()) {
      pipe.trips.erase(pipe.trips.begin() + i);  // it has happened elsewhere
      continue;
    }
    const int64_t left = armed_at + trip->after_bytes - pipe.passed;
    if (left > 0) {
      *may_pass = std::min(*may_pass, left);
      ++i;
      continue;
    }
    trips_.erase(std::find(trips_.begin(), trips_.end(), trip));
    pipe.trips.erase(pipe.trips.begin() + i);
    // Held before the action runs: what it sets off may heal the proxy before it returns. It may
    // ask the proxy for more; nobody else removes connections meanwhile.
    pipe.held = true;
    mutex_.Unlock();
    const TripEnd end = trip->action(connection.opener, connection.target);
    mutex_.Lock();
    if (end == TripEnd::kReset) return false;
    if (end == TripEnd::kHold) return true;
    pipe.held = false;
  }
  return true;
}

// Asks epoll for what can make this connection go on, and for nothing else: an end that is held, or
// whose peer is gone, must not wake the thread again and again.
void TcpProxy::Watch(Connection& connection) {
  for (int end = 0; end < 2; ++end) {
    const Pipe& out = connection.pipes[end];     // reads from this end
    const Pipe& in = connection.pipes[1 - end];  // writes to it
    const LinkFaults faults = FaultsOf(connection, out.way);
    uint32_t wanted = 0;
    if (connection.connecting) {
      if (end == 1) wanted = EPOLLOUT;
    } else {
      if (!out.ended && !faults.hold && !out.held && out.buffered < kMaxBufferedBytes) {
        wanted |= EPOLLIN;
      }
      if (in.blocked) wanted |= EPOLLOUT;
    }
    if (wanted == connection.watched[end]) continue;
    epoll_event event = {wanted, {.fd = connection.fds[end]}};
    const int operation = connection.watched[end] == 0 ? EPOLL_CTL_ADD
                          : wanted == 0                ? EPOLL_CTL_DEL
                                                       : EPOLL_CTL_MOD;
    BATON_CHECK_EQ(epoll_ctl(epoll_fd_, operation, connection.fds[end], &event), 0)
        << strerror(errno);
    connection.watched[end] = wanted;
  }
}

void TcpProxy::Close(Connection& connection) {
  const bool orderly = connection.pipes[0].shut && connection.pipes[1].shut;
  for (const Pipe& pipe : connection.pipes) {
    passed_before_[{connection.opener, connection.target, pipe.way}] += pipe.passed;
  }
  for (const int fd : connection.fds) {
    if (orderly) {
      close(fd);
    } else {
      CloseWithReset(fd);
    }
  }
}

LinkFaults TcpProxy::FaultsOf(const Connection& connection, Way way) const {
  for (auto rule = rules_.rbegin(); rule != rules_.rend(); ++rule) {
    if (rule->flow.way == way && connection.Matches(rule->flow)) return rule->faults;
  }
  return {};
}

// When time alone lets something pass.
absl::Time TcpProxy::NextDue() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& connection : connections_) {
    for (const Pipe& pipe : connection->pipes) {
      if (pipe.pieces.empty() || pipe.blocked || pipe.held || connection->connecting) continue;
      const LinkFaults faults = FaultsOf(*connection, pipe.way);
      if (faults.hold) continue;
      absl::Time due = pipe.pieces.front().due;
      if (faults.bytes_per_second > 0) due = std::max(due, pipe.next_pass);
      next = std::min(next, due);
    }
  }
  return next;
}

}  // namespace baton::testing
