// A worker process: engine, metrics, reports to routers and the gRPC server. PrefillWorker and
// DecodeWorker add their loop and their service. main() runs one (run_main.h), and so do tests.
//
// Thread: Drain, SetDraining and Stop are thread-safe once the worker has started.
#ifndef BATON_COMMON_WORKER_WORKER_H_
#define BATON_COMMON_WORKER_WORKER_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "baton/internal/v1/worker.pb.h"
#include "common/base/awake_clock.h"
#include "common/base/rpc/name_lookup.h"
#include "common/base/rpc/server.h"
#include "common/engine/engine.h"
#include "common/security/shared_secret.h"
#include "common/telemetry/metrics.h"
#include "common/telemetry/trace_counters.h"
#include "common/tracing/tracer.h"
#include "common/worker/cache_journal.h"
#include "common/worker/open_calls.h"
#include "common/worker/options.h"
#include "common/worker/router_count.h"
#include "common/worker/watch_service.h"
#include "common/worker/worker_metrics.h"

namespace baton::worker {

class Worker {
 public:
  virtual ~Worker() = default;
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  const std::string& address() const { return rpc_->address(); }  // of the gRPC server
  const std::string& metrics_address() const { return metrics_endpoint_->address(); }
  const internal::v1::WorkerCard& card() const { return watch_->card(); }

  // For the end of the process. Refuses new requests and reports NOT_SERVING. Returns when the open
  // calls have ended, or after `grace` and a second in which connections close. Reports to routers
  // go on until the calls have ended: a router that gets none takes the worker for dead and moves
  // its requests.
  void Drain(absl::Duration grace);
  // For an operator: refuses new requests, or takes them again, and goes on. Calls `applied` once
  // the loop has published the change. UNAVAILABLE (DRAINING) during Drain(); then it is not
  // called.
  absl::Status SetDraining(bool draining, std::function<void()> applied);
  // Ends every call now. Makes a Drain that runs return. Idempotent.
  void Stop();

 protected:
  Worker() = default;

  // Call first. Loads the model, opens /metrics, makes the card. Fails as Engine::Load does, or if
  // the metrics address cannot be bound.
  absl::Status Load(baton::v1::WorkerRole role, const WorkerOptions& options,
                    const engine::EngineOptions& engine_options);
  // Call after Load. Nothing is traced before, nor without an endpoint.
  void StartTracing(tracing::TracingOptions options, const telemetry::TraceCounters& counters);
  // Call last. Serves `services` and the reports, and writes the address file. The services count
  // their calls in open_calls(); the name is that of the service whose readiness is reported.
  // UNAVAILABLE if the address cannot be bound.
  absl::Status Serve(const WorkerOptions& options, std::vector<grpc::Service*> services,
                     const std::string& service_name);
  // Call from the destructor of the derived class. Stops, then destroys the server, whose late
  // callbacks use the derived class's service and loop.
  void Shutdown();

  // As the loops' SetDraining and FlushCache.
  virtual void SetLoopDraining(bool draining, std::function<void()> applied) = 0;
  virtual void FlushCache(std::function<void(int)> done) = 0;
  virtual void StopLoop() = 0;  // may be called before Serve
  // Ends calls that no request belongs to and that would not end by themselves. As StopLoop.
  virtual void StopStreams() {}

  engine::Engine& engine() { return *engine_; }
  prometheus::Registry& registry() { return metrics_endpoint_->registry(); }
  CacheConfig cache_config() const;
  CacheJournal& journal() { return journal_; }
  const Clock& awake() const { return awake_; }               // judges other processes
  security::SharedSecret* secret() { return secret_.get(); }  // of the cluster; null: none
  tracing::Tracer* tracer() { return tracer_.get(); }         // null: nothing is traced
  const std::shared_ptr<OpenCalls>& open_calls() const { return open_calls_; }
  void Publish(const WorkerLoad& load) { watch_->Publish(load); }

 private:
  // Reports SERVING to health checks, unless Drain() has begun.
  void ReportReady();

  const AwakeClock awake_{Clock::Real()};
  std::unique_ptr<security::SharedSecret> secret_;
  // Destroyed in reverse order. The server goes before the engine: frames in its buffers read KV.
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<telemetry::MetricsEndpoint> metrics_endpoint_;
  std::unique_ptr<tracing::Tracer> tracer_;
  CacheJournal journal_;
  SystemResolver resolver_;
  std::optional<RouterCount> router_count_;  // for the thread of watch_
  std::unique_ptr<WatchService> watch_;
  const std::shared_ptr<OpenCalls> open_calls_ = std::make_shared<OpenCalls>();
  std::unique_ptr<RpcServer> rpc_;
  absl::Mutex drain_mutex_;  // the loop applies drains in the order of the calls
  bool shutting_down_ ABSL_GUARDED_BY(drain_mutex_) = false;
};

}  // namespace baton::worker

#endif  // BATON_COMMON_WORKER_WORKER_H_
