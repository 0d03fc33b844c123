#include "common/kv_store/store_pause.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/log.h"

namespace baton::kv_store {

absl::Status StorePause::Check() const {
  const absl::Duration now = clock_.SinceStart();
  absl::MutexLock lock(&mutex_);
  if (now >= until_) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kUnavailable, "KV_STORE_PAUSED",
      absl::StrCat("not asked for ", absl::FormatDuration(until_ - now), " after: ", cause_));
}

absl::Status StorePause::Failed(absl::Status status) {
  const absl::Duration now = clock_.SinceStart();
  absl::MutexLock lock(&mutex_);
  if (now < until_) return status;  // of a call that began before
  until_ = now + next_;
  cause_ = std::string(status.message());
  BATON_LOG(Warning) << "a KV store is not asked for " << absl::FormatDuration(next_) << ": "
                     << status;
  next_ = std::min(2 * next_, longest_);
  return status;
}

void StorePause::Succeeded() {
  absl::MutexLock lock(&mutex_);
  next_ = first_;
}

}  // namespace baton::kv_store
