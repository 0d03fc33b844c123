#include "common/kv_store/redis_store.h"

#include <hiredis/hiredis.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"

namespace baton::kv_store {
namespace {

constexpr size_t kMostIdle = 4;
constexpr size_t kKeysAtOnce = 256;       // of a pipeline
constexpr size_t kSmallReply = 64 << 10;  // of all replies but values

struct FreeReply {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using Reply = std::unique_ptr<redisReply, FreeReply>;

// hiredis allocates what an array's header announces. No command here is answered by an array.
#if HIREDIS_MAJOR >= 1
void* RefuseArray(const redisReadTask*, size_t) { return nullptr; }
#else
void* RefuseArray(const redisReadTask*, int) { return nullptr; }
#endif

const redisReplyObjectFunctions& WithoutArrays(const redisReplyObjectFunctions& usual) {
  static redisReplyObjectFunctions functions = [&usual] {
    redisReplyObjectFunctions copy = usual;
    copy.createArray = RefuseArray;
    return copy;
  }();
  return functions;
}

timeval Left(absl::Duration left) { return absl::ToTimeval(std::max(left, absl::Milliseconds(1))); }

std::string NameOf(const SegmentKey& key) { return absl::StrCat("baton:kv:", key.ToString()); }

absl::Status Unavailable(absl::string_view what) {
  return MakeError(absl::StatusCode::kUnavailable, "KV_STORE", what);
}

// The text of an error that the server has sent, or what it sent in place of the expected reply.
absl::Status Unexpected(const redisReply& reply, absl::string_view expected) {
  if (reply.type != REDIS_REPLY_ERROR) {
    return Unavailable(
        absl::StrCat("redis sent a reply of type ", reply.type, ", expected ", expected));
  }
  const absl::string_view text =
      absl::string_view(reply.str, static_cast<size_t>(reply.len)).substr(0, 200);
  const std::string message = absl::StrCat("redis: ", text);
  if (text.substr(0, 3) == "OOM") {
    return MakeError(absl::StatusCode::kResourceExhausted, "KV_STORE_FULL", message);
  }
  return Unavailable(message);
}

}  // namespace

class RedisStore::Connection {
 public:
  static absl::StatusOr<std::unique_ptr<Connection>> Open(const RedisOptions& options,
                                                          const Clock& clock, absl::Time deadline) {
    redisContext* context =
        redisConnectWithTimeout(options.host.c_str(), options.port, Left(deadline - clock.Now()));
    if (context == nullptr) return Unavailable("no memory for a connection to redis");
    auto connection = std::unique_ptr<Connection>(new Connection(context, clock));
    if (context->err != 0) {
      return Annotate(connection->Failure(), absl::StrCat(options.host, ":", options.port));
    }
    context->reader->fn =
        const_cast<redisReplyObjectFunctions*>(&WithoutArrays(*context->reader->fn));
    if (!options.password.empty()) {
      connection->Append({"AUTH", options.password});
      BATON_ASSIGN_OR_RETURN(const Reply reply, connection->Receive(kSmallReply, deadline));
      if (reply->type != REDIS_REPLY_STATUS) return Unexpected(*reply, "OK to AUTH");
    }
    return connection;
  }
  ~Connection() { redisFree(context_); }

  bool usable() const { return !failed_; }

  void Append(const std::vector<absl::string_view>& words) {
    std::vector<const char*> at;
    std::vector<size_t> bytes;
    for (const absl::string_view word : words) {
      at.push_back(word.data());
      bytes.push_back(word.size());
    }
    if (redisAppendCommandArgv(context_, static_cast<int>(words.size()), at.data(), bytes.data()) !=
        REDIS_OK) {
      failed_ = true;
    }
    ++expected_;
  }

  // The reply of the oldest command without one. Sends what is appended. After an error, and while
  // replies are missing, the connection is not usable.
  absl::StatusOr<Reply> Receive(size_t max_bytes, absl::Time deadline) {
    absl::StatusOr<Reply> reply = TryReceive(max_bytes, deadline);
    if (!reply.ok()) failed_ = true;
    --expected_;
    return reply;
  }
  int expected() const { return expected_; }

 private:
  Connection(redisContext* context, const Clock& clock) : context_(context), clock_(clock) {}

