#include "tests/testing/fake_worker.h"

#include <unistd.h>

#include <atomic>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/random_id.h"

namespace baton::testing {

namespace pb = ::baton::internal::v1;

void DecodeCall::SendTokens(const std::vector<int32_t>& ids, int choice) {
  pb::DecodeResponse response;
  response.mutable_token_ids()->Assign(ids.begin(), ids.end());
  response.set_choice(choice);
  stream->Send(response);
}

void DecodeCall::FinishChoice(int choice, const std::vector<int32_t>& ids,
                              pb::DecodeResponse::Finish finish) {
  pb::DecodeResponse response;
  response.mutable_token_ids()->Assign(ids.begin(), ids.end());
  response.set_choice(choice);
  response.set_finish(finish);
  response.mutable_timings()->set_prefill_ms(7);
  stream->Send(response);
}

void DecodeCall::Finish(const std::vector<int32_t>& ids, pb::DecodeResponse::Finish finish) {
  FinishChoice(static_cast<int>(request.sampling().choice()), ids, finish);
  stream->End(grpc::Status::OK);
}

void ScoreItemsCall::Score(int item) {
  pb::ScoredItem result;
  result.set_item(item);
  if (request.embed()) result.mutable_embedding()->Add(kFakeState.begin(), kFakeState.end());
  for (const auto& label : request.items(item).labels()) {
    result.add_labels()->mutable_logprobs()->Resize(label.tokens_size(), -1);
  }
  stream->Send(result);
}

void ScoreItemsCall::ScoreAll() {
  for (int i = 0; i < request.items_size(); ++i) Score(i);
  stream->End(grpc::Status::OK);
}

pb::WorkerCard FakeCard(v1::WorkerRole role, uint64_t tokenizer_fingerprint) {
  pb::WorkerCard card;
  card.set_role(role);
  card.set_worker_id(RandomIdText());
  card.set_epoch(RandomId64());
  card.set_model("tiny");
  card.set_model_fingerprint(0xA0DE1);
  card.set_tokenizer_fingerprint(tokenizer_fingerprint);
  card.mutable_kv_layout()->set_block_tokens(16);
  card.mutable_kv_layout()->set_layers(2);
  card.mutable_kv_layout()->set_fingerprint(0x1A10);
  card.set_max_model_len(128);
  card.set_max_num_seqs(16);
  card.set_total_blocks(64);
  card.set_grammar_level(pb::GRAMMAR_LEVEL_MESSAGES);
  card.add_eos_token_ids(256);
  card.mutable_embeddings()->set_dimensions(static_cast<int32_t>(kFakeState.size()));
  card.mutable_embeddings()->set_normalized(true);
  return card;
}

class FakeWorker::WorkerFace final : public pb::WorkerService::CallbackService {
 public:
  explicit WorkerFace(FakeWorker& worker) : worker_(worker) {}

  grpc::ServerWriteReactor<pb::WatchResponse>* Watch(grpc::CallbackServerContext* context,
                                                     const pb::WatchRequest* request) override {
    auto stream = std::make_shared<WatchStream>();
    stream->Hold();
    absl::MutexLock lock(&worker_.mutex_);
    pb::WatchResponse event;
    *event.mutable_card() = worker_.card_;
    stream->Send(event);
    pb::CacheSnapshot* snapshot = event.mutable_snapshot();
    snapshot->set_sequence(worker_.snapshot_sequence_);
    snapshot->mutable_keys()->Assign(worker_.snapshot_keys_.begin(), worker_.snapshot_keys_.end());
    snapshot->set_last(true);
    stream->Send(event);
    stream->Send(worker_.load_);
    worker_.watches_.push_back(stream);
    return stream.get();
  }
  grpc::ServerUnaryReactor* SetDraining(grpc::CallbackServerContext* context,
                                        const pb::SetDrainingRequest* request,
                                        pb::SetDrainingResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    absl::MutexLock lock(&worker_.mutex_);
    if (request->epoch() != worker_.card_.epoch()) {
      reactor->Finish({grpc::StatusCode::UNAVAILABLE, "another epoch"});
      return reactor;
    }
    pb::LoadReport& load = *worker_.load_.mutable_load();
    load.set_draining(request->draining());
    load.set_drained(request->draining() && load.running() + load.queued() == 0);
    worker_.TellAll(worker_.load_);
    *response->mutable_load() = load;
    if (request->wait() && !load.drained()) {
      worker_.drain_waits_.push_back({reactor, response});
    } else {
      reactor->Finish(grpc::Status::OK);
    }
    return reactor;
  }
  grpc::ServerUnaryReactor* FlushCache(grpc::CallbackServerContext* context,
                                       const pb::FlushCacheRequest* request,
                                       pb::FlushCacheResponse* response) override {
    response->set_dropped_blocks(kFlushedBlocks);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  FakeWorker& worker_;
};

class FakeWorker::DecodeFace final : public pb::DecodeService::CallbackService {
 public:
  explicit DecodeFace(FakeWorker& worker) : worker_(worker) {}

