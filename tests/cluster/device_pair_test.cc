// Workers whose memory the host cannot address, and whose tokens are drawn there: one answer all
// the same.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/backend/cuda/cuda_backend.h"
#include "common/base/error.h"
#include "tests/cluster/worker_pair.h"
#include "tests/common/backend/cuda/fake_nccl.h"
#include "tests/testing/devices.h"
#include "tests/testing/fake_device.h"
#include "tests/testing/forwarding_backend.h"
#include "tests/testing/metrics_scrape.h"
#include "tests/testing/seed.h"

namespace baton {
namespace {

using testing::DeviceLinkFaults;

class DevicePairTest : public WorkerPairTest {
 protected:
  static worker::WorkerOptions On(testing::FakeDevice& device) {
    worker::WorkerOptions options = Options();
    options.make_backend = testing::MakerOf(device);
    return options;
  }
  // Before the members of WorkerPairTest, which use the devices.
  ~DevicePairTest() override {
    decode_ = nullptr;
    prefill_ = nullptr;
  }

  void ExpectTheOraclesTokens() {
    const uint32_t seed = testing::TestSeed();
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    for (int i = 0; i < 10; ++i) {
      const std::vector<int32_t> prompt =
          RandomTokens(random, 1 + static_cast<int>(random() % 300));
      model::SamplingParams sampling = i % 2 == 0 ? Greedy() : Seeded(random());
      if (i % 3 == 0) sampling.frequency_penalty = 1;
      if (i == 5) sampling.logprobs = 3;
      const std::vector<int32_t> expected = TheOracle().Generate(prompt, sampling, 12);
      for (const bool warm : {false, true}) {
        const DecodeResult result = Decode(channel_, Request(prompt, sampling, 12));
        ASSERT_TRUE(result.status.ok()) << result.status;
        EXPECT_EQ(result.tokens, expected) << "prompt " << i << (warm ? " warm" : " cold");
      }
    }
    ExpectIdle();
  }

  // Of three transfers, so many through shared memory; the others are sent.
  void ExpectMapped(int count) {
    for (int i = 0; i < 3; ++i) {
      const std::vector<int32_t> prompt(static_cast<size_t>(20 + i), 7 + i);
      const DecodeResult result = Decode(channel_, Request(prompt, Greedy(), 4));
      ASSERT_TRUE(result.status.ok()) << result.status;
      EXPECT_EQ(result.tokens, TheOracle().Generate(prompt, Greedy(), 4));
      decode_->shared_pools()->WaitUntilTried();
    }
    const auto transfers = [this](const char* label) {
      return testing::MetricSum(decode_->metrics_address(), "baton_kv_transfers_total", label);
    };
    EXPECT_EQ(transfers("reason=\"mapped\""), count);
    EXPECT_EQ(transfers("reason=\"opened\""), 0);
    ExpectIdle();
  }

