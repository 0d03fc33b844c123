// A prefill worker's KV pool as a decode worker of the same host reads it: mapped from a memory
// file, or, where both pools are in device memory, opened by the device (CUDA IPC). KV crosses by
// one copy from pool to pool.
//
// The prefill worker passes two memory files over a Unix socket (SharedPoolServer): its pool, or in
// its place the pool's PoolHandle, and a table of words, one for each transfer that may read. A
// frame names blocks in place of a payload. The word of a transfer holds its lease number until the
// prefill worker takes the blocks back. A reader copies first and looks at the word then: if the
// lease still stands, the bytes were those of the frame.
//
// Nothing here writes to the other side's memory: a process that stops and goes on later can spoil
// no block that has been freed meanwhile.
#ifndef BATON_COMMON_TRANSFER_SHARED_POOL_H_
#define BATON_COMMON_TRANSFER_SHARED_POOL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/backend/backend.h"
#include "common/kv/block_pool.h"
#include "common/kv/kv_layout.h"
#include "common/transfer/plane.h"

namespace baton::transfer {

// Equal for processes that can reach each other's abstract Unix sockets: those of one boot of a
// kernel and of one network namespace. 0 if the system does not say.
uint64_t HostToken();

// The messages of the socket, in the byte order of the host. The decode worker sends a SocketHello,
// and gets a SocketWelcome with the files of the pool and of the lease words. Then it sends the id
// of each transfer that it reads no more, as 8 bytes.
inline constexpr size_t kSocketTokenBytes = 16;
struct SocketHello {
  static constexpr uint64_t kMagic = 0x31564b4e4f544142;  // "BATONKV1"
  uint64_t magic = kMagic;
  char token[kSocketTokenBytes] = {};
};
struct SocketWelcome {
  uint64_t magic = SocketHello::kMagic;
  uint64_t connection = 0;  // names the connection in PrefillRequests
  uint64_t kv_layout_fingerprint = 0;
  uint64_t pool_bytes = 0;
  uint64_t lease_slots = 0;
};
inline constexpr uint64_t kMaxLeaseSlots = 1 << 16;
// Comes in place of SocketWelcome where the pool is in device memory, without a file of the pool.
struct DeviceWelcome {
  SocketWelcome welcome;
  backend::PoolHandle pool;
  uint64_t checksum = 0;  // Checksum(): no damaged handle gets to the driver
  uint64_t Checksum() const;
};

// A file descriptor, closed with the object. Move-only.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  ~FileDescriptor() { Close(); }
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  void Close();

 private:
  int fd_;
};

// Opens a socket of the abstract name, bound or connected; it does not block. UNAVAILABLE, with the
// system's words.
enum class SocketEnd { kListen, kConnect };
absl::StatusOr<FileDescriptor> OpenAbstractSocket(absl::string_view name, SocketEnd end);

// Thread-safe. A transfer that reads keeps a reference; the memory stays mapped until the last one
// is dropped, whether or not the prefill worker lives.
class SharedPool {
 public:
  // Asks the prefill worker that listens at `socket`. UNAVAILABLE if it does not answer within
  // `timeout`; FAILED_PRECONDITION if what it sends does not fit `layout` or could shrink, or the
  // device cannot open it. opener: opens pools in device memory, and outlives the result; null: it
  // takes those in host memory only.
  static absl::StatusOr<std::shared_ptr<SharedPool>> Connect(absl::string_view socket,
                                                             absl::string_view token,
                                                             const kv::KvLayout& layout,
                                                             absl::Duration timeout,
                                                             backend::KvCopier* opener = nullptr);
  ~SharedPool();
  SharedPool(const SharedPool&) = delete;
  SharedPool& operator=(const SharedPool&) = delete;

  uint64_t connection() const { return connection_; }
  int64_t block_count() const { return block_count_; }
  Plane plane() const { return peer_ == nullptr ? Plane::kShm : Plane::kIpc; }
  // REQUIRES: plane() is kShm, 0 <= page < block_count(), 0 <= slot < the layers of a page.
  const std::byte* Chunk(int32_t page, int slot) const {
    return static_cast<const std::byte*>(pool_) + page * page_bytes_ + slot * chunk_bytes_;
  }
  // Copies chunks to pages `ours` of the opener's pool, as PeerPool::Copy. REQUIRES: plane() is
  // kIpc. An error ends the connection, so that the pool is dropped.
  absl::Status Copy(backend::SlotRange slots, absl::Span<const int32_t> theirs,
                    absl::Span<const int32_t> ours);
  // Copy has failed: do not open it again.
  bool failed() const { return failed_; }
  // Call after the copy. False: the bytes may be another prompt's.
  bool LeaseStands(int64_t slot, uint64_t lease) const;
  // The transfer reads no more.
  void Release(uint64_t transfer_id);
  // For poll(): readable when the prefill worker has gone.
  int socket() const { return socket_.get(); }

 private:
  explicit SharedPool(FileDescriptor socket) : socket_(std::move(socket)) {}
  absl::Status Receive(absl::string_view token, const kv::KvLayout& layout, absl::Duration timeout,
                       backend::KvCopier* opener);

  FileDescriptor socket_;  // closed last: the prefill worker then knows that nothing is open
  uint64_t connection_ = 0;
  std::unique_ptr<backend::PeerPool> peer_;  // null: the pool is mapped at pool_
  std::atomic<bool> failed_{false};
  void* pool_ = nullptr;
  size_t pool_bytes_ = 0;
  int64_t page_bytes_ = 0;
  int64_t chunk_bytes_ = 0;
  int64_t block_count_ = 0;
  void* words_ = nullptr;
  size_t lease_slots_ = 0;
};

}  // namespace baton::transfer

#endif  // BATON_COMMON_TRANSFER_SHARED_POOL_H_
