// Talks to workers directly, in the router's place: makes Decode calls, waits until all blocks are
// released, reads block counts.
#ifndef BATON_TESTS_TESTING_WORKER_CLIENT_H_
#define BATON_TESTS_TESTING_WORKER_CLIENT_H_

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "baton/internal/v1/decode.grpc.pb.h"
#include "baton/internal/v1/worker.grpc.pb.h"
#include "common/base/check.h"
#include "common/base/rpc/channel.h"
#include "common/base/rpc/grpc_status.h"
#include "common/worker/token_sampling.h"

namespace baton::testing {

struct DecodeChoice {
  std::vector<int32_t> tokens;
  internal::v1::DecodeResponse::Finish finish = internal::v1::DecodeResponse::FINISH_UNSPECIFIED;
  std::vector<v1::TokenLogprobs> logprobs;
  double beam_score = 0;
};

struct DecodeResult {
  absl::Status status;
  std::map<int, DecodeChoice> choices;
  std::vector<v1::TokenLogprobs> prompt_logprobs;
  internal::v1::DecodeTimings timings;  // the last ones sent
  internal::v1::DecodeUsage usage;      // likewise
  // Of the first choice.
  std::vector<int32_t> tokens;
  internal::v1::DecodeResponse::Finish finish = internal::v1::DecodeResponse::FINISH_UNSPECIFIED;
};

// Keeps a broken test from hanging; a passing test never reaches it.
inline std::chrono::system_clock::time_point TestDeadline() {
  return std::chrono::system_clock::now() + std::chrono::seconds(120);
}

template <class PrefillWorker, class DecodeWorker>
internal::v1::DecodeRequest MakeDecodeRequest(const PrefillWorker& prefill,
                                              const DecodeWorker& decode,
                                              const std::vector<int32_t>& tokens,
                                              const model::SamplingParams& sampling,
                                              int max_tokens) {
  internal::v1::DecodeRequest request;
  request.set_request_id("test");
  request.set_model_fingerprint(decode.card().model_fingerprint());
  request.set_decode_epoch(decode.card().epoch());
  request.mutable_prefill()->set_address(prefill.address());
  request.mutable_prefill()->set_worker_id(prefill.card().worker_id());
  request.mutable_prefill()->set_epoch(prefill.card().epoch());
  request.mutable_tokens()->Add(tokens.begin(), tokens.end());
  *request.mutable_sampling() = worker::ToProto(sampling);
  request.set_max_tokens(max_tokens);
  return request;
}

inline DecodeResult Decode(const std::shared_ptr<grpc::Channel>& channel,
                           const internal::v1::DecodeRequest& request) {
  auto stub = internal::v1::DecodeService::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(TestDeadline());
  auto reader = stub->Decode(&context, request);
  DecodeResult result;
  internal::v1::DecodeResponse response;
  while (reader->Read(&response)) {
    if (response.has_usage()) result.usage = response.usage();
    if (response.has_timings()) result.timings = response.timings();
    result.prompt_logprobs.insert(result.prompt_logprobs.end(), response.prompt_logprobs().begin(),
                                  response.prompt_logprobs().end());
    if (response.token_ids().empty() && response.finish() == 0) continue;
    DecodeChoice& choice = result.choices[response.choice()];
    choice.tokens.insert(choice.tokens.end(), response.token_ids().begin(),
                         response.token_ids().end());
    choice.logprobs.insert(choice.logprobs.end(), response.logprobs().begin(),
                           response.logprobs().end());
    if (response.finish() != 0) choice.finish = response.finish();
    choice.beam_score = response.beam_score();
  }
  if (!result.choices.empty()) {
    result.tokens = result.choices.begin()->second.tokens;
    result.finish = result.choices.begin()->second.finish;
  }
  result.status = FromGrpcStatus(reader->Finish());
  return result;
}

// Reads the worker's reports until every block is free or cached (LoadReport.free_blocks counts
// both) and nothing runs or waits. DEADLINE_EXCEEDED, with the last report, if that takes longer
// than `limit` or the stream ends.
inline absl::Status WaitUntilIdle(const std::string& address,
                                  std::chrono::seconds limit = std::chrono::seconds(30)) {
  auto stub = internal::v1::WorkerService::NewStub(MakeChannel(address));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + limit);
  internal::v1::WatchRequest watch;
  watch.set_watcher("test");
  auto reader = stub->Watch(&context, watch);
  internal::v1::WatchResponse response;
  internal::v1::LoadReport last;
  int total = -1;
  while (reader->Read(&response)) {
    if (response.has_card()) total = response.card().total_blocks();
    if (!response.has_load()) continue;
    last = response.load();
    if (last.running() == 0 && last.queued() == 0 && last.free_blocks() == total) {
      context.TryCancel();
      return absl::OkStatus();
    }
  }
  return absl::DeadlineExceededError(last.ShortDebugString());
}

inline internal::v1::GetBlockCountsResponse BlockCounts(const std::string& address) {
  auto stub = internal::v1::WorkerService::NewStub(MakeChannel(address));
  grpc::ClientContext context;
  context.set_deadline(TestDeadline());
  internal::v1::GetBlockCountsResponse response;
  const grpc::Status status = stub->GetBlockCounts(&context, {}, &response);
  BATON_CHECK(status.ok()) << status.error_message();
  return response;
}

}  // namespace baton::testing

#endif  // BATON_TESTS_TESTING_WORKER_CLIENT_H_
