#include "client/cpp/convert.h"

#include "absl/strings/ascii.h"
#include "absl/strings/strip.h"

namespace baton::client {
namespace {

FinishReason FromProto(v1::FinishReason reason) {
  return reason == v1::FINISH_REASON_STOP     ? FinishReason::kStop
         : reason == v1::FINISH_REASON_LENGTH ? FinishReason::kLength
                                              : FinishReason::kUnfinished;
}

Timings FromProto(const v1::Timings& timings) {
  return {timings.queue_ms(), timings.prefill_ms(), timings.kv_transfer_ms(), timings.decode_ms(),
          timings.ttft_ms()};
}

void FillSampling(const Sampling& sampling, v1::SamplingParams* out) {
  if (sampling.temperature) out->set_temperature(*sampling.temperature);
  if (sampling.top_p) out->set_top_p(*sampling.top_p);
  if (sampling.top_k) out->set_top_k(*sampling.top_k);
  if (sampling.min_p) out->set_min_p(*sampling.min_p);
  if (sampling.seed) out->set_seed(*sampling.seed);
}

// "WORKER_STATE_READY" to "ready".
std::string ShortName(absl::string_view name, absl::string_view prefix) {
  return absl::AsciiStrToLower(absl::StripPrefix(name, prefix));
}

}  // namespace

v1::GenerateRequest ToProto(const GenerateRequest& request) {
  v1::GenerateRequest out;
  out.set_model(request.model);
  if (request.token_ids.empty()) {
    out.set_text(request.text);
  } else {
    out.mutable_token_ids()->mutable_ids()->Assign(request.token_ids.begin(),
                                                   request.token_ids.end());
  }
  FillSampling(request.sampling, out.mutable_sampling());
  if (request.max_tokens) out.mutable_stop()->set_max_tokens(*request.max_tokens);
  for (const std::string& stop : request.stop) out.mutable_stop()->add_stop(stop);
  for (int32_t id : request.stop_token_ids) out.mutable_stop()->add_stop_token_ids(id);
  out.mutable_stop()->set_ignore_eos(request.ignore_eos);
  out.set_request_id(request.request_id);
  out.set_cache_salt(request.cache_salt);
  out.set_return_token_ids(request.return_token_ids);
  return out;
}

Usage FromProto(const v1::Usage& usage) {
  return {usage.prompt_tokens(), usage.cached_prompt_tokens(), usage.generated_tokens(),
          usage.kv_bytes()};
}

Worker FromProto(const v1::WorkerStatus& status) {
  Worker worker;
  worker.address = status.address();
  worker.role = ShortName(v1::WorkerRole_Name(status.role()), "WORKER_ROLE_");
  worker.state = ShortName(v1::WorkerState_Name(status.state()), "WORKER_STATE_");
  worker.detail = status.detail();
  worker.running = status.running();
  worker.queued = status.queued();
  worker.total_blocks = status.total_blocks();
  worker.free_blocks = status.free_blocks();
  worker.indexed_blocks = status.indexed_blocks();
  return worker;
}

void Merge(const v1::GenerateResponse& response, Completion* completion) {
  completion->text += response.text();
  completion->token_ids.insert(completion->token_ids.end(), response.token_ids().begin(),
                               response.token_ids().end());
  if (response.has_usage()) completion->usage = FromProto(response.usage());
  if (!response.request_id().empty()) completion->request_id = response.request_id();
  if (response.finish_reason() == v1::FINISH_REASON_UNSPECIFIED) return;
  completion->finish_reason = FromProto(response.finish_reason());
  completion->matched_stop = response.matched_stop();
  completion->timings = FromProto(response.timings());
  completion->seed = response.seed();
}

Completion FromProto(v1::GenerateOnceResponse response) {
  Completion completion;
  completion.text = std::move(*response.mutable_text());
  completion.token_ids.assign(response.token_ids().begin(), response.token_ids().end());
  completion.usage = FromProto(response.usage());
  completion.finish_reason = FromProto(response.finish_reason());
  completion.matched_stop = response.matched_stop();
  completion.timings = FromProto(response.timings());
  completion.seed = response.seed();
  completion.request_id = response.request_id();
  return completion;
}

}  // namespace baton::client
