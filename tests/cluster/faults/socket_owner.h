// Which process is at the other end of a loopback connection.
#ifndef BATON_TESTS_CLUSTER_FAULTS_SOCKET_OWNER_H_
#define BATON_TESTS_CLUSTER_FAULTS_SOCKET_OWNER_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace baton::testing {

// The one of `candidates` that holds the TCP socket bound to `local_port` and connected to
// `remote_port`, both of this machine. Nothing if none does, or if it is gone. Reads /proc;
// thread-safe.
std::optional<pid_t> SocketOwner(uint16_t local_port, uint16_t remote_port,
                                 const std::vector<pid_t>& candidates);

}  // namespace baton::testing

#endif  // BATON_TESTS_CLUSTER_FAULTS_SOCKET_OWNER_H_