  absl::StatusOr<Reply> TryReceive(size_t max_bytes, absl::Time deadline) {
    if (failed_) return Unavailable("the connection to redis has failed");
    for (int done = 0; done == 0;) {
      BATON_RETURN_IF_ERROR(Arm(deadline));
      if (redisBufferWrite(context_, &done) != REDIS_OK) return Failure();
    }
    while (true) {
      void* reply = nullptr;
      if (redisGetReplyFromReader(context_, &reply) != REDIS_OK) return Failure();
      if (reply != nullptr) return Reply(static_cast<redisReply*>(reply));
      if (context_->reader->len > max_bytes) {
        return MakeError(absl::StatusCode::kDataLoss, "KV_STORE_VALUE",
                         absl::StrCat("redis sends more than ", max_bytes, " bytes"));
      }
      BATON_RETURN_IF_ERROR(Arm(deadline));
      if (redisBufferRead(context_) != REDIS_OK) return Failure();
    }
  }

  // The system's time-outs are of one call: a peer that sends byte by byte would renew them.
  absl::Status Arm(absl::Time deadline) {
    const absl::Duration left = deadline - clock_.Now();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError("redis has not answered in time");
    }
    if (redisSetTimeout(context_, Left(left)) != REDIS_OK) return Failure();
    return absl::OkStatus();
  }

  absl::Status Failure() {
    const int error = errno;
    failed_ = true;
    if (context_->err == REDIS_ERR_IO && (error == EAGAIN || error == ETIMEDOUT)) {
      return absl::DeadlineExceededError("redis has not answered in time");
    }
    if (context_->err == REDIS_ERR_PROTOCOL || context_->err == REDIS_ERR_OOM) {
      return Unavailable(absl::StrCat("redis sent what is no reply: ", context_->errstr));
    }
    return Unavailable(absl::StrCat("redis: ", context_->errstr));
  }

  redisContext* const context_;
  const Clock& clock_;
  bool failed_ = false;
  int expected_ = 0;  // replies
};

RedisStore::RedisStore(RedisOptions options, const Clock& clock)
    : options_(std::move(options)),
      clock_(clock),
      pause_(absl::Milliseconds(500), absl::Seconds(30), clock) {}

RedisStore::~RedisStore() = default;

absl::StatusOr<std::unique_ptr<RedisStore::Connection>> RedisStore::Take(absl::Time deadline) {
  const Question asked = Ask(deadline);
  BATON_RETURN_IF_ERROR(pause_.Check());
  {
    absl::MutexLock lock(&mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<Connection> connection = std::move(idle_.back());
      idle_.pop_back();
      return connection;
    }
  }
  if (clock_.Now() >= deadline) return absl::DeadlineExceededError("no time left to ask redis");
  absl::StatusOr<std::unique_ptr<Connection>> connection =
      Connection::Open(options_, clock_, deadline);
  if (!connection.ok()) return Judge(connection.status(), asked);
  return connection;
}

void RedisStore::Return(std::unique_ptr<Connection> connection) {
  if (!connection->usable() || connection->expected() > 0) return;
  absl::MutexLock lock(&mutex_);
  if (idle_.size() < kMostIdle) idle_.push_back(std::move(connection));
}

absl::Status RedisStore::Judge(absl::Status status, const Question& asked) {
  const bool late = absl::IsDeadlineExceeded(status) && asked.given >= kFairTime &&
                    clock_.SinceStart() - asked.at >= kFairShare * asked.given;
  if (absl::IsUnavailable(status) || late) {
    // The others are likely to have lost the same server.
    absl::MutexLock lock(&mutex_);
    idle_.clear();
    return pause_.Failed(std::move(status));
  }
  if (status.ok()) pause_.Succeeded();
  return status;
}

absl::StatusOr<std::vector<bool>> RedisStore::Exist(absl::Span<const SegmentKey> keys,
                                                    absl::Time deadline) {
  const Question asked = Ask(deadline);
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Connection> connection, Take(deadline));
  // The first one last: so the server's LRU evicts the others before it.
  for (size_t i = keys.size(); i > 0; --i) connection->Append({"EXISTS", NameOf(keys[i - 1])});
  std::vector<bool> there(keys.size());
  for (size_t i = keys.size(); i > 0; --i) {
    absl::StatusOr<Reply> reply = connection->Receive(kSmallReply, deadline);
    if (!reply.ok()) return Judge(reply.status(), asked);
    if ((*reply)->type != REDIS_REPLY_INTEGER)
      return Judge(Unexpected(**reply, "an integer"), asked);
    there[i - 1] = (*reply)->integer == 1;
  }
  Return(std::move(connection));
  pause_.Succeeded();
  return there;
}

