#include "common/transfer/host_sockets.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/base/random_id.h"
#include "common/transfer/shared_pool.h"

namespace baton::transfer {
namespace {

constexpr char kPoolPrefix[] = "baton-kv-pool-", kReaderPrefix[] = "baton-kv-reader-";

std::string Hex(uint64_t number) { return absl::StrCat(absl::Hex(number, absl::kZeroPad16)); }

// The listening abstract sockets whose names begin with the prefix.
std::vector<std::string> ListeningSockets(absl::string_view prefix) {
  // A line is "address: references protocol flags type state inode name"; '@' stands for the zero
  // byte that begins an abstract name.
  constexpr size_t kFlags = 3, kName = 7;
  constexpr absl::string_view kListens = "00010000";
  std::vector<std::string> names;
  std::ifstream file("/proc/self/net/unix");
  for (std::string line; std::getline(file, line);) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.size() <= kName || words[kFlags] != kListens) continue;
    absl::string_view name = words[kName];
    if (!absl::ConsumePrefix(&name, "@") || !absl::StartsWith(name, prefix)) continue;
    names.emplace_back(name);
  }
  return names;
}

}  // namespace

std::string MakePoolName(const PoolName& pool) {
  return absl::StrCat(kPoolPrefix, pool.device ? "device-" : "host-", Hex(pool.layout), "-",
                      Hex(pool.epoch), "-", RandomIdText());
}

std::optional<PoolName> ParsePoolName(absl::string_view name) {
  if (!absl::ConsumePrefix(&name, kPoolPrefix)) return std::nullopt;
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '-');
  PoolName pool;
  if (parts.size() != 4 || (parts[0] != "device" && parts[0] != "host") ||
      !absl::SimpleHexAtoi(parts[1], &pool.layout) || !absl::SimpleHexAtoi(parts[2], &pool.epoch)) {
    return std::nullopt;
  }
  pool.device = parts[0] == "device";
  return pool;
}

std::string MakeReaderName(uint64_t layout) {
  return absl::StrCat(kReaderPrefix, Hex(layout), "-", RandomIdText());
}

std::vector<std::string> PoolSockets() { return ListeningSockets(kPoolPrefix); }

int CallReaders(uint64_t layout, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  std::vector<FileDescriptor> calls;
  for (const std::string& name : ListeningSockets(absl::StrCat(kReaderPrefix, Hex(layout), "-"))) {
    // One that takes no calls now, or has gone, is left out.
    absl::StatusOr<FileDescriptor> call = OpenAbstractSocket(name, SocketEnd::kConnect);
    if (call.ok() && IsOfThisUser(call->get())) calls.push_back(*std::move(call));
  }
  const int count = static_cast<int>(calls.size());
  while (!calls.empty()) {
    std::vector<pollfd> polled;
    for (const FileDescriptor& call : calls) polled.push_back({call.get(), POLLIN, 0});
    const int64_t ms = absl::ToInt64Milliseconds(deadline - absl::Now());
    if (ms <= 0) break;
    const int ready = poll(polled.data(), polled.size(), static_cast<int>(ms));
    if (ready == 0 || (ready < 0 && errno != EINTR)) break;
    if (ready < 0) continue;
    // A reader says nothing: what can be read is the end.
    for (size_t i = calls.size(); i-- > 0;) {
      if (polled[i].revents != 0) calls.erase(calls.begin() + static_cast<ptrdiff_t>(i));
    }
  }
  return count;
}

bool IsOfThisUser(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

}  // namespace baton::transfer
