// HTTP/2 keepalive, which each end of a connection sets for itself.
#ifndef BATON_COMMON_BASE_RPC_KEEPALIVE_H_
#define BATON_COMMON_BASE_RPC_KEEPALIVE_H_

#include <grpcpp/grpcpp.h>

#include "absl/time/time.h"

namespace baton {

// A connection that was silent for `time` gets a ping. Without an answer within `timeout` it is
// closed, and its calls fail: this is how a stopped or partitioned peer is noticed.
struct Keepalive {
  absl::Duration time = absl::Seconds(2);
  absl::Duration timeout = absl::Seconds(3);
};

// Calls `set_int(name, value)` for each gRPC argument of one end, server or channel.
template <class SetInt>
void SetKeepalive(const Keepalive& keepalive, SetInt set_int) {
  const auto ms = [](absl::Duration duration) {
    return static_cast<int>(absl::ToInt64Milliseconds(duration));
  };
  set_int(GRPC_ARG_KEEPALIVE_TIME_MS, ms(keepalive.time));
  set_int(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, ms(keepalive.timeout));
  set_int(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // A prefill may send nothing for a long time; pings continue all the same.
  set_int(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
}

}  // namespace baton

#endif  // BATON_COMMON_BASE_RPC_KEEPALIVE_H_
