#include "common/transfer/shared_pool.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/transfer/host_sockets.h"

namespace baton::transfer {
namespace {

absl::Status Lost(absl::string_view what) {
  return MakeError(absl::StatusCode::kUnavailable, "SHARED_MEMORY",
                   absl::StrCat("the prefill worker's KV socket: ", what));
}

absl::Status LostByErrno(absl::string_view what) {
  return Lost(absl::StrCat(what, ": ", std::strerror(errno)));
}

absl::Status Unfit(absl::string_view what) {
  return MakeError(absl::StatusCode::kFailedPrecondition, "SHARED_MEMORY",
                   absl::StrCat("the prefill worker's shared KV pool: ", what));
}

// Maps a memory file that cannot shrink, so that reading it never ends the process.
absl::StatusOr<void*> MapReadOnly(int file, size_t bytes) {
  const int seals = fcntl(file, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Unfit("its memory file is not sealed against shrinking");
  }
  struct stat status;
  if (fstat(file, &status) != 0 || static_cast<uint64_t>(status.st_size) < bytes) {
    return Unfit(absl::StrCat("its memory file is smaller than ", bytes, " bytes"));
  }
  void* mapped = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) return LostByErrno(absl::StrCat("mapping ", bytes, " bytes"));
  return mapped;
}

struct Received {
  SocketWelcome welcome;
  std::optional<backend::PoolHandle> device_pool;
  FileDescriptor pool;  // none of a device pool
  FileDescriptor words;
};

absl::StatusOr<Received> ReceiveWelcome(int socket) {
  Received received;
  DeviceWelcome message_bytes;  // the longer one of the two
  iovec data{&message_bytes, sizeof(message_bytes)};
  constexpr int kFiles = 2;
  alignas(cmsghdr) char control[CMSG_SPACE(kFiles * sizeof(int))];
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t size = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (size < 0) return LostByErrno("no welcome");
  // Files first, so that they are closed whatever else is wrong.
  int count = 0;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t files = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < files; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      FileDescriptor file(fd);
      if (count == 0) received.pool = std::move(file);
      if (count == 1) received.words = std::move(file);
      ++count;
    }
  }
  const bool device = size == sizeof(DeviceWelcome);
  received.welcome = message_bytes.welcome;
  if ((!device && size != sizeof(SocketWelcome)) || received.welcome.magic != SocketHello::kMagic ||
      count != (device ? 1 : kFiles) || (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return Lost("its welcome is of another version, or it refused the token");
  }
  if (!device) return received;
  if (message_bytes.checksum != message_bytes.Checksum()) return Lost("its welcome is damaged");
  received.device_pool = message_bytes.pool;
  received.words = std::move(received.pool);
  return received;
}

}  // namespace

uint64_t DeviceWelcome::Checksum() const {
  static_assert(sizeof(DeviceWelcome) ==
                    sizeof(SocketWelcome) + sizeof(backend::PoolHandle) + sizeof(uint64_t),
                "no byte of it is padding");
  return XXH3_64bits(this, offsetof(DeviceWelcome, checksum));
}

uint64_t HostToken() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  struct stat space;
  if (!std::getline(file, boot) || stat("/proc/self/ns/net", &space) != 0) return 0;
  const std::string text = absl::StrCat(boot, "/", space.st_ino);
  return std::max<uint64_t>(1, XXH3_64bits(text.data(), text.size()));
}

void FileDescriptor::Close() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

