// A whole decode worker: engine, loop, services. main() starts one, and so do tests.
#ifndef BATON_DECODE_WORKER_WORKER_H_
#define BATON_DECODE_WORKER_WORKER_H_

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
#include "decode_worker/loop.h"
#include "decode_worker/options.h"
#include "decode_worker/peer_channels.h"
#include "decode_worker/service.h"

namespace baton::decode_worker {

// Thread-safe once started.
class DecodeWorker final : public worker::WorkerServer {
 public:
  static absl::StatusOr<std::unique_ptr<DecodeWorker>> Start(const worker::WorkerOptions& options,
                                                             const DecodeOptions& decode = {});
  ~DecodeWorker() override;

  const std::string& address() const override { return rpc_->address(); }
  const std::string& metrics_address() const { return metrics_endpoint_->address(); }
  const internal::v1::WorkerCard& card() const { return watch_->card(); }
  void Drain(absl::Duration grace) override;
  void Stop() override;

 private:
  DecodeWorker() = default;
  absl::Status Initialize(const worker::WorkerOptions& options, const DecodeOptions& decode);

  // Destroyed in reverse order.
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<telemetry::MetricsEndpoint> metrics_endpoint_;
  std::unique_ptr<DecodeMetrics> metrics_;
  worker::CacheJournal journal_;
  std::unique_ptr<worker::WatchService> watch_;
  PeerChannels peers_;
  std::unique_ptr<DecodeLoop> loop_;
  std::unique_ptr<DecodeService> service_;
  std::unique_ptr<RpcServer> rpc_;
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_WORKER_H_
