// KV tiers of a prefill worker, its loop turned by hand. The engine checks in every step that the
// KV it reads is that of the prompt's tokens.
#include "common/prefill/kv_tiers.h"

#include <gtest/gtest.h>
#include <prometheus/registry.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/kv_store/host_store.h"
#include "common/prefill/loop.h"
#include "common/prefill/tier_options.h"
#include "tests/common/prefill/fake_transfer.h"
#include "tests/decode_worker/fake_engine.h"
#include "tests/router/fake_clock.h"
#include "tests/testing/registry_values.h"
#include "tests/testing/seed.h"

namespace baton::prefill {
namespace {

using kv_store::SegmentBytes;
using kv_store::SegmentKey;

constexpr int kSegment = 32;  // two blocks

// A host store that fails as the test says.
class OddStore final : public kv_store::SegmentStore {
 public:
  OddStore(bool knows, int64_t bytes) : knows_(knows), store_(bytes) {}
  absl::string_view kind() const override { return knows_ ? "file" : "redis"; }
  bool knows_its_keys() const override { return knows_; }
  kv_store::StoreUsage usage() const override { return store_.usage(); }
  absl::StatusOr<int> CountLeading(absl::Span<const SegmentKey> keys, absl::Time when) override {
    if (!count_error.ok()) return count_error;
    if (count_takes != nullptr) BATON_RETURN_IF_ERROR(count_takes(when));
    return store_.CountLeading(keys, when);
  }
  absl::StatusOr<int> CountToLast(absl::Span<const SegmentKey> keys, absl::Time when) override {
    if (!count_error.ok()) return count_error;
    return store_.CountToLast(keys, when);
  }
  absl::StatusOr<SegmentBytes> Get(const SegmentKey& key, size_t max_bytes,
                                   absl::Time when) override {
    ++gets;
    if (hang != nullptr) hang->WaitForNotification();
    if (get_takes != nullptr) BATON_RETURN_IF_ERROR(get_takes(when));
    if (gets > fail_from) return absl::UnavailableError("gone");
    absl::StatusOr<SegmentBytes> value = store_.Get(key, max_bytes, when);
    if (!value.ok() || !damage || (of_states && !states.contains(key.prefix))) return value;
    auto damaged = std::make_shared<std::vector<std::byte>>(**value);
    damaged->at(damaged->size() / 2) ^= std::byte{4};
    return damaged;
  }
  absl::Status Put(const SegmentKey& key, const SegmentBytes& value, absl::Time when) override {
    if (put_hang != nullptr) put_hang->WaitForNotification();
    if (!put_error.ok()) return put_error;
    if (std::memcmp(value->data(), "BATONST1", 8) == 0) {
      states.emplace(key.prefix, key);
      ++state_puts;
    }
    return store_.Put(key, value, when);
  }
  void Listen(kv_store::KeyListener listener) override {
    if (knows_) store_.Listen(std::move(listener));
  }
  void Remove(const SegmentKey& key, absl::Time when) override {
    ++removed;
    store_.Remove(key, when);
  }

  // Set while no call is under way.
  absl::Status count_error, put_error;
  bool damage = false, of_states = false;
  int fail_from = 1 << 30;  // calls of Get
  absl::Notification *hang = nullptr, *put_hang = nullptr;
  std::function<absl::Status(absl::Time deadline)> get_takes, count_takes;
  std::atomic<int> gets = 0, removed = 0, state_puts = 0;
  std::map<kv::PrefixKey, SegmentKey> states;  // that it was given

 private:
  const bool knows_;
  kv_store::HostStore store_;
};

std::vector<int32_t> Rising(int tokens, int start) {
  std::vector<int32_t> prompt;
  for (int i = 0; i < tokens; ++i) prompt.push_back((start + i) % 1000);
  return prompt;
}

class KvTiersTest : public ::testing::Test {
 protected:
  ~KvTiersTest() override {
    if (loop_ == nullptr) return;
    Settle();
    loop_->Stop();
  }

