// What tests of stores share: keys, values, a prompt's segments.
#ifndef BATON_TESTS_COMMON_KV_STORE_STORE_CASES_H_
#define BATON_TESTS_COMMON_KV_STORE_STORE_CASES_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/kv_store/segment_store.h"

namespace baton::kv_store {

inline SegmentKey KeyOf(uint64_t prefix) { return {0x1234, 0x5678, 256, prefix << 32 | prefix}; }

inline SegmentBytes ValueOf(size_t bytes, int filler) {
  return std::make_shared<std::vector<std::byte>>(bytes, static_cast<std::byte>(filler));
}

inline const absl::Time kNoDeadline = absl::InfiniteFuture();

inline int Count(SegmentStore& store, const std::vector<SegmentKey>& keys) {
  const absl::StatusOr<int> count = store.CountLeading(keys, kNoDeadline);
  BATON_CHECK(count.ok()) << count.status();
  return *count;
}

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "baton-store-XXXXXX").string();
    BATON_CHECK(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~TemporaryDirectory() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace baton::kv_store

#endif  // BATON_TESTS_COMMON_KV_STORE_STORE_CASES_H_
