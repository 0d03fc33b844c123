#include "common/security/listen_check.h"

#include <arpa/inet.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/error.h"

namespace baton::security {

bool IsLoopback(absl::string_view address) {
  absl::string_view host = address.substr(0, address.rfind(':'));
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  if (host == "localhost") return true;
  const std::string text(host);
  in_addr v4 = {};
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6 = {};
  return inet_pton(AF_INET6, text.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

absl::Status CheckLoopback(absl::string_view flag, absl::string_view address,
                           absl::string_view expected) {
  if (IsLoopback(address)) return absl::OkStatus();
  return InvalidField("NEEDS_CREDENTIALS", flag,
                      absl::StrCat("\"", address, "\" can be reached from other machines, and ",
                                   "every caller would be served: expected ", expected,
                                   "; or --insecure, if the network keeps strangers away"));
}

}  // namespace baton::security