  testing::FakeDevice prefill_device_, decode_device_;
};

TEST_F(DevicePairTest, BothOnDevices) {
  StartPair(On(prefill_device_), On(decode_device_));
  ExpectTheOraclesTokens();
  EXPECT_GT(prefill_device_.kv_reads, 0);
  EXPECT_GT(decode_device_.kv_writes, 0);
  // Their loops write these.
  decode_ = nullptr;
  prefill_ = nullptr;
  EXPECT_FALSE(prefill_device_.sampled_rows.empty());
  EXPECT_FALSE(decode_device_.sampled_rows.empty());
}

TEST_F(DevicePairTest, ADeviceToTheCpuAndBack) {
  StartPair(On(prefill_device_), Options());
  ExpectTheOraclesTokens();
  EXPECT_GT(prefill_device_.kv_reads, 0);
  decode_ = nullptr;
  prefill_ = nullptr;
  StartPair(Options(), On(decode_device_));
  ExpectTheOraclesTokens();
  EXPECT_GT(decode_device_.kv_writes, 0);
}

// A device that cannot open others' memory still reads a pool in host memory.
TEST_F(DevicePairTest, AutoReadsHostMemoryIntoADevice) {
  transport_ = "auto";
  StartPair(Options(), On(decode_device_));
  ExpectMapped(3);
}

TEST_F(DevicePairTest, AutoSendsWhatIsNotShared) {
  transport_ = "auto";
  StartPair(On(prefill_device_), On(decode_device_));
  ExpectMapped(0);
}

// Many at once: blocks run out, sequences give way and come back.
TEST_F(DevicePairTest, ManyAtOnceThroughATinyPool) {
  worker::WorkerOptions options = On(decode_device_);
  options.num_blocks = 24;
  StartPair(On(prefill_device_), options);
  const uint32_t seed = testing::TestSeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  struct Case {
    std::vector<int32_t> prompt;
    model::SamplingParams sampling;
    std::vector<int32_t> expected;
  };
  std::vector<Case> cases(48);
  for (Case& c : cases) {
    c.prompt = RandomTokens(random, 1 + static_cast<int>(random() % 200));
    c.sampling = Seeded(random());
    c.expected = TheOracle().Generate(c.prompt, c.sampling, 40);
  }
  std::atomic<size_t> next{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&] {
      for (size_t at; (at = next.fetch_add(1)) < cases.size();) {
        const Case& c = cases[at];
        const DecodeResult result = Decode(channel_, Request(c.prompt, c.sampling, 40));
        EXPECT_TRUE(result.status.ok()) << result.status;
        EXPECT_EQ(result.tokens, c.expected) << "case " << at;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  ExpectIdle();
}

// KV over links between devices, which misbehave in the middle of it.
class DeviceLinkPairTest : public DevicePairTest {
 protected:
  DeviceLinkPairTest() {
    transport_ = "nccl";
    prefill_device_.name = "GPU-a";
    decode_device_.name = "GPU-b";
  }
  double Transfers(const char* reason) {
    return testing::MetricSum(decode_->metrics_address(), "baton_kv_transfers_total",
                              absl::StrCat("reason=\"", reason, "\"").c_str());
  }
  double Bytes(const char* transport) {
    return testing::MetricSum(decode_->metrics_address(), "baton_kv_transfer_bytes_total",
                              absl::StrCat("transport=\"", transport, "\"").c_str());
  }
  void Ask(const std::vector<int32_t>& prompt) {
    const DecodeResult result = Decode(channel_, Request(prompt, Greedy(), 4));
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.tokens, TheOracle().Generate(prompt, Greedy(), 4));
  }
  // Asks until KV comes over the link.
  void Link() {
    while (Transfers("linked") == 0) Ask({1, 2, 3});
  }
  // 19 blocks: several operations of each layer.
  static std::vector<int32_t> LongPrompt(int seed) {
    std::mt19937 random(testing::TestSeed(static_cast<uint32_t>(seed)));
    return RandomTokens(random, 300);
  }
};

TEST_F(DeviceLinkPairTest, OneAnswer) {
  StartPair(On(prefill_device_), On(decode_device_));
  Link();
  const int reads = prefill_device_.kv_reads;
  ExpectTheOraclesTokens();
  EXPECT_EQ(prefill_device_.kv_reads, reads) << "KV took the way over the host";
  EXPECT_GT(Bytes("nccl"), 0);
  EXPECT_EQ(Transfers("failed"), 0);
  EXPECT_GT(prefill_device_.links.operations, 0);
  // All but the one that connects.
  EXPECT_EQ(decode_device_.links.stores, decode_device_.links.operations - 1);
}

// What the prefill worker has cached is there when the transfer begins.
TEST_F(DeviceLinkPairTest, CachedLayersAreOneOperation) {
  prefill_device_.most_linked_chunks = decode_device_.most_linked_chunks = 64;
  StartPair(On(prefill_device_), On(decode_device_));
  Link();
  Ask(LongPrompt(1));
  ExpectIdle();
  // Another decode worker, which has cached nothing.
  decode_ = nullptr;
  testing::FakeDevice other;
  other.name = "GPU-c";
  other.most_linked_chunks = 64;
  worker::WorkerOptions options = On(other);
  options.kv_transport = transport_;
  decode_ = *decode_worker::DecodeWorker::Start(options, NothingLocal());
  channel_ = MakeChannel(decode_->address());
  Link();
  const int before = other.links.operations;
  Ask(LongPrompt(1));
  ExpectIdle();
  const int layers = TheOracle().engine().kv_layout().layers;
  // 18 blocks of three layers are 54 chunks, one operation. The last block is computed, layer by
  // layer: a layer has its own operation, or shares one with what waits when it is there.
  EXPECT_EQ(layers, 3);
  EXPECT_GE(other.links.operations - before, 1);
  EXPECT_LE(other.links.operations - before, 1 + layers);
  EXPECT_EQ(Transfers("failed"), 0);
  decode_ = nullptr;
}

// In the middle of a transfer, whose KV comes over gRPC then; the next transfers, too.
class DeviceLinkPairFaultTest : public DeviceLinkPairTest,
                                public ::testing::WithParamInterface<std::tuple<bool, bool>> {};

INSTANTIATE_TEST_SUITE_P(Faults, DeviceLinkPairFaultTest,
                         ::testing::Combine(::testing::Bool(), ::testing::Bool()),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param) ? "Sender" : "Receiver",
                                               std::get<1>(info.param) ? "Fails" : "Hangs");
                         });

