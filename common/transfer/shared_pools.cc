#include "common/transfer/shared_pools.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/named_thread.h"
#include "common/transfer/host_sockets.h"

namespace baton::transfer {
namespace {

constexpr absl::Duration kConnectTimeout = absl::Seconds(2);
constexpr absl::Duration kTryAgain = absl::Seconds(30);

constexpr struct {
  PlaneReason reason;
  const char* name;
} kPlaneReasons[] = {
    {PlaneReason::kMapped, "mapped"},          {PlaneReason::kOpened, "opened"},
    {PlaneReason::kLinked, "linked"},          {PlaneReason::kConnecting, "connecting"},
    {PlaneReason::kNotOffered, "not_offered"}, {PlaneReason::kFailed, "failed"},
    {PlaneReason::kUnproven, "unproven"},      {PlaneReason::kOff, "off"},
};

}  // namespace

const char* Name(PlaneReason reason) {
  for (const auto& row : kPlaneReasons) {
    if (row.reason == reason) return row.name;
  }
  return "off";
}

std::vector<std::string> PlaneReasonNames() {
  std::vector<std::string> names;
  for (const auto& row : kPlaneReasons) names.emplace_back(row.name);
  return names;
}

SharedPools::SharedPools(const kv::KvLayout& layout, const Clock& clock, bool host_pools,
                         backend::KvCopier* opener, TokenOf token_of)
    : layout_(layout),
      clock_(clock),
      host_pools_(host_pools),
      opener_(opener),
      token_of_(std::move(token_of)),
      host_(HostToken()),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  BATON_CHECK(wake_.get() >= 0) << "eventfd";
  if (token_of_ != nullptr) {
    auto listener = OpenAbstractSocket(MakeReaderName(layout_.Fingerprint()), SocketEnd::kListen);
    if (listener.ok()) listener_ = *std::move(listener);
    // After the socket is there: of this worker and a prefill worker that starts beside it, one
    // finds the other.
    FindPools();
  }
  thread_ = NamedThread("pools-mapped", [this] { Run(); });
}

SharedPools::~SharedPools() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  Wake();
  thread_.join();
}

void SharedPools::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
}

SharedPools::Entry* SharedPools::FindEntry(uint64_t epoch) {
  const auto it = std::find_if(entries_.begin(), entries_.end(),
                               [&](const Entry& entry) { return entry.epoch == epoch; });
  if (it == entries_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, it);
  return &entries_.front();
}

SharedPools::Found SharedPools::Find(uint64_t prefill_epoch) {
  absl::MutexLock lock(&mutex_);
  const Entry* entry = FindEntry(prefill_epoch);
  if (entry == nullptr) return {nullptr, PlaneReason::kNotOffered};
  if (entry->pool != nullptr) {
    return {entry->pool,
            entry->pool->plane() == Plane::kIpc ? PlaneReason::kOpened : PlaneReason::kMapped};
  }
  if (entry->waits) return {nullptr, PlaneReason::kConnecting};
  return {nullptr, entry->unproven ? PlaneReason::kUnproven : PlaneReason::kFailed};
}

void SharedPools::Offer(uint64_t prefill_epoch, SharedPoolOffer offer) {
  Take(prefill_epoch, std::move(offer), /*found=*/false);
}

void SharedPools::Take(uint64_t prefill_epoch, SharedPoolOffer offer, bool found) {
  if (offer.device ? opener_ == nullptr : !host_pools_) return;
  std::shared_ptr<SharedPool> dropped;
  {
    absl::MutexLock lock(&mutex_);
    Entry* entry = FindEntry(prefill_epoch);
    if (entry == nullptr) {
      if (entries_.size() >= kMaxPools) {
        if (found) return;  // any process can make up names
        dropped = std::move(entries_.back().pool);
        entries_.pop_back();
      }
      entry = &entries_.emplace_front();
      entry->epoch = prefill_epoch;
    }
    // What the worker itself offers is tried at once if it is not what a name has led to.
    const bool is_new = !found && entry->found &&
                        (offer.socket != entry->last.socket || offer.token != entry->last.token);
    // Only the worker's transfers before the mapping still bring offers of a mapped pool.
    if (!is_new && (entry->pool != nullptr || entry->waits ||
                    clock_.SinceStart() < entry->failed_at + kTryAgain)) {
      return;
    }
    if (entry->pool != nullptr) dropped = std::move(entry->pool);
    entry->last = std::move(offer);
    entry->found = found;
    entry->waits = true;
    entry->unproven = false;
  }
  Wake();
}

void SharedPools::FindPools() {
  for (const std::string& socket : PoolSockets()) {
    const std::optional<PoolName> pool = ParsePoolName(socket);
    if (!pool || pool->layout != layout_.Fingerprint()) continue;
    Take(pool->epoch, {socket, token_of_(socket), pool->device}, /*found=*/true);
  }
}

