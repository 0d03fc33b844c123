#include "router/fleet/discovery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "common/base/error.h"
#include "common/base/rpc/grpc_status.h"
#include "tests/router/fake_clock.h"
#include "tests/testing/fake_cluster.h"
#include "tests/testing/http_client.h"

namespace baton::router {
namespace {

using ::baton::testing::DecodeCall;
using ::baton::testing::FakeClock;
using ::baton::testing::FakeCluster;
using ::baton::testing::Ids;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Workers = std::vector<WorkerAddress>;
using LookAnswer = absl::StatusOr<std::optional<Workers>>;

const WorkerAddress kPrefillAddress = {v1::WORKER_ROLE_PREFILL, "p0:1"};
const WorkerAddress kDecodeAddress = {v1::WORKER_ROLE_DECODE, "d0:1"};
const WorkerAddress kOtherDecodeAddress = {v1::WORKER_ROLE_DECODE, "d1:1"};
// As a decode worker, what kPrefillAddress is as a prefill worker.
const WorkerAddress kP0AsD = {v1::WORKER_ROLE_DECODE, "p0:1"};

struct Script {
  LookAnswer answer = std::optional<Workers>();
  int looks = 0;
};

class ScriptedSource final : public WorkerSource {
 public:
  ScriptedSource(Script& script, absl::Duration period, bool needed = false)
      : script_(script), period_(period), needed_(needed) {}
  absl::string_view kind() const override { return "scripted"; }
  std::string name() const override { return "a script"; }
  absl::Duration period() const override { return period_; }
  absl::Duration answer_life() const override { return absl::Seconds(60); }
  bool needed_at_start() const override { return needed_; }
  LookAnswer Look() override {
    ++script_.looks;
    return script_.answer;
  }

 private:
  Script& script_;
  const absl::Duration period_;
  const bool needed_;
};

class DiscoveryTest : public ::testing::Test {
 protected:
  Discovery Make(bool needed = false) {
    std::vector<std::unique_ptr<WorkerSource>> sources;
    sources.push_back(std::make_unique<ScriptedSource>(a_, absl::Seconds(1), needed));
    sources.push_back(std::make_unique<ScriptedSource>(b_, b_period_));
    Discovery::Events events;
    events.on_workers = [this](const Workers& workers) {
      // As the roster does, which has its own test of it.
      std::map<std::string, v1::WorkerRole> roles;
      for (const WorkerAddress& worker : workers) {
        if (!roles.emplace(worker.address, worker.role).second) {
          return absl::InvalidArgumentError("listed twice");
        }
      }
      reported_.push_back(workers);
      return absl::OkStatus();
    };
    events.on_failure = [this](const WorkerSource&) { ++failures_; };
    events.on_failing = [this](int sources) { failing_ = sources; };
    return Discovery(std::move(sources), clock_, std::move(events));
  }
  static absl::Status Down() { return absl::UnavailableError("down"); }
  static absl::Status Absent() { return absl::NotFoundError("nobody"); }
  // Looks once, `later`.
  void LookLater(Discovery& discovery, absl::Duration later) {
    clock_.Advance(later);
    discovery.LookAtDue();
  }

