#include "common/tracing/span_exporter.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/named_thread.h"

namespace baton::tracing {
namespace {

// https://opentelemetry.io/docs/specs/otlp/#retryable-response-codes
bool MayRetry(const absl::StatusOr<SpanTransport::Reply>& reply) {
  if (!reply.ok()) return !absl::IsCancelled(reply.status());
  const int status = reply->status;
  return status == 429 || status == 502 || status == 503 || status == 504;
}

int SpanCount(const std::vector<SpanGroup>& groups) {
  size_t count = 0;
  for (const SpanGroup& group : groups) count += group.spans.size();
  return static_cast<int>(count);
}

}  // namespace

SpanExporter::SpanExporter(const ExporterOptions& options, Resource resource, const Clock& clock,
                           absl::Time wall_at_zero, std::unique_ptr<SpanTransport> transport,
                           ExportEvents events)
    : options_(options),
      resource_(std::move(resource)),
      clock_(clock),
      wall_at_zero_(wall_at_zero),
      transport_(std::move(transport)),
      events_(std::move(events)) {
  if (options_.own_thread) thread_ = NamedThread("span-export", [this] { Run(); });
}

void SpanExporter::Add(SpanGroup group) {
  const size_t spans = group.spans.size();
  const absl::Duration now = clock_.SinceStart();
  const char* refused = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    if (finished_) {
      refused = "shutdown";
    } else if (queued_ + spans > options_.queue_spans) {
      refused = "queue_full";
    } else {
      if (queue_.empty()) oldest_at_ = now;
      queue_.push_back(std::move(group));
      queued_ += spans;
    }
  }
  if (refused != nullptr) events_.dropped(static_cast<int>(spans), refused);
}

void SpanExporter::Stop(absl::Duration grace) {
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) return;
    stopping_ = true;
    stop_by_ = std::min(stop_by_, clock_.SinceStart() + grace);
    if (options_.own_thread) {
      mutex_.AwaitWithTimeout(absl::Condition(&finished_), grace);
    }
  }
  if (options_.own_thread) {
    transport_->Cancel();
    thread_.join();
  } else {
    Run();
  }
}

void SpanExporter::Cut() {
  {
    absl::MutexLock lock(&mutex_);
    stop_by_ = clock_.SinceStart();
  }
  transport_->Cancel();
}

void SpanExporter::Run() {
  while (true) {
    const absl::Duration wait = Turn();
    absl::MutexLock lock(&mutex_);
    if (finished_) return;
    mutex_.AwaitWithTimeout(absl::Condition(this, &SpanExporter::Woken), wait);
  }
}

absl::Duration SpanExporter::Turn() {
  const absl::Duration now = clock_.SinceStart();
  absl::Duration next = absl::ZeroDuration();
  if (!batch_) next = TakeBatch(now);
  absl::Duration timeout = options_.timeout;
  bool stopping;
  {
    absl::MutexLock lock(&mutex_);
    stopping = stopping_;
    if (stopping) timeout = std::min(timeout, stop_by_ - now);
    if (stopping && !batch_ && queue_.empty()) finished_ = true;
    // While a batch waits to be sent again, only the end wakes the thread before its time.
    wake_spans_ = batch_         ? std::numeric_limits<size_t>::max()
                  : queued_ == 0 ? 1
                                 : options_.batch_spans;
  }
  if (!batch_) return next;
  if (stopping && timeout <= absl::ZeroDuration()) {
    DropAll();
    return absl::ZeroDuration();
  }
  if (!stopping && now < batch_->not_before) return batch_->not_before - now;
  Send(timeout, /*last_try=*/stopping);
  return absl::ZeroDuration();
}

absl::Duration SpanExporter::TakeBatch(absl::Duration now) {
  std::vector<SpanGroup> groups;
  {
    absl::MutexLock lock(&mutex_);
    if (queue_.empty()) return absl::InfiniteDuration();
    const absl::Duration age = now - oldest_at_;
    if (!stopping_ && queued_ < options_.batch_spans && age < options_.batch_age) {
      return options_.batch_age - age;
    }
    size_t spans = 0, count = 0;
    while (count < queue_.size()) {
      const size_t more = queue_[count].spans.size();
      if (count > 0 && spans + more > options_.batch_spans) break;
      spans += more;
      ++count;
    }
    const auto end = queue_.begin() + static_cast<std::ptrdiff_t>(count);
    groups.assign(std::make_move_iterator(queue_.begin()), std::make_move_iterator(end));
    queue_.erase(queue_.begin(), end);
    queued_ -= spans;
  }
  batch_ = Batch();
  batch_->spans = SpanCount(groups);
  batch_->body = ToOtlpJson(resource_, groups, wall_at_zero_);
  batch_->not_before = now;
  return absl::ZeroDuration();
}

void SpanExporter::Send(absl::Duration timeout, bool last_try) {
  ++batch_->attempts;
  const absl::StatusOr<SpanTransport::Reply> reply = transport_->Post(batch_->body, timeout);
  if (reply.ok() && reply->status / 100 == 2) {
    const PartialSuccess answer = ReadPartialSuccess(reply->body);
    const int rejected =
        static_cast<int>(std::clamp<int64_t>(answer.rejected_spans, 0, batch_->spans));
    if (batch_->spans > rejected) events_.exported(batch_->spans - rejected);
    if (rejected > 0) {
      batch_->spans = rejected;
      return Drop("rejected", answer.message);
    }
    if (std::exchange(failing_, false)) BATON_LOG(Info) << "the trace collector takes spans again";
    batch_.reset();
    return;
  }
  if (!MayRetry(reply) || last_try || batch_->attempts >= options_.attempts) {
    return Drop("export_failed", reply.ok() ? absl::StrCat("HTTP status ", reply->status)
                                            : std::string(reply.status().message()));
  }
  absl::Duration pause = std::min(options_.max_pause,
                                  options_.first_pause * (1 << std::min(batch_->attempts - 1, 16)));
  if (reply.ok()) pause = std::min(std::max(pause, reply->retry_after), options_.max_pause);
  batch_->not_before = clock_.SinceStart() + pause;
}

void SpanExporter::Drop(const char* reason, absl::string_view why) {
  const int spans = batch_->spans;
  batch_.reset();
  events_.dropped(spans, reason);
  if (std::exchange(failing_, true)) return;  // once, until it works again
  BATON_LOG(Warning) << "the trace collector did not take " << spans << " spans: " << why;
}

void SpanExporter::DropAll() {
  Drop("shutdown", "no time is left");
  int rest = 0;
  {
    absl::MutexLock lock(&mutex_);
    rest = static_cast<int>(queued_);
    queue_.clear();
    queued_ = 0;
    finished_ = true;
  }
  if (rest > 0) events_.dropped(rest, "shutdown");
}

}  // namespace baton::tracing
