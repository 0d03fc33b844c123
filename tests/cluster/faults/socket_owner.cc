#include "tests/cluster/faults/socket_owner.h"

#include <dirent.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"

namespace baton::testing {
namespace {

// Its inode as the socket's links in /proc/PID/fd name it; 0 if there is no such socket.
uint64_t InodeOf(const char* table_path, uint16_t local_port, uint16_t remote_port) {
  std::ifstream table(table_path);
  std::string line;
  std::getline(table, line);  // the head
  while (std::getline(table, line)) {
    unsigned local = 0, remote = 0;
    unsigned long long inode = 0;
    // sl local:port remote:port st tx:rx tr:when retrnsmt uid timeout inode
    const int read = std::sscanf(line.c_str(),
                                 " %*d: %*[0-9A-F]:%4x %*[0-9A-F]:%4x %*x %*x:%*x %*x:%*x %*x"
                                 " %*d %*d %llu",
                                 &local, &remote, &inode);
    if (read == 3 && local == local_port && remote == remote_port) return inode;
  }
  return 0;
}

bool Holds(pid_t pid, const std::string& link) {
  const std::string folder = absl::StrCat("/proc/", pid, "/fd");
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(opendir(folder.c_str()), closedir);
  if (entries == nullptr) return false;
  while (const dirent* entry = readdir(entries.get())) {
    char target[64];
    const ssize_t size =
        readlink(absl::StrCat(folder, "/", entry->d_name).c_str(), target, sizeof(target));
    if (size > 0 && std::string(target, size) == link) return true;
  }
  return false;
}

}  // namespace

std::optional<pid_t> SocketOwner(uint16_t local_port, uint16_t remote_port,
                                 const std::vector<pid_t>& candidates) {
  uint64_t inode = InodeOf("/proc/net/tcp", local_port, remote_port);
  // A socket that speaks IPv6 may be connected to an IPv4 address.
  if (inode == 0) inode = InodeOf("/proc/net/tcp6", local_port, remote_port);
  if (inode == 0) return std::nullopt;
  const std::string link = absl::StrCat("socket:[", inode, "]");
  for (const pid_t pid : candidates) {
    if (Holds(pid, link)) return pid;
  }
  return std::nullopt;
}

}  // namespace baton::testing
