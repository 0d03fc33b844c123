// A process that listens beyond its machine must be protected, or be told that it need not be.
#ifndef BATON_COMMON_SECURITY_LISTEN_CHECK_H_
#define BATON_COMMON_SECURITY_LISTEN_CHECK_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace baton::security {

// Whether `address`, host:port, is on a loopback interface: localhost, 127.0.0.0/8 or ::1. Names
// are not resolved: any other name is not.
bool IsLoopback(absl::string_view address);

// INVALID_ARGUMENT, NEEDS_CREDENTIALS, with `flag` as its field, if `address` is not on loopback.
// `expected` says how to protect it, such as "--api-keys FILE".
absl::Status CheckLoopback(absl::string_view flag, absl::string_view address,
                           absl::string_view expected);

}  // namespace baton::security

#endif  // BATON_COMMON_SECURITY_LISTEN_CHECK_H_
