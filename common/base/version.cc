#include "common/base/version.h"

#include "absl/strings/str_cat.h"

namespace baton {

std::string VersionLine(absl::string_view program) {
  return absl::StrCat(program, " ", BATON_VERSION);
}

}  // namespace baton