  grpc::ServerWriteReactor<pb::DecodeResponse>* Decode(grpc::CallbackServerContext* context,
                                                       const pb::DecodeRequest* request) override {
    DecodeCall call;
    call.request = *request;
    call.deadline = context->deadline();
    call.stream = std::make_shared<ScriptedStream<pb::DecodeResponse>>();
    call.stream->Hold();
    auto* reactor = call.stream.get();
    std::function<void(DecodeCall)> reply;
    {
      absl::MutexLock lock(&worker_.mutex_);
      ++worker_.decode_count_;
      reply = worker_.reply_;
      if (reply == nullptr) worker_.calls_.push_back(call);
    }
    if (reply != nullptr) reply(std::move(call));
    return reactor;
  }

 private:
  FakeWorker& worker_;
};

class FakeWorker::PrefillFace final : public pb::PrefillService::CallbackService {
 public:
  explicit PrefillFace(FakeWorker& worker) : worker_(worker) {}

  grpc::ServerWriteReactor<pb::ScoredItem>* ScoreItems(
      grpc::CallbackServerContext*, const pb::ScoreItemsRequest* request) override {
    ScoreItemsCall call{*request, std::make_shared<ScriptedStream<pb::ScoredItem>>()};
    call.stream->Hold();
    auto* reactor = call.stream.get();
    std::function<void(ScoreItemsCall)> reply;
    {
      absl::MutexLock lock(&worker_.mutex_);
      reply = worker_.score_reply_;
    }
    if (reply != nullptr) {
      reply(std::move(call));
    } else {
      call.ScoreAll();
    }
    return reactor;
  }

 private:
  FakeWorker& worker_;
};

void FakeWorker::SetScoreReply(std::function<void(ScoreItemsCall)> reply) {
  absl::MutexLock lock(&mutex_);
  score_reply_ = std::move(reply);
}

namespace {

// The first port that the kernel chooses by itself: those below are chosen by name alone.
int FirstEphemeralPort() {
  std::ifstream range("/proc/sys/net/ipv4/ip_local_port_range");
  int first = 0;
  constexpr int kUsual = 32768, kLeast = 16384;
  return range >> first && first >= kLeast ? first : kUsual;
}

// At `address`, or at a port below those that the kernel chooses.
std::unique_ptr<RpcServer> Listen(std::string address, const std::vector<grpc::Service*>& faces) {
  constexpr unsigned kPorts = 12'000;
  constexpr int kTries = 100;
  RpcServerOptions options;
  options.address = std::move(address);
  const bool given = !options.address.empty();
  const auto end = static_cast<unsigned>(FirstEphemeralPort());
  // Tests that run beside this one begin elsewhere.
  static std::atomic<unsigned> next = static_cast<unsigned>(getpid()) * 101;
  for (int i = 1;; ++i) {
    if (!given) options.address = absl::StrCat("127.0.0.1:", end - 1 - next++ % kPorts);
    auto rpc = RpcServer::Start(options, faces, {});
    if (rpc.ok()) return *std::move(rpc);
    BATON_CHECK(!given && i < kTries && absl::IsUnavailable(rpc.status())) << rpc.status();
  }
}

}  // namespace

FakeWorker::FakeWorker(pb::WorkerCard card, std::string address)
    : card_(std::move(card)),
      worker_face_(std::make_unique<WorkerFace>(*this)),
      decode_face_(std::make_unique<DecodeFace>(*this)),
      prefill_face_(std::make_unique<PrefillFace>(*this)) {
  load_.mutable_load()->set_free_blocks(card_.total_blocks());
  rpc_ = Listen(std::move(address), {worker_face_.get(), decode_face_.get(), prefill_face_.get()});
  heartbeat_ = std::thread([this] { Heartbeat(); });
}

FakeWorker::~FakeWorker() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    EndDrainWaits();
  }
  heartbeat_.join();
  rpc_->Stop(absl::ZeroDuration());
}

