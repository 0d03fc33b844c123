// Workers of one host find each other by the names of their abstract sockets, so that a pool is open
// before the first request needs it, whichever of the two starts first: a decode worker looks for
// pools when it starts, and a prefill worker calls the decode workers that are there before it.
//
// A name is public in its network namespace and proves nothing: the token (SharedPool::Connect) and
// the user of the process at the other end are checked as for a socket that a Prefill call names.
#ifndef BATON_COMMON_TRANSFER_HOST_SOCKETS_H_
#define BATON_COMMON_TRANSFER_HOST_SOCKETS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace baton::transfer {

// What the name of a prefill worker's socket says of its pool.
struct PoolName {
  bool device = false;  // it is in device memory
  uint64_t layout = 0;  // KvLayout::Fingerprint()
  uint64_t epoch = 0;   // of the prefill worker
};
std::string MakePoolName(const PoolName& pool);  // a new one each time
// None: the name is another one.
std::optional<PoolName> ParsePoolName(absl::string_view name);

// The name at which a decode worker is called that reads pools of the layout. A new one each time.
std::string MakeReaderName(uint64_t layout);

// The names of the sockets that listen in this network namespace and begin with MakePoolName's
// prefix. None if the system does not say.
std::vector<std::string> PoolSockets();

// Calls the decode workers of this host and user that read pools of the layout. Returns when each
// has tried to open what it found, or has gone, or after `timeout`; and how many there are.
int CallReaders(uint64_t layout, absl::Duration timeout);

// Whether the process at the other end of a connected socket is of this one's user.
bool IsOfThisUser(int socket);

}  // namespace baton::transfer

#endif  // BATON_COMMON_TRANSFER_HOST_SOCKETS_H_
