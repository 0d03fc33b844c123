#include "common/kv_store/segment_store.h"

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"

namespace baton::kv_store {
namespace {

// Takes `digits` lower-case hexadecimal digits from the start of *text.
bool TakeHex(absl::string_view* text, size_t digits, uint64_t* value) {
  if (text->size() < digits) return false;
  for (const char c : text->substr(0, digits)) {
    if (!absl::ascii_isxdigit(c) || absl::ascii_isupper(c)) return false;
  }
  if (!absl::SimpleHexAtoi(text->substr(0, digits), value)) return false;
  text->remove_prefix(digits);
  return true;
}

bool TakeDash(absl::string_view* text) {
  if (text->empty() || text->front() != '-') return false;
  text->remove_prefix(1);
  return true;
}

}  // namespace

std::string SegmentKey::ToString() const {
  return absl::StrFormat("%016x-%016x-%08x-%016x", model_fingerprint, layout_fingerprint,
                         static_cast<uint32_t>(tokens), prefix);
}

std::optional<SegmentKey> ParseSegmentKey(absl::string_view text) {
  SegmentKey key;
  uint64_t tokens = 0;
  const bool whole = TakeHex(&text, 16, &key.model_fingerprint) && TakeDash(&text) &&
                     TakeHex(&text, 16, &key.layout_fingerprint) && TakeDash(&text) &&
                     TakeHex(&text, 8, &tokens) && TakeDash(&text) &&
                     TakeHex(&text, 16, &key.prefix) && text.empty();
  if (!whole || tokens > 0x7fffffff) return std::nullopt;
  key.tokens = static_cast<int>(tokens);
  return key;
}

}  // namespace baton::kv_store
