// Lets decode workers of the same host read a prefill worker's KV pool (shared_pool.h), and keeps
// the blocks that they read.
#ifndef BATON_COMMON_TRANSFER_SHARED_POOL_SERVER_H_
#define BATON_COMMON_TRANSFER_SHARED_POOL_SERVER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/backend/backend.h"
#include "common/backend/tensor.h"
#include "common/base/clock.h"
#include "common/kv/kv_layout.h"
#include "common/transfer/kv_sender.h"
#include "common/transfer/shared_pool.h"

namespace baton::transfer {

// A transfer's right to read blocks. It ends when the decode worker releases the transfer or its
// connection closes, or a grace after its stream has ended.
//
// Thread-safe. The destructor tells that the stream has ended.
class ReadLease {
 public:
  virtual ~ReadLease() = default;
  // Keeps the blocks until the lease ends. False: it has ended.
  virtual bool Keep(std::shared_ptr<const PinnedBlocks> blocks) = 0;
  virtual int slot() const = 0;
  virtual uint64_t number() const = 0;
};

// Thread-safe. A thread that the server owns accepts connections and reads releases.
class SharedPoolServer {
 public:
  struct Options {
    std::string socket;  // abstract name; empty: a random one
    std::string token;   // kSocketTokenBytes, which a connection must present; empty: random ones
    int lease_slots = 4096;
    int max_connections = 256;
    // A decode worker that neither releases a transfer nor closes its connection within it after
    // the stream's end loses the lease: it has stopped.
    absl::Duration grace = absl::Seconds(5);
  };
  // `pool` must have a shared_file or a copier that shares(), and must stay in memory while the
  // server lives. UNAVAILABLE if the system refuses a socket or a memory file, FAILED_PRECONDITION
  // if the device does not share its memory.
  static absl::StatusOr<std::unique_ptr<SharedPoolServer>> Start(const backend::KvPool& pool,
                                                                 const kv::KvLayout& layout,
                                                                 const Clock& clock,
                                                                 Options options);
  // Closes the connections and drops the blocks of all leases. The pool must not be written after
  // that: decode workers may still read. If it is in device memory, which must not be freed while
  // they do, waits until they have closed it, for at most the grace.
  ~SharedPoolServer();

  uint64_t host() const { return host_; }
  Plane plane() const { return device_pool_ ? Plane::kIpc : Plane::kShm; }
  const std::string& socket() const { return options_.socket; }
  const std::string& token() const { return token_; }  // what a connection must present

  // Null if there is no such connection, or all slots are taken: the KV is sent as a payload then.
  std::shared_ptr<ReadLease> Open(uint64_t connection, uint64_t transfer_id);
  int open_leases() const;

 private:
  class Handle;
  struct Connection {
    FileDescriptor socket;
    uint64_t id = 0;                // 0: the hello has not come
    absl::Duration hello_deadline;  // SinceStart
  };
  struct Lease {
    std::pair<uint64_t, uint64_t> key;  // connection, transfer id
    int slot = 0;
    std::vector<std::shared_ptr<const PinnedBlocks>> blocks;
    std::optional<absl::Duration> ended_at;  // the stream, SinceStart
  };
  using Blocks = std::vector<std::shared_ptr<const PinnedBlocks>>;

  SharedPoolServer(const backend::KvPool& pool, const kv::KvLayout& layout, const Clock& clock,
                   Options options);
  absl::Status Open();
  void Run();
  void Accept();
  // Handles one message. False: the connection has ended, or broke the protocol.
  bool Read(Connection& connection);
  bool Welcome(Connection& connection);
  void Disconnect(uint64_t connection);
  // Tells them to close the pool, and waits until they have.
  void AwaitReaders();
  // Ends a lease. Its blocks are dropped without the lock.
  Blocks End(uint64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndLate();
  bool Keep(uint64_t number, std::shared_ptr<const PinnedBlocks> blocks);
  void StreamEnded(uint64_t number);
  absl::Duration UntilNextEvent();
  void Wake();
  uint64_t* Word(int slot) const { return static_cast<uint64_t*>(words_) + slot; }

  const backend::KvPool pool_;
  const kv::KvLayout layout_;
  const Clock& clock_;
  Options options_;
  const uint64_t host_;
  std::string token_;
  std::optional<backend::PoolHandle> device_pool_;  // none: the pool is a memory file
  FileDescriptor listener_;
  FileDescriptor wake_;
  FileDescriptor words_file_;
  void* words_ = nullptr;
  std::vector<Connection> connections_;            // of the thread
  std::optional<absl::Duration> accept_again_at_;  // of the thread; set when files have run out

  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t last_lease_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Lease> leases_ ABSL_GUARDED_BY(mutex_);  // by number
  std::map<std::pair<uint64_t, uint64_t>, uint64_t> numbers_ ABSL_GUARDED_BY(mutex_);
  std::vector<int> free_slots_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> open_connections_ ABSL_GUARDED_BY(mutex_);  // ids
  // Handles outlive the server where streams do.
  struct Link {
    absl::Mutex mutex;
    SharedPoolServer* server ABSL_GUARDED_BY(mutex) = nullptr;
  };
  const std::shared_ptr<Link> link_ = std::make_shared<Link>();
  std::thread thread_;
};

}  // namespace baton::transfer

#endif  // BATON_COMMON_TRANSFER_SHARED_POOL_SERVER_H_
