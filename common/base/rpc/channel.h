// Makes gRPC channels, with settings for the two kinds of connection: between the processes of a
// cluster, and from a client to a router.
#ifndef BATON_COMMON_BASE_RPC_CHANNEL_H_
#define BATON_COMMON_BASE_RPC_CHANNEL_H_

#include <grpcpp/channel.h>
#include <grpcpp/security/credentials.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/rpc/keepalive.h"
#include "common/base/tls_files.h"

namespace baton {

struct ChannelSettings {
  // Limit for one attempt to connect, from the TCP handshake to the server's first HTTP/2 frame.
  absl::Duration connect_timeout;
  // Pause after a failed attempt; it grows from the first value to the second.
  absl::Duration initial_backoff;
  absl::Duration max_backoff;
  Keepalive keepalive;
  // Bytes that a call's server may send before this end has read them; so much memory a call may
  // hold. 0: gRPC measures what the path needs, without a bound below 1 GiB, and counts in that
  // what waits in the receiver's own socket.
  int receive_window_bytes = 0;
};

// Between routers and workers. Attempts are short and frequent: a worker that restarts at its
// address serves again within 2 s, and another worker can take the request meanwhile. The timeout
// covers several round trips of a slow link.
inline constexpr ChannelSettings kPeerChannel = {absl::Milliseconds(1500), absl::Milliseconds(100),
                                                 absl::Milliseconds(500), Keepalive()};

// From a decode to a prefill worker, for KV. A window of 4 MiB is enough for 25 Gbit/s at a round
// trip of 1.3 ms. docs/results/kv_transport_grpc.md has what it does for CPU time.
inline constexpr ChannelSettings kTransferChannel = {
    kPeerChannel.connect_timeout, kPeerChannel.initial_backoff, kPeerChannel.max_backoff,
    kPeerChannel.keepalive, 4 << 20};

// From the SDK and the CLI to a router. A router on a busy machine accepts TCP connections long
// before it answers, and a client has no other router to turn to: each attempt gets gRPC's default
// of 20 s. A refused connection still fails at once. The back-off stays short, so that a
// long-lived client finds a restarted router within 3 s.
//
// An application that does not read a stream buffers one flow-control window of it, however much
// the connection once carried. A window of 1 MiB allows 10 MB/s at a round trip of 100 ms, more
// than any answer needs.
inline constexpr ChannelSettings kClientChannel = {absl::Seconds(20),
                                                   absl::Milliseconds(200),
                                                   absl::Seconds(3),
                                                   {absl::Seconds(20), absl::Seconds(20)},
                                                   1 << 20};

// Name and value of metadata, the names in lower case.
using CallHeaders = std::vector<std::pair<std::string, std::string>>;

// How a channel proves who it is, and checks who the server is. Cheap to copy; copies share the
// credentials.
struct ChannelSecurity {
  std::shared_ptr<grpc::ChannelCredentials> credentials;  // null: plaintext
  std::string server_name;                                // as in ChannelTls
  // Called for each call, by any thread; the call carries these. Null: none.
  std::function<CallHeaders()> headers;
};
ChannelSecurity MakeChannelSecurity(const ChannelTls& tls, std::function<CallHeaders()> headers);

// The connection is not shared, and opens at the first call. `address` is host:port. Messages in
// both directions may have 16 MiB.
//
// Calls without wait_for_ready wait for an attempt in progress and fail with UNAVAILABLE when it
// fails: at once if the host is unknown or nothing listens at the port, after `connect_timeout` if
// the peer does not answer.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const ChannelSettings& settings = kPeerChannel,
                                           const ChannelSecurity& security = {});

}  // namespace baton

#endif  // BATON_COMMON_BASE_RPC_CHANNEL_H_
