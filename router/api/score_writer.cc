#include "router/api/score_writer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/request_limits.h"
#include "common/base/rpc/grpc_status.h"
#include "router/api/wire.h"
#include "router/request/delta_merging.h"

namespace baton::router {

namespace {

void AddResult(ItemResult item, v1::ScoreResponse* answer) {
  *answer->add_items() = std::move(item.score);
}

void AddResult(ItemResult item, v1::EmbedResponse* answer) {
  v1::Embedding& embedding = *answer->add_embeddings();
  embedding.mutable_values()->Assign(item.embedding.begin(), item.embedding.end());
  embedding.set_prompt_tokens(item.score.prompt_tokens());
  embedding.set_cached_prompt_tokens(item.score.cached_prompt_tokens());
}

void SetUsage(const v1::ScoreUsage& usage, v1::ScoreResponse* answer) {
  *answer->mutable_usage() = usage;
}

// Each of its embeddings has what it took.
void SetUsage(const v1::ScoreUsage&, v1::EmbedResponse*) {}

const char* TooLarge(const v1::ScoreResponse&) {
  return "the scores are larger than what clients take in one message: expected fewer items or "
         "labels, or a call of ScoreStream";
}

const char* TooLarge(const v1::EmbedResponse&) {
  return "the embeddings are larger than what clients take in one message: expected fewer inputs "
         "or dimensions";
}

}  // namespace

template <class Message>
ItemsOnceWriter<Message>::ItemsOnceWriter(std::shared_ptr<ScoreCall> call,
                                          grpc::CallbackServerContext* context,
                                          const std::string& request_id, grpc::ByteBuffer* response,
                                          RouterParts& parts)
    : call_(std::move(call)),
      context_(context),
      response_(response),
      unread_(parts.unread, CutBehind(context, parts)) {
  answer_.set_request_id(request_id);
}

template <class Message>
void ItemsOnceWriter<Message>::OnDone() {
  call_->OnSinkGone();
  delete this;
}

template <class Message>
void ItemsOnceWriter<Message>::Result(ItemResult item) {
  AddResult(std::move(item), &answer_);
}

template <class Message>
void ItemsOnceWriter<Message>::Finish(const v1::ScoreUsage& usage) {
  SetUsage(usage, &answer_);
  if (answer_.ByteSizeLong() > WholeAnswer::kMaxMessageBytes) {
    return Fail(MakeError(absl::StatusCode::kOutOfRange, "ANSWER_TOO_LARGE", TooLarge(answer_)));
  }
  *response_ = ToBytes(answer_);
  answer_.Clear();
  unread_.Update(UnreadAnswers::kAnswerBytes + static_cast<int64_t>(response_->Length()), true);
  ServerUnaryReactor::Finish(grpc::Status::OK);
}

template <class Message>
void ItemsOnceWriter<Message>::Fail(const absl::Status& error) {
  unread_.Update(UnreadAnswers::kAnswerBytes, true);
  ServerUnaryReactor::Finish(ToGrpcStatus(error));
}

template class ItemsOnceWriter<v1::ScoreResponse>;
template class ItemsOnceWriter<v1::EmbedResponse>;

ScoreStreamWriter::ScoreStreamWriter(absl::Time deadline, grpc::CallbackServerContext* context,
                                     RouterParts& parts, Begin begin)
    : deadline_(deadline),
      context_(context),
      parts_(parts),
      begin_(std::move(begin)),
      unread_(parts.unread, CutBehind(context, parts)),
      stall_(StallLimit(parts)) {
  if (parts.request_bytes != nullptr) held_ = parts.request_bytes->Open();
  StartRead(&read_);
}

void ScoreStreamWriter::CountUnread(bool taken) {
  int64_t bytes = pending_bytes_ + static_cast<int64_t>(writing_ ? on_wire_.Length() : 0);
  if (state_ != State::kOpen) bytes += UnreadAnswers::kAnswerBytes;
  unread_.Update(bytes, taken);
}

bool ScoreStreamWriter::Stalled(absl::Duration now) {
  absl::MutexLock lock(&mutex_);
  const bool under_way = writing_ || state_ == State::kFinished;
  return stall_.Look(now, std::exchange(moved_, false) || !under_way, on_wire_.Length());
}

std::shared_ptr<ScoreCall> ScoreStreamWriter::Call() {
  absl::MutexLock lock(&mutex_);
  return call_;
}

void ScoreStreamWriter::OnReadDone(bool ok) {
  v1::ScoreStreamRequest message;
  absl::Status parsed = ok ? ParseRequest(read_, &message) : absl::OkStatus();
  const int64_t bytes = ok ? static_cast<int64_t>(read_.Length()) : 0;
  read_.Clear();
  {
    absl::MutexLock lock(&mutex_);
    if (!ok) input_ended_ = true;
    open_items_ += message.items_size();
    if (parsed.ok()) parsed = Hold(parts_, bytes, &held_);
    // The settings are needed until the end.
    if (parsed.ok() && call_ != nullptr) item_bytes_ += bytes;
  }
  const std::shared_ptr<ScoreCall> call = Call();
  if (call == nullptr) {
    TakeFirst(ok, parsed, std::move(message));
  } else if (!ok) {
    call->EndOfItems();
  } else {
    TakeItems(*call, parsed, std::move(message));
  }
  {
    // Only now: after a write, another thread may read on, and its items come behind these.
    absl::MutexLock lock(&mutex_);
    reading_ = false;
  }
  ReadMore();
}

void ScoreStreamWriter::TakeFirst(bool ok, const absl::Status& parsed,
                                  v1::ScoreStreamRequest message) {
  absl::Status status = parsed;
  if (status.ok() && (!ok || !message.has_settings())) {
    status = InvalidField("MISSING_FIELD", "settings", "required in the first message");
  }
  ScoreCall::Settings settings;
  settings.request = std::move(*message.mutable_settings());
  settings.stream = true;
  settings.in_order = message.in_order();
  std::shared_ptr<ScoreCall> call = begin_(&settings.request, &status);
  bool cancelled;
  {
    absl::MutexLock lock(&mutex_);
    call_ = call;
    request_id_ = settings.request.request_id();
    cancelled = cancelled_;
  }
  if (status.ok()) {
    call->Start(std::move(settings), deadline_, this);
    TakeItems(*call, absl::OkStatus(), std::move(message));
  } else {
    call->Refuse(status, this);
  }
  if (cancelled) call->Cancel();
}

void ScoreStreamWriter::TakeItems(ScoreCall& call, const absl::Status& parsed,
                                  v1::ScoreStreamRequest message) {
  if (!parsed.ok()) return call.Abort(parsed);
  // The settings were moved out of the first message.
  if (message.has_settings() && message.settings().ByteSizeLong() > 0) {
    return call.Abort(InvalidField("SETTINGS_TWICE", "settings", "given in a later message"));
  }
  if (message.items_size() > kMaxScoreItems) {
    return call.Abort(OutOfRange("items", absl::StrCat(message.items_size(), " in one message"),
                                 absl::StrCat("at most ", kMaxScoreItems, " expected")));
  }
  call.Add(std::move(*message.mutable_items()));
}

void ScoreStreamWriter::ReadMore() {
  {
    absl::MutexLock lock(&mutex_);
    if (reading_ || input_ended_ || state_ != State::kOpen || open_items_ >= kMaxOpenItems) return;
    reading_ = true;
  }
  StartRead(&read_);
}

void ScoreStreamWriter::Result(ItemResult item) {
  absl::MutexLock lock(&mutex_);
  pending_bytes_ += static_cast<int64_t>(item.score.SpaceUsedLong());
  *pending_.add_items() = std::move(item.score);
  WriteNext();
  CountUnread(false);
}

void ScoreStreamWriter::Finish(const v1::ScoreUsage& usage) {
  absl::MutexLock lock(&mutex_);
  *pending_.mutable_usage() = usage;
  state_ = State::kFinishing;
  WriteNext();
  CountUnread(false);
}

void ScoreStreamWriter::Fail(const absl::Status& error) {
  absl::MutexLock lock(&mutex_);
  end_ = ToGrpcStatus(error);
  state_ = State::kFinishing;
  WriteNext();
  CountUnread(false);
}

void ScoreStreamWriter::WriteNext() {
  if (writing_ || state_ == State::kFinished) return;
  const bool last = pending_.has_usage();
  if (!pending_.items().empty() || last) {
    if (!id_sent_ || last) pending_.set_request_id(request_id_);
    id_sent_ = true;
    writing_items_ = pending_.items_size();
    on_wire_ = ToBytes(pending_);
    pending_.Clear();
    pending_bytes_ = 0;
    writing_ = moved_ = true;
    StartWrite(&on_wire_);
  } else if (state_ == State::kFinishing) {
    state_ = State::kFinished;
    moved_ = true;
    on_wire_.Clear();
    ServerBidiReactor::Finish(end_);
  }
}

// Items are let go of in any order, each as if it had the mean size of all that are held.
void ScoreStreamWriter::LetGo(int64_t items) {
  if (items == 0) return;
  const double share = static_cast<double>(items) / static_cast<double>(open_items_);
  const auto bytes = static_cast<int64_t>(share * static_cast<double>(item_bytes_));
  held_.Shrink(bytes);
  item_bytes_ -= bytes;
  open_items_ -= items;
}

void ScoreStreamWriter::OnWriteDone(bool ok) {
  {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    moved_ = true;
    LetGo(std::exchange(writing_items_, 0));
    if (!ok) {  // the client is gone
      pending_.Clear();
      pending_bytes_ = 0;
    }
    WriteNext();
    CountUnread(true);
  }
  if (!ok) {
    Call()->Cancel();
  } else {
    ReadMore();
  }
}

void ScoreStreamWriter::OnCancel() {
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
  }
  // Without a call, a read is under way: it fails, and the call is refused.
  if (const std::shared_ptr<ScoreCall> call = Call()) call->Cancel();
}

void ScoreStreamWriter::OnDone() {
  if (const std::shared_ptr<ScoreCall> call = Call()) call->OnSinkGone();
  // The thread that called Finish of gRPC may still hold the lock.
  { absl::MutexLock lock(&mutex_); }
  delete this;
}

}  // namespace baton::router
