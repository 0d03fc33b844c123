// Segments as files in a directory, one each, so that they survive the process.
//
// A file is written under a temporary name and renamed. There is no fsync: the checksum in the
// value finds a torn file. The order of use survives as the files' times. Processes may share a
// directory: each evicts within its own bound, and a file that another has evicted is a miss; files
// that others add are seen at the next start.
//
// A call returns DEADLINE_EXCEEDED before it begins, but no deadline interrupts a file system that
// hangs: callers must not wait for such a call.
#ifndef BATON_COMMON_KV_STORE_FILE_STORE_H_
#define BATON_COMMON_KV_STORE_FILE_STORE_H_

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/base/random_id.h"
#include "common/kv_store/lru_index.h"
#include "common/kv_store/segment_store.h"
#include "common/kv_store/store_pause.h"

namespace baton::kv_store {

class FileStore final : public SegmentStore {
 public:
  // Makes the directory if it is missing, reads the names of what is there, and removes what
  // processes left unfinished an hour ago or earlier. INVALID_ARGUMENT (KV_STORE) if it cannot be
  // made, read or written to. The clock must outlive the store.
  static absl::StatusOr<std::unique_ptr<FileStore>> Open(const std::string& directory,
                                                         int64_t max_bytes, const Clock& clock);

  absl::string_view kind() const override { return "file"; }
  bool knows_its_keys() const override { return true; }
  StoreUsage usage() const override;
  void Listen(KeyListener listener) override;
  absl::StatusOr<int> CountLeading(absl::Span<const SegmentKey> keys, absl::Time deadline) override;
  absl::StatusOr<int> CountToLast(absl::Span<const SegmentKey> keys, absl::Time deadline) override;
  absl::StatusOr<SegmentBytes> Get(const SegmentKey& key, size_t max_bytes,
                                   absl::Time deadline) override;
  absl::Status Put(const SegmentKey& key, const SegmentBytes& value, absl::Time deadline) override;
  void Remove(const SegmentKey& key, absl::Time deadline) override;

 private:
  FileStore(const std::string& directory, int64_t max_bytes, const Clock& clock)
      : directory_(directory),
        max_bytes_(max_bytes),
        clock_(clock),
        pause_(absl::Seconds(1), absl::Seconds(60), clock) {}

  absl::Status Scan();
  std::filesystem::path PathOf(absl::string_view name) const;
  void Forget(absl::string_view name);
  void MakeRoom(int64_t bytes);
  absl::Status WriteFile(const std::filesystem::path& path, const std::vector<std::byte>& value,
                         absl::Time deadline);
  // The error of a system call that has failed.
  absl::Status ErrorOf(int error, absl::string_view what, const std::filesystem::path& path);

  const std::filesystem::path directory_;
  const int64_t max_bytes_;
  const Clock& clock_;
  StorePause pause_;
  // These two are parts of temporary names. In containers, all processes may have one pid.
  const std::string process_ = RandomIdText();
  std::atomic<uint64_t> written_ = 0;
  mutable absl::Mutex mutex_;  // held for no I/O
  LruIndex index_ ABSL_GUARDED_BY(mutex_);
  int64_t evicted_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace baton::kv_store

#endif  // BATON_COMMON_KV_STORE_FILE_STORE_H_
