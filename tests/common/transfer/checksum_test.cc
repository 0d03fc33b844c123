#include "common/transfer/checksum.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "baton/internal/v1/kv.pb.h"
#include "baton/internal/v1/prefill.pb.h"

namespace baton::transfer {
namespace {

using internal::v1::PrefillFrame;
using internal::v1::PrefillRequest;

// Every change must give a checksum that no other change gives.
template <class Message>
void ExpectAllDiffer(const Message& message,
                     const std::vector<std::function<void(Message&)>>& changes,
                     const std::function<uint64_t(const Message&)>& checksum) {
  std::set<uint64_t> sums = {checksum(message)};
  for (size_t i = 0; i < changes.size(); ++i) {
    Message changed = message;
    changes[i](changed);
    EXPECT_TRUE(sums.insert(checksum(changed)).second) << "change " << i;
  }
}

TEST(ChecksumTest, ARequestsCoversEveryField) {
  PrefillRequest request;
  request.set_request_id("r");
  request.add_tokens(1);
  request.add_tokens(2);
  request.add_suppressed_token_ids(3);
  (*request.mutable_sampling()->mutable_logit_bias())[4] = 1;
  using Change = std::function<void(PrefillRequest&)>;
  const std::vector<Change> changes = {
      [](auto& r) { r.set_request_id("s"); },
      [](auto& r) { r.set_transfer_id(1); },
      [](auto& r) { r.set_model_fingerprint(1); },
      [](auto& r) { r.set_kv_layout_fingerprint(1); },
      [](auto& r) { r.set_prefill_epoch(1); },
      [](auto& r) { r.set_decode_worker_id("d"); },
      [](auto& r) { r.set_tokens(1, 5); },
      [](auto& r) { r.add_tokens(3); },
      [](auto& r) { r.set_first_block(1); },
      [](auto& r) { r.set_cache_salt("c"); },
      [](auto& r) { r.set_prompt_tokens(1); },
      [](auto& r) { r.set_suppressed_token_ids(0, 4); },
      [](auto& r) { r.clear_suppressed_token_ids(); },
      [](auto& r) { r.set_prompt_logprobs(0); },
      [](auto& r) { r.set_prompt_logprobs(1); },
      [](auto& r) { r.set_priority(v1::PRIORITY_HIGH); },
      [](auto& r) { r.set_tenant("t"); },
      [](auto& r) { r.mutable_retention(); },
      [](auto& r) { r.mutable_retention()->set_until_token(1); },
      [](auto& r) { r.mutable_retention()->set_priority(1); },
      [](auto& r) { r.mutable_retention()->set_ttl_ms(1); },
      [](auto& r) { r.mutable_shared_memory(); },
      [](auto& r) { r.mutable_shared_memory()->set_host(1); },
      [](auto& r) { r.mutable_shared_memory()->set_connection(1); },
      [](auto& r) { r.mutable_device_link(); },
      [](auto& r) { r.mutable_device_link()->set_connection(1); },
      [](auto& r) { r.mutable_shared_memory()->set_device(true); },
      [](auto& r) { r.mutable_kv_holder(); },
      [](auto& r) { r.mutable_kv_holder()->set_address("a:1"); },
      [](auto& r) { r.mutable_kv_holder()->set_worker_id("w"); },
      [](auto& r) { r.mutable_kv_holder()->set_epoch(1); },
      [](auto& r) { r.set_kv_holder_tokens(1); },
      [](auto& r) { r.mutable_sampling()->set_temperature(1); },
      [](auto& r) { r.mutable_sampling()->set_top_p(1); },
      [](auto& r) { r.mutable_sampling()->set_top_k(1); },
      [](auto& r) { r.mutable_sampling()->set_min_p(1); },
      [](auto& r) { r.mutable_sampling()->set_seed(1); },
      [](auto& r) { r.mutable_sampling()->set_choice(1); },
      [](auto& r) { r.mutable_sampling()->set_repetition_penalty(1); },
      [](auto& r) { r.mutable_sampling()->set_frequency_penalty(1); },
      [](auto& r) { r.mutable_sampling()->set_presence_penalty(1); },
      [](auto& r) { r.mutable_sampling()->set_logprobs(0); },
      [](auto& r) { r.mutable_sampling()->set_logprobs(1); },
      [](auto& r) { (*r.mutable_sampling()->mutable_logit_bias())[4] = 2; },
      [](auto& r) { (*r.mutable_sampling()->mutable_logit_bias())[5] = 1; },
      [](auto& r) { r.mutable_sampling()->clear_logit_bias(); },
  };
  ExpectAllDiffer<PrefillRequest>(request, changes,
                                  [](const PrefillRequest& r) { return RequestChecksum(r); });
  // Each field has a change: one that is added to the proto must be added here, and to the
  // checksum. (tokens, suppressed_token_ids, prompt_logprobs twice; checksum and takes_layer_runs
  // never; sampling's own likewise; retention, kv_holder, shared_memory and device_link themselves,
  // and each of their own.)
  const int request_fields = PrefillRequest::descriptor()->field_count();
  const int sampling_fields = internal::v1::TokenSampling::descriptor()->field_count();
  const int retention_fields = v1::Retention::descriptor()->field_count();
  const int shared_fields = internal::v1::SharedMemoryReader::descriptor()->field_count();
  const int link_fields = internal::v1::DeviceLinkReader::descriptor()->field_count();
  const int worker_fields = internal::v1::WorkerRef::descriptor()->field_count();
  EXPECT_EQ(changes.size(),
            static_cast<size_t>(request_fields - 3 + 3 + sampling_fields + 3 + retention_fields +
                                worker_fields + shared_fields + link_fields));
}

TEST(ChecksumTest, AFetchsCoversEveryField) {
  using internal::v1::FetchKvRequest;
  FetchKvRequest request;
  request.add_tokens(1);
  request.add_tokens(2);
  const std::vector<std::function<void(FetchKvRequest&)>> changes = {
      [](auto& r) { r.set_request_id("s"); },
      [](auto& r) { r.set_transfer_id(1); },
      [](auto& r) { r.set_model_fingerprint(1); },
      [](auto& r) { r.set_kv_layout_fingerprint(1); },
      [](auto& r) { r.set_holder_epoch(1); },
      [](auto& r) { r.set_worker_id("w"); },
      [](auto& r) { r.set_cache_salt("c"); },
      [](auto& r) { r.set_tokens(1, 5); },
      [](auto& r) { r.add_tokens(3); },
      [](auto& r) { r.set_first_block(1); },
  };
  ExpectAllDiffer<FetchKvRequest>(request, changes,
                                  [](const FetchKvRequest& r) { return RequestChecksum(r); });
  // Tokens twice; the checksum and what older versions do not know never.
  EXPECT_EQ(changes.size(), static_cast<size_t>(FetchKvRequest::descriptor()->field_count() - 1));
  const uint64_t before = RequestChecksum(request);
  request.set_takes_layer_runs(true);
  EXPECT_EQ(RequestChecksum(request), before);
}

TEST(ChecksumTest, AnOffersCoversEveryField) {
  using internal::v1::OfferKvRequest;
  OfferKvRequest request;
  request.add_tokens(1);
  request.add_tokens(2);
  const std::vector<std::function<void(OfferKvRequest&)>> changes = {
      [](auto& r) { r.set_request_id("s"); },
      [](auto& r) { r.set_model_fingerprint(1); },
      [](auto& r) { r.set_kv_layout_fingerprint(1); },
      [](auto& r) { r.set_receiver_epoch(1); },
      [](auto& r) { r.mutable_holder()->set_address("a:1"); },
      [](auto& r) { r.mutable_holder()->set_worker_id("w"); },
      [](auto& r) { r.mutable_holder()->set_epoch(1); },
      [](auto& r) { r.set_cache_salt("c"); },
      [](auto& r) { r.set_tokens(1, 5); },
      [](auto& r) { r.add_tokens(3); },
  };
  ExpectAllDiffer<OfferKvRequest>(request, changes,
                                  [](const OfferKvRequest& r) { return RequestChecksum(r); });
  // Tokens twice, checksum never; the holder is its fields.
  EXPECT_EQ(changes.size(),
            static_cast<size_t>(OfferKvRequest::descriptor()->field_count() - 1 +
                                internal::v1::WorkerRef::descriptor()->field_count()));
}

TEST(ChecksumTest, ARequestsDoesNotDependOnTheOrderOfAMap) {
  PrefillRequest up, down;
  for (int id = 0; id < 500; ++id) (*up.mutable_sampling()->mutable_logit_bias())[id] = 1;
  for (int id = 499; id >= 0; --id) (*down.mutable_sampling()->mutable_logit_bias())[id] = 1;
  EXPECT_EQ(RequestChecksum(up), RequestChecksum(down));
}

TEST(ChecksumTest, AFramesCoversWhatSharedMemoryNeeds) {
  PrefillFrame accepted, chunk;
  accepted.mutable_accepted();
  chunk.mutable_kv_chunk()->add_shared_blocks(1);
  const auto checksum = [](const PrefillFrame& f) { return FrameChecksum(f, {}); };
  ExpectAllDiffer<PrefillFrame>(
      accepted,
      {
          [](auto& f) { f.mutable_accepted()->mutable_shared_memory(); },
          [](auto& f) { f.mutable_accepted()->mutable_shared_memory()->set_socket("s"); },
          [](auto& f) { f.mutable_accepted()->mutable_shared_memory()->set_token("s"); },
          [](auto& f) { f.mutable_accepted()->set_device_link(true); },
          [](auto& f) { f.mutable_accepted()->mutable_shared_memory()->set_device(true); },
      },
      checksum);
  ExpectAllDiffer<PrefillFrame>(chunk,
                                {
                                    [](auto& f) { f.mutable_kv_chunk()->set_shared_blocks(0, 2); },
                                    [](auto& f) { f.mutable_kv_chunk()->add_shared_blocks(1); },
                                    [](auto& f) { f.mutable_kv_chunk()->clear_shared_blocks(); },
                                    [](auto& f) { f.mutable_kv_chunk()->set_lease_slot(1); },
                                    [](auto& f) { f.mutable_kv_chunk()->set_lease(1); },
                                    [](auto& f) { f.mutable_kv_chunk()->set_shared_checksum(1); },
                                    [](auto& f) { f.mutable_kv_chunk()->set_operation(1); },
                                    [](auto& f) { f.mutable_kv_chunk()->set_layer_count(1); },
                                    [](auto& f) { f.mutable_kv_chunk()->set_layer_count(2); },
                                },
                                checksum);
}

TEST(ChecksumTest, AFramesCoversLogprobs) {
  PrefillFrame first;
  first.mutable_first_token()->set_token_id(1);
  first.mutable_first_token()->mutable_logprobs()->add_top()->set_token_id(2);
  PrefillFrame prompt;
  prompt.mutable_prompt_logprobs()->set_first_position(1);
  prompt.mutable_prompt_logprobs()->add_logprobs()->add_top()->set_token_id(2);
  const auto checksum = [](const PrefillFrame& f) { return FrameChecksum(f, {}); };
  EXPECT_NE(checksum(first), checksum(prompt));
  using Change = std::function<void(PrefillFrame&)>;
  std::vector<Change> of_first = {
      [](auto& f) { f.mutable_first_token()->set_token_id(2); },
      [](auto& f) { f.mutable_first_token()->clear_logprobs(); },
  };
  std::vector<Change> of_prompt = {
      [](auto& f) { f.mutable_prompt_logprobs()->set_first_position(2); },
      [](auto& f) { f.mutable_prompt_logprobs()->add_logprobs(); },
      [](auto& f) { f.mutable_prompt_logprobs()->clear_logprobs(); },
  };
  using Spoil = std::function<void(v1::TokenLogprobs&)>;
  for (const Spoil& spoil : std::vector<Spoil>{
           [](auto& l) { l.set_token_id(3); },
           [](auto& l) { l.set_logprob(-1); },
           [](auto& l) { l.mutable_top(0)->set_token_id(3); },
           [](auto& l) { l.mutable_top(0)->set_logprob(-1); },
           [](auto& l) { l.add_top(); },
       }) {
    of_first.push_back(
        [spoil](PrefillFrame& f) { spoil(*f.mutable_first_token()->mutable_logprobs()); });
    of_prompt.push_back(
        [spoil](PrefillFrame& f) { spoil(*f.mutable_prompt_logprobs()->mutable_logprobs(0)); });
  }
  ExpectAllDiffer<PrefillFrame>(first, of_first, checksum);
  ExpectAllDiffer<PrefillFrame>(prompt, of_prompt, checksum);
  PrefillFrame empty, none;
  empty.mutable_first_token()->mutable_logprobs();
  none.mutable_first_token();
  EXPECT_NE(checksum(empty), checksum(none));
}

}  // namespace
}  // namespace baton::transfer