  void Make(int blocks = 64, int least_uses = 1, int64_t store_bytes = 1 << 20, bool knows = true) {
    store_ = std::make_shared<OddStore>(knows, store_bytes);
    Restart(blocks, least_uses);
  }
  // A worker with nothing in its pool, and the same store.
  void Restart(int blocks = 64, int least_uses = 1) {
    if (loop_ != nullptr) {
      Settle();
      loop_->Stop();
    }
    engine_ = std::make_unique<testing::FakeEngine>(blocks, /*max_num_seqs=*/8,
                                                    /*max_num_batched_tokens=*/4096, recurrent_);
    engine_->on_step = [this](const engine::Batch& batch) {
      // A probe goes on beside the step: the only clock must not advance for both.
      while (loop_->jobs().tiers_probing()) std::this_thread::yield();
      clock_.Advance(absl::Milliseconds(1) * batch.rows());
    };
    LoopOptions options;
    options.own_thread = false;
    if (faster_ != nullptr) options.kv_tiers.stores = {faster_};
    options.kv_tiers.stores.push_back(store_);
    options.kv_tiers.segment_tokens = kSegment;
    options.kv_tiers.least_uses = least_uses;
    options.kv_tiers.max_pinned_share = 1;
    options.kv_tiers.max_listed = 100;
    options.max_snapshot_share = snapshot_share_;
    options.superseded_first = false;  // as workers with tiers
    options.scheduler.tier_segment_blocks = options.kv_tiers.segment_blocks(16);
    journal_ = std::make_unique<worker::CacheJournal>();
    metrics_ = std::make_unique<PrefillMetrics>(
        *(registry_ = std::make_unique<prometheus::Registry>()), "m");
    loop_ = std::make_unique<PrefillLoop>(options, *engine_, *journal_, clock_, *metrics_,
                                          [this](const worker::WorkerLoad& load) { load_ = load; });
  }
  std::shared_ptr<FakeTransfer> Submit(std::vector<int32_t> prompt) {
    auto asked = std::make_shared<FakeTransfer>();
    auto job = std::make_unique<PrefillJob>();
    job->id = ++last_id_;
    job->prompt_tokens = static_cast<int>(prompt.size());
    job->tokens = std::move(prompt);
    asked->JoinTo(*job);
    loop_->jobs().Submit(std::move(job));
    return asked;
  }
  // Until the job has ended.
  void Await(const FakeTransfer& job) {
    const absl::Time end = absl::Now() + absl::Seconds(60);
    while (!job.finish.has_value()) {
      ASSERT_LT(absl::Now(), end);
      loop_->Turn(absl::Milliseconds(100));
      loop_->CheckIntegrity();
    }
  }
  std::shared_ptr<FakeTransfer> Ask(std::vector<int32_t> prompt) {
    auto asked = Submit(std::move(prompt));
    Await(*asked);
    return asked;
  }
  // Until nothing is being written, nor held.
  void Settle() {
    const absl::Time end = absl::Now() + absl::Seconds(60);
    do {
      loop_->Turn(absl::Milliseconds(20));
      loop_->CheckIntegrity();
      ASSERT_LT(absl::Now(), end);
    } while (load_.counts.held + load_.counts.active > 0 || !loop_->jobs().tiers_idle());
  }
  void Flush() {
    Settle();
    loop_->FlushCache([](int) {});
    loop_->Turn(absl::ZeroDuration());
    EXPECT_EQ(load_.counts.free, load_.counts.total);
  }
  // A call of so long, which ends at its deadline.
  std::function<absl::Status(absl::Time)> Takes(absl::Duration time) {
    return [this, time](absl::Time deadline) {
      const absl::Duration left = std::max(deadline - clock_.Now(), absl::ZeroDuration());
      clock_.Advance(std::min(time, left));
      if (loop_->jobs().tiers_probing()) probed_ += std::min(time, left);
      return time <= left ? absl::OkStatus() : absl::DeadlineExceededError("slow");
    };
  }
  double Metric(const std::string& name, const std::string& label = "") {
    return testing::MetricValue(*registry_, "baton_kv_tier_" + name, label);
  }

