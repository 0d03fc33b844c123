// Hashes a sequence of texts and numbers with XXH3-64, each with its length, so that different
// sequences have different bytes.
#ifndef BATON_COMMON_MODEL_FINGERPRINT_H_
#define BATON_COMMON_MODEL_FINGERPRINT_H_

#include <cstdint>

#include "absl/strings/string_view.h"

struct XXH3_state_s;

namespace baton::model {

class FingerprintBuilder {
 public:
  FingerprintBuilder();
  ~FingerprintBuilder();
  FingerprintBuilder(const FingerprintBuilder&) = delete;
  FingerprintBuilder& operator=(const FingerprintBuilder&) = delete;

  void AddNumber(uint64_t number);
  void AddText(absl::string_view text);
  uint64_t Take() const;

 private:
  XXH3_state_s* state_;
};

// Returns XXH3-64 of the bytes, without their length.
uint64_t HashBytes(absl::string_view bytes);

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_FINGERPRINT_H_
