// Sends finished spans to a collector in batches, on a thread of its own. A request never waits for
// it: what a full queue, a failed export or the end of the process leaves over is dropped and
// counted.
#ifndef BATON_COMMON_TRACING_SPAN_EXPORTER_H_
#define BATON_COMMON_TRACING_SPAN_EXPORTER_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/tracing/otlp_json.h"
#include "common/tracing/span.h"

namespace baton::tracing {

// POSTs a body to the collector. One Post at a time.
class SpanTransport {
 public:
  virtual ~SpanTransport() = default;
  struct Reply {
    int status = 0;                                     // of HTTP
    absl::Duration retry_after = absl::ZeroDuration();  // as the collector asks; zero: it does not
    std::string body = "";                              // its beginning: kMaxAnswerBytes at most
  };
  static constexpr size_t kMaxAnswerBytes = 16 << 10;
  // An error if there is no answer within `timeout`.
  virtual absl::StatusOr<Reply> Post(const std::string& body, absl::Duration timeout) = 0;
  // Makes the Post that runs, and all later ones, return an error soon. Thread-safe.
  virtual void Cancel() = 0;
};

struct ExporterOptions {
  size_t queue_spans = 8192;  // waiting ones; those of the batch being sent do not count
  size_t batch_spans =
      512;  // a batch is sent once so many wait; it has no more, unless one group does
  absl::Duration batch_age = absl::Seconds(1);  // or once one has waited for so long
  absl::Duration timeout = absl::Seconds(10);   // of one export
  // Pause before a batch is sent again, doubled each time, and at most so many times in all.
  absl::Duration first_pause = absl::Seconds(1);
  absl::Duration max_pause = absl::Seconds(30);
  int attempts = 5;
  bool own_thread = true;  // false: the owner calls Turn(), as tests do
};

// Counts of spans. Called on any thread.
struct ExportEvents {
  std::function<void(int)> exported = [](int) {};
  // Reasons: "queue_full", "export_failed", "rejected" (by the collector, which took the rest
  // of the batch), "shutdown".
  std::function<void(int, const char* reason)> dropped = [](int, const char*) {};
};

// Add and Cut are thread-safe. The rest is for the owner.
class SpanExporter {
 public:
  // `clock` must outlive it. `wall_at_zero`: see ToOtlpJson.
  SpanExporter(const ExporterOptions& options, Resource resource, const Clock& clock,
               absl::Time wall_at_zero, std::unique_ptr<SpanTransport> transport,
               ExportEvents events);
  ~SpanExporter() { Stop(absl::ZeroDuration()); }

  // Never blocks for longer than a copy of a pointer takes.
  void Add(SpanGroup group);
  // Sends what waits, for up to `grace`, each batch once; drops the rest, and joins the thread.
  // Idempotent.
  void Stop(absl::Duration grace);
  // Ends the grace of a Stop that runs or comes later, and the export that runs.
  void Cut();

  // Sends the batch that is due, if one is. Returns when the next may be due: zero, if it should be
  // called again at once.
  absl::Duration Turn();

 private:
  struct Batch {
    std::string body;
    int spans = 0;
    int attempts = 0;
    absl::Duration not_before;
  };

  void Run();
  bool Woken() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return stopping_ || queued_ >= wake_spans_;
  }
  // Moves the next batch out of the queue if it is due. Else returns when it is.
  absl::Duration TakeBatch(absl::Duration now);
  void Send(absl::Duration timeout, bool last_try);
  void Drop(const char* reason, absl::string_view why);
  // What is left when the time for it is over.
  void DropAll();

  const ExporterOptions options_;
  const Resource resource_;
  const Clock& clock_;
  const absl::Time wall_at_zero_;
  const std::unique_ptr<SpanTransport> transport_;
  const ExportEvents events_;

  absl::Mutex mutex_;
  std::vector<SpanGroup> queue_ ABSL_GUARDED_BY(mutex_);
  size_t queued_ ABSL_GUARDED_BY(mutex_) = 0;  // spans in it
  absl::Duration oldest_at_ ABSL_GUARDED_BY(mutex_);
  size_t wake_spans_ ABSL_GUARDED_BY(mutex_) = 1;  // wakes the thread
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;  // nothing more is sent
  absl::Duration stop_by_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteDuration();

  // The exporting thread's.
  std::optional<Batch> batch_;
  bool failing_ = false;  // logged

  std::thread thread_;  // the last member
};

}  // namespace baton::tracing

#endif  // BATON_COMMON_TRACING_SPAN_EXPORTER_H_
