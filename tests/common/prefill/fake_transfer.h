// The receiving end of one job or fetch, which records what it gets.
#ifndef BATON_TESTS_COMMON_PREFILL_FAKE_TRANSFER_H_
#define BATON_TESTS_COMMON_PREFILL_FAKE_TRANSFER_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/prefill/job.h"
#include "common/transfer/kv_sender.h"

namespace baton::prefill {

class FakeTransfer final : public TokenSink,
                           public transfer::KvSender,
                           public std::enable_shared_from_this<FakeTransfer> {
 public:
  // The job's results and KV come here.
  void JoinTo(PrefillJob& job) {
    job.token_sink = shared_from_this();
    job.transfer = KvTransfer{shared_from_this(), /*first_block=*/0, nullptr};
  }

  void OnPromptLogprobs(int first_position, std::vector<v1::TokenLogprobs> logprobs) override {
    ADD_FAILURE() << "log probabilities that were not requested";
  }
  void OnFirstToken(FirstToken first) override {
    token = first.token_id;
    EXPECT_EQ(first.cached_prompt_tokens, cached);
  }
  void SendAccepted(int block_count, int cached_prompt_tokens) override {
    blocks = block_count;
    cached = cached_prompt_tokens;
  }
  void SendLayer(int layer, int first_block, int block_count,
                 std::shared_ptr<const transfer::PinnedBlocks> of,
                 std::shared_ptr<const backend::Event> written) override {
    if (keep) unsent = std::move(of);
  }
  void SendCached(const std::vector<transfer::LayerBlocks>& layers,
                  std::shared_ptr<const transfer::PinnedBlocks> of) override {
    if (keep && !layers.empty()) unsent = std::move(of);
  }
  void SendCommit(double queue_ms, double prefill_ms) override { committed = true; }
  void Finish(const absl::Status& status) override {
    EXPECT_FALSE(finish.has_value());
    finish = status;
    on_finish();
  }

  std::function<void()> on_finish = [] {};
  bool keep = false;  // what is sent stays in gRPC's buffers
  int blocks = -1;
  int cached = -1;
  int token = -1;
  bool committed = false;
  std::optional<absl::Status> finish;
  std::shared_ptr<const transfer::PinnedBlocks> unsent;
};

}  // namespace baton::prefill

#endif  // BATON_TESTS_COMMON_PREFILL_FAKE_TRANSFER_H_