TEST_P(DeviceLinkPairFaultTest, CostsNothingButTime) {
  const auto [at_sender, fails] = GetParam();
  DeviceLinkFaults& device = (at_sender ? prefill_device_ : decode_device_).links;
  StartPair(On(prefill_device_), On(decode_device_));
  Link();
  (fails ? device.fails_at : device.hangs_at) = device.operations + 3;
  Ask(LongPrompt(1));
  ExpectIdle();
  Ask(LongPrompt(2));
  EXPECT_EQ(Transfers("failed"), 1);
  decode_ = nullptr;
  prefill_ = nullptr;
  EXPECT_EQ(prefill_device_.links.links + decode_device_.links.links, 0);
}

// An abort that hangs keeps its link's staging, and no worker from ending.
TEST_F(DeviceLinkPairTest, AnAbortThatHangsCostsTheLinkAlone) {
  StartPair(On(prefill_device_), On(decode_device_));
  Link();
  prefill_device_.links.abort_hangs = true;
  prefill_device_.links.fails_at = prefill_device_.links.operations + 2;
  Ask(LongPrompt(1));
  ExpectIdle();
  ExpectTheOraclesTokens();
  EXPECT_EQ(prefill_device_.links.links, 1);
  prefill_device_.links.released.Notify();
  prefill_ = nullptr;
  EXPECT_EQ(prefill_device_.links.links, 0);
}

TEST_F(DeviceLinkPairTest, WorkersOfOneDeviceAreNotLinked) {
  decode_device_.name = prefill_device_.name;
  StartPair(On(prefill_device_), On(decode_device_));
  while (Transfers("failed") == 0) Ask({1, 2, 3});
  EXPECT_EQ(Transfers("linked"), 0);
  ExpectTheOraclesTokens();
}

