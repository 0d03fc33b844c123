#include "common/model/fingerprint.h"

#include <xxhash.h>

namespace baton::model {

FingerprintBuilder::FingerprintBuilder() : state_(XXH3_createState()) { XXH3_64bits_reset(state_); }
FingerprintBuilder::~FingerprintBuilder() { XXH3_freeState(state_); }

void FingerprintBuilder::AddNumber(uint64_t number) {
  unsigned char bytes[8];
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<unsigned char>(number >> (8 * i));
  XXH3_64bits_update(state_, bytes, sizeof(bytes));
}

void FingerprintBuilder::AddText(absl::string_view text) {
  AddNumber(text.size());
  XXH3_64bits_update(state_, text.data(), text.size());
}

uint64_t FingerprintBuilder::Take() const { return XXH3_64bits_digest(state_); }

uint64_t HashBytes(absl::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

}  // namespace baton::model
