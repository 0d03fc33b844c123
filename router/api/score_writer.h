// The gRPC forms of calls that score or embed items: one message each way, and, to score, streams
// of items and results.
#ifndef BATON_ROUTER_API_SCORE_WRITER_H_
#define BATON_ROUTER_API_SCORE_WRITER_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/rpc/answer_watch.h"
#include "common/base/stall_watch.h"
#include "router/api/wire.h"
#include "router/request/access.h"
#include "router/request/router_parts.h"
#include "router/request/unread_answers.h"
#include "router/score/score_call.h"
#include "router/score/score_sink.h"

namespace baton::router {

// Owns itself until OnDone. Message: ScoreResponse or EmbedResponse.
template <class Message>
class ItemsOnceWriter final : public grpc::ServerUnaryReactor, public ScoreSink {
 public:
  ItemsOnceWriter(std::shared_ptr<ScoreCall> call, grpc::CallbackServerContext* context,
                  const std::string& request_id, grpc::ByteBuffer* response, RouterParts& parts);

  void Result(ItemResult item) override;
  void Finish(const v1::ScoreUsage& usage) override;
  void Fail(const absl::Status& error) override;
  void Abort(const absl::Status& why) override { CutCall(context_->c_call(), why); }

  void OnCancel() override { call_->Cancel(); }
  void OnDone() override;

 private:
  const std::shared_ptr<ScoreCall> call_;  // shared with the workers' streams
  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer* const response_;
  // No lock guards these, because the ScoreCall makes its calls one at a time.
  UnreadAnswers::Answer unread_;
  Message answer_;
};

extern template class ItemsOnceWriter<v1::ScoreResponse>;
extern template class ItemsOnceWriter<v1::EmbedResponse>;

// Owns itself until OnDone. Reads on while fewer than kMaxOpenItems items were read whose results
// are not sent yet: a client that sends and does not read is held up, and so is one that sends
// faster than items are scored. Results that wait for a write share a message.
class ScoreStreamWriter final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                                public ScoreSink {
 public:
  static constexpr int64_t kMaxOpenItems = 1024;

  // Makes the call from the settings, or from the reason why there is none.
  using Begin =
      std::function<std::shared_ptr<ScoreCall>(v1::ScoreRequest* settings, absl::Status* status)>;
  ScoreStreamWriter(absl::Time deadline, grpc::CallbackServerContext* context, RouterParts& parts,
                    Begin begin);

  void Result(ItemResult item) override;
  void Finish(const v1::ScoreUsage& usage) override;
  void Fail(const absl::Status& error) override;
  bool Stalled(absl::Duration now) override;
  void Abort(const absl::Status& why) override { CutCall(context_->c_call(), why); }

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  enum class State { kOpen, kFinishing, kFinished };
  std::shared_ptr<ScoreCall> Call();
  void TakeFirst(bool ok, const absl::Status& parsed, v1::ScoreStreamRequest message);
  void TakeItems(ScoreCall& call, const absl::Status& parsed, v1::ScoreStreamRequest message);
  void ReadMore();
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Releases the bytes of so many items, whose results are sent.
  void LetGo(int64_t items) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `taken`: a write has ended.
  void CountUnread(bool taken) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const absl::Time deadline_;
  grpc::CallbackServerContext* const context_;
  RouterParts& parts_;
  const Begin begin_;
  grpc::ByteBuffer read_;
  absl::Mutex mutex_;
  UnreadAnswers::Answer unread_ ABSL_GUARDED_BY(mutex_);
  StallWatch stall_ ABSL_GUARDED_BY(mutex_);
  bool moved_ ABSL_GUARDED_BY(mutex_) = false;               // a write moved since the last look
  std::shared_ptr<ScoreCall> call_ ABSL_GUARDED_BY(mutex_);  // from the first message on
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool reading_ ABSL_GUARDED_BY(mutex_) = true;  // or what was read is being taken
  bool input_ended_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t open_items_ ABSL_GUARDED_BY(mutex_) = 0;
  RequestBytes::Share held_ ABSL_GUARDED_BY(mutex_);  // bytes of the settings and the open items
  int64_t item_bytes_ ABSL_GUARDED_BY(mutex_) = 0;    // the items' part of these bytes
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t writing_items_ ABSL_GUARDED_BY(mutex_) = 0;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kOpen;
  std::string request_id_ ABSL_GUARDED_BY(mutex_);
  bool id_sent_ ABSL_GUARDED_BY(mutex_) = false;
  v1::ScoreStreamResponse pending_ ABSL_GUARDED_BY(mutex_);
  int64_t pending_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // size in memory
  grpc::ByteBuffer on_wire_ ABSL_GUARDED_BY(mutex_);
  grpc::Status end_ ABSL_GUARDED_BY(mutex_);  // once kFinishing
};

}  // namespace baton::router

#endif  // BATON_ROUTER_API_SCORE_WRITER_H_