TEST_F(DeviceLinkPairTest, ManyAtOnceWhileTransfersAreCancelled) {
  worker::WorkerOptions options = On(decode_device_);
  options.num_blocks = 48;
  StartPair(On(prefill_device_), options);
  Link();
  std::vector<std::vector<int32_t>> expected;
  for (int at = 0; at < 48; ++at) {
    expected.push_back(TheOracle().Generate(LongPrompt(at), Greedy(), 3));
  }
  std::atomic<int> next{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 6; ++i) {
    clients.emplace_back([&] {
      for (int at; (at = next.fetch_add(1)) < 48;) {
        const std::vector<int32_t> prompt = LongPrompt(at);
        DecodeRequest request = Request(prompt, Greedy(), 3);
        if (at % 3 == 0) {  // its deadline passes somewhere in the transfer
          grpc::ClientContext context;
          context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(at));
          const auto stub = internal::v1::DecodeService::NewStub(channel_);
          const auto reader = stub->Decode(&context, request);
          DecodeResponse response;
          while (reader->Read(&response)) {
          }
          reader->Finish();
          continue;
        }
        const DecodeResult result = Decode(channel_, request);
        EXPECT_TRUE(result.status.ok()) << result.status;
        EXPECT_EQ(result.tokens, expected[static_cast<size_t>(at)]) << at;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  ExpectIdle();
  // The link has lived through it.
  EXPECT_EQ(Transfers("failed"), 0);
  for (int at = 0; at < 8; ++at) Ask(LongPrompt(100 + at));
  EXPECT_EQ(Transfers("failed"), 0);
  ExpectIdle();
}

// An open link is no call that a drain waits for.
TEST_F(DeviceLinkPairTest, ADrainEndsTheLink) {
  StartPair(On(prefill_device_), On(decode_device_));
  Link();
  const absl::Time begin = absl::Now();
  prefill_->Drain(absl::Seconds(30));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(20));
  while (prefill_device_.links.links + decode_device_.links.links > 0) std::this_thread::yield();
}

// A new prefill worker at the same address is another epoch, and another link.
TEST_F(DeviceLinkPairTest, ARestartedPrefillWorkerIsLinkedAnew) {
  StartPair(On(prefill_device_), On(decode_device_));
  Link();
  prefill_.reset();
  testing::FakeDevice device;
  device.name = "GPU-a";
  worker::WorkerOptions options = On(device);
  options.kv_transport = transport_;
  prefill_ = *prefill_worker::PrefillWorker::Start(options);
  const double linked = Transfers("linked");
  while (Transfers("linked") == linked) Ask({1, 2, 3});
  ExpectIdle();
  prefill_ = nullptr;
}

// A worker that cannot do what its flag asks for does not start.
TEST_F(DeviceLinkPairTest, ADeviceWithoutLinksIsRefused) {
  prefill_device_.name = "";
  worker::WorkerOptions options = On(prefill_device_);
  options.kv_transport = transport_;
  const auto prefill = prefill_worker::PrefillWorker::Start(options);
  EXPECT_EQ(ErrorReason(prefill.status()), "DEVICE_LINK") << prefill.status();
  const auto decode = decode_worker::DecodeWorker::Start(options, NothingLocal());
  EXPECT_EQ(ErrorReason(decode.status()), "DEVICE_LINK") << decode.status();
}

// The CUDA backend's own arithmetic between two workers, and the oracle's on such a device.
class EmulatedGpuPairTest : public WorkerPairTest,
                            public ::testing::WithParamInterface<testing::Device> {
 protected:
  bool on_cpu() const { return GetParam().name.rfind("cpu_", 0) == 0; }
  worker::WorkerOptions OnDevice() const {
    worker::WorkerOptions options = Options();
    options.make_backend = [device = GetParam()](const backend::BackendOptions&) {
      return device.make();
    };
    return options;
  }
  double Transfers(const std::string& label) const {
    return testing::MetricSum(decode_->metrics_address(), "baton_kv_transfers_total", label);
  }
  static double IpcBytes(const std::string& address) {
    return testing::MetricSum(address, "baton_kv_transfer_bytes_total", "transport=\"ipc\"");
  }
  void ExpectOpen() {
    EXPECT_EQ(decode_->shared_pools()->Find(prefill_->card().epoch()).reason,
              transfer::PlaneReason::kOpened);
  }
  void ExpectAllThroughDevices() {
    EXPECT_GT(IpcBytes(decode_->metrics_address()), 0);
    EXPECT_EQ(IpcBytes(decode_->metrics_address()), IpcBytes(prefill_->metrics_address()));
    EXPECT_EQ(testing::MetricSum(prefill_->metrics_address(), "baton_kv_transfer_bytes_total",
                                 "transport=\"grpc\""),
              0);
  }

  void ExpectTheOraclesTokens(int prompts) {
    engine::EngineOptions oracle_options = testing::Oracle::OptionsFor(Options().model_dir, {});
    oracle_options.make_backend = OnDevice().make_backend;
    testing::Oracle oracle(oracle_options);
    const uint32_t seed = testing::TestSeed();
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    for (int i = 0; i < prompts; ++i) {
      const std::vector<int32_t> prompt = RandomTokens(random, 1 + static_cast<int>(random() % 90));
      model::SamplingParams sampling = i % 2 == 0 ? Greedy() : Seeded(random());
      if (i == 3) sampling.logprobs = 3;
      const std::vector<int32_t> expected = oracle.Generate(prompt, sampling, 5);
      for (const bool warm : {false, true}) {
        const DecodeResult result = Decode(channel_, Request(prompt, sampling, 5));
        ASSERT_TRUE(result.status.ok()) << result.status;
        EXPECT_EQ(result.tokens, expected) << "prompt " << i << (warm ? " warm" : " cold");
        if (decode_->shared_pools() != nullptr) decode_->shared_pools()->WaitUntilTried();
      }
    }
    ExpectIdle();
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, EmulatedGpuPairTest, ::testing::ValuesIn(testing::Devices()),
                         [](const auto& info) { return info.param.name; });

class NcclPairTest : public WorkerPairTest {
 protected:
  // The workers' links call it until they are gone, after a failed assertion too.
  ~NcclPairTest() override {
    decode_ = nullptr;
    prefill_ = nullptr;
  }
  backend::cuda::FakeNccl nccl_;
};

// The whole way from pool to pool: the kernels that gather and scatter, over NCCL's functions.
TEST_F(NcclPairTest, OneAnswer) {
  const auto make = [&](const backend::BackendOptions& given) {
    return backend::cuda::MakeBackendOn(
        backend::cuda::MakeEmulatedRuntime(80, size_t{900} << 20), nullptr,
        {.gpu_memory_utilization = 1, .cuda = {.device_links = given.cuda.device_links}}, &nccl_);
  };
  transport_ = "nccl";
  worker::WorkerOptions options = Options();
  options.make_backend = make;
  StartPair(options, options);
  engine::EngineOptions oracle_options = testing::Oracle::OptionsFor(options.model_dir, {});
  oracle_options.make_backend = make;
  testing::Oracle oracle(oracle_options);
  std::mt19937 random(testing::TestSeed(5));
  double linked = 0;
  for (int i = 0; linked < 3; ++i) {
    const std::vector<int32_t> prompt = RandomTokens(random, 1 + static_cast<int>(random() % 60));
    const DecodeResult result = Decode(channel_, Request(prompt, Greedy(), 3));
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.tokens, oracle.Generate(prompt, Greedy(), 3)) << i;
    linked = testing::MetricSum(decode_->metrics_address(), "baton_kv_transfers_total",
                                "reason=\"linked\"");
  }
  ExpectIdle();
  decode_ = nullptr;
  prefill_ = nullptr;
  EXPECT_EQ(nccl_.aborted(), 2);
}

TEST_P(EmulatedGpuPairTest, OneAnswer) {
  StartPair(OnDevice(), OnDevice());
  ExpectTheOraclesTokens(4);
}

// A new prefill worker is another pool. The old one ends when its memory is closed here.
TEST_P(EmulatedGpuPairTest, ARestartedPrefillWorkerIsOpenedAnew) {
  if (on_cpu()) GTEST_SKIP() << "its pool is host memory";
  transport_ = "ipc";
  StartPair(OnDevice(), OnDevice());
  const auto ask = [&](int times) {
    for (int i = 0; i < times; ++i) {
      const DecodeResult result = Decode(channel_, Request({1, 2, 3, 4, 5}, Greedy(), 3));
      ASSERT_TRUE(result.status.ok()) << result.status;
      decode_->shared_pools()->WaitUntilTried();
    }
  };
  ask(2);
  EXPECT_EQ(Transfers("reason=\"opened\""), 2);
  const uint64_t old_epoch = prefill_->card().epoch();
  prefill_.reset();
  EXPECT_EQ(decode_->shared_pools()->Find(old_epoch).reason, transfer::PlaneReason::kNotOffered);
  worker::WorkerOptions options = OnDevice();
  options.kv_transport = transport_;
  prefill_ = *prefill_worker::PrefillWorker::Start(options);
  ask(2);
  EXPECT_EQ(Transfers("reason=\"opened\""), 4);
  ExpectIdle();
}

// Given, or chosen where both pools are in device memory. Before the first request the pool is
// open.
TEST_P(EmulatedGpuPairTest, OneAnswerFromDeviceToDevice) {
  if (on_cpu()) GTEST_SKIP() << "its pool is host memory";
  for (const char* transport : {"ipc", "auto"}) {
    decode_ = nullptr;
    prefill_ = nullptr;
    transport_ = transport;
    StartPair(OnDevice(), OnDevice());
    ExpectOpen();
    ExpectTheOraclesTokens(2);
    EXPECT_EQ(Transfers("reason=\"opened\""), 4);
    ExpectAllThroughDevices();
  }
}

// Whichever starts first.
TEST_P(EmulatedGpuPairTest, APrefillWorkerThatStartsLaterIsOpenBeforeItsFirstRequest) {
  if (on_cpu()) GTEST_SKIP() << "its pool is host memory";
  decode_ = *decode_worker::DecodeWorker::Start(OnDevice(), NothingLocal());
  channel_ = MakeChannel(decode_->address());
  prefill_ = *prefill_worker::PrefillWorker::Start(OnDevice());
  ExpectOpen();
  ExpectTheOraclesTokens(1);
  EXPECT_EQ(Transfers("reason=\"opened\""), 2);
  ExpectAllThroughDevices();
}

// A device that finds another probe block than the prefill worker's.
class MisreadingBackend final : public testing::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  std::unique_ptr<backend::KvCopier> MakeKvCopier(const backend::KvPool& pool) override {
    return std::make_unique<Copier>(ForwardingBackend::MakeKvCopier(pool));
  }

 private:
  class Copier final : public backend::KvCopier {
   public:
    explicit Copier(std::unique_ptr<backend::KvCopier> inner) : inner_(std::move(inner)) {}
    void Read(backend::SlotRange slots, absl::Span<const int32_t> pages,
              const backend::Event* written, std::byte* host) override {
      inner_->Read(slots, pages, written, host);
    }
    void Write(backend::SlotRange slots, absl::Span<const int32_t> pages,
               const std::byte* host) override {
      inner_->Write(slots, pages, host);
    }
    bool shares() const override { return inner_->shares(); }
    absl::StatusOr<backend::PoolHandle> Export() override { return inner_->Export(); }
    absl::StatusOr<std::unique_ptr<backend::PeerPool>> OpenPeer(
        const backend::PoolHandle& handle) override {
      backend::PoolHandle other = handle;
      ++other.probe_seed;
      return inner_->OpenPeer(other);
    }

   private:
    const std::unique_ptr<backend::KvCopier> inner_;
  };
};

TEST_P(EmulatedGpuPairTest, WhatADeviceCannotReadRightIsSent) {
  if (on_cpu()) GTEST_SKIP() << "its pool is host memory";
  transport_ = "auto";
  worker::WorkerOptions misreads = OnDevice();
  misreads.make_backend =
      [device = GetParam()](
          const backend::BackendOptions&) -> absl::StatusOr<std::unique_ptr<backend::Backend>> {
    auto made = device.make();
    if (!made.ok()) return made;
    return std::make_unique<MisreadingBackend>(*std::move(made));
  };
  StartPair(OnDevice(), misreads);
  ExpectTheOraclesTokens(1);
  EXPECT_EQ(Transfers("reason=\"unproven\""), 2);
  EXPECT_EQ(IpcBytes(decode_->metrics_address()), 0);
}

TEST_P(EmulatedGpuPairTest, WhatTheOtherEndDoesNotTakeIsNotOffered) {
  if (on_cpu()) GTEST_SKIP() << "its pool is host memory";
  struct Row {
    const char *prefill, *decode, *reason;
  };
  for (const Row& row : {Row{"auto", "ipc", "opened"}, Row{"grpc", "ipc", "not_offered"},
                         Row{"grpc", "auto", "not_offered"}, Row{"ipc", "auto", "opened"},
                         Row{"ipc", "shm", "not_offered"}, Row{"auto", "grpc", "off"}}) {
    SCOPED_TRACE(::testing::Message() << row.prefill << " to " << row.decode);
    worker::WorkerOptions prefill = OnDevice(), decode = OnDevice();
    prefill.kv_transport = row.prefill;
    decode.kv_transport = row.decode;
    decode_ = nullptr;
    prefill_ = *prefill_worker::PrefillWorker::Start(prefill);
    decode_ = *decode_worker::DecodeWorker::Start(decode, NothingLocal());
    channel_ = MakeChannel(decode_->address());
    for (int i = 0; i < 2; ++i) {
      const DecodeResult result = Decode(channel_, Request({1, 2, 3, 4 + i}, Greedy(), 2));
      ASSERT_TRUE(result.status.ok()) << result.status;
      if (decode_->shared_pools() != nullptr) decode_->shared_pools()->WaitUntilTried();
    }
    EXPECT_EQ(Transfers(std::string("reason=\"") + row.reason + "\""), 2);
    ExpectIdle();
  }
}

// What is asked for and cannot be is an error at the start, of either worker.
TEST_P(EmulatedGpuPairTest, ATransportThatAWorkerCannotDoKeepsItFromStarting) {
  const auto reasons = [](worker::WorkerOptions options, const std::string& transport) {
    options.kv_transport = transport;
    return std::make_pair(
        ErrorReason(prefill_worker::PrefillWorker::Start(options).status()),
        ErrorReason(decode_worker::DecodeWorker::Start(options, NothingLocal()).status()));
  };
  using Reasons = std::pair<std::string, std::string>;
  const bool device = !on_cpu();
  EXPECT_EQ(reasons(OnDevice(), "ipc"),
            device ? Reasons("", "") : Reasons("SHARED_MEMORY", "SHARED_MEMORY"));
  EXPECT_EQ(reasons(OnDevice(), "shm"), device ? Reasons("SHARED_MEMORY", "") : Reasons("", ""));
  EXPECT_EQ(reasons(OnDevice(), "auto"), Reasons("", ""));
}

}  // namespace
}  // namespace baton