absl::StatusOr<FileDescriptor> OpenAbstractSocket(absl::string_view name, SocketEnd end) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // An abstract name begins with a zero byte. It goes with the socket: no file is left behind.
  if (name.empty() || name.size() + 1 > sizeof(address.sun_path)) {
    return Unfit(absl::StrCat("a socket's name has ", name.size(), " bytes, expected 1 to ",
                              sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  FileDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.get() < 0) return LostByErrno("socket");
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  if (end == SocketEnd::kListen) {
    if (bind(socket.get(), generic, length) != 0) return LostByErrno("bind");
    if (listen(socket.get(), 64) != 0) return LostByErrno("listen");
  } else if (connect(socket.get(), generic, length) != 0) {
    return LostByErrno("connect");
  }
  return socket;
}

absl::StatusOr<std::shared_ptr<SharedPool>> SharedPool::Connect(absl::string_view socket,
                                                                absl::string_view token,
                                                                const kv::KvLayout& layout,
                                                                absl::Duration timeout,
                                                                backend::KvCopier* opener) {
  BATON_ASSIGN_OR_RETURN(FileDescriptor connected, OpenAbstractSocket(socket, SocketEnd::kConnect));
  if (!IsOfThisUser(connected.get())) return Unfit("its socket is another user's");
  const std::shared_ptr<SharedPool> pool(new SharedPool(std::move(connected)));
  BATON_RETURN_IF_ERROR(pool->Receive(token, layout, timeout, opener));
  return pool;
}

absl::Status SharedPool::Receive(absl::string_view token, const kv::KvLayout& layout,
                                 absl::Duration timeout, backend::KvCopier* opener) {
  SocketHello hello;
  if (token.size() != sizeof(hello.token)) {
    return Unfit(
        absl::StrCat("a token of ", token.size(), " bytes, expected ", sizeof(hello.token)));
  }
  std::memcpy(hello.token, token.data(), token.size());
  if (send(socket_.get(), &hello, sizeof(hello), MSG_NOSIGNAL) != sizeof(hello)) {
    return LostByErrno("hello");
  }
  pollfd ready{socket_.get(), POLLIN, 0};
  int polled;
  do {  // a signal starts the wait again: it is short
    polled = poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout)));
  } while (polled < 0 && errno == EINTR);
  if (polled <= 0) return Lost(absl::StrCat("no welcome within ", absl::FormatDuration(timeout)));
  BATON_ASSIGN_OR_RETURN(const Received received, ReceiveWelcome(socket_.get()));
  const SocketWelcome& welcome = received.welcome;
  if (welcome.kv_layout_fingerprint != layout.Fingerprint()) {
    return Unfit(absl::StrCat("its layout is ", absl::Hex(welcome.kv_layout_fingerprint),
                              ", expected ", absl::Hex(layout.Fingerprint())));
  }
  page_bytes_ = layout.PageBytes();
  chunk_bytes_ = layout.ChunkBytes();
  if (welcome.pool_bytes == 0 || welcome.pool_bytes % static_cast<uint64_t>(page_bytes_) != 0 ||
      welcome.lease_slots == 0 || welcome.lease_slots > kMaxLeaseSlots) {
    return Unfit(absl::StrCat(welcome.pool_bytes, " bytes and ", welcome.lease_slots,
                              " lease slots, expected whole pages of ", page_bytes_,
                              " bytes and 1 to ", kMaxLeaseSlots, " slots"));
  }
  connection_ = welcome.connection;
  block_count_ = static_cast<int64_t>(welcome.pool_bytes / static_cast<uint64_t>(page_bytes_));
  BATON_ASSIGN_OR_RETURN(words_,
                         MapReadOnly(received.words.get(), welcome.lease_slots * sizeof(uint64_t)));
  lease_slots_ = welcome.lease_slots;
  if (!received.device_pool) {
    BATON_ASSIGN_OR_RETURN(pool_, MapReadOnly(received.pool.get(), welcome.pool_bytes));
    pool_bytes_ = welcome.pool_bytes;
    return absl::OkStatus();
  }
  const backend::PoolHandle& handle = *received.device_pool;
  if (opener == nullptr) return Unfit("it is in device memory, which this worker does not open");
  if (handle.block_count != static_cast<uint64_t>(block_count_)) {
    return Unfit(
        absl::StrCat(handle.block_count, " blocks in its handle, expected ", block_count_));
  }
  BATON_ASSIGN_OR_RETURN(peer_, opener->OpenPeer(handle));
  return absl::OkStatus();
}

SharedPool::~SharedPool() {
  peer_.reset();
  if (pool_ != nullptr) munmap(pool_, pool_bytes_);
  if (words_ != nullptr) munmap(words_, lease_slots_ * sizeof(uint64_t));
}

absl::Status SharedPool::Copy(backend::SlotRange slots, absl::Span<const int32_t> theirs,
                              absl::Span<const int32_t> ours) {
  absl::Status status = peer_->Copy(slots, theirs, ours);
  if (!status.ok()) {
    failed_ = true;
    shutdown(socket_.get(), SHUT_RDWR);
  }
  return status;
}

bool SharedPool::LeaseStands(int64_t slot, uint64_t lease) const {
  if (slot < 0 || static_cast<uint64_t>(slot) >= lease_slots_ || lease == 0) return false;
  // The copy's loads come before that of the word.
  std::atomic_thread_fence(std::memory_order_acquire);
  const auto* word = static_cast<const uint64_t*>(words_) + slot;
  return __atomic_load_n(word, __ATOMIC_ACQUIRE) == lease;
}

void SharedPool::Release(uint64_t transfer_id) {
  const ssize_t sent =
      send(socket_.get(), &transfer_id, sizeof(transfer_id), MSG_DONTWAIT | MSG_NOSIGNAL);
  // The buffer holds hundreds of ids: the prefill worker does not read. Without the connection it
  // takes back the blocks of all its transfers as soon as it does; those that still read find out.
  if (sent != sizeof(transfer_id)) shutdown(socket_.get(), SHUT_RDWR);
}

}  // namespace baton::transfer
