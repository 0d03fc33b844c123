#include "common/worker/router_count.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"

namespace baton::worker {

RouterCount::RouterCount(int least, std::string host, Resolver& resolver, const Clock& clock)
    : least_(least),
      host_(std::move(host)),
      resolver_(resolver),
      clock_(clock),
      due_(clock.SinceStart()) {}

std::optional<int> RouterCount::Get() {
  if (host_.empty()) return least_;
  if (lookup_ == nullptr && clock_.SinceStart() >= due_) lookup_ = resolver_.Resolve(host_);
  if (lookup_ != nullptr) {
    if (const std::optional<HostAddresses> answer = lookup_->addresses()) {
      lookup_ = nullptr;
      due_ = clock_.SinceStart() + kRefresh;
      Take(*answer);
    }
  }
  if (!listed_) return std::nullopt;
  return std::max(least_, *listed_);
}

void RouterCount::Take(const HostAddresses& answer) {
  if (!answer.ok()) {
    if (absl::IsNotFound(answer.status())) listed_.reset();
    if (failure_ != answer.status().message()) {
      failure_ = std::string(answer.status().message());
      BATON_LOG(Warning) << "the routers that must accept this worker are not known: " << failure_;
    }
    return;
  }
  failure_.clear();
  const auto v6 = std::count_if(answer->begin(), answer->end(), [](const std::string& address) {
    return address.find(':') != std::string::npos;
  });
  const auto v4 = static_cast<std::ptrdiff_t>(answer->size()) - v6;
  listed_.reset();
  if (!answer->empty()) listed_ = static_cast<int>(std::max(v4, v6));
}

}  // namespace baton::worker
