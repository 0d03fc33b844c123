#include "common/base/stall_watch.h"

#include "absl/strings/str_cat.h"
#include "common/base/error.h"

namespace baton {

absl::Status ReaderStalled(absl::Duration limit) {
  return MakeError(absl::StatusCode::kAborted, "READER_STALLED",
                   absl::StrCat("the client has read nothing of its answer for ",
                                absl::ToInt64Milliseconds(limit), " ms"));
}

}  // namespace baton
