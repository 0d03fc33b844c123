#include "common/base/version.h"

#include "absl/strings/str_cat.h"

namespace baton {

absl::string_view Version() { return BATON_VERSION; }

std::string VersionLine(absl::string_view program) {
  return absl::StrCat(program, " ", Version());
}

}  // namespace baton
