#include "router/request/request_bytes.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "tests/router/score/score_harness.h"

namespace baton::router {
namespace {

TEST(RequestBytesTest, TheSumIsBoundedAndEndsWithTheShares) {
  int64_t seen = 0;
  RequestBytes all(100, [&](int64_t bytes) { seen = bytes; });
  RequestBytes::Share first = all.Open(), second = all.Open();
  EXPECT_TRUE(first.TryGrow(60));
  EXPECT_FALSE(second.MayGrow(41));
  EXPECT_FALSE(second.TryGrow(41));
  EXPECT_EQ(second.bytes(), 0);
  EXPECT_TRUE(second.TryGrow(40));
  EXPECT_FALSE(second.TryGrow(1));
  EXPECT_EQ(seen, 100);
  first.Shrink(10);
  EXPECT_TRUE(second.TryGrow(10));
  {
    const RequestBytes::Share moved = std::move(first);
    EXPECT_EQ(moved.bytes(), 50);
    EXPECT_EQ(seen, 100);
  }
  EXPECT_EQ(seen, 50);
  second = RequestBytes::Share();
  EXPECT_EQ(seen, 0);
}

TEST(RequestBytesTest, ARequestThatIsAloneAlwaysFits) {
  RequestBytes all(100, [](int64_t) {});
  std::optional<RequestBytes::Share> large = all.Open();
  EXPECT_TRUE(large->TryGrow(90));
  EXPECT_TRUE(large->TryGrow(90));
  RequestBytes::Share small = all.Open();
  EXPECT_FALSE(small.TryGrow(1));
  large.reset();
  EXPECT_TRUE(small.TryGrow(1));
  RequestBytes::Share none;
  EXPECT_TRUE(none.TryGrow(int64_t{1} << 40)) << "has no bound";
}

// A router that ends waits for the tickets of its calls, whose streams to workers may outlive it by
// a moment, and then destroys what counts the bytes.
class BytesOfCallsTest : public testing::ScoreCallTest {
 protected:
  BytesOfCallsTest() {
    caller_.held = std::make_shared<RequestBytes::Share>(bytes_.Open());
    EXPECT_TRUE(caller_.held->TryGrow(100));
  }

  std::atomic<bool> freed_before_the_ticket_{false};

 private:
  RequestBytes bytes_{1000, [this](int64_t bytes) {
                        if (bytes == 0) freed_before_the_ticket_ = !admission_->empty();
                      }};
};

TEST_F(BytesOfCallsTest, AGenerateCallFreesItsBytesBeforeItsTicket) {
  testing::FakeSink& sink = CallHarness::Start(Request());
  caller_.held.reset();
  stream(0).Finish("x");
  EXPECT_TRUE(sink.End().ok());
  LetGo();
  admission_->AwaitEmpty();
  EXPECT_TRUE(freed_before_the_ticket_);
}

TEST_F(BytesOfCallsTest, AScoreCallFreesItsBytesBeforeItsTicket) {
  Start(1);
  caller_.held.reset();
  batch(0).ScoreAll();
  EXPECT_TRUE(sink().End().ok());
  calls_.clear();
  score_network_.Clear();
  admission_->AwaitEmpty();
  EXPECT_TRUE(freed_before_the_ticket_);
}

}  // namespace
}  // namespace baton::router
