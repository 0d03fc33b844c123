// Addresses to call, written as host:port.
#ifndef BATON_COMMON_BASE_HOST_PORT_H_
#define BATON_COMMON_BASE_HOST_PORT_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace baton {

// What is before the last colon, and the port behind it, as addresses of IPv6 stand in brackets.
std::pair<absl::string_view, absl::string_view> SplitHostPort(absl::string_view address);

// OK for "host:port", "[v6]:port"; else an error that says what it is.
absl::Status CheckHostPort(absl::string_view address);

}  // namespace baton

#endif  // BATON_COMMON_BASE_HOST_PORT_H_
