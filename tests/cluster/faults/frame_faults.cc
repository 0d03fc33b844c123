#include "tests/cluster/faults/frame_faults.h"

#include <algorithm>
#include <utility>

#include "baton/internal/v1/prefill.pb.h"
#include "common/base/check.h"
#include "common/transfer/checksum.h"

namespace baton::testing {
namespace {

using internal::v1::PrefillFrame;
using Random = std::mt19937_64;

PrefillFrame Parse(const std::string& bytes) {
  PrefillFrame frame;
  BATON_CHECK(frame.ParseFromString(bytes));
  return frame;
}

// Makes the checksum right again: the lie is the sender's, not the wire's.
std::string Sealed(PrefillFrame frame) {
  transfer::Segments payload;
  if (!frame.payload().empty()) payload.push_back(absl::MakeConstSpan(frame.payload()));
  frame.set_checksum(transfer::FrameChecksum(frame, payload));
  return frame.SerializeAsString();
}

size_t Any(const Frames& frames, Random& random) { return random() % frames.size(); }

// Those of `kind`, of which every transfer has one.
std::vector<size_t> AllOf(const Frames& frames, PrefillFrame::FrameCase kind) {
  std::vector<size_t> found;
  for (size_t i = 0; i < frames.size(); ++i) {
    if (Parse(frames[i]).frame_case() == kind) found.push_back(i);
  }
  BATON_CHECK(!found.empty());
  return found;
}
size_t AnyOf(const Frames& frames, PrefillFrame::FrameCase kind, Random& random) {
  const std::vector<size_t> found = AllOf(frames, kind);
  return found[random() % found.size()];
}

// Changes one frame's fields, with and without a checksum that fits.
auto Changed(PrefillFrame::FrameCase kind, void (*change)(PrefillFrame&), bool sealed) {
  return [=](Frames& frames, Random& random) {
    const size_t at =
        kind == PrefillFrame::FRAME_NOT_SET ? Any(frames, random) : AnyOf(frames, kind, random);
    PrefillFrame frame = Parse(frames[at]);
    change(frame);
    frames[at] = sealed ? Sealed(frame) : frame.SerializeAsString();
  };
}

void OtherEpoch(PrefillFrame& f) { f.set_epoch(f.epoch() + 1); }
void OtherTransfer(PrefillFrame& f) { f.set_transfer_id(f.transfer_id() + 1); }
void OtherLayout(PrefillFrame& f) {
  f.mutable_accepted()->set_kv_layout_fingerprint(f.accepted().kv_layout_fingerprint() + 1);
}
void OtherBlockCount(PrefillFrame& f) {
  f.mutable_accepted()->set_block_count(f.accepted().block_count() + 1);
}
void OtherLayer(PrefillFrame& f) {
  f.mutable_kv_chunk()->set_layer(f.kv_chunk().layer() == 0 ? 1 : 0);
}
void LayerOutside(PrefillFrame& f) { f.mutable_kv_chunk()->set_layer(1'000'000); }
void BlockOutside(PrefillFrame& f) { f.mutable_kv_chunk()->set_first_block(2'000'000'000); }
void BlockBefore(PrefillFrame& f) { f.mutable_kv_chunk()->set_first_block(-1); }
void CountTooLarge(PrefillFrame& f) { f.mutable_kv_chunk()->set_block_count(2'147'483'647); }
void NoBlocks(PrefillFrame& f) { f.mutable_kv_chunk()->set_block_count(0); }
void PayloadCut(PrefillFrame& f) { f.mutable_payload()->resize(f.payload().size() / 2); }
void TokenOutside(PrefillFrame& f) { f.mutable_first_token()->set_token_id(1 << 30); }
void TokenNegative(PrefillFrame& f) { f.mutable_first_token()->set_token_id(-1); }
void OtherToken(PrefillFrame& f) {
  f.mutable_first_token()->set_token_id(f.first_token().token_id() ^ 1);
}
void FewerChunks(PrefillFrame& f) {
  f.mutable_commit()->set_kv_chunk_count(f.commit().kv_chunk_count() - 1);
}
void NoKind(PrefillFrame& f) { f.clear_frame(); }
void PayloadByte(PrefillFrame& f) {
  f.mutable_payload()->front() = static_cast<char>(f.payload().front() ^ 0x40);
}

void FlipBit(Frames& frames, Random& random) {
  std::string& frame = frames[Any(frames, random)];
  const uint64_t bit = random() % (frame.size() * 8);
  frame[bit / 8] = static_cast<char>(frame[bit / 8] ^ (1 << (bit % 8)));
}

void Truncate(Frames& frames, Random& random) {
  std::string& frame = frames[Any(frames, random)];
  frame.resize(random() % frame.size());
}

void AppendGarbage(Frames& frames, Random& random) {
  std::string& frame = frames[Any(frames, random)];
  for (uint64_t n = 1 + random() % 16; n > 0; --n) frame.push_back(static_cast<char>(random()));
}

void OnlyGarbage(Frames& frames, Random& random) {
  std::string& frame = frames[Any(frames, random)];
  for (char& byte : frame) byte = static_cast<char>(random());
}

void Duplicate(Frames& frames, Random& random) {
  const size_t at = Any(frames, random);
  const std::string copy = frames[at];
  const size_t to = at + 1 + random() % (frames.size() - at);
  frames.insert(frames.begin() + to, copy);
}

void Reorder(Frames& frames, Random& random) { std::shuffle(frames.begin(), frames.end(), random); }

void Lose(Frames& frames, Random& random) { frames.erase(frames.begin() + Any(frames, random)); }

void CommitEarly(Frames& frames, Random& random) {
  const std::string commit = frames.back();
  frames.pop_back();
  frames.insert(frames.begin() + Any(frames, random), commit);
}

void CommitTwice(Frames& frames, Random& random) { frames.push_back(frames.back()); }

// Swaps the payloads of two chunks, or the halves of the only one: a short prompt's KV may cross in
// one chunk.
void SwapPayloads(Frames& frames, Random& random) {
  std::vector<size_t> chunks = AllOf(frames, PrefillFrame::kKvChunk);
  std::shuffle(chunks.begin(), chunks.end(), random);
  PrefillFrame first = Parse(frames[chunks[0]]);
  if (chunks.size() == 1) {
    std::string& payload = *first.mutable_payload();
    std::rotate(payload.begin(), payload.begin() + static_cast<ptrdiff_t>(payload.size() / 2),
                payload.end());
  } else {
    PrefillFrame second = Parse(frames[chunks[1]]);
    first.mutable_payload()->swap(*second.mutable_payload());
    frames[chunks[1]] = second.SerializeAsString();
  }
  frames[chunks[0]] = first.SerializeAsString();
}

class SpoiltFrames final : public FrameFault {
 public:
  SpoiltFrames(const FrameFaultKind& kind, uint64_t seed) : kind_(kind), random_(seed) {}

  std::vector<std::string> OnFrame(std::string frame) override {
    const bool last = Parse(frame).has_commit();
    frames_.push_back(std::move(frame));
    if (!last) return {};
    kind_.spoil(frames_, random_);
    return std::exchange(frames_, {});
  }
  std::vector<std::string> OnEnd() override { return std::exchange(frames_, {}); }

 private:
  const FrameFaultKind& kind_;
  Random random_;
  Frames frames_;
};

}  // namespace

const std::vector<FrameFaultKind>& FrameFaultKinds() {
  using F = PrefillFrame;
  const std::vector<std::string> checksum = {"CHECKSUM"}, protocol = {"PROTOCOL"};
  static const auto* const kinds = new std::vector<FrameFaultKind>{
      {"bit flip", true, {"CHECKSUM", "PROTOCOL"}, FlipBit},
      {"truncation", true, {"CHECKSUM", "PROTOCOL"}, Truncate},
      // They may be a field that nobody knows, which changes nothing.
      {"bytes appended", false, {"CHECKSUM", "PROTOCOL"}, AppendGarbage},
      {"garbage", true, {"CHECKSUM", "PROTOCOL"}, OnlyGarbage},
      {"duplicate", false, protocol, Duplicate},
      {"reordering", false, protocol, Reorder},
      {"lost frame", true, protocol, Lose},
      {"early commit", true, protocol, CommitEarly},
      {"second commit", false, protocol, CommitTwice},
      {"payloads swapped", true, checksum, SwapPayloads},
      {"payload byte", true, checksum, Changed(F::kKvChunk, PayloadByte, false)},
      {"wrong epoch", true, checksum, Changed(F::FRAME_NOT_SET, OtherEpoch, false)},
      {"wrong epoch, sealed", true, {"STALE_EPOCH"}, Changed(F::FRAME_NOT_SET, OtherEpoch, true)},
      {"wrong request", true, checksum, Changed(F::FRAME_NOT_SET, OtherTransfer, false)},
      {"wrong request, sealed", true, protocol, Changed(F::FRAME_NOT_SET, OtherTransfer, true)},
      {"wrong layout", true, checksum, Changed(F::kAccepted, OtherLayout, false)},
      {"wrong layout, sealed", true, {"KV_LAYOUT"}, Changed(F::kAccepted, OtherLayout, true)},
      {"wrong block count, sealed", true, protocol, Changed(F::kAccepted, OtherBlockCount, true)},
      {"wrong layer", true, checksum, Changed(F::kKvChunk, OtherLayer, false)},
      {"wrong layer, sealed", true, protocol, Changed(F::kKvChunk, OtherLayer, true)},
      {"layer outside, sealed", true, protocol, Changed(F::kKvChunk, LayerOutside, true)},
      {"block outside, sealed", true, protocol, Changed(F::kKvChunk, BlockOutside, true)},
      {"block before, sealed", true, protocol, Changed(F::kKvChunk, BlockBefore, true)},
      {"count too large, sealed", true, protocol, Changed(F::kKvChunk, CountTooLarge, true)},
      {"no blocks, sealed", true, protocol, Changed(F::kKvChunk, NoBlocks, true)},
      {"payload cut, sealed", true, protocol, Changed(F::kKvChunk, PayloadCut, true)},
      {"other first token", true, checksum, Changed(F::kFirstToken, OtherToken, false)},
      {"first token outside, sealed", true, protocol, Changed(F::kFirstToken, TokenOutside, true)},
      {"negative first token, sealed", true, protocol,
       Changed(F::kFirstToken, TokenNegative, true)},
      {"wrong chunk count, sealed", true, protocol, Changed(F::kCommit, FewerChunks, true)},
      {"frame of no kind, sealed", true, protocol, Changed(F::FRAME_NOT_SET, NoKind, true)},
  };
  return *kinds;
}

std::unique_ptr<FrameFault> MakeFrameFault(const FrameFaultKind& kind, uint64_t seed) {
  return std::make_unique<SpoiltFrames>(kind, seed);
}

}  // namespace baton::testing
