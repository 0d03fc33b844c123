#include "common/worker/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "common/backend/make_backend.h"
#include "common/base/error.h"

namespace baton::worker {
namespace {

// Parses `flags` behind --model; the message of what CLI11 refuses.
std::string Parse(std::vector<std::string> flags, WorkerOptions* options) {
  CLI::App app;
  AddWorkerFlags(app, *options);
  flags.insert(flags.begin(), {"--model", "dir"});
  std::reverse(flags.begin(), flags.end());  // CLI11 takes them from the back
  try {
    app.parse(flags);
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
  return "";
}

TEST(WorkerOptionsTest, ListeningBeyondLoopbackNeedsACredential) {
  WorkerOptions options;
  EXPECT_EQ(Parse({"--listen", "0.0.0.0:0"}, &options), "");
  EXPECT_EQ(ErrorReason(Validate(options)), "NEEDS_CREDENTIALS");
  EXPECT_EQ(ErrorField(Validate(options)), "--listen");
  WorkerOptions insecure, secret;
  EXPECT_EQ(Parse({"--listen", "[::]:0", "--insecure"}, &insecure), "");
  EXPECT_TRUE(Validate(insecure).ok());
  EXPECT_EQ(Parse({"--listen", "10.0.0.1:0", "--worker-secret-file", "f"}, &secret), "");
  EXPECT_TRUE(Validate(secret).ok());
}

TEST(WorkerOptionsTest, TlsFlagsHaveVllmsNamesToo) {
  for (const auto& [cert, key, ca] :
       {std::tuple("--tls-cert", "--tls-key", "--tls-client-ca"),
        std::tuple("--ssl-certfile", "--ssl-keyfile", "--ssl-ca-certs")}) {
    WorkerOptions options;
    EXPECT_EQ(Parse({cert, "c", key, "k", ca, "a"}, &options), "");
    EXPECT_EQ(options.tls.cert, "c");
    EXPECT_EQ(options.tls.key, "k");
    EXPECT_EQ(options.tls.client_ca, "a");
    EXPECT_EQ(ErrorReason(Validate(options)), "BAD_TLS_FILES");
  }
}

TEST(WorkerOptionsTest, FlagsArriveUnderTheirUsualNames) {
  WorkerOptions options;
  EXPECT_EQ(Parse({"--max-model-len", "512", "--max-num-seqs", "3", "--max-num-batched-tokens",
                   "64", "--kv-cache-memory", "2MB", "--num-blocks", "9", "--block-size", "32",
                   "--no-enable-prefix-caching", "--kv-fetch", "--dtype", "float32"},
                  &options),
            "");
  EXPECT_EQ(options.max_model_len, 512);
  EXPECT_EQ(options.max_num_seqs, 3);
  EXPECT_EQ(options.max_num_batched_tokens, 64);
  EXPECT_EQ(options.kv_cache_memory_bytes, 2 << 20);
  EXPECT_EQ(options.num_blocks, 9);
  EXPECT_EQ(options.block_size, 32);
  EXPECT_FALSE(options.enable_prefix_caching);
  EXPECT_TRUE(options.kv_fetch);
  EXPECT_TRUE(Validate(options).ok());
  const engine::EngineOptions engine = ToEngineOptions(options);
  EXPECT_EQ(engine.backend.compute, backend::BackendOptions::Compute::kF32);
  EXPECT_EQ(engine.num_blocks, 9);
}

TEST(WorkerOptionsTest, TheNameOfTheRoutersHasNoPort) {
  WorkerOptions options;
  EXPECT_EQ(Parse({"--ready-routers-dns", "baton-routers"}, &options), "");
  EXPECT_EQ(options.ready_routers_dns, "baton-routers");
  EXPECT_TRUE(Validate(options).ok());
  for (const std::string& bad : {std::string("baton-routers:50051"), std::string(254, 'a')}) {
    options.ready_routers_dns = bad;
    EXPECT_EQ(ErrorField(Validate(options)), "--ready-routers-dns") << bad;
  }
}

TEST(WorkerOptionsTest, BitsOfWeightsArriveAtTheEngine) {
  WorkerOptions options;
  EXPECT_EQ(ToEngineOptions(options).weight_bits, 0);
  EXPECT_FALSE(ToEngineOptions(options).backend.dequantize_weights);
  EXPECT_EQ(Parse({"--weights", "int4", "--dequantize-weights"}, &options), "");
  EXPECT_EQ(ToEngineOptions(options).weight_bits, 4);
  EXPECT_TRUE(ToEngineOptions(options).backend.dequantize_weights);
  EXPECT_EQ(Parse({"--weights", "int8"}, &options), "");
  EXPECT_EQ(ToEngineOptions(options).weight_bits, 8);
  EXPECT_NE(Parse({"--weights", "int2"}, &options), "");
}

TEST(WorkerOptionsTest, ExpertsInTheHostsMemoryArriveAtTheEngine) {
  WorkerOptions options;
  EXPECT_EQ(ToEngineOptions(options).experts_on_host, 0);
  EXPECT_EQ(Parse({"--experts-on-host", "7"}, &options), "");
  EXPECT_EQ(ToEngineOptions(options).experts_on_host, 7);
  EXPECT_EQ(Parse({"--experts-on-host", "auto"}, &options), "");
  EXPECT_EQ(ToEngineOptions(options).experts_on_host, std::nullopt);
  EXPECT_EQ(Parse({"--experts-on-host", "all"}, &options), "");
  EXPECT_GT(*ToEngineOptions(options).experts_on_host, 1000);
  for (const char* wrong : {"-1", "some", "", "1.5", "99999999999"}) {
    EXPECT_THAT(Parse({"--experts-on-host", wrong}, &options),
                ::testing::HasSubstr("expected a number of layers, auto or all"));
    options.experts_on_host = wrong;
    EXPECT_EQ(ErrorField(Validate(options)), "--experts-on-host");
  }
}

TEST(WorkerOptionsTest, KvIsMixedWithOtherBitsOnlyIfAsked) {
  WorkerOptions options;
  EXPECT_FALSE(ToEngineOptions(options).mix_numerics);
  EXPECT_EQ(Parse({"--mix-numerics"}, &options), "");
  EXPECT_TRUE(ToEngineOptions(options).mix_numerics);
}

TEST(WorkerOptionsTest, TheTypeOfKvArrivesAtTheEngine) {
  WorkerOptions options;
  EXPECT_EQ(ToEngineOptions(options).kv_dtype, std::nullopt);
  for (const std::string name : {"bfloat16", "int8", "int4", "fp8"}) {
    EXPECT_EQ(Parse({"--kv-cache-dtype", name}, &options), "");
    EXPECT_EQ(ToEngineOptions(options).kv_dtype, kv::ParseKvDtype(name));
  }
}

TEST(WorkerOptionsTest, GenerationDefaultsAreCheckedAtOnceAndArriveAtTheEngine) {
  WorkerOptions options, wrong;
  EXPECT_EQ(Parse({"--override-generation-config", R"({"temperature": 0.5})"}, &options), "");
  EXPECT_TRUE(Validate(options).ok());
  EXPECT_EQ(ToEngineOptions(options).generation_overrides, R"({"temperature": 0.5})");
  EXPECT_EQ(Parse({"--override-generation-config", R"({"temperature": 3})"}, &wrong), "");
  EXPECT_EQ(ErrorReason(Validate(wrong)), "BAD_OPTION");
  EXPECT_EQ(ErrorField(Validate(wrong)), "--override-generation-config");
  EXPECT_THAT(std::string(Validate(wrong).message()), ::testing::HasSubstr("temperature: found 3"));
}

TEST(WorkerOptionsTest, OutOfRangeIsRefusedByName) {
  const std::vector<std::vector<std::string>> cases = {
      {"--max-num-seqs", "0"},     {"--max-num-seqs", "-1"},
      {"--num-blocks", "-1"},      {"--block-size", "8"},
      {"--max-model-len", "-1"},   {"--dtype", "int3"},
      {"--threads", "-2"},         {"--device", "cuda:-1"},
      {"--device", "gpu"},         {"--max-num-batched-tokens", "1"},
      {"--no-such-flag", "1"},     {"--kv-cache-memory", "x"},
      {"--kv-cache-dtype", "f16"},
  };
  for (const std::vector<std::string>& flags : cases) {
    WorkerOptions options;
    EXPECT_NE(Parse(flags, &options), "") << flags[0] << " " << flags[1];
  }
}

TEST(WorkerOptionsTest, TheDeviceArrivesAtTheBackend) {
  WorkerOptions options;
  EXPECT_EQ(ToEngineOptions(options).backend.device, "cpu");
  EXPECT_EQ(ToEngineOptions(options).kv_cache_bytes, 0);
  EXPECT_EQ(Parse({"--device", "cuda:1", "--dtype", "float16", "--gpu-memory-utilization", "0.5",
                   "--no-deterministic", "--cublas-algorithms", "/tmp/x"},
                  &options),
            "");
  EXPECT_TRUE(Validate(options).ok());
  const backend::BackendOptions backend = ToEngineOptions(options).backend;
  EXPECT_EQ(backend.device, "cuda:1");
  EXPECT_EQ(backend.compute, backend::BackendOptions::Compute::kF16);
  EXPECT_EQ(backend.gpu_memory_utilization, 0.5);
  EXPECT_FALSE(backend.deterministic);
  EXPECT_EQ(Parse({"--deterministic"}, &options), "");
  EXPECT_TRUE(ToEngineOptions(options).backend.deterministic);
  EXPECT_EQ(backend.cuda.cublas_algorithms, "/tmp/x");
  WorkerOptions cached;
  EXPECT_EQ(ToEngineOptions(cached).backend.cuda.cublas_algorithms,
            backend::DefaultCublasAlgorithms());
  EXPECT_EQ(Parse({"--cublas-algorithms", ""}, &cached), "");
  EXPECT_EQ(ToEngineOptions(cached).backend.cuda.cublas_algorithms, "");
  WorkerOptions automatic;
  EXPECT_EQ(Parse({"--device", "auto", "--dtype", "float16"}, &automatic), "");
  EXPECT_TRUE(Validate(automatic).ok());
  EXPECT_TRUE(ToEngineOptions(automatic).backend.deterministic) << "one answer is the default";
}

TEST(WorkerOptionsTest, WhatNoDeviceCanDoIsRefusedByField) {
  for (const double share : {0.0, -1.0, 1.001, std::nan("")}) {
    WorkerOptions options;
    options.gpu_memory_utilization = share;
    EXPECT_EQ(ErrorField(Validate(options)), "--gpu-memory-utilization") << share;
  }
  WorkerOptions half;
  EXPECT_EQ(Parse({"--dtype", "float16"}, &half), "");
  EXPECT_EQ(ErrorField(Validate(half)), "--dtype");
  WorkerOptions unknown;
  unknown.device = "tpu";
  EXPECT_EQ(ErrorField(Validate(unknown)), "--device");
  WorkerOptions negative;
  negative.kv_cache_memory_bytes = -1;
  EXPECT_EQ(ErrorReason(Validate(negative)), "KV_POOL_SIZE");
}

TEST(WorkerOptionsTest, WhatTheBackendCannotDoIsRefusedBeforeItIsAsked) {
  for (const int block_size : {48, 80, 240}) {
    WorkerOptions options;
    options.block_size = block_size;
    EXPECT_EQ(ErrorReason(Validate(options)), "BLOCK_SIZE") << block_size;
  }
  for (const int block_size : {16, 32, 64, 128, 256}) {
    WorkerOptions options;
    options.block_size = block_size;
    EXPECT_TRUE(Validate(options).ok()) << block_size;
  }
  WorkerOptions options;
  options.block_size = 128;
  options.max_num_batched_tokens = 64;
  EXPECT_EQ(ErrorReason(Validate(options)), "MAX_NUM_BATCHED_TOKENS");
}

}  // namespace
}  // namespace baton::worker
