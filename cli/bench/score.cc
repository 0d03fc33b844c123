#include "cli/bench/score.h"

#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/error.h"
#include "common/base/named_thread.h"
#include "common/base/rpc/grpc_status.h"

namespace baton::cli {
namespace {

constexpr size_t kItemsOfMessage = 64;

absl::Status StatusOfItem(const v1::ItemScore& result) {
  if (!result.has_error()) return absl::OkStatus();
  return MakeError(static_cast<absl::StatusCode>(result.error().code()), result.error().reason(),
                   result.error().message());
}

}  // namespace

std::vector<Outcome> ScoreItems(v1::InferenceService::Stub* stub, const ScoreCall& call) {
  grpc::ClientContext context;
  if (call.timeout < absl::InfiniteDuration()) {
    context.set_deadline(absl::ToChronoTime(absl::Now() + call.timeout));
  }
  std::vector<Outcome> outcomes(call.items.size());
  for (size_t i = 0; i < outcomes.size(); ++i) {
    outcomes[i].kind = static_cast<int>(i);
    outcomes[i].max_tokens = 1;
    outcomes[i].sent_s = outcomes[i].due_s = NowSeconds();
  }
  const auto stream = stub->ScoreStream(&context);
  // The router reads on only while its results are read.
  std::thread writer = NamedThread("score-writer", [&] {
    v1::ScoreStreamRequest request;
    request.mutable_settings()->set_model(call.model);
    request.mutable_settings()->set_prefix(call.prefix);
    for (const std::string& label : call.labels) request.mutable_settings()->add_labels(label);
    for (size_t i = 0; i < call.items.size(); ++i) {
      v1::ScoreItem* item = request.add_items();
      item->set_id(i);
      item->set_text(call.items[i]);
      const bool full = request.items_size() == kItemsOfMessage || i + 1 == call.items.size();
      if (!full) continue;
      if (!stream->Write(request)) return;  // the call has ended
      request.Clear();
    }
    stream->WritesDone();
  });
  v1::ScoreStreamResponse response;
  std::vector<bool> has_result(outcomes.size());
  while (stream->Read(&response)) {
    const double now_s = NowSeconds();
    for (const v1::ItemScore& result : response.items()) {
      if (result.id() >= outcomes.size()) continue;
      Outcome& outcome = outcomes[result.id()];
      has_result[result.id()] = true;
      outcome.status = StatusOfItem(result);
      outcome.ended_s = now_s;
      if (outcome.status.ok()) outcome.token_s = {now_s};
      outcome.usage.set_prompt_tokens(result.prompt_tokens());
      outcome.usage.set_cached_prompt_tokens(result.cached_prompt_tokens());
    }
  }
  writer.join();
  const absl::Status status = FromGrpcStatus(stream->Finish());
  const double now_s = NowSeconds();
  for (size_t i = 0; i < outcomes.size(); ++i) {
    if (has_result[i]) continue;
    outcomes[i].ended_s = now_s;
    outcomes[i].status = !status.ok() ? status : absl::InternalError("an item has no result");
  }
  return outcomes;
}

}  // namespace baton::cli
