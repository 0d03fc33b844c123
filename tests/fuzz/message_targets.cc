// Messages from clients and from other processes of the cluster.
#include <google/protobuf/message.h>

#include <optional>
#include <string>
#include <utility>

#include "baton/internal/v1/decode.pb.h"
#include "baton/internal/v1/prefill.pb.h"
#include "baton/internal/v1/worker.pb.h"
#include "baton/v1/inference.pb.h"
#include "common/base/check.h"
#include "common/prefill/request.h"
#include "common/transfer/checksum.h"
#include "common/transfer/frame_codec.h"
#include "common/transfer/kv_receiver.h"
#include "decode_worker/request.h"
#include "router/api/wire.h"
#include "router/request/request_check.h"
#include "router/routing/routed_fleet.h"
#include "tests/decode_worker/fake_engine.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/router/fake_clock.h"
#include "tests/testing/fake_worker.h"
#include "tests/testing/tiny_tokenizer.h"

namespace baton::fuzz {
namespace {

using internal::v1::DecodeRequest;
using internal::v1::PrefillFrame;
using internal::v1::PrefillRequest;
using internal::v1::WatchResponse;

constexpr uint64_t kTransferId = 7, kSenderEpoch = 9, kModelFingerprint = 7;

// A message with its length as two bytes, and a list of them: how some inputs carry several.
void AppendMessage(const google::protobuf::MessageLite& message, std::string* list) {
  const std::string bytes = message.SerializeAsString();
  BATON_CHECK(bytes.size() < 65'536);
  list->push_back(static_cast<char>(bytes.size() & 0xff));
  list->push_back(static_cast<char>(bytes.size() >> 8));
  *list += bytes;
}
std::optional<absl::string_view> NextMessage(absl::string_view* list) {
  if (list->size() < 2) return std::nullopt;
  const size_t length = static_cast<unsigned char>((*list)[0]) |
                        static_cast<size_t>(static_cast<unsigned char>((*list)[1])) << 8;
  list->remove_prefix(2);
  const absl::string_view message = list->substr(0, length);
  list->remove_prefix(message.size());
  return message;
}

grpc::ByteBuffer Buffer(absl::string_view bytes) {
  // Two slices, as a receive buffer may have them.
  const grpc::Slice slices[] = {
      grpc::Slice(bytes.data(), bytes.size() / 3),
      grpc::Slice(bytes.data() + bytes.size() / 3, bytes.size() - bytes.size() / 3)};
  return grpc::ByteBuffer(slices, 2);
}

struct Receiver {
  Receiver() {
    layout.layers = 2;
    layout.kv_heads = layout.head_dim = 1;
    layout.block_tokens = 2;
    layout.dtype = kv::KvDtype::kF32;
    layout.format_version = 1;
    memory.assign(static_cast<size_t>(4 * layout.BlockBytes()), std::byte{0});
    plan.transfer_id = kTransferId;
    plan.sender_epoch = kSenderEpoch;
    plan.layout = layout;
    plan.pool.base = memory.data();
    plan.pool.block_stride_bytes = layout.BlockBytes();
    plan.pool.layer_stride_bytes = layout.ChunkBytes();
    plan.pool.block_count = 4;
    plan.first_block = 1;
    plan.blocks = {3, 0};
    plan.token_count = 100;
    plan.logprobs = 1;
    plan.prompt_targets = {5, 6};
    plan.prompt_logprobs = 1;
  }
  kv::KvLayout layout;
  std::vector<std::byte> memory;
  transfer::TransferPlan plan;
};

// Frames as they are on the wire. Each is offered as it is, and with a right checksum: otherwise
// no mutation would get behind the checksum.
void FuzzFrames(absl::string_view data) {
  Receiver setup;
  transfer::KvReceiver receiver(setup.plan);
  while (const auto message = NextMessage(&data)) {
    auto decoded = transfer::DecodeFrame(Buffer(*message));
    if (!decoded.ok()) continue;
    {
      transfer::KvReceiver unsealed(setup.plan);
      (void)unsealed.OnFrame(decoded->frame, decoded->payload);
    }
    decoded->frame.set_checksum(transfer::FrameChecksum(decoded->frame, decoded->payload));
    const absl::Status status = receiver.OnFrame(decoded->frame, decoded->payload);
    BATON_CHECK(status.ok() == (receiver.phase() != transfer::KvReceiver::Phase::kAborted));
    if (receiver.phase() >= transfer::KvReceiver::Phase::kCommitted) return;
  }
}

// What the router does with a client's bytes before any worker sees them.
void FuzzGenerateRequest(absl::string_view data) {
  static const auto* const tokenizer =
      tokenizer::Tokenizer::FromJson(testing::TinyTokenizerJson(), "tiny")->release();
  v1::GenerateRequest request;
  if (!router::ParseRequest(Buffer(data), &request).ok()) return;
  if (!router::CheckRequest(request, "tiny", 1 << 16).ok()) return;
  if (request.has_messages()) return;  // the chat template comes first: "chat_template"
  router::ModelInfo model;
  model.fingerprint = kModelFingerprint;
  model.block_tokens = 16;
  model.max_model_len = 512;
  model.eos_token_ids = {testing::kEndToken};
  if (!router::CheckIdCount(request, model.max_model_len).ok()) return;
  const auto prepared = router::PrepareRequest(request, *tokenizer, model);
  if (!prepared.ok()) return;
  // The worker's check is the second line: what passed here must pass there.
  testing::FakeEngine engine(4);
  DecodeRequest decode = prepared->decode;
  decode.set_decode_epoch(1);
  const absl::Status status = decode_worker::CheckRequest(decode, 1, engine);
  BATON_CHECK(status.ok()) << status << "\n" << request.DebugString();
}

void FuzzDecodeRequest(absl::string_view data) {
  static auto* const engine = new testing::FakeEngine(4);
  DecodeRequest request;
  if (!router::ParseRequest(Buffer(data), &request).ok()) return;
  request.set_decode_epoch(1);
  request.set_model_fingerprint(kModelFingerprint);
  if (!decode_worker::CheckRequest(request, 1, *engine).ok()) return;
  BATON_CHECK(decode_worker::MakeSequence(request, absl::InfiniteFuture(), *engine) != nullptr);
}

void FuzzPrefillRequest(absl::string_view data) {
  static auto* const engine = new testing::FakeEngine(4);
  PrefillRequest request;
  if (!router::ParseRequest(Buffer(data), &request).ok()) return;
  request.set_prefill_epoch(1);
  request.set_model_fingerprint(kModelFingerprint);
  request.set_kv_layout_fingerprint(engine->kv_layout().Fingerprint());
  request.set_checksum(transfer::RequestChecksum(request));
  if (!prefill::CheckRequest(request, 1, *engine).ok()) return;
  BATON_CHECK(prefill::MakeJob(request, absl::InfiniteFuture(), *engine) != nullptr);
}

// A worker's Watch stream, as the router hears it.
void FuzzWatch(absl::string_view data) {
  testing::FakeClock clock;
  router::PrefixThenLoad policy;
  router::RoutedFleet fleet({"p:1"}, {"d:1"}, 77, policy, clock);
  for (int worker = 0; worker < 2; ++worker) fleet.roster.OnStreamStarted(worker);
  while (const auto message = NextMessage(&data)) {
    WatchResponse event;
    if (!event.ParseFromArray(message->data(), static_cast<int>(message->size()))) continue;
    const int worker = event.has_card() && event.card().role() == v1::WORKER_ROLE_PREFILL ? 0 : 1;
    if (const absl::Status status = fleet.roster.OnEvent(worker, event); !status.ok()) {
      fleet.roster.OnStreamLost(worker, status);
      fleet.roster.OnStreamStarted(worker);
    }
    clock.Advance(absl::Milliseconds(300));
    (void)fleet.roster.Tick();
    (void)fleet.roster.List();
  }
}

std::string FrameSeed() {
  const Receiver setup;
  std::string list;
  const auto add = [&list](auto fill) {
    PrefillFrame frame;
    frame.set_transfer_id(kTransferId);
    frame.set_epoch(kSenderEpoch);
    fill(frame);
    AppendMessage(frame, &list);
  };
  add([&](PrefillFrame& frame) {
    frame.mutable_accepted()->set_kv_layout_fingerprint(setup.layout.Fingerprint());
    frame.mutable_accepted()->set_block_count(2);
    frame.mutable_accepted()->set_cached_prompt_tokens(2);
  });
  for (int layer = 0; layer < setup.layout.layers; ++layer) {
    add([&](PrefillFrame& frame) {
      frame.mutable_kv_chunk()->set_layer(layer);
      frame.mutable_kv_chunk()->set_first_block(1);
      frame.mutable_kv_chunk()->set_block_count(2);
      frame.set_payload(std::string(static_cast<size_t>(2 * setup.layout.ChunkBytes()), 'x'));
    });
  }
  const auto logprobs = [](v1::TokenLogprobs* out, int token) {
    out->set_token_id(token);
    out->set_logprob(-1);
    out->add_top()->set_token_id(3);
    out->mutable_top(0)->set_logprob(-0.5);
  };
  add([&](PrefillFrame& frame) {
    logprobs(frame.mutable_prompt_logprobs()->add_logprobs(), 5);
    logprobs(frame.mutable_prompt_logprobs()->add_logprobs(), 6);
  });
  add([&](PrefillFrame& frame) {
    frame.mutable_first_token()->set_token_id(42);
    logprobs(frame.mutable_first_token()->mutable_logprobs(), 42);
  });
  add([&](PrefillFrame& frame) { frame.mutable_commit()->set_kv_chunk_count(2); });
  return list;
}

std::string WatchSeed() {
  std::string list;
  WatchResponse event;
  *event.mutable_card() = testing::FakeCard(v1::WORKER_ROLE_DECODE, 77);
  AppendMessage(event, &list);
  event.mutable_snapshot()->add_keys(5);
  event.mutable_snapshot()->set_last(true);
  AppendMessage(event, &list);
  event.mutable_load()->set_free_blocks(64);
  event.mutable_load()->mutable_decode_cost()->set_sequence_us(3);
  AppendMessage(event, &list);
  event.mutable_delta()->set_sequence(1);
  event.mutable_delta()->add_added(6);
  event.mutable_delta()->add_removed(5);
  AppendMessage(event, &list);
  return list;
}

template <class Request>
void FillSampling(Request* request) {
  for (int token = 1; token < 20; ++token) request->add_tokens(token);
  request->set_prompt_tokens(15);
  request->mutable_sampling()->set_temperature(0.5);
  request->mutable_sampling()->set_top_p(0.9);
  (*request->mutable_sampling()->mutable_logit_bias())[3] = 1;
  request->mutable_sampling()->set_logprobs(2);
  request->set_tenant("t");
}

}  // namespace

std::vector<FuzzTarget> MessageTargets() {
  using std::string_literals::operator""s;
  v1::GenerateRequest generate;
  generate.set_text("a prompt");
  generate.mutable_sampling()->set_temperature(0.5);
  (*generate.mutable_sampling()->mutable_logit_bias())[3] = 1;
  generate.mutable_stop()->set_max_tokens(5);
  generate.mutable_stop()->add_stop("x"s);
  generate.set_n(2);
  generate.set_logprobs(3);
  generate.set_cache_salt("salt");
  v1::GenerateRequest constrained;
  constrained.set_text("a prompt");
  constrained.mutable_structured_output()->set_regex("[a-z]{1,5}");
  v1::GenerateRequest beams;
  beams.mutable_token_ids()->add_ids(5);
  beams.set_beam_width(3);
  beams.set_length_penalty(0.5);
  DecodeRequest decode;
  FillSampling(&decode);
  decode.set_max_tokens(9);
  decode.mutable_prefill()->set_address("p:1");
  decode.add_stop_token_ids(2);
  DecodeRequest fixed = decode;
  fixed.mutable_fixed_tokens()->Swap(fixed.mutable_tokens());
  PrefillRequest prefill;
  FillSampling(&prefill);
  prefill.add_suppressed_token_ids(2);
  return {
      {"frames", FuzzFrames, {FrameSeed()}},
      {"generate_request",
       FuzzGenerateRequest,
       {generate.SerializeAsString(), beams.SerializeAsString(), constrained.SerializeAsString()}},
      {"decode_request",
       FuzzDecodeRequest,
       {decode.SerializeAsString(), fixed.SerializeAsString()}},
      {"prefill_request", FuzzPrefillRequest, {prefill.SerializeAsString()}},
      {"watch", FuzzWatch, {WatchSeed()}},
  };
}

}  // namespace baton::fuzz
