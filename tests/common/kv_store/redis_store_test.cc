#include "common/kv_store/redis_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

#include <thread>

#include "common/base/awake_clock.h"
#include "common/base/error.h"
#include "tests/common/kv_store/redis_server.h"
#include "tests/common/kv_store/store_cases.h"

namespace baton::kv_store {
namespace {

using ::testing::HasSubstr;

absl::Time Soon() { return absl::Now() + absl::Seconds(30); }

class RedisStoreTest : public ::testing::Test {
 protected:
  RedisStoreTest() { signal(SIGPIPE, SIG_IGN); }  // as the worker
};

TEST_F(RedisStoreTest, KeepsCountsAndRemoves) {
  RedisServer server;
  RedisStore store({"127.0.0.1", server.port(), ""}, Clock::Real());
  EXPECT_EQ(*store.CountLeading({KeyOf(1)}, Soon()), 0);
  EXPECT_TRUE(absl::IsNotFound(store.Get(KeyOf(1), 10, Soon()).status()));
  auto value = std::make_shared<std::vector<std::byte>>(5'000'000);
  for (size_t i = 0; i < value->size(); ++i) (*value)[i] = static_cast<std::byte>(i * i >> 3);
  for (const uint64_t key : {1, 2, 4}) {
    const absl::Status put = store.Put(KeyOf(key), value, Soon());
    ASSERT_TRUE(put.ok()) << put;
  }
  EXPECT_EQ(*store.CountLeading({KeyOf(1), KeyOf(2), KeyOf(3), KeyOf(4)}, Soon()), 2);
  std::vector<SegmentKey> many(700, KeyOf(1));  // several pipelines
  EXPECT_EQ(*store.CountLeading(many, Soon()), 700);
  many[600] = KeyOf(3);
  EXPECT_EQ(*store.CountLeading(many, Soon()), 600);
  const auto found = store.Get(KeyOf(1), value->size(), Soon());
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(**found, *value);
  EXPECT_EQ(store.Get(KeyOf(1), value->size() - 1, Soon()).status().code(),
            absl::StatusCode::kDataLoss);
  store.Remove(KeyOf(1), Soon());
  EXPECT_EQ(*store.CountLeading({KeyOf(1)}, Soon()), 0);
  // What one worker stores, another one finds.
  RedisStore other({"localhost", server.port(), ""}, Clock::Real());
  EXPECT_EQ(*other.CountLeading({KeyOf(2)}, Soon()), 1);
}

TEST_F(RedisStoreTest, CountsToTheLastOneThatIsThere) {
  RedisServer server;
  RedisStore store({"127.0.0.1", server.port(), ""}, Clock::Real());
  ExpectCountsToLast(store);
}

TEST_F(RedisStoreTest, APasswordIsSent) {
  RedisServer server({"--requirepass", "secret"});
  RedisStore without({"127.0.0.1", server.port(), ""}, Clock::Real());
  const absl::Status refused = without.CountLeading({KeyOf(1)}, Soon()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("NOAUTH"));
  RedisStore wrong({"127.0.0.1", server.port(), "guess"}, Clock::Real());
  EXPECT_EQ(wrong.CountLeading({KeyOf(1)}, Soon()).status().code(), absl::StatusCode::kUnavailable);
  RedisStore store({"127.0.0.1", server.port(), "secret"}, Clock::Real());
  EXPECT_EQ(*store.CountLeading({KeyOf(1)}, Soon()), 0);
}

TEST_F(RedisStoreTest, AFullServerSaysSo) {
  RedisServer server({"--maxmemory", "8mb", "--maxmemory-policy", "noeviction"});
  RedisStore store({"127.0.0.1", server.port(), ""}, Clock::Real());
  absl::Status status;
  for (uint64_t key = 1; status.ok() && key < 20; ++key) {
    status = store.Put(KeyOf(key), ValueOf(1'000'000, 1), Soon());
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(ErrorReason(status), "KV_STORE_FULL");
  // Reads go on.
  EXPECT_EQ(*store.CountLeading({KeyOf(1)}, Soon()), 1);
}

TEST_F(RedisStoreTest, ADeadServerIsAskedAgainAfterAPause) {
  auto server = std::make_unique<RedisServer>();
  const int port = server->port();
  RedisStore store({"127.0.0.1", port, ""}, Clock::Real());
  ASSERT_TRUE(store.Put(KeyOf(1), ValueOf(10, 1), Soon()).ok());
  server->Kill();
  EXPECT_EQ(store.CountLeading({KeyOf(1)}, Soon()).status().code(), absl::StatusCode::kUnavailable);
  const absl::Status paused = store.CountLeading({KeyOf(1)}, Soon()).status();
  EXPECT_EQ(ErrorReason(paused), "KV_STORE_PAUSED") << paused;
  server = std::make_unique<RedisServer>(std::vector<std::string>{}, port);
  absl::StatusOr<int> count = absl::UnavailableError("");
  for (const absl::Time end = Soon(); !count.ok() && absl::Now() < end;) {
    count = store.CountLeading({KeyOf(1)}, Soon());
  }
  ASSERT_TRUE(count.ok()) << count.status();
  EXPECT_EQ(*count, 0);  // it had no disk
}

TEST_F(RedisStoreTest, AStoppedServerCostsTheDeadline) {
  RedisServer server;
  RedisStore store({"127.0.0.1", server.port(), ""}, Clock::Real());
  ASSERT_TRUE(store.Put(KeyOf(1), ValueOf(10, 1), Soon()).ok());
  server.Signal(SIGSTOP);
  const auto get = [&store](int milliseconds) {
    return store.Get(KeyOf(1), 10, absl::Now() + absl::Milliseconds(milliseconds)).status();
  };
  // So short a time says nothing of the server.
  EXPECT_TRUE(absl::IsDeadlineExceeded(get(5)));
  EXPECT_TRUE(absl::IsDeadlineExceeded(get(1000)));
  EXPECT_EQ(ErrorReason(store.Get(KeyOf(1), 10, Soon()).status()), "KV_STORE_PAUSED");
  server.Signal(SIGCONT);
}

// A clock that nothing beats is that of a process that does not run, however long the call takes.
TEST_F(RedisStoreTest, APauseOfThisProcessIsNotTheServersFault) {
  RedisServer server;
  const AwakeClock clock(Clock::Real(), /*own_thread=*/false);
  RedisStore store({"127.0.0.1", server.port(), ""}, clock);
  server.Signal(SIGSTOP);
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      store.Get(KeyOf(1), 10, absl::Now() + absl::Milliseconds(400)).status()));
  server.Signal(SIGCONT);
  const absl::Status put = store.Put(KeyOf(1), ValueOf(10, 1), Soon());
  EXPECT_TRUE(put.ok()) << put;
}

// A server that says what it likes.
class LyingServer {
 public:
  // To each connection it sends `reply` again and again, up to `times`, then closes it.
  LyingServer(std::string reply, int times)
      : thread_([this, reply = std::move(reply), times] {
          for (int fd; (fd = socket_.Accept()) >= 0; close(fd)) {
            char buffer[4096];
            if (recv(fd, buffer, sizeof(buffer), 0) <= 0) continue;
            for (int i = 0; i < times; ++i) {
              if (send(fd, reply.data(), reply.size(), MSG_NOSIGNAL) <= 0) break;
            }
            shutdown(fd, SHUT_WR);
            while (recv(fd, buffer, sizeof(buffer), 0) > 0) {
            }
          }
        }) {}
  ~LyingServer() {
    socket_.Shutdown();
    thread_.join();
  }
  int port() const {
    const std::string address = socket_.address();
    return std::stoi(address.substr(address.rfind(':') + 1));
  }

