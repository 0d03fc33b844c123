#include "common/base/rpc/client_channel.h"

#include <grpc/grpc.h>
#include <grpc/slice.h>

#include <functional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/host_port.h"
#include "common/base/status_macros.h"

namespace baton {
namespace {

// gRPC takes more than host:port. Of host:port, it takes any port and any text as one, modulo
// 65536.
absl::Status CheckAddress(const std::string& address) {
  for (const char* scheme :
       {"unix:", "unix-abstract:", "vsock:", "dns:", "ipv4:", "ipv6:", "xds:"}) {
    if (absl::StartsWith(address, scheme)) return absl::OkStatus();
  }
  const absl::Status fits = CheckHostPort(address);
  return fits.ok() ? fits : InvalidField("BAD_ADDRESS", "address", fits.message());
}

grpc_slice SliceOf(const std::string& text) {
  return grpc_slice_from_static_buffer(text.data(), text.size());
}

// The values stay out of the messages: one may be a key.
absl::Status CheckHeaders(const std::string& api_key, const CallHeaders& headers) {
  if (!grpc_header_nonbin_value_is_legal(SliceOf(api_key))) {
    return InvalidField("BAD_HEADER", "api_key", "printable ASCII characters expected");
  }
  for (const auto& [name, value] : headers) {
    if (!grpc_header_key_is_legal(SliceOf(name))) {
      return InvalidField("BAD_HEADER", "headers",
                          absl::StrCat("the name \"", absl::CHexEscape(name),
                                       "\": characters of a-z, 0-9, '_', '-' and '.' expected"));
    }
    if (!grpc_is_binary_header(SliceOf(name)) &&
        !grpc_header_nonbin_value_is_legal(SliceOf(value))) {
      return InvalidField(
          "BAD_HEADER", "headers",
          absl::StrCat("the value of \"", name, "\": printable ASCII characters expected"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeClientChannel(const std::string& address,
                                                                 const ChannelTls& tls,
                                                                 const std::string& api_key,
                                                                 CallHeaders headers) {
  BATON_RETURN_IF_ERROR(CheckAddress(address));
  BATON_RETURN_IF_ERROR(CheckPem(tls));
  BATON_RETURN_IF_ERROR(CheckHeaders(api_key, headers));
  if (!api_key.empty()) headers.emplace_back("authorization", absl::StrCat("Bearer ", api_key));
  std::function<CallHeaders()> same_for_each_call;
  if (!headers.empty()) same_for_each_call = [headers = std::move(headers)] { return headers; };
  return MakeChannel(address, kClientChannel,
                     MakeChannelSecurity(tls, std::move(same_for_each_call)));
}

}  // namespace baton
