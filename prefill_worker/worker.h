// A whole prefill worker: common/worker/worker.h plus the loop and the service.
#ifndef BATON_PREFILL_WORKER_WORKER_H_
#define BATON_PREFILL_WORKER_WORKER_H_

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/prefill/loop.h"
#include "common/prefill/metrics.h"
#include "common/prefill/service.h"
#include "common/transfer/device_link_server.h"
#include "common/transfer/peer_channels.h"
#include "common/transfer/shared_pool_server.h"
#include "common/worker/kv_service.h"
#include "common/worker/options.h"
#include "common/worker/worker.h"
#include "prefill_worker/first_token_service.h"
#include "prefill_worker/options.h"

namespace baton::prefill_worker {

class PrefillWorker final : public worker::Worker {
 public:
  static absl::StatusOr<std::unique_ptr<PrefillWorker>> Start(const worker::WorkerOptions& options,
                                                              const PrefillOptions& prefill = {});
  ~PrefillWorker() override { Shutdown(); }

 private:
  PrefillWorker() = default;
  absl::Status Initialize(const worker::WorkerOptions& options, const PrefillOptions& prefill);
  // Fail only if the options ask for nothing else.
  absl::Status SharePool(const worker::WorkerOptions& options);
  absl::Status LinkDevice(const worker::WorkerOptions& options);
  void SetLoopDraining(bool draining, std::function<void()> applied) override {
    loop_->SetDraining(draining, std::move(applied));
  }
  void FlushCache(std::function<void(int)> done) override { loop_->FlushCache(std::move(done)); }
  void StopLoop() override {
    if (loop_ != nullptr) loop_->Stop();
  }
  void StopStreams() override {
    if (device_links_ != nullptr) device_links_->Stop();
  }

  // Destroyed in reverse order.
  std::unique_ptr<prefill::PrefillMetrics> metrics_;
  std::unique_ptr<transfer::PeerChannels> peers_;
  std::unique_ptr<prefill::PrefillLoop> loop_;
  // Null: KV is sent. After the loop, which has stopped writing when this goes.
  std::unique_ptr<transfer::SharedPoolServer> shared_pool_;
  std::unique_ptr<transfer::DeviceLinkServer> device_links_;  // null: the device is not linked
  std::unique_ptr<prefill::CallContext> calls_;
  std::unique_ptr<prefill::PrefillService> service_;
  std::unique_ptr<FirstTokenService> first_token_service_;
  std::unique_ptr<prefill::DeviceLinkService> device_link_service_;
  std::unique_ptr<worker::KvService> kv_service_;
};

}  // namespace baton::prefill_worker

#endif  // BATON_PREFILL_WORKER_WORKER_H_
