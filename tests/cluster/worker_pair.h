// A prefill and a decode worker over real gRPC, in this process, and what tests ask them.
#ifndef BATON_TESTS_CLUSTER_WORKER_PAIR_H_
#define BATON_TESTS_CLUSTER_WORKER_PAIR_H_

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/base/rpc/channel.h"
#include "decode_worker/worker.h"
#include "prefill_worker/worker.h"
#include "tests/testing/oracle.h"
#include "tests/testing/worker_client.h"

namespace baton {

using internal::v1::DecodeRequest;
using internal::v1::DecodeResponse;
using testing::BlockCounts;
using testing::Decode;
using testing::DecodeResult;
using testing::MakeDecodeRequest;
using testing::WaitUntilIdle;

// BATON_TEST_CHECKPOINT names another of the checkpoints.
inline const std::string& ModelDir() {
  static const std::string* const dir = [] {
    const char* const name = std::getenv("BATON_TEST_CHECKPOINT");
    return new std::string(std::string(BATON_CHECKPOINT_DIR "/") +
                           (name == nullptr ? "tiny-qwen3" : name));
  }();
  return *dir;
}

inline testing::Oracle& TheOracle() {
  static testing::Oracle* const oracle = new testing::Oracle(ModelDir());
  return *oracle;
}

inline worker::WorkerOptions Options() {
  worker::WorkerOptions options;
  options.model_dir = ModelDir();
  options.num_blocks = 256;
  options.max_num_batched_tokens = 64;  // long prompts take several chunks
  options.max_num_seqs = 8;
  options.threads = 1;
  return options;
}

// The default is the smallest vocabulary of the checkpoints that the suites run with.
inline std::vector<int32_t> RandomTokens(std::mt19937& random, int count, int vocab_size = 320) {
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % vocab_size);
  return tokens;
}

inline model::SamplingParams Greedy() {
  model::SamplingParams params;
  params.temperature = 0;
  return params;
}

inline model::SamplingParams Seeded(uint64_t seed) {
  model::SamplingParams params;
  params.temperature = 0.9f;
  params.top_p = 0.95f;
  params.top_k = 50;
  params.seed = seed;
  return params;
}

// Everything that is missing is asked for.
inline decode_worker::DecodeOptions NothingLocal() {
  decode_worker::DecodeOptions options;
  options.local_prefill_max_tokens = 0;
  return options;
}

class WorkerPairTest : public ::testing::Test {
 protected:
  void StartPair(worker::WorkerOptions prefill_options, worker::WorkerOptions decode_options,
                 const decode_worker::DecodeOptions& decode_only = NothingLocal()) {
    prefill_options.kv_transport = transport_;
    decode_options.kv_transport = transport_;
    auto prefill = prefill_worker::PrefillWorker::Start(prefill_options);
    ASSERT_TRUE(prefill.ok()) << prefill.status();
    prefill_ = *std::move(prefill);
    auto decode = decode_worker::DecodeWorker::Start(decode_options, decode_only);
    ASSERT_TRUE(decode.ok()) << decode.status();
    decode_ = *std::move(decode);
    channel_ = MakeChannel(decode_->address());
  }
  void StartPair() { StartPair(Options(), Options()); }

  DecodeRequest Request(const std::vector<int32_t>& tokens, const model::SamplingParams& sampling,
                        int max_tokens) {
    return MakeDecodeRequest(*prefill_, *decode_, tokens, sampling, max_tokens);
  }
  void ExpectIdle() {
    EXPECT_TRUE(WaitUntilIdle(prefill_->address()).ok()) << WaitUntilIdle(prefill_->address());
    EXPECT_TRUE(WaitUntilIdle(decode_->address()).ok()) << WaitUntilIdle(decode_->address());
    const auto prefill = BlockCounts(prefill_->address());
    EXPECT_EQ(prefill.free() + prefill.cached(), prefill.total());
    const auto decode = BlockCounts(decode_->address());
    EXPECT_EQ(decode.free() + decode.cached(), decode.total());
    EXPECT_EQ(decode.open_transfers(), 0);
  }

  std::string transport_ = "grpc";
  std::unique_ptr<prefill_worker::PrefillWorker> prefill_;
  std::unique_ptr<decode_worker::DecodeWorker> decode_;
  std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace baton

#endif  // BATON_TESTS_CLUSTER_WORKER_PAIR_H_
