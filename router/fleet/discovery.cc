#include "router/fleet/discovery.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/named_thread.h"
#include "common/base/status_macros.h"

namespace baton::router {
namespace {

// How long the thread sleeps at most: the clock may be another one than that of its condition.
constexpr absl::Duration kLongestSleep = absl::Milliseconds(100);

}  // namespace

Discovery::Discovery(std::vector<std::unique_ptr<WorkerSource>> sources, const Clock& clock,
                     Events events)
    : clock_(clock), events_(std::move(events)) {
  for (std::unique_ptr<WorkerSource>& source : sources) {
    Listing& listing = listings_.emplace_back();
    listing.source = std::move(source);
    listing.due = clock_.SinceStart();
  }
}

Discovery::~Discovery() {
  Stop();
  if (thread_.joinable()) thread_.join();
}

absl::Status Discovery::Start() {
  for (Listing& listing : listings_) {
    if (listing.source->needed_at_start()) BATON_RETURN_IF_ERROR(LookAt(listing));
  }
  const bool changing = std::any_of(listings_.begin(), listings_.end(), [](const Listing& listing) {
    return listing.source->period() < absl::InfiniteDuration();
  });
  if (changing) thread_ = NamedThread("discovery", [this] { Run(); });
  return absl::OkStatus();
}

void Discovery::Stop() {
  absl::MutexLock lock(&mutex_);
  stopping_ = true;
}

void Discovery::Run() {
  while (true) {
    const absl::Duration wait = LookAtDue() - clock_.SinceStart();
    absl::MutexLock lock(&mutex_);
    if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), std::min(wait, kLongestSleep))) return;
  }
}

absl::Duration Discovery::LookAtDue() {
  absl::Duration next = absl::InfiniteDuration();
  for (Listing& listing : listings_) {
    if (clock_.SinceStart() >= listing.due) {
      const absl::Status looked = LookAt(listing);
      if (!looked.ok()) NoteFailure(listing, looked);
    }
    next = std::min(next, listing.due);
  }
  return next;
}

absl::Status Discovery::LookAt(Listing& listing) {
  const auto answer = listing.source->Look();
  const absl::Duration now = clock_.SinceStart();
  listing.due = now + listing.source->period();
  if (answer.ok() && !answer->has_value()) return absl::OkStatus();
  if (!absl::IsNotFound(answer.status())) {
    // It answers, or its state is unknown. An answer that is refused below counts as well: the
    // source is there, so what it said before stands for as long as it takes.
    listing.absent_since.reset();
  } else if (!listing.absent_since) {
    listing.absent_since = now;
  }
  if (!answer.ok()) return answer.status();
  if (**answer != listing.workers) BATON_RETURN_IF_ERROR(HandOn(listing, **answer));
  listing.workers = **answer;
  if (listing.failure.empty()) return absl::OkStatus();
  BATON_LOG(Info) << listing.source->name() << " answers again";
  listing.failure.clear();
  absl::MutexLock lock(&mutex_);
  if (!stopping_) {
    events_.on_failing(
        static_cast<int>(std::count_if(listings_.begin(), listings_.end(),
                                       [](const Listing& each) { return !each.failure.empty(); })));
  }
  return absl::OkStatus();
}

void Discovery::NoteFailure(Listing& listing, const absl::Status& error) {
  const bool news = listing.failure != error.message();
  listing.failure = std::string(error.message());
  const absl::Duration now = clock_.SinceStart();
  // Not a whole period later where that is long: an answer's life may be shorter.
  listing.due = now + std::min(listing.source->period(), kLongestRetry);
  const absl::Duration absent = now - listing.absent_since.value_or(now);
  if (listing.absent_since && !listing.workers.empty() && absent >= listing.source->answer_life()) {
    Unlist(listing, absent);
  } else if (news) {
    BATON_LOG(Warning) << listing.source->name() << ": " << error.message() << "; the "
                       << listing.workers.size() << " workers of its last good answer stand";
  }
  absl::MutexLock lock(&mutex_);
  if (stopping_) return;
  events_.on_failure(*listing.source);
  events_.on_failing(
      static_cast<int>(std::count_if(listings_.begin(), listings_.end(),
                                     [](const Listing& each) { return !each.failure.empty(); })));
}

void Discovery::Unlist(Listing& listing, absl::Duration absent) {
  const absl::Status handed_on = HandOn(listing, {});
  if (!handed_on.ok()) {
    BATON_LOG(Warning) << listing.source->name()
                       << " lists no worker, which cannot be used: " << handed_on.message();
    return;
  }
  BATON_LOG(Warning) << listing.source->name() << " has listed no worker for "
                     << absl::FormatDuration(absl::Trunc(absent, absl::Seconds(1))) << "; its "
                     << listing.workers.size() << " workers are no longer listed";
  listing.workers.clear();
}

absl::Status Discovery::HandOn(const Listing& changed, const std::vector<WorkerAddress>& workers) {
  std::vector<WorkerAddress> all;
  std::set<WorkerAddress> elsewhere;
  for (const Listing& listing : listings_) {
    const std::vector<WorkerAddress>& its = &listing == &changed ? workers : listing.workers;
    // What one source lists twice stays twice: that is for the receiver to refuse.
    std::copy_if(its.begin(), its.end(), std::back_inserter(all),
                 [&](const WorkerAddress& worker) { return elsewhere.count(worker) == 0; });
    elsewhere.insert(its.begin(), its.end());
  }
  absl::MutexLock lock(&mutex_);
  if (stopping_) return absl::OkStatus();
  return events_.on_workers(all);
}

}  // namespace baton::router