bool SharedPools::AcceptCall() {
  FileDescriptor call(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (call.get() < 0) {
    // Files have run out, and the call would be polled for ever. Offers go on without calls.
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      BATON_LOG(Warning) << "prefill workers that start later can call this worker no more: "
                         << std::strerror(errno);
      listener_.Close();
    }
    return false;
  }
  if (!IsOfThisUser(call.get())) return false;
  if (calls_.size() < kMaxCalls) calls_.push_back(std::move(call));
  return true;
}

bool SharedPools::HasOffer() const {
  return std::any_of(entries_.begin(), entries_.end(),
                     [](const Entry& entry) { return entry.waits; });
}

bool SharedPools::WaitUntilTried(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto tried = [this]()
                         ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !trying_ && !HasOffer(); };
  return mutex_.AwaitWithTimeout(absl::Condition(&tried), timeout);
}

bool SharedPools::TryNext() {
  uint64_t epoch;
  SharedPoolOffer offer;
  bool found;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = std::find_if(entries_.begin(), entries_.end(),
                                 [](const Entry& entry) { return entry.waits; });
    if (it == entries_.end() || stopping_) return false;
    epoch = it->epoch;
    offer = it->last;
    found = it->found;
    trying_ = true;
  }
  absl::StatusOr<std::shared_ptr<SharedPool>> pool =
      SharedPool::Connect(offer.socket, offer.token, layout_, kConnectTimeout, opener_);
  // Its device reads something else than the pool, or hangs: it would do so again.
  const bool is_unproven =
      absl::IsDataLoss(pool.status()) || absl::IsDeadlineExceeded(pool.status());
  if (pool.ok()) {
    BATON_LOG(Info) << "KV of prefill worker epoch " << absl::StrCat(absl::Hex(epoch)) << " comes "
                    << ((*pool)->plane() == Plane::kIpc ? "from device to device (CUDA IPC)"
                                                        : "through shared memory")
                    << " from now on: it is on the same host";
  } else if (found && !is_unproven) {
    // It may be another cluster's or a stranger's, and strangers must not fill the log. The worker
    // itself will offer its pool.
    BATON_LOG(Debug) << "the KV pool of " << offer.socket << " was not opened: " << pool.status();
  } else {
    BATON_LOG(Warning) << "KV of prefill worker epoch " << absl::StrCat(absl::Hex(epoch))
                       << " keeps coming over gRPC: " << pool.status();
  }
  absl::MutexLock lock(&mutex_);
  trying_ = false;
  // FindEntry would be a use, which keeps the entry before newer ones.
  const auto entry = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& known) { return known.epoch == epoch; });
  if (entry == entries_.end()) return true;  // newer ones have displaced it
  if (entry->last.socket != offer.socket || entry->last.token != offer.token)
    return true;  // by now
  entry->waits = false;
  if (pool.ok()) {
    entry->pool = *std::move(pool);
    return true;
  }
  entry->unproven = is_unproven;
  entry->failed_at = entry->unproven ? absl::InfiniteDuration() : clock_.SinceStart();
  return true;
}

void SharedPools::Run() {
  std::vector<pollfd> polled;
  std::vector<uint64_t> epochs;
  while (true) {
    while (TryNext()) {
    }
    calls_.clear();
    polled.clear();
    epochs.clear();
    polled.push_back({wake_.get(), POLLIN, 0});
    polled.push_back({listener_.get(), POLLIN, 0});
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return;
      for (const Entry& entry : entries_) {
        if (entry.pool == nullptr) continue;
        // The prefill worker sends nothing: what can be read is the end.
        polled.push_back({entry.pool->socket(), POLLIN, 0});
        epochs.push_back(entry.epoch);
      }
    }
    if (poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) {
      BATON_LOG(Error) << "polling prefill workers' KV sockets failed";
      return;
    }
    uint64_t woken;
    [[maybe_unused]] const ssize_t read_bytes = read(wake_.get(), &woken, sizeof(woken));
    if (polled[1].revents != 0 && AcceptCall()) FindPools();
    std::vector<std::shared_ptr<SharedPool>> dropped;  // unmapped without the lock
    absl::MutexLock lock(&mutex_);
    for (size_t i = 0; i < epochs.size(); ++i) {
      if (polled[i + 2].revents == 0) continue;
      const auto it = std::find_if(entries_.begin(), entries_.end(),
                                   [&](const Entry& entry) { return entry.epoch == epochs[i]; });
      if (it == entries_.end() || it->pool == nullptr) continue;
      dropped.push_back(std::move(it->pool));
      if (dropped.back()->failed()) {
        BATON_LOG(Warning) << "KV of prefill worker epoch " << absl::StrCat(absl::Hex(epochs[i]))
                           << " comes over gRPC from now on: reading its pool failed";
        it->failed_at = absl::InfiniteDuration();
        continue;
      }
      BATON_LOG(Info) << "prefill worker epoch " << absl::StrCat(absl::Hex(epochs[i]))
                      << " shares its KV pool no more";
      entries_.erase(it);
    }
  }
}

}  // namespace baton::transfer
