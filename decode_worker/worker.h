// A whole decode worker: common/worker/worker.h plus the loop and the service.
#ifndef BATON_DECODE_WORKER_WORKER_H_
#define BATON_DECODE_WORKER_WORKER_H_

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "common/prefill/service.h"
#include "common/transfer/device_link_client.h"
#include "common/transfer/peer_channels.h"
#include "common/transfer/shared_pools.h"
#include "common/worker/kv_service.h"
#include "common/worker/options.h"
#include "common/worker/worker.h"
#include "decode_worker/loop.h"
#include "decode_worker/metrics.h"
#include "decode_worker/options.h"
#include "decode_worker/service.h"

namespace baton::decode_worker {

class DecodeWorker final : public worker::Worker {
 public:
  static absl::StatusOr<std::unique_ptr<DecodeWorker>> Start(const worker::WorkerOptions& options,
                                                             const DecodeOptions& decode = {});
  ~DecodeWorker() override { Shutdown(); }

  // Null: no pool is mapped.
  transfer::SharedPools* shared_pools() { return shared_pools_.get(); }
  // Null: the device is not linked.
  transfer::DeviceLinkClient* device_links() { return device_links_.get(); }

 private:
  DecodeWorker() = default;
  absl::Status Initialize(const worker::WorkerOptions& options, const DecodeOptions& decode);
  // Fails only if the transport of the options is one that this worker cannot do.
  absl::Status MakeSharedPools(const worker::WorkerOptions& options);
  void SetLoopDraining(bool draining, std::function<void()> applied) override {
    loop_->SetDraining(draining, std::move(applied));
  }
  void FlushCache(std::function<void(int)> done) override { loop_->FlushCache(std::move(done)); }
  void StopLoop() override {
    if (structured_output_ != nullptr) structured_output_->Stop();
    if (loop_ != nullptr) loop_->Stop();
  }

  // Destroyed in reverse order.
  std::unique_ptr<DecodeMetrics> metrics_;
  std::unique_ptr<transfer::PeerChannels> peers_;
  std::unique_ptr<transfer::SharedPools> shared_pools_;       // null: no pool is mapped
  std::unique_ptr<transfer::DeviceLinkClient> device_links_;  // null: the device is not linked
  std::unique_ptr<engine::Engine> draft_engine_;              // null: no model drafts
  std::unique_ptr<DecodeLoop> loop_;
  std::unique_ptr<DecodeService> service_;
  std::unique_ptr<prefill::CallContext> calls_;
  std::unique_ptr<prefill::PrefillService> prefill_service_;  // null: for answers only
  std::unique_ptr<worker::KvService> kv_service_;
  // Ended first: what waits for a grammar ends through service and loop.
  std::unique_ptr<grammar::StructuredOutput> structured_output_;
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_WORKER_H_