  FakeClock clock_;
  Script a_, b_;
  absl::Duration b_period_ = absl::Seconds(5);
  std::vector<Workers> reported_;
  int failures_ = 0;
  int failing_ = 0;
};

TEST_F(DiscoveryTest, SourcesAreAskedWhenDueAndOnlyChangesAreTold) {
  Discovery discovery = Make();
  a_.answer = Workers{kPrefillAddress};
  b_.answer = Workers{kDecodeAddress};
  EXPECT_EQ(discovery.LookAtDue(), clock_.SinceStart() + absl::Seconds(1));
  ASSERT_THAT(reported_, SizeIs(2));
  EXPECT_THAT(reported_.back(), ElementsAre(kPrefillAddress, kDecodeAddress));
  discovery.LookAtDue();
  EXPECT_EQ(a_.looks, 1) << "not due";
  for (int second = 0; second < 5; ++second) {
    clock_.Advance(absl::Seconds(1));
    discovery.LookAtDue();
  }
  EXPECT_EQ(a_.looks, 6);
  EXPECT_EQ(b_.looks, 2);
  EXPECT_THAT(reported_, SizeIs(2)) << "nothing has changed";
  b_.answer = Workers{kOtherDecodeAddress};
  clock_.Advance(absl::Seconds(5));
  discovery.LookAtDue();
  EXPECT_THAT(reported_.back(), ElementsAre(kPrefillAddress, kOtherDecodeAddress));
  EXPECT_EQ(failures_, 0);
}

TEST_F(DiscoveryTest, AFailedSourceKeepsItsLastGoodAnswerForAWhile) {
  Discovery discovery = Make();
  a_.answer = Workers{kPrefillAddress};
  b_.answer = Workers{kDecodeAddress};
  discovery.LookAtDue();
  b_.answer = Absent();
  for (int i = 0; i < 12; ++i) {
    clock_.Advance(absl::Seconds(5));
    discovery.LookAtDue();
    EXPECT_THAT(reported_.back(), ElementsAre(kPrefillAddress, kDecodeAddress));
  }
  EXPECT_EQ(failures_, 12);
  EXPECT_EQ(failing_, 1);
  clock_.Advance(absl::Seconds(5));
  discovery.LookAtDue();
  EXPECT_THAT(reported_.back(), ElementsAre(kPrefillAddress))
      << "a minute is what its answers are good for";
  clock_.Advance(absl::Seconds(5));
  discovery.LookAtDue();
  EXPECT_THAT(reported_, SizeIs(3)) << "which is reported once";
  b_.answer = Workers{kDecodeAddress};
  clock_.Advance(absl::Seconds(5));
  discovery.LookAtDue();
  EXPECT_THAT(reported_.back(), ElementsAre(kPrefillAddress, kDecodeAddress));
  EXPECT_EQ(failing_, 0);
}

TEST_F(DiscoveryTest, TheLifeOfAnAnswerEndsNoSoonerForALongPeriod) {
  b_period_ = absl::Hours(1);
  Discovery discovery = Make();
  b_.answer = Workers{kDecodeAddress};
  discovery.LookAtDue();
  b_.answer = Absent();
  LookLater(discovery, absl::Hours(1));
  EXPECT_THAT(reported_, SizeIs(1)) << "its first failed look";
  for (int i = 0; i < 11; ++i) LookLater(discovery, absl::Seconds(5));
  EXPECT_EQ(b_.looks, 13) << "a failed source is asked again soon";
  EXPECT_THAT(reported_, SizeIs(1));
  LookLater(discovery, absl::Seconds(5));
  ASSERT_THAT(reported_, SizeIs(2));
  EXPECT_THAT(reported_.back(), IsEmpty());
  b_.answer = Workers{kDecodeAddress};
  LookLater(discovery, absl::Seconds(5));
  EXPECT_THAT(reported_.back(), ElementsAre(kDecodeAddress));
  LookLater(discovery, absl::Minutes(59));
  EXPECT_EQ(b_.looks, 15) << "it answers, so its period counts again";
}

TEST_F(DiscoveryTest, ASourceThatCannotBeAskedUnlistsNobody) {
  Discovery discovery = Make();
  b_.answer = Workers{kDecodeAddress};
  discovery.LookAtDue();
  b_.answer = Down();
  for (int i = 0; i < 100; ++i) LookLater(discovery, absl::Seconds(5));
  EXPECT_THAT(reported_, SizeIs(1));
  EXPECT_EQ(failing_, 1);
  // An outage is no time that the source was known to list nobody.
  b_.answer = Absent();
  for (int i = 0; i < 12; ++i) LookLater(discovery, absl::Seconds(5));
  b_.answer = Down();
  LookLater(discovery, absl::Seconds(5));
  b_.answer = Absent();
  for (int i = 0; i < 12; ++i) LookLater(discovery, absl::Seconds(5));
  EXPECT_THAT(reported_, SizeIs(1));
  LookLater(discovery, absl::Seconds(5));
  ASSERT_THAT(reported_, SizeIs(2));
  EXPECT_THAT(reported_.back(), IsEmpty());
}

TEST_F(DiscoveryTest, AWorkerOfTwoSourcesIsOneWorker) {
  Discovery discovery = Make();
  a_.answer = Workers{kPrefillAddress, kDecodeAddress};
  b_.answer = Workers{kDecodeAddress, kOtherDecodeAddress};
  discovery.LookAtDue();
  EXPECT_THAT(reported_.back(), ElementsAre(kPrefillAddress, kDecodeAddress, kOtherDecodeAddress));
  a_.answer = Workers{kPrefillAddress};
  LookLater(discovery, absl::Seconds(5));
  EXPECT_THAT(reported_.back(), ElementsAre(kPrefillAddress, kDecodeAddress, kOtherDecodeAddress))
      << "the other still lists it";
  b_.answer = Workers{kOtherDecodeAddress};
  LookLater(discovery, absl::Seconds(5));
  EXPECT_THAT(reported_.back(), ElementsAre(kPrefillAddress, kOtherDecodeAddress));
  EXPECT_EQ(failures_, 0);
}

TEST_F(DiscoveryTest, AnAnswerThatIsNotCertainYetChangesNothing) {
  Discovery discovery = Make();
  a_.answer = Workers{kPrefillAddress};
  discovery.LookAtDue();
  a_.answer = std::optional<Workers>();
  clock_.Advance(absl::Seconds(1));
  discovery.LookAtDue();
  EXPECT_THAT(reported_, SizeIs(1));
  EXPECT_EQ(failures_, 0);
}

TEST_F(DiscoveryTest, ASetThatIsRefusedIsAFailureAndIsTriedAgain) {
  Discovery discovery = Make();
  a_.answer = Workers{kDecodeAddress};
  discovery.LookAtDue();
  a_.answer = Workers{kDecodeAddress, kDecodeAddress};
  LookLater(discovery, absl::Seconds(1));
  EXPECT_EQ(failures_, 1);
  EXPECT_EQ(failing_, 1);
  a_.answer = Workers{kDecodeAddress, kOtherDecodeAddress};
  LookLater(discovery, absl::Seconds(1));
  EXPECT_THAT(reported_.back(), ElementsAre(kDecodeAddress, kOtherDecodeAddress));
  EXPECT_EQ(failing_, 0);
}

TEST_F(DiscoveryTest, ASourceWhoseSetIsRefusedAnswersAllTheSame) {
  Discovery discovery = Make();
  a_.answer = Workers{kPrefillAddress};
  b_.answer = Workers{kDecodeAddress};
  discovery.LookAtDue();
  b_.answer = Workers{kOtherDecodeAddress, kP0AsD};
  for (int i = 0; i < 100; ++i) LookLater(discovery, absl::Seconds(5));
  EXPECT_THAT(reported_.back(), ElementsAre(kPrefillAddress, kDecodeAddress))
      << "its last good answer stands";
  EXPECT_EQ(failures_, 100);
  EXPECT_EQ(failing_, 1);
  // No time that it was known to list nobody.
  b_.answer = Absent();
  LookLater(discovery, absl::Seconds(5));
  EXPECT_THAT(reported_.back(), ElementsAre(kPrefillAddress, kDecodeAddress));
  // What was refused is taken once it fits, whoever changed.
  b_.answer = Workers{kOtherDecodeAddress, kP0AsD};
  a_.answer = Workers{};
  LookLater(discovery, absl::Seconds(5));
  EXPECT_THAT(reported_.back(), ElementsAre(kOtherDecodeAddress, kP0AsD));
  EXPECT_EQ(failing_, 0);
}

TEST_F(DiscoveryTest, ASourceThatIsNeededAtStartFailsTheStart) {
  Discovery discovery = Make(/*needed=*/true);
  a_.answer = Down();
  EXPECT_EQ(discovery.Start(), Down());
  EXPECT_EQ(b_.looks, 0) << "not needed, so not waited for";
  EXPECT_THAT(reported_, IsEmpty());
}

TEST_F(DiscoveryTest, StoppedItSaysNothingMore) {
  Discovery discovery = Make();
  a_.answer = Workers{kDecodeAddress};
  discovery.Stop();
  discovery.LookAtDue();
  EXPECT_THAT(reported_, IsEmpty());
}

// --- In a whole router.

absl::Status GenerateText(FakeCluster& cluster, std::string* text) {
  v1::GenerateOnceRequest request;
  request.mutable_request()->set_text("a prompt");
  grpc::ClientContext context;
  v1::GenerateOnceResponse response;
  const grpc::Status status =
      v1::InferenceService::NewStub(cluster.channel())->GenerateOnce(&context, request, &response);
  *text = response.text();
  return FromGrpcStatus(status);
}

// As a whole, at once.
void WriteLines(const std::string& path, const std::vector<std::string>& lines) {
  std::ofstream(path + ".new") << absl::StrJoin(lines, "\n") << "\n";
  std::filesystem::rename(path + ".new", path);
}

TEST(DiscoveryServerTest, WorkersOfAFileComeAndGoWhileItServes) {
  const std::string file = ::testing::TempDir() + "/workers-of-" + std::to_string(getpid());
  std::string prefill, first;
  FakeCluster cluster(1, 1, [&](Options* options) {
    prefill = "prefill " + std::exchange(options->prefill_workers, {})[0];
    first = std::exchange(options->decode_workers, {})[0];
    WriteLines(file, {prefill, "decode " + first});
    options->workers_file = file;
    options->metrics_listen = "127.0.0.1:0";
  });
  const auto joined = cluster.MakeWorker(v1::WORKER_ROLE_DECODE);
  joined->SetReply(
      [](DecodeCall call) { call.Finish(Ids("x"), internal::v1::DecodeResponse::FINISH_LENGTH); });
  std::string running_text, text;
  absl::Status running_end;
  std::thread client([&] { running_end = GenerateText(cluster, &running_text); });
  DecodeCall running = cluster.decode(0)->AwaitDecode();
  running.SendTokens(Ids("still "));
  WriteLines(file, {prefill, "decode " + joined->address()});
  ASSERT_TRUE(joined->AwaitWatches(1));
  EXPECT_TRUE(cluster.AwaitState([&](const v1::WorkerStatus& w) {
    return w.state() == (w.address() == first ? v1::WORKER_STATE_DRAINING : v1::WORKER_STATE_READY);
  }));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(GenerateText(cluster, &text).ok());
  EXPECT_EQ(joined->decode_count(), 3);
  // What runs on the one that left is not cut.
  EXPECT_FALSE(running.stream->cancelled());
  running.Finish(Ids("here"), internal::v1::DecodeResponse::FINISH_LENGTH);
  client.join();
  EXPECT_TRUE(running_end.ok()) << running_end;
  EXPECT_EQ(running_text, "still here");
  EXPECT_TRUE(cluster.AwaitState([&](const v1::WorkerStatus& w) { return w.address() != first; }));
  // A bad file changes nothing, and is told.
  WriteLines(file, {"nonsense"});
  const absl::Time patience = absl::Now() + testing::kPatience;
  const std::string failing = R"(baton_discovery_failing_sources{model="tiny",role="router"} 1)";
  std::string metrics;
  while (absl::Now() < patience && !absl::StrContains(metrics, failing)) {
    metrics = testing::HttpGet(cluster.server().metrics_address(), "/metrics");
  }
  EXPECT_THAT(metrics, HasSubstr(failing));
  EXPECT_TRUE(GenerateText(cluster, &text).ok());
  // The first one comes back beside the other.
  WriteLines(file, {prefill, "decode " + joined->address(), "decode " + first});
  EXPECT_TRUE(cluster.decode(0)->AwaitWatches(2));
  EXPECT_TRUE(cluster.AwaitState(
      [&](const v1::WorkerStatus& w) { return w.state() == v1::WORKER_STATE_READY; }));
  std::filesystem::remove(file);
}

TEST(DiscoveryServerTest, WorkersOfANameAreFound) {
  FakeCluster cluster(1, 1, [&](Options* options) {
    options->prefill_dns = std::exchange(options->prefill_workers, {})[0];
    options->decode_dns = std::exchange(options->decode_workers, {})[0];
  });
  ASSERT_TRUE(cluster.decode(0)->AwaitWatches(1));
  ASSERT_TRUE(cluster.prefill(0)->AwaitWatches(1));
  EXPECT_TRUE(cluster.AwaitState(
      [](const v1::WorkerStatus& w) { return w.state() == v1::WORKER_STATE_READY; }));
  EXPECT_EQ(cluster.Workers().size(), 2u);
}

TEST(DiscoveryServerTest, AFileThatIsBadAtTheStartIsAnError) {
  const std::string model_dir = ::testing::TempDir() + "/tiny";
  testing::WriteTinyTokenizer(model_dir);
  Options options;
  options.model_dir = model_dir;
  options.listen = "127.0.0.1:0";
  options.workers_file = ::testing::TempDir() + "/no-such-file";
  const absl::Status missing = RouterServer::Start(options).status();
  EXPECT_EQ(ErrorReason(missing), "BAD_WORKERS_FILE");
  EXPECT_THAT(std::string(missing.message()), HasSubstr("no-such-file"));
}

}  // namespace
}  // namespace baton::router
