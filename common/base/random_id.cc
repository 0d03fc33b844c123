#include "common/base/random_id.h"

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"

namespace baton {

uint64_t RandomId64() {
  thread_local absl::BitGen generator;
  return absl::Uniform<uint64_t>(absl::IntervalClosed, generator, 1, ~uint64_t{0});
}

std::string RandomIdText() { return absl::StrCat(absl::Hex(RandomId64(), absl::kZeroPad16)); }

}  // namespace baton
