// Who the workers are, from wherever that is said: sources are asked again and again, and what they
// say together is handed on when it changes.
#ifndef BATON_ROUTER_FLEET_DISCOVERY_H_
#define BATON_ROUTER_FLEET_DISCOVERY_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "router/fleet/membership.h"

namespace baton::router {

// Called by one thread at a time.
class WorkerSource {
 public:
  virtual ~WorkerSource() = default;
  // What kind it is: static text, as a metric label. And which one: for logs.
  virtual absl::string_view kind() const = 0;
  virtual std::string name() const = 0;
  // How long after the last look the next is due.
  virtual absl::Duration period() const = 0;
  // How long its last answer stands while looks say NOT_FOUND, from the first of them. Any other
  // failure lets the answer stand, however long it lasts: who cannot ask knows nothing new, and
  // workers that are gone are noticed by their own silence.
  virtual absl::Duration answer_life() const = 0;
  // A router must not start without its first answer.
  virtual bool needed_at_start() const = 0;
  // All workers that it lists now; nothing if that is not certain yet. NOT_FOUND if it is certain
  // that there is no list, another error if that cannot be known. All sources share one thread, so
  // it must not wait for the network.
  virtual absl::StatusOr<std::optional<std::vector<WorkerAddress>>> Look() = 0;
};

// Owns a thread between Start and the destructor; the rest is for that thread, or for a test in its
// place.
class Discovery {
 public:
  // A source that failed is asked again after its period, or after this if that is sooner.
  static constexpr absl::Duration kLongestRetry = absl::Seconds(5);

  struct Events {
    // All workers that any source lists, in the order of the sources; one that several sources list
    // in the same role is there once. An error refuses the whole set, and is told as a failure of
    // the source that brought the change.
    std::function<absl::Status(const std::vector<WorkerAddress>&)> on_workers;
    // A source could not be read, or what it said could not be used. What it said before stands.
    std::function<void(const WorkerSource&)> on_failure;
    // How many sources have failed since they last answered.
    std::function<void(int)> on_failing;
  };

  // `clock` must outlive it.
  Discovery(std::vector<std::unique_ptr<WorkerSource>> sources, const Clock& clock, Events events);
  ~Discovery();

  // The first look at sources that are needed at start, by the caller; then a thread looks. The
  // error of a source that has none, naming it.
  absl::Status Start();
  // No more events once this has returned.
  void Stop();

  // Looks at those that are due. Returns when the next one is, by the clock.
  absl::Duration LookAtDue();

 private:
  struct Listing {
    std::unique_ptr<WorkerSource> source;
    absl::Duration due;
    std::vector<WorkerAddress> workers;          // its last answer
    std::optional<absl::Duration> absent_since;  // the first of the last looks, all NOT_FOUND
    std::string failure;                         // since the last answer that was taken
  };

  absl::Status LookAt(Listing& listing);
  void NoteFailure(Listing& listing, const absl::Status& error);
  void Unlist(Listing& listing, absl::Duration absent);
  absl::Status HandOn(const Listing& changed, const std::vector<WorkerAddress>& workers);
  void Run();

  const Clock& clock_;
  const Events events_;
  std::vector<Listing> listings_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_FLEET_DISCOVERY_H_
