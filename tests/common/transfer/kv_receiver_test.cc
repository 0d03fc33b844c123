#include "common/transfer/kv_receiver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "tests/router/fake_clock.h"
#include "tests/testing/device_kv.h"
#include "tests/testing/seed.h"

namespace baton::transfer {
namespace {

using internal::v1::PrefillFrame;
using Phase = KvReceiver::Phase;

constexpr uint64_t kTransfer = 0xabcdef;
constexpr uint64_t kEpoch = 0x1234;

struct Frame {
  PrefillFrame header;
  std::string payload;
  Segments segments() const {
    if (payload.empty()) return {};
    // Two pieces, as a receive buffer may have them.
    const size_t half = payload.size() / 2;
    return {absl::MakeConstSpan(payload).first(half), absl::MakeConstSpan(payload).subspan(half)};
  }
};

void Seal(Frame& frame) {
  frame.header.set_checksum(FrameChecksum(frame.header, frame.segments()));
}

// A pool of 8 blocks and a transfer of sequence blocks 2 to 5 into pool blocks 6, 1, 3.
class TransferFixture : public ::testing::Test {
 protected:
  TransferFixture() {
    layout_.layers = 2;
    layout_.kv_heads = 1;
    layout_.head_dim = 4;
    layout_.block_tokens = 16;
    layout_.dtype = kv::KvDtype::kF32;
    layout_.format_version = 1;
    host_memory_.assign(8 * layout_.BlockBytes(), std::byte{0xee});
    plan_.transfer_id = kTransfer;
    plan_.sender_epoch = kEpoch;
    plan_.layout = layout_;
    plan_.pool.base = host_memory_.data();
    plan_.pool.block_stride_bytes = static_cast<int64_t>(layout_.BlockBytes());
    plan_.pool.layer_stride_bytes = static_cast<int64_t>(layout_.ChunkBytes());
    plan_.pool.block_count = 8;
    plan_.first_block = 2;
    plan_.blocks = {6, 1, 3};
    plan_.token_count = 100;
  }

  static Frame Header() {
    Frame frame;
    frame.header.set_transfer_id(kTransfer);
    frame.header.set_epoch(kEpoch);
    return frame;
  }
  Frame Accepted(int blocks = 3) const {
    Frame frame = Header();
    frame.header.mutable_accepted()->set_kv_layout_fingerprint(layout_.Fingerprint());
    frame.header.mutable_accepted()->set_block_count(blocks);
    frame.header.mutable_accepted()->set_cached_prompt_tokens(32);
    Seal(frame);
    return frame;
  }
  // Content of (layer, sequence block): all bytes the same, different for each pair.
  static char Fill(int layer, int block) { return static_cast<char>(16 * (layer + 1) + block); }
  Frame Chunk(int layer, int first_block, int count) const {
    Frame frame = Header();
    frame.header.mutable_kv_chunk()->set_layer(layer);
    frame.header.mutable_kv_chunk()->set_first_block(first_block);
    frame.header.mutable_kv_chunk()->set_block_count(count);
    for (int i = 0; i < count; ++i) {
      frame.payload.append(layout_.ChunkBytes(), Fill(layer, first_block + i));
    }
    Seal(frame);
    return frame;
  }
  Frame FirstToken(int32_t token) const {
    Frame frame = Header();
    frame.header.mutable_first_token()->set_token_id(token);
    Seal(frame);
    return frame;
  }
  Frame Commit(int chunks) const {
    Frame frame = Header();
    frame.header.mutable_commit()->set_kv_chunk_count(chunks);
    frame.header.mutable_commit()->set_prefill_ms(1.5);
    Seal(frame);
    return frame;
  }
  std::vector<Frame> WholeTransfer() const {
    return {Accepted(),     Chunk(0, 2, 2), Chunk(1, 2, 2),
            Chunk(0, 4, 1), FirstToken(7),  Chunk(1, 4, 1)};
  }
  static absl::Status Give(KvReceiver& receiver, const Frame& frame) {
    return receiver.OnFrame(frame.header, frame.segments());
  }
  std::vector<std::byte>& memory() { return device_ ? device_->memory() : host_memory_; }
  void ExpectBlocksWhole() {
    for (int layer = 0; layer < 2; ++layer) {
      for (int i = 0; i < 3; ++i) {
        const std::byte* chunk =
            memory().data() + plan_.blocks[i] * layout_.BlockBytes() + layer * layout_.ChunkBytes();
        for (int64_t k = 0; k < static_cast<int64_t>(layout_.ChunkBytes()); ++k) {
          ASSERT_EQ(static_cast<char>(chunk[k]), Fill(layer, 2 + i));
        }
      }
    }
  }
  void ExpectOtherBlocksUntouched() {
    for (int block : {0, 2, 4, 5, 7}) {
      const std::byte* begin = memory().data() + block * layout_.BlockBytes();
      EXPECT_TRUE(std::all_of(begin, begin + layout_.BlockBytes(),
                              [](std::byte byte) { return byte == std::byte{0xee}; }));
    }
  }