 private:
  testing::ListeningSocket socket_;
  std::thread thread_;
};

TEST_F(RedisStoreTest, LiesAreRefusedAndBounded) {
  const struct {
    std::string reply;
    int times;
  } lies[] = {
      {"", 0},  // nothing at all
      {"garbage\r\n", 1},
      {"*1000000000\r\n", 1},  // hiredis would allocate 8 GB
      {"*-2\r\n", 1},
      {"$536870912\r\nxxxx", 1},  // announces half a gigabyte and ends
      {"$-5\r\n", 1},
      {":9999999999999999999999\r\n", 1},
      {"-ERR whatever\r\n", 1},
      {"+OK\r\n", 1},                                        // of the wrong type
      {"$10\r\n12345", 1},                                   // ends in the middle
      {"$536870912\r\n" + std::string(4096, 'x'), 100'000},  // and sends as much
  };
  for (const auto& lie : lies) {
    SCOPED_TRACE(lie.reply.substr(0, 20));
    LyingServer server(lie.reply, lie.times);
    {
      RedisStore store({"127.0.0.1", server.port(), ""}, Clock::Real());
      const absl::Status status = store.Get(KeyOf(1), 1000, Soon()).status();
      EXPECT_FALSE(status.ok());
      EXPECT_FALSE(absl::IsNotFound(status)) << status;
    }
    RedisStore store({"127.0.0.1", server.port(), ""}, Clock::Real());
    EXPECT_FALSE(store.CountLeading({KeyOf(1)}, Soon()).ok());
  }
}

}  // namespace
}  // namespace baton::kv_store
