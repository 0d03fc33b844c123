#include "common/telemetry/metrics.h"

#include <netdb.h>
#include <prometheus/exposer.h>
#include <prometheus/registry.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/error.h"

namespace baton::telemetry {
namespace {

// Scrapes at a time; more wait. A Prometheus server scrapes a process every few seconds.
constexpr char kServerThreads[] = "2";

// The host of "host:port". civetweb accepts more (lists, "80s", bare ports); this refuses all other
// forms, so that an address means what it says.
absl::StatusOr<std::string> HostOf(const std::string& address) {
  const size_t colon = address.rfind(':');
  int port = -1;
  bool valid = colon != std::string::npos && colon > 0;
  if (valid) {
    const std::string port_text = address.substr(colon + 1);
    for (char c : port_text) valid = valid && absl::ascii_isdigit(c);
    valid = valid && absl::SimpleAtoi(port_text, &port) && port <= 65535;
  }
  const std::string host = address.substr(0, valid ? colon : 0);
  const bool bracketed = valid && host.front() == '[' && host.back() == ']';
  for (char c : host) {
    valid = valid && (absl::ascii_isalnum(c) || c == '.' || c == '-' ||
                      (bracketed && (c == ':' || c == '[' || c == ']')));
  }
  if (!valid) {
    return MakeError(absl::StatusCode::kInvalidArgument, "ADDRESS_INVALID",
                     absl::StrCat("metrics address \"", address,
                                  "\": expected host:port, e.g. 0.0.0.0:9090 or [::1]:9090"));
  }
  return host;
}

absl::Status CannotBind(const std::string& address, const char* why) {
  return MakeError(absl::StatusCode::kUnavailable, "METRICS_BIND_FAILED",
                   absl::StrCat("metrics address ", address, ": cannot be bound (", why,
                                "): expected a free port on an address of this machine"));
}

// Opens and closes a connection to an address that this process listens on.
void Poke(const std::string& address) {
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), address.substr(colon + 1).c_str(), &hints, &found) != 0) return;
  for (const addrinfo* peer = found; peer != nullptr; peer = peer->ai_next) {
    const int fd = socket(peer->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    (void)connect(fd, peer->ai_addr, peer->ai_addrlen);
    close(fd);
  }
  freeaddrinfo(found);
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(
    const std::string& address) {
  absl::StatusOr<std::string> host = HostOf(address);
  if (!host.ok()) return host.status();

  std::unique_ptr<prometheus::Exposer> exposer;
  try {  // the exposer throws if it cannot start
    exposer = std::make_unique<prometheus::Exposer>(
        std::vector<std::string>{"listening_ports", address, "num_threads", kServerThreads});
  } catch (const std::exception& error) {
    return CannotBind(address, error.what());
  }
  const std::vector<int> ports = exposer->GetListeningPorts();
  if (ports.size() != 1 || ports[0] <= 0) return CannotBind(address, "no port reported");

  auto registry = std::make_shared<prometheus::Registry>();
  exposer->RegisterCollectable(registry);
  return std::unique_ptr<MetricsEndpoint>(new MetricsEndpoint(
      absl::StrCat(*host, ":", ports[0]), std::move(registry), std::move(exposer)));
}

MetricsEndpoint::MetricsEndpoint(std::string address,
                                 std::shared_ptr<prometheus::Registry> registry,
                                 std::unique_ptr<prometheus::Exposer> exposer)
    : address_(std::move(address)), registry_(std::move(registry)), exposer_(std::move(exposer)) {}

MetricsEndpoint::~MetricsEndpoint() {
  // civetweb's accepting thread checks its stop flag after each connection, or else every 2 s.
  // Connections make it stop at once.
  std::atomic<bool> stopped = false;
  std::thread stopper([this, &stopped] {
    exposer_.reset();
    stopped = true;
  });
  while (!stopped) {
    Poke(address_);
    absl::SleepFor(absl::Milliseconds(1));
  }
  stopper.join();
}

}  // namespace baton::telemetry