  kv::KvLayout layout_;
  std::vector<std::byte> host_memory_;
  TransferPlan plan_;
  std::unique_ptr<baton::testing::DeviceKv> device_;
};

// In the host's memory, or in a device's.
class KvReceiverTest : public TransferFixture, public ::testing::WithParamInterface<bool> {
 protected:
  KvReceiverTest() {
    if (GetParam()) device_ = std::make_unique<baton::testing::DeviceKv>(plan_.pool, 2);
  }
  int device_writes() const { return device_ ? device_->writes() : 0; }
};

INSTANTIATE_TEST_SUITE_P(Memory, KvReceiverTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Device" : "Host"; });

TEST_P(KvReceiverTest, CommitsAWholeTransferInAnyOrder) {
  std::vector<Frame> frames = WholeTransfer();
  std::mt19937 random(testing::TestSeed(3));
  for (int i = 0; i < 50; ++i) {
    std::shuffle(frames.begin(), frames.end(), random);
    std::fill(memory().begin(), memory().end(), std::byte{0xee});
    KvReceiver receiver(plan_);
    EXPECT_EQ(receiver.phase(), Phase::kReserved);
    for (const Frame& frame : frames) {
      ASSERT_TRUE(Give(receiver, frame).ok());
      EXPECT_EQ(receiver.phase(), Phase::kReceiving);
    }
    ASSERT_TRUE(Give(receiver, Commit(4)).ok());
    EXPECT_EQ(receiver.phase(), Phase::kCommitted);
    ASSERT_TRUE(receiver.first_token().has_value());
    EXPECT_EQ(receiver.first_token()->token_id, 7);
    EXPECT_EQ(receiver.summary().cached_prompt_tokens, 32);
    EXPECT_EQ(receiver.summary().kv_bytes, static_cast<int64_t>(6 * layout_.ChunkBytes()));
    ExpectBlocksWhole();
    ExpectOtherBlocksUntouched();
  }
}

TEST_P(KvReceiverTest, AFetchMayBringFewerBlocksAndNoToken) {
  plan_.fetch = true;
  for (const int count : {0, 1, 2, 3}) {
    std::fill(memory().begin(), memory().end(), std::byte{0xee});
    KvReceiver receiver(plan_);
    ASSERT_TRUE(Give(receiver, Accepted(count)).ok());
    for (int layer = 0; count > 0 && layer < 2; ++layer) {
      ASSERT_TRUE(Give(receiver, Chunk(layer, 2, count)).ok());
    }
    ASSERT_TRUE(Give(receiver, Commit(count > 0 ? 2 : 0)).ok());
    EXPECT_EQ(receiver.phase(), Phase::kCommitted);
    EXPECT_EQ(receiver.summary().block_count, count);
    EXPECT_EQ(receiver.summary().kv_bytes, count * layout_.BlockBytes());
    if (count == 3) ExpectBlocksWhole();
    ExpectOtherBlocksUntouched();
  }
}

TEST_P(KvReceiverTest, AFetchThatBreaksItsPromiseIsNotCommitted) {
  plan_.fetch = true;
  const std::vector<std::vector<Frame>> cases = {
      {Accepted(4)},                                             // more than requested
      {Accepted(-1)},                                            //
      {Accepted(2), Chunk(0, 4, 1)},                             // a block that was not promised
      {Chunk(0, 2, 1)},                                          // before the promise
      {Accepted(1), Chunk(0, 2, 1), Commit(1)},                  // a layer is missing
      {Accepted(1), Chunk(0, 2, 1), Chunk(1, 2, 1), Commit(1)},  // a wrong count
      {Accepted(0), FirstToken(7)},
      {Commit(0)},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    KvReceiver receiver(plan_);
    absl::Status status;
    for (const Frame& frame : cases[i]) {
      ASSERT_TRUE(status.ok()) << i;
      status = Give(receiver, frame);
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << i;
    EXPECT_EQ(receiver.phase(), Phase::kAborted) << i;
  }
}

TEST_P(KvReceiverTest, ARepeatedChunkIsHarmless) {
  KvReceiver receiver(plan_);
  for (const Frame& frame : WholeTransfer()) {
    ASSERT_TRUE(Give(receiver, frame).ok());
    if (frame.header.has_kv_chunk()) {
      ASSERT_TRUE(Give(receiver, frame).ok());
    }
  }
  EXPECT_TRUE(Give(receiver, Commit(4)).ok());
  ExpectBlocksWhole();
  // One copy a frame, and none for a repetition.
  EXPECT_EQ(device_writes(), GetParam() ? 4 : 0);
}

TEST_P(KvReceiverTest, AChunkMayHaveSeveralLayers) {
  const auto both = [&](int first_block, int count) {
    Frame frame = Chunk(0, first_block, count);
    frame.header.mutable_kv_chunk()->set_layer_count(2);
    frame.payload.clear();
    for (int block = first_block; block < first_block + count; ++block) {
      for (const int layer : {0, 1}) frame.payload += Chunk(layer, block, 1).payload;
    }
    Seal(frame);
    return frame;
  };
  for (const int apart : {0, 1, 2, 3}) {
    std::fill(memory().begin(), memory().end(), std::byte{0xee});
    const int writes = device_writes();
    KvReceiver receiver(plan_);
    ASSERT_TRUE(Give(receiver, Accepted()).ok());
    ASSERT_TRUE(Give(receiver, FirstToken(7)).ok());
    int chunks = 0;
    if (apart > 0) {
      ASSERT_TRUE(Give(receiver, both(2, apart)).ok());
      ASSERT_TRUE(Give(receiver, both(2, apart)).ok()) << "a repetition";
      ++chunks;
    }
    for (int layer = 0; layer < 2 && apart < 3; ++layer) {
      ASSERT_TRUE(Give(receiver, Chunk(layer, 2 + apart, 3 - apart)).ok());
      ++chunks;
    }
    ASSERT_TRUE(Give(receiver, Commit(chunks)).ok());
    EXPECT_EQ(receiver.summary().kv_bytes, static_cast<int64_t>(6 * layout_.ChunkBytes()));
    ExpectBlocksWhole();
    ExpectOtherBlocksUntouched();
    EXPECT_EQ(device_writes() - writes, GetParam() ? chunks : 0);
  }
  // Some of its layers have come before.
  KvReceiver receiver(plan_);
  ASSERT_TRUE(Give(receiver, Chunk(1, 2, 1)).ok());
  EXPECT_EQ(AbortReasonOf(Give(receiver, both(2, 1))), AbortReason::kProtocol);
}

TEST_P(KvReceiverTest, NoCommitWithoutAnyOneFrame) {
  const std::vector<Frame> frames = WholeTransfer();
  for (size_t missing = 0; missing < frames.size(); ++missing) {
    KvReceiver receiver(plan_);
    for (size_t i = 0; i < frames.size(); ++i) {
      if (i != missing) {
        ASSERT_TRUE(Give(receiver, frames[i]).ok());
      }
    }
    const absl::Status status = Give(receiver, Commit(4));
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << missing;
    EXPECT_EQ(receiver.phase(), Phase::kAborted);
  }
}

TEST_P(KvReceiverTest, EveryFlippedBitOfEveryFrameIsFound) {
  std::vector<Frame> frames = WholeTransfer();
  frames.push_back(Commit(4));
  int flips = 0;
  for (size_t target = 0; target < frames.size(); ++target) {
    const std::string header = frames[target].header.SerializeAsString();
    const size_t bits = 8 * (header.size() + frames[target].payload.size());
    for (size_t bit = 0; bit < bits; bit += (bit < 8 * header.size() ? 1 : 7)) {
      Frame bad = frames[target];
      std::string bytes = header;
      if (bit < 8 * header.size()) {
        bytes[bit / 8] ^= static_cast<char>(1 << (bit % 8));
        if (!bad.header.ParseFromString(bytes)) continue;  // refused before it gets here
        // A flip that Protobuf reads as the same message is no change.
        if (bad.header.SerializeAsString() == header) continue;
      } else {
        bad.payload[bit / 8 - header.size()] ^= static_cast<char>(1 << (bit % 8));
      }
      // Fields we do not know are not part of a frame, and what is left of it must not pass.
      bad.header.DiscardUnknownFields();
      KvReceiver receiver(plan_);
      for (size_t i = 0; i < target; ++i) ASSERT_TRUE(Give(receiver, frames[i]).ok());
      const int writes = device_writes();
      EXPECT_FALSE(Give(receiver, bad).ok()) << "frame " << target << " bit " << bit;
      EXPECT_EQ(receiver.phase(), Phase::kAborted);
      EXPECT_EQ(device_writes(), writes);
      ++flips;
    }
  }
  EXPECT_GT(flips, 1000);
}

TEST_P(KvReceiverTest, RefusesWhatBelongsElsewhere) {
  struct Case {
    const char* name;
    std::function<void(Frame&)> change;
    AbortReason reason;
  };
  const std::vector<Case> cases = {
      {"transfer", [](Frame& f) { f.header.set_transfer_id(1); }, AbortReason::kProtocol},
      {"epoch", [](Frame& f) { f.header.set_epoch(kEpoch + 1); }, AbortReason::kEpoch},
      {"layer low", [](Frame& f) { f.header.mutable_kv_chunk()->set_layer(-1); },
       AbortReason::kProtocol},
      {"layer high", [](Frame& f) { f.header.mutable_kv_chunk()->set_layer(2); },
       AbortReason::kProtocol},
      {"block low", [](Frame& f) { f.header.mutable_kv_chunk()->set_first_block(1); },
       AbortReason::kProtocol},
      {"block high", [](Frame& f) { f.header.mutable_kv_chunk()->set_first_block(5); },
       AbortReason::kProtocol},
      {"block overflow", [](Frame& f) { f.header.mutable_kv_chunk()->set_first_block(2147483647); },
       AbortReason::kProtocol},
      {"count zero", [](Frame& f) { f.header.mutable_kv_chunk()->set_block_count(0); },
       AbortReason::kProtocol},
      {"count overflow", [](Frame& f) { f.header.mutable_kv_chunk()->set_block_count(2147483647); },
       AbortReason::kProtocol},
      {"layer count", [](Frame& f) { f.header.mutable_kv_chunk()->set_layer_count(2); },
       AbortReason::kProtocol},
      {"layer count negative", [](Frame& f) { f.header.mutable_kv_chunk()->set_layer_count(-1); },
       AbortReason::kProtocol},
      {"layer count overflow",
       [](Frame& f) {
         f.header.mutable_kv_chunk()->set_layer(1);
         f.header.mutable_kv_chunk()->set_layer_count(2147483647);
       },
       AbortReason::kProtocol},
      {"layers without payload",
       [](Frame& f) {
         f.header.mutable_kv_chunk()->set_layer(0);
         f.header.mutable_kv_chunk()->set_layer_count(2);
       },
       AbortReason::kProtocol},
      {"short payload", [](Frame& f) { f.payload.pop_back(); }, AbortReason::kProtocol},
      {"long payload", [](Frame& f) { f.payload.push_back(0); }, AbortReason::kProtocol},
      {"kind", [](Frame& f) { f.header.clear_frame(); }, AbortReason::kProtocol},
  };
  for (const Case& c : cases) {
    Frame frame = Chunk(1, 3, 1);
    c.change(frame);
    Seal(frame);  // an honest checksum: the check on the field itself must find it
    KvReceiver receiver(plan_);
    const absl::Status status = Give(receiver, frame);
    EXPECT_FALSE(status.ok()) << c.name;
    EXPECT_EQ(AbortReasonOf(status), c.reason) << c.name << ": " << status;
  }
  // Nothing of a refused frame has been written anywhere.
  EXPECT_TRUE(std::all_of(memory().begin(), memory().end(),
                          [](std::byte byte) { return byte == std::byte{0xee}; }));
  EXPECT_EQ(device_writes(), 0);
}

TEST_P(KvReceiverTest, RefusesAnotherLayoutWithBothValues) {
  Frame frame = Accepted();
  frame.header.mutable_accepted()->set_kv_layout_fingerprint(5);
  Seal(frame);
  KvReceiver receiver(plan_);
  const absl::Status status = Give(receiver, frame);
  EXPECT_EQ(AbortReasonOf(status), AbortReason::kLayout);
  EXPECT_NE(status.message().find("layout 5"), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find(layout_.ToString()), std::string::npos) << status;
}

TEST(AbortReasonTest, ARefusalIsNoLoss) {
  using Code = absl::StatusCode;
  const auto name = [](Code code, const char* reason) {
    return std::string(Name(AbortReasonOf(MakeError(code, reason, "why"))));
  };
  EXPECT_EQ(name(Code::kUnavailable, "PREFILL_LOST"), "peer_lost");
  EXPECT_EQ(name(Code::kUnavailable, "DRAINING"), "refused");
  EXPECT_EQ(name(Code::kResourceExhausted, "QUEUE_FULL"), "refused");
  EXPECT_EQ(name(Code::kResourceExhausted, "DEADLINE_UNREACHABLE"), "refused");
  EXPECT_EQ(name(Code::kInvalidArgument, "OUT_OF_RANGE"), "refused");
  EXPECT_EQ(name(Code::kFailedPrecondition, "MODEL_MISMATCH"), "refused");
  EXPECT_EQ(name(Code::kInternal, "NON_FINITE_LOGITS"), "failed");
  EXPECT_EQ(name(Code::kDataLoss, "CHECKSUM"), "checksum");
  EXPECT_EQ(AbortReasonOf(absl::UnavailableError("Socket closed")), AbortReason::kPeerLost);
  EXPECT_EQ(AbortReasonOf(absl::InternalError("RST_STREAM")), AbortReason::kPeerLost);
}

TEST_P(KvReceiverTest, RefusesTokensAndPartialOverlaps) {
  for (const int32_t token : {-1, 100, 2147483647}) {
    KvReceiver receiver(plan_);
    EXPECT_FALSE(Give(receiver, FirstToken(token)).ok());
  }
  KvReceiver overlap(plan_);
  ASSERT_TRUE(Give(overlap, Chunk(0, 2, 2)).ok());
  EXPECT_FALSE(Give(overlap, Chunk(0, 3, 2)).ok());
  KvReceiver twice(plan_);
  ASSERT_TRUE(Give(twice, FirstToken(1)).ok());
  EXPECT_FALSE(Give(twice, FirstToken(1)).ok());
}

TEST_P(KvReceiverTest, RefusesNumbersThatCannotBe) {
  // Blocks 2 to 4 hold the last of the prompt's at most 80 tokens.
  for (const int cached : {std::numeric_limits<int>::min(), -1, 81}) {
    KvReceiver receiver(plan_);
    Frame accepted = Accepted();
    accepted.header.mutable_accepted()->set_cached_prompt_tokens(cached);
    Seal(accepted);
    EXPECT_EQ(Give(receiver, accepted).code(), absl::StatusCode::kDataLoss) << cached;
  }
  for (const double ms : {-1.0, 1e10, std::numeric_limits<double>::quiet_NaN(),
                          std::numeric_limits<double>::infinity()}) {
    for (const bool queued : {false, true}) {
      KvReceiver receiver(plan_);
      for (const Frame& frame : WholeTransfer()) ASSERT_TRUE(Give(receiver, frame).ok());
      Frame commit = Commit(4);
      if (queued) {
        commit.header.mutable_commit()->set_queue_ms(ms);
      } else {
        commit.header.mutable_commit()->set_prefill_ms(ms);
      }
      Seal(commit);
      EXPECT_EQ(Give(receiver, commit).code(), absl::StatusCode::kDataLoss) << ms;
    }
  }
}

TEST_P(KvReceiverTest, NothingFollowsAnEnd) {
  KvReceiver receiver(plan_);
  for (const Frame& frame : WholeTransfer()) ASSERT_TRUE(Give(receiver, frame).ok());
  ASSERT_TRUE(Give(receiver, Commit(4)).ok());
  receiver.Abort();
  EXPECT_EQ(receiver.phase(), Phase::kCommitted);
  EXPECT_FALSE(Give(receiver, Chunk(0, 2, 1)).ok());
  EXPECT_EQ(receiver.phase(), Phase::kCommitted);
  ExpectBlocksWhole();

  KvReceiver aborted(plan_);
  aborted.Abort();
  EXPECT_FALSE(Give(aborted, Accepted()).ok());
  EXPECT_EQ(aborted.phase(), Phase::kAborted);
}

TEST_P(KvReceiverTest, ATransferOfNoBlocksCommits) {
  plan_.blocks.clear();
  Frame accepted = Accepted();
  accepted.header.mutable_accepted()->set_block_count(0);
  Seal(accepted);
  KvReceiver receiver(plan_);
  ASSERT_TRUE(Give(receiver, accepted).ok());
  ASSERT_TRUE(Give(receiver, FirstToken(3)).ok());
  EXPECT_TRUE(Give(receiver, Commit(0)).ok());
}

// Log probabilities of tokens first_id, first_id + 1, …, each with two others.
std::vector<v1::TokenLogprobs> Logprobs(int64_t first_id, int count) {
  std::vector<v1::TokenLogprobs> all(count);
  for (int i = 0; i < count; ++i) {
    all[i].set_token_id(static_cast<int32_t>(first_id + i));
    all[i].set_logprob(-0.5f * static_cast<float>(i));
    for (int k = 0; k < 2; ++k) {
      all[i].add_top()->set_token_id(k);
      all[i].mutable_top(k)->set_logprob(-1);
    }
  }
  return all;
}

// As above, of a prompt of tokens 10 to 15 whose log probabilities are asked for.
class LogprobsTest : public TransferFixture {
 protected:
  LogprobsTest() {
    plan_.logprobs = 2;
    plan_.prompt_logprobs = 2;
    plan_.prompt_targets = {11, 12, 13, 14, 15};
  }
  Frame PromptLogprobs(int first_position, int count) const {
    Frame frame = Header();
    frame.header.mutable_prompt_logprobs()->set_first_position(first_position);
    for (const v1::TokenLogprobs& logprobs : Logprobs(int64_t{10} + first_position, count)) {
      *frame.header.mutable_prompt_logprobs()->add_logprobs() = logprobs;
    }
    Seal(frame);
    return frame;
  }
  Frame FirstTokenWithLogprobs() const {
    Frame frame = FirstToken(7);
    *frame.header.mutable_first_token()->mutable_logprobs() = Logprobs(7, 1)[0];
    Seal(frame);
    return frame;
  }
  void ExpectRefused(const std::vector<Frame>& before, const Frame& bad, const char* what) {
    KvReceiver receiver(plan_);
    for (const Frame& frame : before) ASSERT_TRUE(Give(receiver, frame).ok()) << what;
    const absl::Status status = Give(receiver, bad);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << what;
    EXPECT_EQ(AbortReasonOf(status), AbortReason::kProtocol) << what << ": " << status;
    EXPECT_FALSE(receiver.first_token().has_value()) << what;
  }
};

TEST_F(LogprobsTest, ComeWithTheFirstToken) {
  KvReceiver receiver(plan_);
  ASSERT_TRUE(Give(receiver, PromptLogprobs(1, 2)).ok());
  ASSERT_TRUE(Give(receiver, Accepted()).ok());
  ASSERT_TRUE(Give(receiver, Chunk(0, 2, 3)).ok());
  ASSERT_TRUE(Give(receiver, PromptLogprobs(3, 3)).ok());
  EXPECT_FALSE(receiver.first_token().has_value());
  ASSERT_TRUE(Give(receiver, FirstTokenWithLogprobs()).ok());
  ASSERT_TRUE(receiver.first_token().has_value());
  EXPECT_EQ(receiver.first_token()->token_id, 7);
  EXPECT_EQ(receiver.first_token()->cached_prompt_tokens, 32);
  EXPECT_EQ(receiver.first_token()->logprobs.SerializeAsString(),
            Logprobs(7, 1)[0].SerializeAsString());
  ASSERT_EQ(receiver.first_token()->prompt_logprobs.size(), 5u);
  EXPECT_EQ(receiver.first_token()->prompt_logprobs[4].token_id(), 15);
  ASSERT_TRUE(Give(receiver, Chunk(1, 2, 3)).ok());
  EXPECT_TRUE(Give(receiver, Commit(2)).ok());
}

TEST_F(LogprobsTest, RefusedUnlessAllOfThePromptOnceInOrder) {
  ExpectRefused({}, PromptLogprobs(2, 4), "not from the first");
  ExpectRefused({PromptLogprobs(1, 2)}, PromptLogprobs(1, 2), "twice");
  ExpectRefused({PromptLogprobs(1, 2)}, PromptLogprobs(4, 2), "a gap");
  ExpectRefused({PromptLogprobs(1, 5)}, PromptLogprobs(6, 1), "past the prompt");
  ExpectRefused({PromptLogprobs(1, 3)}, PromptLogprobs(4, 3), "past the prompt at its end");
  ExpectRefused({}, PromptLogprobs(1, 0), "none");
  ExpectRefused({}, PromptLogprobs(2147483647, 1), "a position past everything");
  ExpectRefused({PromptLogprobs(1, 4)}, FirstTokenWithLogprobs(), "first token before the last");
  ExpectRefused({PromptLogprobs(1, 5)}, FirstToken(7), "first token without its own");
  plan_.prompt_targets.clear();
  ExpectRefused({}, PromptLogprobs(1, 1), "not asked for");
  KvReceiver receiver(plan_);
  ASSERT_TRUE(Give(receiver, FirstTokenWithLogprobs()).ok());
  EXPECT_FALSE(Give(receiver, PromptLogprobs(1, 1)).ok()) << "behind the first token";
}

TEST_F(LogprobsTest, RefusesEachWrongValue) {
  const struct {
    const char* what;
    std::function<void(v1::TokenLogprobs&)> spoil;
  } cases[] = {
      {"another token", [](auto& l) { l.set_token_id(3); }},
      {"not a number", [](auto& l) { l.set_logprob(std::nanf("")); }},
      {"infinite", [](auto& l) { l.set_logprob(-INFINITY); }},
      {"more than certain", [](auto& l) { l.set_logprob(0.1f); }},
      {"too few", [](auto& l) { l.mutable_top()->RemoveLast(); }},
      {"too many", [](auto& l) { l.add_top(); }},
      {"negative id", [](auto& l) { l.mutable_top(1)->set_token_id(-1); }},
      {"id past the vocabulary", [](auto& l) { l.mutable_top(1)->set_token_id(100); }},
      {"alternative that is no number",
       [](auto& l) { l.mutable_top(0)->set_logprob(std::nanf("")); }},
      {"alternative more than certain", [](auto& l) { l.mutable_top(0)->set_logprob(1); }},
  };
  for (const auto& [what, spoil] : cases) {
    Frame first = FirstTokenWithLogprobs();
    spoil(*first.header.mutable_first_token()->mutable_logprobs());
    Seal(first);
    ExpectRefused({PromptLogprobs(1, 5)}, first, what);
    Frame prompt = PromptLogprobs(1, 5);
    spoil(*prompt.header.mutable_prompt_logprobs()->mutable_logprobs(2));
    Seal(prompt);
    ExpectRefused({}, prompt, what);
  }
}

TEST_F(LogprobsTest, EveryFlippedBitIsFound) {
  for (const Frame& frame : {PromptLogprobs(1, 5), FirstTokenWithLogprobs()}) {
    const std::string header = frame.header.SerializeAsString();
    for (size_t bit = 0; bit < 8 * header.size(); ++bit) {
      Frame bad = frame;
      std::string bytes = header;
      bytes[bit / 8] ^= static_cast<char>(1 << (bit % 8));
      if (!bad.header.ParseFromString(bytes)) continue;
      if (bad.header.SerializeAsString() == header) continue;
      bad.header.DiscardUnknownFields();
      KvReceiver receiver(plan_);
      if (frame.header.has_first_token()) {
        ASSERT_TRUE(Give(receiver, PromptLogprobs(1, 5)).ok());
      }
      EXPECT_FALSE(Give(receiver, bad).ok()) << "bit " << bit;
    }
  }
}

// Chunks of 256 KiB, so that one says something about the link.
class MeasuredTransferTest : public TransferFixture {
 protected:
  MeasuredTransferTest() { Resize(/*layers=*/2); }
  void Resize(int layers) {
    layout_.layers = layers;
    layout_.head_dim = 2048;
    host_memory_.assign(8 * layout_.BlockBytes(), std::byte{0xee});
    plan_.layout = layout_;
    plan_.pool.base = host_memory_.data();
    plan_.pool.block_stride_bytes = static_cast<int64_t>(layout_.BlockBytes());
    plan_.pool.layer_stride_bytes = static_cast<int64_t>(layout_.ChunkBytes());
  }
  struct Timed {
    Frame frame;
    int64_t after_ms = 0;
  };
  // The rate that the frames give, in chunks a second; 0: none.
  double Rate(const std::vector<Timed>& frames) {
    const auto meter = std::make_shared<LinkMeter>(clock_);
    plan_.link = meter->Begin({"p", kEpoch});
    KvReceiver receiver(plan_);
    int chunks = 0;
    for (const Timed& timed : frames) {
      clock_.Advance(absl::Milliseconds(timed.after_ms));
      chunks += timed.frame.header.has_kv_chunk() ? 1 : 0;
      EXPECT_TRUE(Give(receiver, timed.frame).ok());
    }
    clock_.Advance(absl::Seconds(1));  // what the commit waits for is not the link's
    EXPECT_TRUE(Give(receiver, Commit(chunks)).ok());
    const auto measured = meter->Measured();
    if (measured == nullptr) return 0;
    EXPECT_EQ(measured->size(), 1u);
    return measured->front().bytes_per_second / static_cast<double>(layout_.ChunkBytes());
  }
  Frame AcceptedWithCached(int tokens) const {
    Frame frame = Accepted();
    frame.header.mutable_accepted()->set_cached_prompt_tokens(tokens);
    Seal(frame);
    return frame;
  }

  testing::FakeClock clock_;
};

TEST_F(MeasuredTransferTest, WhatIsComputedBetweenLayersIsNotTheLinks) {
  // Each layer in one frame, sent when it was computed.
  EXPECT_EQ(Rate({{Accepted()}, {Chunk(0, 2, 3), 300}, {Chunk(1, 2, 3), 300}, {FirstToken(7), 5}}),
            0);
}

TEST_F(MeasuredTransferTest, FramesOfOneLayerWereReadyTogether) {
  EXPECT_DOUBLE_EQ(Rate({{Accepted()},
                         {Chunk(0, 2, 1), 300},
                         {Chunk(0, 3, 1), 10},
                         {Chunk(0, 4, 1), 10},
                         {Chunk(1, 2, 1), 300},
                         {Chunk(1, 3, 2), 20},
                         {FirstToken(7), 5}}),
                   4 / 0.040);
}

TEST_F(MeasuredTransferTest, WithOneLayerTheNextChunkOfThePromptIsComputedBetween) {
  Resize(/*layers=*/1);
  EXPECT_EQ(Rate({{Accepted()}, {Chunk(0, 2, 1), 300}, {Chunk(0, 3, 2), 300}, {FirstToken(7), 5}}),
            0);
}

TEST_F(MeasuredTransferTest, CachedBlocksWereReadyFromTheStart) {
  // Blocks 2 and 3 of the prompt are cached: tokens 32 to 63.
  EXPECT_DOUBLE_EQ(Rate({{AcceptedWithCached(64)},
                         {Chunk(0, 2, 2), 20},
                         {Chunk(1, 2, 2), 20},
                         {Chunk(0, 4, 1), 500},
                         {Chunk(1, 4, 1), 500},
                         {FirstToken(7), 5}}),
                   4 / 0.040);
}

// What comes behind a frame with all layers is the next chunk of the prompt.
TEST_F(MeasuredTransferTest, BehindAFrameOfAllLayersTheNextChunkIsComputed) {
  Frame cached = Chunk(0, 2, 2);
  cached.header.mutable_kv_chunk()->set_layer_count(2);
  cached.payload = std::string(static_cast<size_t>(4 * layout_.ChunkBytes()), 'x');
  Seal(cached);
  EXPECT_DOUBLE_EQ(Rate({{AcceptedWithCached(64)},
                         {cached, 40},
                         {Chunk(0, 4, 1), 500},
                         {Chunk(1, 4, 1), 500},
                         {FirstToken(7), 5}}),
                   4 / 0.040);
}

TEST_F(MeasuredTransferTest, KvBehindTheFirstTokenWaitedForTheLink) {
  EXPECT_DOUBLE_EQ(Rate({{Accepted()},
                         {Chunk(0, 2, 3), 300},
                         {FirstToken(7), 200},
                         {Chunk(1, 2, 2), 50},
                         {Chunk(1, 4, 1), 25}}),
                   3 / 0.075);
}

TEST_F(MeasuredTransferTest, ARepeatedChunkIsNoPayload) {
  EXPECT_DOUBLE_EQ(
      Rate({{Accepted()}, {FirstToken(7)}, {Chunk(0, 2, 3), 30}, {Chunk(1, 2, 3), 30}}), 6 / 0.060);
  const auto meter = std::make_shared<LinkMeter>(clock_);
  plan_.link = meter->Begin({"p", kEpoch});
  KvReceiver receiver(plan_);
  for (const Frame& frame : {Accepted(), FirstToken(7), Chunk(0, 2, 3), Chunk(0, 2, 3),
                             Chunk(0, 2, 3), Chunk(1, 2, 3)}) {
    clock_.Advance(absl::Milliseconds(10));
    ASSERT_TRUE(Give(receiver, frame).ok());
  }
  ASSERT_TRUE(Give(receiver, Commit(2)).ok());
  const double chunk = static_cast<double>(layout_.ChunkBytes());
  // The time of repetitions is left out, too: they end an interval.
  EXPECT_DOUBLE_EQ(meter->Measured()->front().bytes_per_second / chunk, 6 / 0.020);
}

// Six blocks of two layers, of which the second has a window of two blocks; pages of one chunk.
class WindowedTransferTest : public TransferFixture {
 protected:
  WindowedTransferTest() {
    layout_.windows = {0, 20};
    memory_.assign(static_cast<size_t>(9 * layout_.ChunkBytes()), std::byte{0xee});
    plan_.layout = layout_;
    plan_.pool.base = memory_.data();
    plan_.pool.block_stride_bytes = layout_.PageBytes();
    plan_.pool.block_count = 9;
    plan_.pool.tables = 2;
    plan_.pool.places = {{0, 0}, {1, 0}};
    plan_.first_block = 0;
    plan_.blocks = {0, 1, 2, 3, 4, 5, -1, -1, -1, 6, 7, 8};
    plan_.whole_blocks = 5;
  }
  std::vector<std::byte> memory_;
};

TEST_F(WindowedTransferTest, OfALayerWithAWindowItsBlocksCome) {
  KvReceiver receiver(plan_);
  ASSERT_TRUE(Give(receiver, Accepted(6)).ok());
  ASSERT_TRUE(Give(receiver, Chunk(0, 0, 6)).ok());
  ASSERT_TRUE(Give(receiver, FirstToken(7)).ok());
  ASSERT_TRUE(Give(receiver, Chunk(1, 3, 2)).ok());
  ASSERT_TRUE(Give(receiver, Chunk(1, 5, 1)).ok());
  ASSERT_TRUE(Give(receiver, Commit(3)).ok());
  EXPECT_EQ(receiver.summary().kv_bytes, 9 * layout_.ChunkBytes());
  for (int page = 0; page < 9; ++page) {
    const char expected = page < 6 ? Fill(0, page) : Fill(1, page - 3);
    EXPECT_EQ(static_cast<char>(memory_[static_cast<size_t>(page * layout_.ChunkBytes())]),
              expected)
        << "page " << page;
  }
}

TEST_F(WindowedTransferTest, ACommitWithoutTheWindowIsRefused) {
  KvReceiver receiver(plan_);
  ASSERT_TRUE(Give(receiver, Accepted(6)).ok());
  ASSERT_TRUE(Give(receiver, Chunk(0, 0, 6)).ok());
  ASSERT_TRUE(Give(receiver, FirstToken(7)).ok());
  EXPECT_EQ(ErrorReason(Give(receiver, Commit(1))), "PROTOCOL");
}

TEST_F(WindowedTransferTest, ABlockBeforeTheWindowIsRefused) {
  KvReceiver receiver(plan_);
  ASSERT_TRUE(Give(receiver, Accepted(6)).ok());
  const absl::Status status = Give(receiver, Chunk(1, 2, 1));
  EXPECT_EQ(ErrorReason(status), "PROTOCOL") << status;
}

// The blocks before another end's window have no pages.
TEST_F(WindowedTransferTest, LayersThatLieApartAreRefused) {
  KvReceiver receiver(plan_);
  Frame frame = Chunk(0, 4, 2);
  frame.header.mutable_kv_chunk()->set_layer_count(2);
  frame.payload += Chunk(1, 4, 2).payload;
  Seal(frame);
  const absl::Status status = Give(receiver, frame);
  EXPECT_EQ(AbortReasonOf(status), AbortReason::kProtocol);
  EXPECT_NE(status.message().find("do not lie together"), absl::string_view::npos) << status;
}

TEST_F(WindowedTransferTest, APartialFetchIsRefused) {
  plan_.fetch = true;
  plan_.whole_blocks = -1;
  for (const int blocks : {1, 5}) {
    KvReceiver receiver(plan_);
    const absl::Status status = Give(receiver, Accepted(blocks));
    EXPECT_EQ(ErrorReason(status), "PROTOCOL") << status;
  }
  for (const int blocks : {0, 6}) {
    KvReceiver receiver(plan_);
    EXPECT_TRUE(Give(receiver, Accepted(blocks)).ok());
  }
}

}  // namespace
}  // namespace baton::transfer