absl::StatusOr<int> RedisStore::CountLeading(absl::Span<const SegmentKey> keys,
                                             absl::Time deadline) {
  int count = 0;
  for (size_t first = 0; first < keys.size(); first += kKeysAtOnce) {
    BATON_ASSIGN_OR_RETURN(const std::vector<bool> there,
                           Exist(keys.subspan(first, kKeysAtOnce), deadline));
    const auto missing = std::find(there.begin(), there.end(), false);
    count += static_cast<int>(missing - there.begin());
    if (missing != there.end()) break;
  }
  return count;
}

absl::StatusOr<int> RedisStore::CountToLast(absl::Span<const SegmentKey> keys,
                                            absl::Time deadline) {
  for (size_t end = keys.size(); end > 0; end -= std::min(end, kKeysAtOnce)) {
    const size_t first = end - std::min(end, kKeysAtOnce);
    BATON_ASSIGN_OR_RETURN(const std::vector<bool> there,
                           Exist(keys.subspan(first, end - first), deadline));
    const auto last = std::find(there.rbegin(), there.rend(), true);
    if (last != there.rend())
      return static_cast<int>(first) + static_cast<int>(there.rend() - last);
  }
  return 0;
}

absl::StatusOr<SegmentBytes> RedisStore::Get(const SegmentKey& key, size_t max_bytes,
                                             absl::Time deadline) {
  const Question asked = Ask(deadline);
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Connection> connection, Take(deadline));
  // One byte more than there may be shows that there is more.
  connection->Append({"GETRANGE", NameOf(key), "0", absl::StrCat(max_bytes)});
  absl::StatusOr<Reply> reply = connection->Receive(max_bytes + kSmallReply, deadline);
  if (!reply.ok()) return Judge(reply.status(), asked);
  if ((*reply)->type != REDIS_REPLY_STRING) return Judge(Unexpected(**reply, "a string"), asked);
  Return(std::move(connection));
  pause_.Succeeded();
  const auto size = static_cast<size_t>((*reply)->len);
  if (size == 0) return absl::NotFoundError(key.ToString());  // as of a key that is not there
  if (size > max_bytes) {
    return MakeError(
        absl::StatusCode::kDataLoss, "KV_STORE_VALUE",
        absl::StrCat("the value of ", NameOf(key), " has more than ", max_bytes, " bytes"));
  }
  auto value = std::make_shared<std::vector<std::byte>>(size);
  std::memcpy(value->data(), (*reply)->str, size);
  return value;
}

absl::Status RedisStore::Put(const SegmentKey& key, const SegmentBytes& value,
                             absl::Time deadline) {
  const Question asked = Ask(deadline);
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Connection> connection, Take(deadline));
  connection->Append(
      {"SET", NameOf(key), {reinterpret_cast<const char*>(value->data()), value->size()}});
  absl::StatusOr<Reply> reply = connection->Receive(kSmallReply, deadline);
  if (!reply.ok()) return Judge(reply.status(), asked);
  const bool stored = (*reply)->type == REDIS_REPLY_STATUS;
  absl::Status status = stored ? absl::OkStatus() : Unexpected(**reply, "OK to SET");
  Return(std::move(connection));
  return Judge(std::move(status), asked);
}

void RedisStore::Remove(const SegmentKey& key, absl::Time deadline) {
  const Question asked = Ask(deadline);
  absl::StatusOr<std::unique_ptr<Connection>> connection = Take(deadline);
  if (!connection.ok()) return;
  (*connection)->Append({"UNLINK", NameOf(key)});
  const absl::Status status = (*connection)->Receive(kSmallReply, deadline).status();
  if (status.ok()) Return(*std::move(connection));
  (void)Judge(status, asked);
}

}  // namespace baton::kv_store
