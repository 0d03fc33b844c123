#include "common/base/host_port.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace baton {

std::pair<absl::string_view, absl::string_view> SplitHostPort(absl::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos) return {address, {}};
  return {address.substr(0, colon), address.substr(colon + 1)};
}

absl::Status CheckHostPort(absl::string_view address) {
  const auto [host, port] = SplitHostPort(address);
  int number = 0;
  const bool brackets = !host.empty() && host.front() == '[' && host.back() == ']';
  const bool fits = !host.empty() && (brackets || host.find(':') == absl::string_view::npos) &&
                    absl::SimpleAtoi(port, &number) && number >= 1 && number <= 65535;
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("\"", address.substr(0, 300), "\" is not host:port"));
}

}  // namespace baton