void FakeWorker::Heartbeat() {
  absl::MutexLock lock(&mutex_);
  while (!mutex_.AwaitWithTimeout(absl::Condition(&stopping_), absl::Milliseconds(300))) {
    TellAll(load_);
  }
}

void FakeWorker::TellAll(const pb::WatchResponse& event) {
  for (const auto& watch : watches_) watch->Send(event);
}

void FakeWorker::SetSnapshot(uint64_t sequence, std::vector<uint64_t> keys) {
  absl::MutexLock lock(&mutex_);
  snapshot_sequence_ = sequence;
  snapshot_keys_ = std::move(keys);
}

void FakeWorker::Tell(const pb::WatchResponse& event) {
  absl::MutexLock lock(&mutex_);
  if (event.has_load()) load_ = event;
  TellAll(event);
  if (load_.load().drained()) EndDrainWaits();
}

void FakeWorker::TellLoad(int running, int queued, int64_t queued_tokens, bool draining) {
  pb::WatchResponse event;
  event.mutable_load()->set_running(running);
  event.mutable_load()->set_queued(queued);
  event.mutable_load()->set_queued_tokens(queued_tokens);
  event.mutable_load()->set_free_blocks(64);
  event.mutable_load()->set_draining(draining);
  Tell(event);
}

void FakeWorker::EndDrainWaits() {
  for (const auto& [reactor, response] : drain_waits_) {
    *response->mutable_load() = load_.load();
    reactor->Finish(grpc::Status::OK);
  }
  drain_waits_.clear();
}

int FakeWorker::drain_waits() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(drain_waits_.size());
}

void FakeWorker::TellDelta(uint64_t sequence, std::vector<uint64_t> added,
                           std::vector<uint64_t> removed) {
  pb::WatchResponse event;
  event.mutable_delta()->set_sequence(sequence);
  event.mutable_delta()->mutable_added()->Assign(added.begin(), added.end());
  event.mutable_delta()->mutable_removed()->Assign(removed.begin(), removed.end());
  Tell(event);
}

bool FakeWorker::AwaitWatches(int count) {
  absl::MutexLock lock(&mutex_);
  const auto enough = [this, count] {
    mutex_.AssertReaderHeld();
    return static_cast<int>(watches_.size()) >= count;
  };
  return mutex_.AwaitWithTimeout(absl::Condition(&enough), kPatience);
}

void FakeWorker::SetReply(std::function<void(DecodeCall)> reply) {
  absl::MutexLock lock(&mutex_);
  reply_ = std::move(reply);
}

DecodeCall FakeWorker::AwaitDecode() {
  absl::MutexLock lock(&mutex_);
  const auto some = [this] {
    mutex_.AssertReaderHeld();
    return !calls_.empty();
  };
  const bool came = mutex_.AwaitWithTimeout(absl::Condition(&some), kPatience);
  BATON_CHECK(came) << "no Decode call came";
  DecodeCall call = std::move(calls_.front());
  calls_.pop_front();
  return call;
}

int FakeWorker::decode_count() const {
  absl::MutexLock lock(&mutex_);
  return decode_count_;
}

}  // namespace baton::testing
