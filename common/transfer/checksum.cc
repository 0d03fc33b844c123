#include "common/transfer/checksum.h"

#ifdef BATON_XXHASH_DISPATCHES
#include <xxh_x86dispatch.h>  // the same sums, with AVX2 or AVX-512 where the CPU has it
#else
#include <xxhash.h>
#endif

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>

#include "baton/internal/v1/kv.pb.h"
#include "baton/internal/v1/prefill.pb.h"

namespace baton::transfer {
namespace {

// Fields in an unambiguous form: every value 8 bytes, every string behind its length.
class FieldBytes {
 public:
  void Add(uint64_t value) {
    for (int i = 0; i < 8; ++i) bytes_.push_back(static_cast<char>(value >> (8 * i)));
  }
  void Add(double value) {
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    Add(bits);
  }
  void Add(float value) { Add(static_cast<double>(value)); }
  void Add(int32_t value) { Add(static_cast<uint64_t>(static_cast<uint32_t>(value))); }
  void Add(const std::string& text) {
    Add(static_cast<uint64_t>(text.size()));
    bytes_.append(text);
  }
  uint64_t Hash() const { return XXH3_64bits(bytes_.data(), bytes_.size()); }

 private:
  std::string bytes_;
};

void AddLogprobs(const v1::TokenLogprobs& logprobs, FieldBytes& fields) {
  fields.Add(logprobs.token_id());
  fields.Add(double{logprobs.logprob()});
  fields.Add(logprobs.top_size());
  for (const v1::TokenLogprob& top : logprobs.top()) {
    fields.Add(top.token_id());
    fields.Add(double{top.logprob()});
  }
}

void AddSampling(const internal::v1::TokenSampling& sampling, FieldBytes& fields) {
  fields.Add(sampling.temperature());
  fields.Add(sampling.top_p());
  fields.Add(sampling.top_k());
  fields.Add(sampling.min_p());
  fields.Add(static_cast<uint64_t>(sampling.seed()));
  fields.Add(static_cast<uint64_t>(sampling.choice()));
  fields.Add(sampling.repetition_penalty());
  fields.Add(sampling.frequency_penalty());
  fields.Add(sampling.presence_penalty());
  // A map is unordered.
  const std::map<int32_t, float> bias(sampling.logit_bias().begin(), sampling.logit_bias().end());
  fields.Add(static_cast<uint64_t>(bias.size()));
  for (const auto& [token, value] : bias) {
    fields.Add(token);
    fields.Add(value);
  }
  fields.Add(sampling.has_logprobs() ? sampling.logprobs() : -1);
}

template <class Tokens>
void AddTokens(const Tokens& tokens, FieldBytes& fields) {
  fields.Add(static_cast<uint64_t>(tokens.size()));
  for (const int32_t token : tokens) fields.Add(token);
}

void AddWorker(const internal::v1::WorkerRef& worker, FieldBytes& fields) {
  fields.Add(worker.address());
  fields.Add(worker.worker_id());
  fields.Add(uint64_t{worker.epoch()});
}

void AddBody(const internal::v1::PrefillFrame& frame, FieldBytes& fields) {
  fields.Add(static_cast<int32_t>(frame.frame_case()));
  switch (frame.frame_case()) {
    case internal::v1::PrefillFrame::kAccepted:
      fields.Add(frame.accepted().kv_layout_fingerprint());
      fields.Add(frame.accepted().block_count());
      fields.Add(frame.accepted().cached_prompt_tokens());
      fields.Add(int32_t{frame.accepted().has_shared_memory()});
      fields.Add(frame.accepted().shared_memory().socket());
      fields.Add(frame.accepted().shared_memory().token());
      fields.Add(int32_t{frame.accepted().device_link()});
      fields.Add(int32_t{frame.accepted().shared_memory().device()});
      break;
    case internal::v1::PrefillFrame::kKvChunk:
      fields.Add(frame.kv_chunk().layer());
      // Versions that do not know it compute the same for a chunk of one layer.
      if (frame.kv_chunk().layer_count() != 0) fields.Add(frame.kv_chunk().layer_count());
      fields.Add(frame.kv_chunk().first_block());
      fields.Add(frame.kv_chunk().block_count());
      fields.Add(frame.kv_chunk().shared_blocks_size());
      for (const int32_t block : frame.kv_chunk().shared_blocks()) fields.Add(block);
      fields.Add(frame.kv_chunk().lease_slot());
      fields.Add(uint64_t{frame.kv_chunk().lease()});
      fields.Add(uint64_t{frame.kv_chunk().shared_checksum()});
      fields.Add(uint64_t{frame.kv_chunk().operation()});
      break;
    case internal::v1::PrefillFrame::kFirstToken:
      fields.Add(frame.first_token().token_id());
      // An empty message is not none: a flipped bit of its tag would make it an unknown field.
      fields.Add(int32_t{frame.first_token().has_logprobs()});
      AddLogprobs(frame.first_token().logprobs(), fields);
      break;
    case internal::v1::PrefillFrame::kPromptLogprobs:
      fields.Add(frame.prompt_logprobs().first_position());
      fields.Add(frame.prompt_logprobs().logprobs_size());
      for (const v1::TokenLogprobs& logprobs : frame.prompt_logprobs().logprobs()) {
        AddLogprobs(logprobs, fields);
      }
      break;
    case internal::v1::PrefillFrame::kCommit:
      fields.Add(frame.commit().kv_chunk_count());
      fields.Add(frame.commit().queue_ms());
      fields.Add(frame.commit().prefill_ms());
      break;
    case internal::v1::PrefillFrame::FRAME_NOT_SET:
      break;
  }
}

uint64_t Xxh3(const Segments& payload, uint64_t seed) {
  if (payload.size() == 1) {
    return XXH3_64bits_withSeed(payload[0].data(), payload[0].size(), seed);
  }
  // One state a thread: it is 576 bytes that XXH3 wants aligned to 64.
  thread_local const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(
      XXH3_createState(), &XXH3_freeState);
  XXH3_64bits_reset_withSeed(state.get(), seed);
  for (absl::Span<const char> segment : payload) {
    XXH3_64bits_update(state.get(), segment.data(), segment.size());
  }
  return XXH3_64bits_digest(state.get());
}

}  // namespace

uint64_t FrameChecksum(const internal::v1::PrefillFrame& frame, const Segments& payload) {
  FieldBytes fields;
  fields.Add(frame.transfer_id());
  fields.Add(frame.epoch());
  AddBody(frame, fields);
  return Xxh3(payload, fields.Hash());
}

uint64_t PayloadChecksum(const Segments& payload) {
  return std::max<uint64_t>(1, Xxh3(payload, 0));
}

uint64_t RequestChecksum(const internal::v1::PrefillRequest& request) {
  FieldBytes fields;
  fields.Add(request.request_id());
  fields.Add(request.transfer_id());
  fields.Add(request.model_fingerprint());
  fields.Add(request.kv_layout_fingerprint());
  fields.Add(request.prefill_epoch());
  fields.Add(request.decode_worker_id());
  fields.Add(request.first_block());
  fields.Add(request.cache_salt());
  AddSampling(request.sampling(), fields);
  AddTokens(request.tokens(), fields);
  fields.Add(request.prompt_tokens());
  AddTokens(request.suppressed_token_ids(), fields);
  fields.Add(request.has_prompt_logprobs() ? request.prompt_logprobs() : -1);
  fields.Add(static_cast<int32_t>(request.priority()));
  fields.Add(request.tenant());
  const v1::Retention& retention = request.retention();
  fields.Add(int32_t{request.has_retention()});
  fields.Add(retention.has_until_token() ? retention.until_token() : -1);
  fields.Add(retention.priority());
  fields.Add(static_cast<uint64_t>(retention.ttl_ms()));
  fields.Add(int32_t{request.has_kv_holder()});
  AddWorker(request.kv_holder(), fields);
  fields.Add(request.kv_holder_tokens());
  fields.Add(int32_t{request.has_shared_memory()});
  fields.Add(uint64_t{request.shared_memory().host()});
  fields.Add(uint64_t{request.shared_memory().connection()});
  fields.Add(int32_t{request.has_device_link()});
  fields.Add(uint64_t{request.device_link().connection()});
  fields.Add(int32_t{request.shared_memory().device()});
  return fields.Hash();
}

uint64_t RequestChecksum(const internal::v1::FetchKvRequest& request) {
  FieldBytes fields;
  fields.Add(request.request_id());
  fields.Add(uint64_t{request.transfer_id()});
  fields.Add(uint64_t{request.model_fingerprint()});
  fields.Add(uint64_t{request.kv_layout_fingerprint()});
  fields.Add(uint64_t{request.holder_epoch()});
  fields.Add(request.worker_id());
  fields.Add(request.cache_salt());
  AddTokens(request.tokens(), fields);
  fields.Add(request.first_block());
  return fields.Hash();
}

uint64_t RequestChecksum(const internal::v1::OfferKvRequest& request) {
  FieldBytes fields;
  fields.Add(request.request_id());
  fields.Add(uint64_t{request.model_fingerprint()});
  fields.Add(uint64_t{request.kv_layout_fingerprint()});
  fields.Add(uint64_t{request.receiver_epoch()});
  AddWorker(request.holder(), fields);
  fields.Add(request.cache_salt());
  AddTokens(request.tokens(), fields);
  return fields.Hash();
}

}  // namespace baton::transfer
