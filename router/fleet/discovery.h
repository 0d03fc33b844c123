// Finds the workers: asks each source again and again, and reports the union of their answers when
// it changes.
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
#include "router/fleet/worker.h"

namespace baton::router {

// Called by one thread at a time.
class WorkerSource {
 public:
  virtual ~WorkerSource() = default;
  // The kind, static text for a metric label; and a name for logs.
  virtual absl::string_view kind() const = 0;
  virtual std::string name() const = 0;
  // The time between two looks.
  virtual absl::Duration period() const = 0;
  // How long the last answer stays valid while looks return NOT_FOUND, from the first of them.
  // After any other failure it stays valid: a failed look says nothing new, and workers that are
  // gone are detected by their silence.
  virtual absl::Duration answer_life() const = 0;
  // The router does not start without a first answer.
  virtual bool needed_at_start() const = 0;
  // All workers that the source lists now; nothing if that is not certain yet. NOT_FOUND if there
  // is no list, another error if that cannot be known. All sources share one thread, so a look must
  // not wait for the network.
  virtual absl::StatusOr<std::optional<std::vector<WorkerAddress>>> Look() = 0;
};

// Owns a thread between Start and the destructor; the rest is for that thread, or for a test in its
// place.
class Discovery {
 public:
  // A source that failed is asked again after its period or this, whichever is sooner.
  static constexpr absl::Duration kLongestRetry = absl::Seconds(5);

  struct Events {
    // All workers that any source lists, in the order of the sources; a worker that several sources
    // list in the same role is there once. An error refuses the whole set, and counts as a failure
    // of the source that changed.
    std::function<absl::Status(const std::vector<WorkerAddress>&)> on_workers;
    // A source could not be read, or its answer was refused. Its last good answer stays.
    std::function<void(const WorkerSource&)> on_failure;
    // How many sources have failed since they last answered.
    std::function<void(int)> on_failing;
  };

  // `clock` must outlive it.
  Discovery(std::vector<std::unique_ptr<WorkerSource>> sources, const Clock& clock, Events events);
  ~Discovery();

  // Looks at the sources that are needed at start, then starts the thread. The error, with its
  // name, of such a source that has no answer.
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
