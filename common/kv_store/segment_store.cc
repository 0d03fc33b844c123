#include "common/kv_store/segment_store.h"

#include "absl/strings/str_format.h"

namespace baton::kv_store {

std::string SegmentKey::ToString() const {
  return absl::StrFormat("%016x-%016x-%08x-%016x", model_fingerprint, layout_fingerprint,
                         static_cast<uint32_t>(tokens), prefix);
}

}  // namespace baton::kv_store
