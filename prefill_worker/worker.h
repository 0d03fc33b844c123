// A whole prefill worker: engine, loop, services. main() starts one, and so do tests.
#ifndef BATON_PREFILL_WORKER_WORKER_H_
#define BATON_PREFILL_WORKER_WORKER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/rpc/server.h"
#include "common/engine/engine.h"
#include "common/telemetry/metrics.h"
#include "common/worker/cache_journal.h"
#include "common/worker/options.h"
#include "common/worker/run_main.h"
#include "common/worker/watch_service.h"
#include "prefill_worker/loop.h"
#include "prefill_worker/service.h"

namespace baton::prefill_worker {

// Thread-safe once started.
class PrefillWorker final : public worker::WorkerServer {
 public:
  static absl::StatusOr<std::unique_ptr<PrefillWorker>> Start(const worker::WorkerOptions& options);
  ~PrefillWorker() override;

  const std::string& address() const override { return rpc_->address(); }
  const std::string& metrics_address() const { return metrics_endpoint_->address(); }
  const internal::v1::WorkerCard& card() const { return watch_->card(); }
  void Drain(absl::Duration grace) override;
  void Stop() override;

 private:
  PrefillWorker() = default;
  absl::Status Initialize(const worker::WorkerOptions& options);

  // Destroyed in reverse order. The server goes before the engine: frames in its buffers read KV.
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<telemetry::MetricsEndpoint> metrics_endpoint_;
  std::unique_ptr<PrefillMetrics> metrics_;
  worker::CacheJournal journal_;
  std::unique_ptr<worker::WatchService> watch_;
  std::unique_ptr<PrefillLoop> loop_;
  std::unique_ptr<PrefillService> service_;
  std::unique_ptr<RpcServer> rpc_;
};

}  // namespace baton::prefill_worker

#endif  // BATON_PREFILL_WORKER_WORKER_H_
