// The version that --version prints.
#ifndef BATON_COMMON_BASE_VERSION_H_
#define BATON_COMMON_BASE_VERSION_H_

#include <string>

#include "absl/strings/string_view.h"

namespace baton {

// The project's version in CMakeLists.txt, which all programs and packages share.
absl::string_view Version();
// "PROGRAM 0.1.0".
std::string VersionLine(absl::string_view program);

}  // namespace baton

#endif  // BATON_COMMON_BASE_VERSION_H_