  bool recurrent_ = false;
  double snapshot_share_ = 0.5;
  testing::FakeClock clock_;
  std::unique_ptr<worker::CacheJournal> journal_;
  std::unique_ptr<prometheus::Registry> registry_;
  std::unique_ptr<PrefillMetrics> metrics_;
  std::unique_ptr<testing::FakeEngine> engine_;
  std::shared_ptr<OddStore> faster_;  // before the next start
  std::shared_ptr<OddStore> store_;
  worker::WorkerLoad load_;
  uint64_t last_id_ = 0;
  absl::Duration probed_;  // of the clock's time
  std::unique_ptr<PrefillLoop> loop_;
};

TEST(TierOptionsTest, ASegmentFitsBlocksWhereThereIsATier) {
  TierOptions options;
  worker::WorkerOptions worker;
  worker.block_size = 2 * options.segment;
  EXPECT_EQ(ListTiers(options, &worker), absl::OkStatus());
  options.tiers = "host:1MB";
  EXPECT_EQ(ErrorField(ListTiers(options, &worker)), "--kv-tier-segment");
  options.segment = worker.block_size;
  EXPECT_EQ(ListTiers(options, &worker), absl::OkStatus());
}

// What is loaded goes to a faster store, too, and no prompt waits for that.
TEST_F(KvTiersTest, APromptDoesNotWaitForAFasterStore) {
  Make(64, 1, 1 << 20, /*knows=*/false);
  const std::vector<int32_t> prompt = Rising(200, 1);
  Ask(prompt);
  Settle();
  ASSERT_GT(store_->usage().segments, 0);
  absl::Notification released;
  faster_ = std::make_shared<OddStore>(/*knows=*/true, 1 << 20);
  faster_->put_hang = &released;
  Restart();
  const auto asked = Ask(prompt);
  EXPECT_EQ(asked->finish, absl::OkStatus());
  EXPECT_GT(asked->cached, 0) << "loaded";
  EXPECT_EQ(faster_->usage().segments, 0);
  released.Notify();
  const absl::Time end = absl::Now() + absl::Seconds(60);
  while (faster_->usage().segments == 0 && absl::Now() < end) Settle();
  EXPECT_GT(faster_->usage().segments, 0);
}

TEST_F(KvTiersTest, KvOutlivesThePoolAndTheWorker) {
  Make();
  const std::vector<int32_t> prompt = Rising(100, 5);
  EXPECT_EQ(Ask(prompt)->cached, 0);
  Flush();
  EXPECT_EQ(store_->usage().segments, 3);
  EXPECT_EQ(Ask(prompt)->cached, 96);
  EXPECT_EQ(Metric("lookups_total", "loaded"), 1);
  EXPECT_EQ(Metric("held_segments", "file"), 3);
  Restart();
  EXPECT_EQ(Ask(prompt)->cached, 96);
  // What is computed anew continues what was loaded.
  Flush();
  std::vector<int32_t> longer = prompt;
  for (const int32_t token : Rising(70, 400)) longer.push_back(token);
  EXPECT_EQ(Ask(longer)->cached, 96);
  Flush();
  EXPECT_EQ(Ask(longer)->cached, 160);
  // Another beginning: nothing.
  EXPECT_EQ(Ask(Rising(100, 6))->cached, 0);
}

TEST_F(KvTiersTest, RoutersLearnWhatTheTiersHaveAndHowLongALoadTakes) {
  Make();
  const std::vector<int32_t> prompt = Rising(100, 5);
  Ask(prompt);
  Flush();
  const std::vector<kv::PrefixKey> keys = kv::PrefixKeys(0, prompt, 16);
  std::vector<kv::PrefixKey> expected;
  for (const size_t end : {1, 3, 5}) expected.push_back(kv::TierKey(keys[end], kSegment));
  std::sort(expected.begin(), expected.end());
  const auto listed = [this] {
    std::vector<kv::PrefixKey> found = journal_->TakeSnapshot().keys;
    std::sort(found.begin(), found.end());
    return found;
  };
  EXPECT_EQ(listed(), expected) << "the pool is empty";
  EXPECT_EQ(load_.tier_load_time, absl::ZeroDuration());
  store_->get_takes = Takes(absl::Milliseconds(3));
  Ask(prompt);
  Flush();
  EXPECT_EQ(load_.tier_load_time, absl::Milliseconds(3));
  Restart();
  EXPECT_EQ(listed(), expected) << "before the first request";
  // It is remembered for routers, after the worker itself would try again.
  Ask(prompt);
  clock_.Advance(2 * TimeMean::kForgetAfter);
  Flush();
  EXPECT_EQ(load_.tier_load_time, absl::Milliseconds(3));
}

TEST_F(KvTiersTest, WhatWorkersShareIsNotListed) {
  Make(/*blocks=*/64, /*least_uses=*/1, /*store_bytes=*/1 << 20, /*knows=*/false);
  const std::vector<int32_t> prompt = Rising(100, 5);
  Ask(prompt);
  Flush();
  Ask(prompt);
  Flush();
  EXPECT_TRUE(journal_->TakeSnapshot().keys.empty());
  EXPECT_EQ(load_.tier_load_time, absl::ZeroDuration());
}

// From a hundredth to a hundred times the time that computing takes, a look-up likewise.
TEST_F(KvTiersTest, ATierOfAnySpeedCostsATwentiethOfThePromptAtMost) {
  const std::vector<int32_t> prompt = Rising(132, 5);
  const absl::Duration cold = absl::Milliseconds(132), segment = absl::Milliseconds(kSegment);
  for (const bool knows : {true, false}) {
    for (const double slow : {0.01, 0.1, 0.3, 0.9, 1.0, 1.1, 2.0, 10.0, 100.0}) {
      SCOPED_TRACE(absl::StrCat(knows ? "file" : "redis", ", ", slow, " of computing"));
      Make(/*blocks=*/64, /*least_uses=*/1, /*store_bytes=*/1 << 20, knows);
      for (int tokens = 8; tokens <= 128; tokens += 8) Ask(Rising(tokens, 300 + tokens));
      Ask(prompt);
      Flush();
      store_->get_takes = Takes(slow * segment);
      // Of a network, a hundredth of what a segment takes.
      if (!knows) store_->count_takes = Takes(slow * segment / 100);
      for (int round = 0; round < 3; ++round) {
        const absl::Duration begin = clock_.SinceStart() - probed_;
        const int cached = Ask(prompt)->cached;
        const absl::Duration took = clock_.SinceStart() - probed_ - begin;
        EXPECT_LE(took, 1.05 * cold + absl::Milliseconds(1)) << "round " << round;
        // A first segment that takes more than a twentieth is computed once, and then known.
        if (slow < 0.2 || (slow <= 0.3 && round > 0)) {
          EXPECT_EQ(cached, 128);
          EXPECT_LE(took, slow * 4.1 * segment + absl::Milliseconds(4 + 1));
        }
        Flush();
      }
    }
  }
}

TEST_F(KvTiersTest, ThePoolCountsFirstAndAPartOfASegmentIsLoadedWithIt) {
  Make();
  const std::vector<int32_t> prompt = Rising(140, 5);
  Ask(prompt);
  Flush();
  // One block and a half of the second segment are in the pool, the rest comes from the store.
  Ask({prompt.begin(), prompt.begin() + 56});
  EXPECT_EQ(Ask(prompt)->cached, 128);
  EXPECT_EQ(Metric("segments_total", "load"), 1 + 3);
}

TEST_F(KvTiersTest, OnlyWhatIsUsedTwiceIsStored) {
  Make(/*blocks=*/64, /*least_uses=*/2);
  const std::vector<int32_t> prompt = Rising(100, 5);
  Ask(prompt);
  Flush();
  EXPECT_EQ(store_->usage().segments, 0);
  std::vector<int32_t> sibling(prompt.begin(), prompt.begin() + 64);
  for (const int32_t token : Rising(40, 700)) sibling.push_back(token);
  Ask(sibling);
  Flush();
  EXPECT_EQ(store_->usage().segments, 2);  // what they share
  EXPECT_EQ(Ask(prompt)->cached, 64);
}

TEST_F(KvTiersTest, DamageIsComputedAndDropped) {
  Make();
  const std::vector<int32_t> prompt = Rising(100, 5);
  Ask(prompt);
  Flush();
  store_->damage = true;
  EXPECT_EQ(Ask(prompt)->cached, 0);
  EXPECT_EQ(store_->removed, 1);
  EXPECT_EQ(Metric("failures_total", "damaged"), 1);
  EXPECT_EQ(Metric("lookups_total", "failed"), 1);
  store_->damage = false;
  Flush();
  EXPECT_EQ(Ask(prompt)->cached, 96);  // it was stored anew
}

TEST_F(KvTiersTest, WhatCameBeforeAFailureIsUsed) {
  Make();
  const std::vector<int32_t> prompt = Rising(100, 5);
  Ask(prompt);
  Flush();
  store_->fail_from = store_->gets + 2;
  EXPECT_EQ(Ask(prompt)->cached, 64);
  EXPECT_EQ(Metric("lookups_total", "partial"), 1);
}

TEST_F(KvTiersTest, AFullStoreIsNotAskedWithEveryUse) {
  Make(/*blocks=*/64, /*least_uses=*/1, /*store_bytes=*/10);
  for (int i = 0; i < 3; ++i) Ask(Rising(40, 5));
  Settle();
  EXPECT_GE(Metric("failures_total", "full"), 1);
  EXPECT_EQ(store_->usage().segments, 0);
}

TEST_F(KvTiersTest, JobsOfOnePrefixShareALoad) {
  Make();
  const std::vector<int32_t> prompt = Rising(100, 5);
  Ask(prompt);
  Flush();
  absl::Notification go;
  store_->hang = &go;
  auto first = Submit(prompt), second = Submit(prompt);
  std::vector<int32_t> longer = prompt;
  for (const int32_t token : Rising(70, 400)) longer.push_back(token);
  auto third = Submit(longer);
  loop_->Turn(absl::ZeroDuration());
  go.Notify();
  for (const auto& asked : {first, second, third}) {
    Await(*asked);
    EXPECT_EQ(asked->cached, 96);
  }
  EXPECT_EQ(Metric("lookups_total", "loaded"), 1);
}

TEST_F(KvTiersTest, AStoreThatHangsCostsADeadlineAndNoBlock) {
  Make();
  const std::vector<int32_t> prompt = Rising(100, 5);
  Ask(prompt);
  Flush();
  absl::Notification go;
  store_->hang = &go;
  auto asked = Submit(prompt);
  while (store_->gets == 0) loop_->Turn(absl::Milliseconds(1));
  EXPECT_FALSE(asked->finish.has_value());
  EXPECT_GT(load_.counts.held, 0);
  clock_.Advance(absl::Seconds(10));
  Await(*asked);
  EXPECT_EQ(asked->cached, 0);
  loop_->Turn(absl::ZeroDuration());  // the job's KV has been sent
  EXPECT_EQ(load_.counts.held, 0);
  // While a call hangs, no other job waits for the store.
  loop_->FlushCache([](int) {});
  EXPECT_EQ(Ask(prompt)->cached, 0);
  EXPECT_EQ(Metric("lookups_total", "no_room"), 1);
  go.Notify();
  Flush();
  store_->hang = nullptr;
  EXPECT_EQ(Ask(prompt)->cached, 96);
}

TEST_F(KvTiersTest, AJobThatEndsLeavesItsLoad) {
  Make();
  const std::vector<int32_t> prompt = Rising(100, 5);
  Ask(prompt);
  Flush();
  absl::Notification go;
  store_->hang = &go;
  auto asked = Submit(prompt);
  while (store_->gets == 0) loop_->Turn(absl::Milliseconds(1));
  loop_->jobs().Cancel(last_id_);
  Await(*asked);
  EXPECT_EQ(asked->finish->code(), absl::StatusCode::kCancelled);
  go.Notify();
  Settle();
  store_->hang = nullptr;
  EXPECT_EQ(Ask(prompt)->cached, 96);  // what came is cached all the same
}

TEST_F(KvTiersTest, AStoreThatMustBeAskedIsAskedOffTheLoop) {
  Make(64, 1, 1 << 20, /*knows=*/false);
  const std::vector<int32_t> prompt = Rising(100, 5);
  EXPECT_EQ(Ask(prompt)->cached, 0);
  EXPECT_EQ(Metric("lookups_total", "absent"), 1);
  Flush();
  EXPECT_EQ(Ask(prompt)->cached, 96);
  Flush();
  store_->count_error = absl::UnavailableError("gone");
  EXPECT_EQ(Ask(prompt)->cached, 0);
  EXPECT_EQ(Metric("failures_total", "look_up"), 1);
}

TEST_F(KvTiersTest, ALoadTakesAShareOfThePoolOnly) {
  Make(/*blocks=*/20);
  const std::vector<int32_t> prompt = Rising(200, 5);
  Ask(prompt);
  Flush();
  EXPECT_EQ(Ask(prompt)->cached, 0);  // 12 blocks of 20 are more than a quarter
  EXPECT_EQ(Metric("lookups_total", "no_room"), 1);
}

TEST_F(KvTiersTest, TheWorkerEndsWhileALoadIsUnderWay) {
  Make();
  const std::vector<int32_t> prompt = Rising(100, 5);
  Ask(prompt);
  Flush();
  auto asked = Submit(prompt);
  loop_->Turn(absl::ZeroDuration());
  Settle();
  loop_->Stop();
  EXPECT_TRUE(asked->finish.has_value());
}

// Of a recurrent model: a block takes a page, and a state another.
class KvTierStatesTest : public KvTiersTest {
 protected:
  KvTierStatesTest() { recurrent_ = true; }
  // Pushes the snapshots of other prompts out.
  void FillSnapshots() {
    for (int start = 300; start < 500; start += 40) Ask(Rising(20, start));
  }
  std::vector<int32_t> prompt_ = Rising(100, 5);
};

TEST_F(KvTierStatesTest, StatesOutliveThePoolAndTheWorker) {
  Make();
  EXPECT_EQ(Ask(prompt_)->cached, 0);
  Flush();
  EXPECT_EQ(store_->usage().segments, 3 + 1);
  EXPECT_EQ(store_->state_puts, 1);
  EXPECT_EQ(Ask(prompt_)->cached, 96);
  Restart();
  EXPECT_EQ(Ask(prompt_)->cached, 96);
  // The end of a segment is no end of the prompt, but it leaves a snapshot there.
  std::vector<int32_t> longer = prompt_;
  for (const int32_t token : Rising(79, 400)) longer.push_back(token);
  EXPECT_EQ(Ask(longer)->cached, 96);
  Flush();
  EXPECT_EQ(Ask(longer)->cached, 160);
  EXPECT_EQ(store_->state_puts, 2);
  // A prompt that leaves the path leaves a state at the last end of a segment before that.
  std::vector<int32_t> sibling(longer.begin(), longer.begin() + 130);
  for (const int32_t token : Rising(40, 700)) sibling.push_back(token);
  EXPECT_EQ(Ask(sibling)->cached, 96);
  Flush();
  sibling[140] += 1;
  EXPECT_EQ(Ask(sibling)->cached, 128);
}

TEST_F(KvTierStatesTest, OnlyWhatIsUsedTwiceIsStored) {
  Make(/*blocks=*/64, /*least_uses=*/2);
  Ask(prompt_);
  Settle();
  EXPECT_EQ(store_->usage().segments, 0);
  Ask(prompt_);
  Settle();
  EXPECT_EQ(store_->usage().segments, 3 + 1);
  Ask(prompt_);
  Flush();
  EXPECT_EQ(store_->usage().segments, 3 + 1);
  EXPECT_EQ(Ask(prompt_)->cached, 96);
}

TEST_F(KvTierStatesTest, WithoutAStateKvIsOfNoUse) {
  Make();
  Ask(prompt_);
  Flush();
  for (const auto& [prefix, key] : store_->states) store_->Remove(key, absl::InfiniteFuture());
  EXPECT_EQ(Ask(prompt_)->cached, 0);
  EXPECT_EQ(Metric("lookups_total", "absent"), 2);
  EXPECT_EQ(store_->gets, 0) << "no KV was read";
  Flush();
  EXPECT_EQ(Ask(prompt_)->cached, 96) << "it was stored anew";
}

TEST_F(KvTierStatesTest, OfKvInThePoolOnlyTheStateIsLoaded) {
  snapshot_share_ = 0;  // two
  Make();
  Ask(prompt_);
  Settle();
  FillSnapshots();
  Settle();
  ASSERT_EQ(Ask(prompt_)->cached, 96);
  EXPECT_EQ(Metric("segments_total", "load"), 1);
  EXPECT_EQ(Metric("lookups_total", "loaded"), 1);
  // The pool has it again.
  ASSERT_EQ(Ask(prompt_)->cached, 96);
  EXPECT_EQ(Metric("segments_total", "load"), 1);
}

TEST_F(KvTierStatesTest, SnapshotsThatThePoolHadToDropAreFoundInTheTier) {
  snapshot_share_ = 0;
  Make(/*blocks=*/400);
  std::vector<std::vector<int32_t>> conversations;
  for (int i = 0; i < 8; ++i) conversations.push_back(Rising(70, 100 * i));
  for (int turn = 0; turn < 4; ++turn) {
    for (std::vector<int32_t>& conversation : conversations) {
      const int before = static_cast<int>(conversation.size()) - 40;
      const int cached = Ask(conversation)->cached;
      Settle();
      if (turn > 0) {
        EXPECT_GE(cached, before / 32 * 32) << "turn " << turn;
      }
      for (const int32_t token : Rising(40, conversation.back() + 3)) conversation.push_back(token);
    }
  }
}

TEST_F(KvTierStatesTest, DamageIsComputedAndDropped) {
  Make();
  Ask(prompt_);
  Flush();
  store_->damage = store_->of_states = true;
  EXPECT_EQ(Ask(prompt_)->cached, 0) << "KV alone is of no use";
  EXPECT_EQ(store_->removed, 1);
  EXPECT_EQ(Metric("failures_total", "damaged"), 1);
  EXPECT_EQ(Metric("lookups_total", "failed"), 1);
  store_->damage = false;
  Flush();
  EXPECT_EQ(Ask(prompt_)->cached, 96);
  EXPECT_EQ(store_->state_puts, 2);
}

TEST_F(KvTierStatesTest, WhatComesWithoutAStateIsGivenBack) {
  Make();
  Ask(prompt_);
  Flush();
  store_->fail_from = store_->gets + 2;
  EXPECT_EQ(Ask(prompt_)->cached, 0);
  EXPECT_EQ(Metric("lookups_total", "failed"), 1);
  store_->fail_from = 1 << 30;
  Flush();
  EXPECT_EQ(Ask(prompt_)->cached, 96);
}

TEST_F(KvTierStatesTest, RoutersLearnOfStates) {
  Make();
  Ask(prompt_);
  Flush();
  const std::vector<kv::PrefixKey> keys = kv::PrefixKeys(0, prompt_, 16);
  std::vector<kv::PrefixKey> expected = {kv::TierKey(kv::SnapshotKey(keys[5]), kSegment)};
  for (const size_t end : {1, 3, 5}) expected.push_back(kv::TierKey(keys[end], kSegment));
  std::sort(expected.begin(), expected.end());
  std::vector<kv::PrefixKey> listed = journal_->TakeSnapshot().keys;
  std::sort(listed.begin(), listed.end());
  EXPECT_EQ(listed, expected);
}

// The second time, and the third, it is known how long values take.
TEST_F(KvTierStatesTest, ATierOfAnySteadySpeedCostsATwentiethAtMost) {
  const std::vector<int32_t> prompt = Rising(132, 5);
  const absl::Duration cold = absl::Milliseconds(132), segment = absl::Milliseconds(kSegment);
  for (const double slow : {0.01, 0.1, 0.3, 0.9, 1.1, 10.0}) {
    SCOPED_TRACE(slow);
    Make();
    for (int tokens = 8; tokens <= 128; tokens += 8) Ask(Rising(tokens, 300 + tokens));
    Ask(prompt);
    Flush();
    store_->get_takes = Takes(slow * segment);
    for (int round = 0; round < 4; ++round) {
      const absl::Duration begin = clock_.SinceStart() - probed_;
      const int cached = Ask(prompt)->cached;
      const absl::Duration took = clock_.SinceStart() - probed_ - begin;
      EXPECT_LE(took, 1.05 * cold + absl::Milliseconds(1)) << "round " << round;
      if (slow <= 0.01 || (slow <= 0.1 && round > 0)) {
        EXPECT_EQ(cached, 128) << "round " << round;
      }
      Flush();
    }
  }
}

// Prompts that part anywhere, a pool and a store that are too small, values that are damaged, and
// restarts: the engine finds the KV and the state of each prompt's own tokens.
TEST_F(KvTierStatesTest, WhateverIsLostNothingWrongIsUsed) {
  const uint32_t seed = testing::TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (const bool knows : {true, false}) {
    snapshot_share_ = random() % 2 == 0 ? 0.2 : 0.5;
    const int pages = 48 + static_cast<int>(random() % 60);
    Make(pages, 1 + static_cast<int>(random() % 2), 1000 + random() % 20000, knows);
    std::vector<std::vector<int32_t>> prompts = {Rising(120, 7)};
    int cached = 0;
    for (int i = 0; i < 120; ++i) {
      const std::vector<int32_t>& from = prompts[random() % prompts.size()];
      std::vector<int32_t> prompt(from.begin(),
                                  from.begin() + static_cast<int>(random() % from.size()));
      const int own = 1 + static_cast<int>(random() % 60);
      for (const int32_t token : Rising(own, static_cast<int>(random() % 900))) {
        prompt.push_back(token);
      }
      if (prompt.size() > 200) prompt.resize(200);
      store_->damage = random() % 8 == 0;
      std::vector<std::shared_ptr<FakeTransfer>> asked = {Submit(prompt)};
      if (random() % 3 == 0) asked.push_back(Submit(prompts[random() % prompts.size()]));
      for (const auto& one : asked) {
        Await(*one);
        ASSERT_TRUE(one->finish->ok()) << *one->finish;
        cached += one->cached;
      }
      prompts.push_back(std::move(prompt));
      if (prompts.size() > 12) prompts.erase(prompts.begin());
      if (random() % 6 == 0) Flush();
      if (random() % 20 == 0) Restart(pages);
    }
    EXPECT_GT(cached, 0);
    EXPECT_GT(store_->state_puts, 0);
    Settle();
  }
}

}  // namespace
}  // namespace baton::prefill
