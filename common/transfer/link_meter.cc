#include "common/transfer/link_meter.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

namespace baton::transfer {

std::unique_ptr<LinkMeter::Transfer> LinkMeter::Begin(const LinkPeer& peer) {
  if (peer.worker_id.empty() || peer.worker_id.size() > kMaxIdBytes) return nullptr;
  absl::MutexLock lock(&mutex_);
  return std::make_unique<Transfer>(shared_from_this(), Find(peer));
}

std::shared_ptr<LinkMeter::Link> LinkMeter::Find(const LinkPeer& peer) {
  const auto found =
      std::find_if(links_.begin(), links_.end(),
                   [&peer](const std::shared_ptr<Link>& link) { return link->peer == peer; });
  if (found != links_.end()) {
    links_.splice(links_.begin(), links_, found);
    return links_.front();
  }
  links_.push_front(std::make_shared<Link>());
  links_.front()->peer = peer;
  if (links_.size() > kMaxPeers) {
    changed_ = changed_ || links_.back()->seconds > 0;
    links_.pop_back();
  }
  return links_.front();
}

void LinkMeter::Add(const LinkPeer& peer, int64_t bytes, absl::Duration busy) {
  if (peer.worker_id.empty() || peer.worker_id.size() > kMaxIdBytes) return;
  absl::MutexLock lock(&mutex_);
  Count(Find(peer), bytes, busy);
}

void LinkMeter::Count(const std::shared_ptr<Link>& link, int64_t bytes, absl::Duration busy) {
  if (bytes < kLeastBytes || busy <= absl::ZeroDuration()) return;
  const absl::Duration now = clock_.SinceStart();
  const double kept = std::exp2(-absl::FDivDuration(now - link->measured_at, kHalfLife));
  link->bytes = link->bytes * kept + static_cast<double>(bytes);
  link->seconds = link->seconds * kept + absl::ToDoubleSeconds(busy);
  link->measured_at = now;
  changed_ = true;
}

std::shared_ptr<const std::vector<MeasuredLink>> LinkMeter::Measured() const {
  absl::MutexLock lock(&mutex_);
  if (!std::exchange(changed_, false)) return report_;
  std::vector<MeasuredLink> measured;
  for (const std::shared_ptr<Link>& link : links_) {
    if (link->seconds <= 0) continue;
    measured.push_back({link->peer, link->bytes / link->seconds, link->measured_at});
  }
  std::stable_sort(
      measured.begin(), measured.end(),
      [](const MeasuredLink& a, const MeasuredLink& b) { return a.measured_at > b.measured_at; });
  if (measured.size() > kMaxReported) measured.resize(kMaxReported);
  report_ = std::make_shared<const std::vector<MeasuredLink>>(std::move(measured));
  return report_;
}

void LinkMeter::Transfer::OnKv(absl::Duration at, int64_t bytes, bool was_ready) {
  absl::MutexLock lock(&meter_->mutex_);
  // Frames of other transfers are timed on other threads: they may come here in another order.
  Mark& last = link_->last;
  last = {std::max(at, last.at), last.bytes + bytes};
  if (was_ready && last_) {
    const Mark& measured = link_->measured;
    const bool later = std::tie(measured.at, measured.bytes) > std::tie(last_->at, last_->bytes);
    const Mark from = later ? measured : *last_;
    bytes_ += last.bytes - from.bytes;
    busy_ += last.at - from.at;
    link_->measured = last;
  }
  last_ = last;
}

void LinkMeter::Transfer::Committed() {
  absl::MutexLock lock(&meter_->mutex_);
  meter_->Count(link_, std::exchange(bytes_, 0), std::exchange(busy_, absl::ZeroDuration()));
}

}  // namespace baton::transfer
