#include "common/base/rpc/client_channel.h"

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"

namespace baton {
namespace {

absl::Status CheckAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon != std::string::npos && colon != 0 && colon + 1 != address.size()) {
    return absl::OkStatus();
  }
  return InvalidField("BAD_ADDRESS", "address", absl::StrCat("\"", address, "\" is not host:port"));
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeClientChannel(const std::string& address,
                                                                 const ChannelTls& tls,
                                                                 const CallHeaders& headers) {
  BATON_RETURN_IF_ERROR(CheckAddress(address));
  BATON_RETURN_IF_ERROR(CheckPem(tls));
  std::function<CallHeaders()> same_for_each_call;
  if (!headers.empty()) same_for_each_call = [headers] { return headers; };
  return MakeChannel(address, kClientChannel,
                     MakeChannelSecurity(tls, std::move(same_for_each_call)));
}

}  // namespace baton
