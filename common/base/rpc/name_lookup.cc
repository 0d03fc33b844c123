#include "common/base/rpc/name_lookup.h"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <system_error>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/named_thread.h"

namespace baton {

HostAddresses ResolveBlocking(const std::string& host) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_ADDRCONFIG;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    const bool none = error == EAI_NONAME || error == EAI_NODATA;
    return MakeError(none ? absl::StatusCode::kNotFound : absl::StatusCode::kUnavailable,
                     "NAME_NOT_RESOLVED",
                     absl::StrCat(host, " does not resolve: ", gai_strerror(error)));
  }
  std::vector<std::string> addresses;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    char text[NI_MAXHOST];
    if (getnameinfo(each->ai_addr, each->ai_addrlen, text, sizeof(text), nullptr, 0,
                    NI_NUMERICHOST) == 0) {
      addresses.emplace_back(text);
    }
  }
  freeaddrinfo(found);
  std::sort(addresses.begin(), addresses.end());
  addresses.erase(std::unique(addresses.begin(), addresses.end()), addresses.end());
  return addresses;
}

std::shared_ptr<const NameLookup> SystemResolver::Resolve(const std::string& host) {
  auto lookup = std::make_shared<NameLookup>();
  try {
    NamedThread("dns-lookup", [lookup, host, resolve = resolve_] {
      lookup->Answer(resolve(host));
    }).detach();
  } catch (const std::system_error& error) {  // how std::thread says that there are too many
    lookup->Answer(
        MakeError(absl::StatusCode::kUnavailable, "NAME_NOT_RESOLVED",
                  absl::StrCat(host, " is not looked up, no thread for it: ", error.what())));
  }
  return lookup;
}

}  // namespace baton
