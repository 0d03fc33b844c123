#include "router/score/score_call.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/random_id.h"
#include "common/base/rpc/grpc_status.h"
#include "common/base/stall_watch.h"
#include "common/base/status_macros.h"
#include "router/fleet/roster.h"
#include "router/metrics.h"
#include "router/options.h"
#include "router/request/request_check.h"
#include "router/request/truncation.h"
#include "router/request/work_pool.h"
#include "router/request/worker_error.h"
#include "router/routing/route_planner.h"
#include "router/score/embedding.h"
#include "router/score/score_check.h"

namespace baton::router {
namespace {

// Tokenized at a time, for milliseconds: a batch, unless items are long, or labels many.
constexpr size_t kPreparedBytes = 256 << 10;

// The message of a worker is what was asked for. hidden_dim: of the embedding that was; 0: none
// was.
absl::Status CheckResult(const ItemPrompt& prompt, int hidden_dim,
                         const internal::v1::ScoredItem& result) {
  bool fits =
      result.embedding_size() == hidden_dim &&
      absl::c_all_of(result.embedding(), [](float value) { return std::isfinite(value); }) &&
      result.labels_size() == static_cast<int>(prompt.labels.size()) &&
      result.cached_prompt_tokens() >= 0 &&
      result.cached_prompt_tokens() < static_cast<int>(prompt.tokens.size());
  for (size_t i = 0; fits && i < prompt.labels.size(); ++i) {
    const auto& logprobs = result.labels(static_cast<int>(i)).logprobs();
    fits = logprobs.size() == static_cast<int>(prompt.labels[i].size()) &&
           std::all_of(logprobs.begin(), logprobs.end(),
                       [](float logprob) { return std::isfinite(logprob) && logprob <= 0; });
  }
  return fits ? absl::OkStatus() : FromWorker(grpc::Status::OK);
}

absl::Status ErrorOf(const internal::v1::ScoredItem& result) {
  absl::Status error = WithDetails(
      absl::Status(static_cast<absl::StatusCode>(result.code()), result.message()), result.reason(),
      "",
      result.retry_after_ms() > 0 ? std::optional(absl::Milliseconds(result.retry_after_ms()))
                                  : std::nullopt);
  return FromWorker(ToGrpcStatus(error));
}

}  // namespace

ScoreCall::ScoreCall(RouterParts& parts, Caller caller, bool embeds)
    : parts_(parts),
      retry_(RetryContextOf(parts)),
      caller_(std::move(caller)),
      embeds_(embeds),
      received_(parts.clock.SinceStart()),
      trace_(parts.tracer, caller_.trace, parts.options.served_model_name, received_) {}

void ScoreCall::Start(Settings settings, absl::Time deadline, ScoreSink* sink) {
  absl::MutexLock lock(&mutex_);
  sink_ = sink;
  deadline_ = deadline;
  settings_ = std::move(settings);
  v1::ScoreRequest& request = settings_.request;
  if (request.request_id().empty()) request.set_request_id(RandomIdText());
  request_id_ = request.request_id();
  absl::Status status = settings_.embed
                            ? CheckEmbedRequest(*settings_.embed, parts_.options)
                            : CheckScoreRequest(request, settings_.stream, parts_.options);
  if (status.ok()) {
    v1::GenerateRequest names = NamesOf(request);
    status = BindToTenant(caller_, &names);
    if (status.ok()) {
      class_ = ClassOf(parts_, names.tenant());
      status = ApplyClass(class_, &names);
    }
    request.set_tenant(names.tenant());
    request.set_cache_salt(names.cache_salt());
    request.set_priority(names.priority());
  }
  trace_.Started(request_id_, request.tenant());
  if (status.ok()) status = Admit();
  if (!status.ok()) return Fail(status);
  registered_ = parts_.calls.Add(request.tenant(), request_id_, weak_from_this());
  parts_.watch.Add(weak_from_this());
  uint64_t id = 0;
  for (std::string& text : *request.mutable_items()) {
    Item& item = AddItem(id++);
    item.text.text = std::move(text);
    if (!settings_.item_splits.empty()) item.text.split = std::move(settings_.item_splits[id - 1]);
  }
  request.clear_items();
  if (settings_.embed) {
    for (v1::EmbedInput& input : *settings_.embed->mutable_inputs()) {
      Item& item = AddItem(id++);
      if (input.has_token_ids()) {
        item.tokens.assign(input.token_ids().ids().begin(), input.token_ids().ids().end());
      } else {
        item.text.text = std::move(*input.mutable_text());
      }
    }
    settings_.embed->clear_inputs();
  }
  input_ended_ = !settings_.stream;
  PrepareMore();
  if (!preparing_) Fail(TokenizerQueueFull(parts_));
}

absl::Status ScoreCall::Admit() {
  std::optional<ModelInfo> model = parts_.roster.model();
  if (!model) return parts_.roster.NoDecodeWorker();
  model_ = *std::move(model);
  if (settings_.embed) {
    BATON_RETURN_IF_ERROR(CheckEmbeddings(*settings_.embed, model_));
    dimensions_ = DimensionsOf(*settings_.embed, model_);
  }
  BATON_ASSIGN_OR_RETURN(entrance_, Enter(parts_, caller_));
  share_ = parts_.item_shares->Join(settings_.request.tenant());
  return CheckDeadline(parts_, deadline_, 0, 1);
}

void ScoreCall::Refuse(const absl::Status& error, ScoreSink* sink) {
  absl::MutexLock lock(&mutex_);
  sink_ = sink;
  request_id_ = caller_.request_id;
  trace_.Started(request_id_, "");
  Fail(error);
}

ScoreCall::Item& ScoreCall::AddItem(uint64_t id) {
  Item& item = unprepared_.emplace_back();
  item.number = next_number_++;
  item.id = id;
  return item;
}

void ScoreCall::Add(google::protobuf::RepeatedPtrField<v1::ScoreItem> items) {
  absl::MutexLock lock(&mutex_);
  if (sink_ == nullptr) return;
  for (v1::ScoreItem& item : items) {
    AddItem(item.id()).text.text = std::move(*item.mutable_text());
  }
  PrepareMore();
}

void ScoreCall::EndOfItems() {
  absl::MutexLock lock(&mutex_);
  input_ended_ = true;
  if (sink_ != nullptr) FinishIfDone();
}

void ScoreCall::Abort(const absl::Status& error) {
  absl::MutexLock lock(&mutex_);
  if (sink_ != nullptr) Fail(error);
}

void ScoreCall::PrepareMore() {
  const bool prefix_missing = prompts_ == nullptr;
  if (preparing_ || (!prefix_missing && (unprepared_.empty() || ready_.size() >= kItemsAhead))) {
    return;
  }
  // If the pool is full, OnTick tries again.
  preparing_ = parts_.pool.TryRun([self = shared_from_this()] { self->Prepare(); });
}

absl::Status ScoreCall::MakePrompts() {
  v1::ScoreRequest request;
  ByteRanges split;
  ItemPrompts::Limits limits;
  {
    absl::MutexLock lock(&mutex_);
    request = settings_.request;
    split = settings_.prefix_split;
    limits.max_model_len = ContextOf(model_, class_);
    limits.max_prompt_bytes = parts_.options.max_prompt_bytes;
    if (dimensions_ > 0) {
      limits.field = "inputs";
      limits.prompt = "input";
    }
    trace_.Admitted(parts_.clock.SinceStart());
  }
  const bool special = !request.has_add_special_tokens() || request.add_special_tokens();
  absl::StatusOr<ItemPrompts> prompts =
      ItemPrompts::Make(parts_.tokenizer, {request.prefix(), std::move(split)},
                        {request.labels().begin(), request.labels().end()}, special, limits);
  if (!prompts.ok()) return prompts.status();
  absl::MutexLock lock(&mutex_);
  if (sink_ == nullptr) return absl::OkStatus();  // ended meanwhile
  prompts_ = std::make_shared<const ItemPrompts>(*std::move(prompts));
  const std::vector<int32_t>& tokens = prompts_->prefix_tokens();
  prefix_keys_ =
      kv::PrefixKeys(kv::RootPrefixKey(model_.fingerprint, request.cache_salt(), /*adapter=*/""),
                     tokens, model_.block_tokens);
  const int64_t count = static_cast<int64_t>(tokens.size());
  trace_.Tokenized(static_cast<int>(count), parts_.clock.SinceStart());
  BATON_RETURN_IF_ERROR(CheckDeadline(parts_, deadline_, count, 1));
  return AddPrompt(parts_, count, &entrance_);
}

void ScoreCall::Prepare() {
  std::shared_ptr<const ItemPrompts> prompts;
  std::deque<Item> items;
  {
    absl::MutexLock lock(&mutex_);
    if (sink_ == nullptr) return;  // ended while it waited
    prompts = prompts_;
  }
  if (prompts == nullptr) {
    const absl::Status made = MakePrompts();
    absl::MutexLock lock(&mutex_);
    if (sink_ == nullptr) return;
    if (!made.ok()) return Fail(made);
    prompts = prompts_;
  }
  {
    absl::MutexLock lock(&mutex_);
    size_t bytes = 0;
    while (!unprepared_.empty() && bytes < kPreparedBytes && items.size() < kItemsPerBatch) {
      bytes += prompts->TokenizedBytes(unprepared_.front().text.text.size());
      items.push_back(std::move(unprepared_.front()));
      unprepared_.pop_front();
    }
  }
  std::vector<absl::Status> errors;
  for (Item& item : items) {
    {
      absl::MutexLock lock(&mutex_);
      if (sink_ == nullptr) return;  // nothing more is prepared
    }
    absl::StatusOr<ItemPrompt> prompt =
        item.tokens.empty() ? prompts->Make(item.text) : prompts->Make(std::move(item.tokens));
    errors.push_back(prompt.status());
    if (prompt.ok()) item.prompt = *std::move(prompt);
    item.text = {};
  }
  absl::MutexLock lock(&mutex_);
  preparing_ = false;
  if (sink_ == nullptr) return;
  for (size_t i = 0; i < items.size(); ++i) {
    if (errors[i].ok()) {
      ready_.push_back(std::move(items[i]));
    } else {
      AnswerError(items[i], errors[i]);
      if (sink_ == nullptr) return;  // that was the call's answer
    }
  }
  Dispatch();
  if (sink_ == nullptr) return;
  PrepareMore();
  FinishIfDone();
}

void ScoreCall::OnScored(int stream, const internal::v1::ScoredItem& result) {
  absl::MutexLock lock(&mutex_);
  const auto found = batches_.find(stream);
  if (sink_ == nullptr || found == batches_.end()) return;
  Batch& batch = found->second;
  batch.heard = true;
  batch.last_message = batch.heard_at = parts_.awake.SinceStart();
  if (result.heartbeat()) return;
  const int index = result.item();
  if (index < 0 || index >= static_cast<int>(batch.items.size()) || !batch.items[index]) {
    BATON_REQUEST_LOG(Error, request_id_, trace_.context())
        << "worker " << batch.route.answers.address << " sent a result of no open item";
    return;
  }
  Item item = *std::exchange(batch.items[index], std::nullopt);
  --batch.open;
  --in_flight_;
  const int hidden_dim = dimensions_ > 0 ? model_.embeddings->dimensions() : 0;
  absl::Status error =
      result.code() == 0 ? CheckResult(item.prompt, hidden_dim, result) : ErrorOf(result);
  if (error.ok()) {
    AnswerScored(std::move(item), result);
  } else if (AnotherPairMayDo(error, /*begun=*/true)) {
    batch.refusal = error;
    batch.returned.push_back(std::move(item));
  } else {
    BATON_REQUEST_LOG(Warning, request_id_, trace_.context())
        << "worker " << batch.route.answers.address << " on an item: " << error << " (code "
        << result.code() << ", " << result.message() << ")";
    AnswerError(item, error);
  }
  if (sink_ != nullptr && batch.open == 0) EndBatch(stream);
}

void ScoreCall::AnswerScored(Item item, const internal::v1::ScoredItem& result) {
  if (!first_result_at_) {
    first_result_at_ = parts_.clock.SinceStart();
    entrance_.ticket->OnFirstToken();
    parts_.metrics.FirstToken(*first_result_at_ - received_);
    trace_.FirstResult(*first_result_at_);
  }
  retries_.OnProgress();
  v1::ItemScore score;
  score.set_id(item.id);
  for (size_t i = 0; i < item.prompt.labels.size(); ++i) {
    v1::LabelScore* label = score.add_labels();
    const auto& logprobs = result.labels(static_cast<int>(i)).logprobs();
    double sum = 0;
    for (const float logprob : logprobs) sum += static_cast<double>(logprob);
    label->set_logprob(sum);
    *label->mutable_token_logprobs() = logprobs;
    label->mutable_token_ids()->Assign(item.prompt.labels[i].begin(), item.prompt.labels[i].end());
  }
  if (score.labels_size() == 2) {
    score.set_probability(1 /
                          (1 + std::exp(score.labels(1).logprob() - score.labels(0).logprob())));
  }
  score.set_prompt_tokens(static_cast<int>(item.prompt.tokens.size()));
  score.set_cached_prompt_tokens(result.cached_prompt_tokens());
  usage_.set_prompt_tokens(usage_.prompt_tokens() + score.prompt_tokens());
  usage_.set_cached_prompt_tokens(usage_.cached_prompt_tokens() + score.cached_prompt_tokens());
  ItemResult answer;
  answer.score = std::move(score);
  if (dimensions_ > 0) {
    answer.embedding =
        EmbeddingOf(result.embedding(), dimensions_, model_.embeddings->normalized());
  }
  Answer(item.number, std::move(answer));
}

void ScoreCall::AnswerError(const Item& item, const absl::Status& error) {
  if (dimensions_ > 0) return Fail(error);
  v1::ItemScore score;
  score.set_id(item.id);
  score.set_prompt_tokens(static_cast<int>(item.prompt.tokens.size()));
  score.mutable_error()->set_code(static_cast<int>(error.code()));
  score.mutable_error()->set_reason(ErrorReason(error));
  score.mutable_error()->set_message(std::string(error.message()));
  usage_.set_failed_items(usage_.failed_items() + 1);
  Answer(item.number, {std::move(score), {}});
}

void ScoreCall::Answer(int64_t number, ItemResult result) {
  usage_.set_items(usage_.items() + 1);
  parts_.metrics.ItemAnswered(Kind(), !result.score.has_error());
  if (!settings_.in_order) {
    ++answered_items_;
    sink_->Result(std::move(result));
    return;
  }
  out_of_order_.emplace(number, std::move(result));
  while (!out_of_order_.empty() && out_of_order_.begin()->first == answered_items_) {
    ++answered_items_;
    sink_->Result(std::move(out_of_order_.begin()->second));
    out_of_order_.erase(out_of_order_.begin());
  }
}

void ScoreCall::FinishIfDone() {
  if (!input_ended_ || prompts_ == nullptr || answered_items_ < next_number_) return;
  End(absl::StatusCode::kOk)->Finish(usage_);
}

void ScoreCall::Cancel() {
  absl::MutexLock lock(&mutex_);
  if (sink_ == nullptr) return;
  // gRPC reports a deadline that has passed as a cancellation, too.
  const bool late = parts_.clock.Now() >= deadline_;
  Fail(late ? DeadlinePassed()
            : MakeError(absl::StatusCode::kCancelled, "CANCELLED", "the client cancelled"));
}

bool ScoreCall::EndWith(const absl::Status& error) {
  absl::MutexLock lock(&mutex_);
  if (sink_ == nullptr) return false;
  Fail(error);
  return true;
}

void ScoreCall::Fail(const absl::Status& error) {
  BATON_REQUEST_LOG(Debug, request_id_, trace_.context()) << "scoring failed: " << error;
  trace_.Failed(error, parts_.clock.SinceStart());
  for (const char* reason : {"NO_WORKER", "TTFT_SLO_UNREACHABLE"}) {
    if (ErrorReason(error) == reason) parts_.metrics.RequestRejected(reason);
  }
  End(error.code())->Fail(error);
}

// Counted before the answer goes out: a client that has the answer finds it in the metrics.
ScoreSink* ScoreCall::End(absl::StatusCode code) {
  for (auto& [stream, batch] : batches_) {
    batch.handle->Cancel();
    parts_.planner.OnFirstToken(batch.route);
  }
  batches_.clear();
  share_ = ItemShares::Share();
  unprepared_.clear();
  ready_.clear();
  out_of_order_.clear();
  registered_.reset();
  entrance_.Leave();
  const absl::Duration now = parts_.clock.SinceStart();
  parts_.metrics.ScoreEnded(Kind(), code, usage_, now - received_);
  if (code == absl::StatusCode::kOk && first_result_at_ && class_.ttft_slo > absl::ZeroDuration()) {
    parts_.metrics.SloMeasured("ttft", *first_result_at_ - received_ <= class_.ttft_slo);
  }
  trace_.Ended(usage_, now);
  // The call may wait long for its client to read, so it frees what it no longer needs.
  settings_ = Settings();
  prompts_ = nullptr;
  prefix_keys_.clear();
  answered_ = sink_;
  return std::exchange(sink_, nullptr);
}

void ScoreCall::OnSinkGone() {
  absl::MutexLock lock(&mutex_);
  answered_ = nullptr;
}

// GenerateCall::CheckReader does the same.
void ScoreCall::CheckReader(absl::Duration now) {
  ScoreSink* const sink = sink_ != nullptr ? sink_ : answered_;
  if (sink == nullptr) return;
  absl::Status over;
  if (sink->Stalled(now)) {
    over = ReaderStalled(absl::Milliseconds(parts_.options.write_stall_timeout_ms));
    parts_.metrics.AnswerNotRead("stalled");
    if (sink_ != nullptr) Fail(over);
  } else if (answered_ != nullptr && parts_.clock.Now() >= deadline_) {
    over = DeadlinePassed();
  }
  if (!over.ok()) std::exchange(answered_, nullptr)->Abort(over);
}

}  // namespace baton::router
