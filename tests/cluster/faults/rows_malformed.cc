// Row: input that no client, router or worker of ours would send, on each of the four surfaces.
#include <arpa/inet.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <limits>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "baton/internal/v1/prefill.pb.h"
#include "common/base/error.h"
#include "common/base/rpc/grpc_status.h"
#include "common/transfer/checksum.h"
#include "tests/cluster/faults/row.h"
#include "tests/cluster/faults/worker_face.h"
#include "tests/testing/fake_worker.h"
#include "tests/testing/worker_client.h"

namespace baton::testing {
namespace {

using Code = absl::StatusCode;
using baton::v1::GenerateRequest;
using internal::v1::DecodeRequest;
using internal::v1::PrefillRequest;
using internal::v1::WorkerCard;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Only for calls that are refused: no message comes back.
absl::Status Send(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                  const std::string& bytes) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(TestDeadline());
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  grpc::Status status;
  absl::Notification done;
  stub.UnaryCall(&context, method, {}, &request, &response, [&](grpc::Status s) {
    status = std::move(s);
    done.Notify();
  });
  done.WaitForNotification();
  return FromGrpcStatus(status);
}

template <class Request>
struct Bad {
  std::string what;
  std::function<void(Request&)> change;
  Code code;
  std::string reason;
};

void Expect(RowRun& run, const std::string& what, const absl::Status& status, Code code,
            const std::string& reason) {
  run.Injected();
  if (status.code() == code && ErrorReason(status) == reason) return;
  run.Fail(absl::StrCat(what, ": ", status.ToString(), " with reason \"", ErrorReason(status),
                        "\", expected ", absl::StatusCodeToString(code), " ", reason));
}

std::vector<Bad<GenerateRequest>> BadGenerate() {
  const auto sampling = [](auto set, auto value) {
    return [=](GenerateRequest& r) { (r.mutable_sampling()->*set)(value); };
  };
  using S = baton::v1::SamplingParams;
  const Code invalid = Code::kInvalidArgument;
  return {
      {"empty text", [](auto& r) { r.set_text(""); }, invalid, "EMPTY_PROMPT"},
      {"no prompt", [](auto& r) { r.clear_prompt(); }, invalid, "EMPTY_PROMPT"},
      {"no ids", [](auto& r) { r.mutable_token_ids()->clear_ids(); }, invalid, "EMPTY_PROMPT"},
      {"negative id", [](auto& r) { r.mutable_token_ids()->add_ids(-1); }, invalid, "OUT_OF_RANGE"},
      {"id too large", [](auto& r) { r.mutable_token_ids()->add_ids(1 << 30); }, invalid,
       "OUT_OF_RANGE"},
      {"too many ids", [](auto& r) { r.mutable_token_ids()->mutable_ids()->Resize(100'000, 1); },
       invalid, "PROMPT_TOO_LONG"},
      {"text of too many tokens", [](auto& r) { r.set_text(std::string(20'000, 'a')); }, invalid,
       "PROMPT_TOO_LONG"},
      {"too many bytes", [](auto& r) { r.set_text(std::string(10 << 20, 'a')); }, invalid,
       "PROMPT_TOO_LONG"},
      {"another model", [](auto& r) { r.set_model("another"); }, Code::kNotFound,
       "MODEL_NOT_FOUND"},
      {"long request id", [](auto& r) { r.set_request_id(std::string(129, 'x')); }, invalid,
       "BAD_REQUEST_ID"},
      {"unprintable request id", [](auto& r) { r.set_request_id("a\nb"); }, invalid,
       "BAD_REQUEST_ID"},
      {"long salt", [](auto& r) { r.set_cache_salt(std::string(257, 'x')); }, invalid,
       "OUT_OF_RANGE"},
      {"temperature -1", sampling(&S::set_temperature, -1.0f), invalid, "OUT_OF_RANGE"},
      {"temperature 2.1", sampling(&S::set_temperature, 2.1f), invalid, "OUT_OF_RANGE"},
      {"temperature NaN", sampling(&S::set_temperature, kNan), invalid, "OUT_OF_RANGE"},
      {"temperature inf", sampling(&S::set_temperature, kInfinity), invalid, "OUT_OF_RANGE"},
      {"top_p 0", sampling(&S::set_top_p, 0.0f), invalid, "OUT_OF_RANGE"},
      {"top_p 1.5", sampling(&S::set_top_p, 1.5f), invalid, "OUT_OF_RANGE"},
      {"top_p NaN", sampling(&S::set_top_p, kNan), invalid, "OUT_OF_RANGE"},
      {"top_k -2", sampling(&S::set_top_k, -2), invalid, "OUT_OF_RANGE"},
      {"min_p -0.1", sampling(&S::set_min_p, -0.1f), invalid, "OUT_OF_RANGE"},
      {"min_p 1.1", sampling(&S::set_min_p, 1.1f), invalid, "OUT_OF_RANGE"},
      {"repetition_penalty 0", sampling(&S::set_repetition_penalty, 0.0f), invalid, "OUT_OF_RANGE"},
      {"frequency_penalty NaN", sampling(&S::set_frequency_penalty, kNan), invalid, "OUT_OF_RANGE"},
      {"presence_penalty -3", sampling(&S::set_presence_penalty, -3.0f), invalid, "OUT_OF_RANGE"},
      {"logit_bias 101", [](auto& r) { (*r.mutable_sampling()->mutable_logit_bias())[1] = 101; },
       invalid, "OUT_OF_RANGE"},
      {"n 0", [](auto& r) { r.set_n(0); }, invalid, "OUT_OF_RANGE"},
      {"n 17", [](auto& r) { r.set_n(17); }, invalid, "OUT_OF_RANGE"},
      {"length_penalty alone", [](auto& r) { r.set_length_penalty(1); }, invalid,
       "ONLY_WITH_BEAM_SEARCH"},
      {"beams with a temperature",
       [](auto& r) {
         r.set_beam_width(4);
         r.mutable_sampling()->set_temperature(1);
       },
       invalid, "NOT_WITH_BEAM_SEARCH"},
      {"logprobs 21", [](auto& r) { r.set_logprobs(21); }, invalid, "OUT_OF_RANGE"},
      {"prompt_logprobs -1", [](auto& r) { r.set_prompt_logprobs(-1); }, invalid, "OUT_OF_RANGE"},
      {"long tenant", [](auto& r) { r.set_tenant(std::string(129, 'x')); }, invalid, "BAD_TENANT"},
      {"priority 99", [](auto& r) { r.set_priority(static_cast<baton::v1::Priority>(99)); },
       invalid, "OUT_OF_RANGE"},
      {"min_tokens above max_tokens", [](auto& r) { r.mutable_stop()->set_min_tokens(1 << 20); },
       invalid, "OUT_OF_RANGE"},
      {"max_tokens 0", [](auto& r) { r.mutable_stop()->set_max_tokens(0); }, invalid,
       "OUT_OF_RANGE"},
      {"max_tokens -1", [](auto& r) { r.mutable_stop()->set_max_tokens(-1); }, invalid,
       "OUT_OF_RANGE"},
      {"max_tokens beyond the context", [](auto& r) { r.mutable_stop()->set_max_tokens(1 << 30); },
       invalid, "CONTEXT_LENGTH_EXCEEDED"},
      {"17 stops",
       [](auto& r) {
         for (int i = 0; i < 17; ++i) r.mutable_stop()->add_stop(std::string(1, 'x'));
       },
       invalid, "TOO_MANY_STOPS"},
      {"empty stop", [](auto& r) { r.mutable_stop()->add_stop(std::string()); }, invalid,
       "EMPTY_STOP"},
      {"long stop", [](auto& r) { r.mutable_stop()->add_stop(std::string(1025, 'x')); }, invalid,
       "OUT_OF_RANGE"},
      {"300 stop ids", [](auto& r) { r.mutable_stop()->mutable_stop_token_ids()->Resize(300, 1); },
       invalid, "TOO_MANY_STOPS"},
      {"stop id outside", [](auto& r) { r.mutable_stop()->add_stop_token_ids(-5); }, invalid,
       "OUT_OF_RANGE"},
  };
}

void TryRouter(RowRun& run, ProcessCluster& cluster, const Case& c) {
  const std::string method = "/baton.v1.InferenceService/Generate";
  const auto channel = cluster.channel("router");
  for (const auto& bad : BadGenerate()) {
    GenerateRequest request = ToRequest(c);
    bad.change(request);
    Expect(run, absl::StrCat("router, ", bad.what),
           Send(channel, method, request.SerializeAsString()), bad.code, bad.reason);
  }
  Expect(run, "router, garbage", Send(channel, method, "\xff\xff\xff\xff\x07garbage"),
         Code::kInvalidArgument, "MALFORMED_REQUEST");
  Expect(run, "router, text that is no UTF-8", Send(channel, method, "\x12\x03\xc3\x28\x80"),
         Code::kInvalidArgument, "NOT_UTF8");
}

void TryDecode(RowRun& run, ProcessCluster& cluster, const WorkerFace& prefill,
               const WorkerFace& decode, const Case& c) {
  const Code invalid = Code::kInvalidArgument;
  const std::vector<Bad<DecodeRequest>> all = {
      {"no tokens", [](auto& r) { r.clear_tokens(); }, invalid, "PROMPT_LENGTH"},
      {"too many tokens", [](auto& r) { r.mutable_tokens()->Resize(100'000, 1); }, invalid,
       "PROMPT_LENGTH"},
      {"negative token", [](auto& r) { r.set_tokens(0, -1); }, invalid, "OUT_OF_RANGE"},
      {"token too large", [](auto& r) { r.set_tokens(0, 1 << 30); }, invalid, "OUT_OF_RANGE"},
      {"max_tokens 0", [](auto& r) { r.set_max_tokens(0); }, invalid, "OUT_OF_RANGE"},
      {"max_tokens -5", [](auto& r) { r.set_max_tokens(-5); }, invalid, "OUT_OF_RANGE"},
      {"too many stop ids", [](auto& r) { r.mutable_stop_token_ids()->Resize(2000, 1); }, invalid,
       "TOO_MANY_STOPS"},
      {"stale decode epoch", [](auto& r) { r.set_decode_epoch(1); }, Code::kUnavailable,
       "STALE_EPOCH"},
      {"another model", [](auto& r) { r.set_model_fingerprint(1); }, Code::kUnavailable,
       "MODEL_MISMATCH"},
      {"stale prefill epoch", [](auto& r) { r.mutable_prefill()->set_epoch(1); },
       Code::kUnavailable, "STALE_EPOCH"},
      {"prefill worker that is not there",
       [](auto& r) { r.mutable_prefill()->set_address("127.0.0.1:1"); }, Code::kUnavailable,
       "PREFILL_LOST"},
      {"temperature NaN", [](auto& r) { r.mutable_sampling()->set_temperature(kNan); }, invalid,
       "OUT_OF_RANGE"},
      {"top_p 0", [](auto& r) { r.mutable_sampling()->set_top_p(0); }, invalid, "OUT_OF_RANGE"},
      {"min_p 2", [](auto& r) { r.mutable_sampling()->set_min_p(2); }, invalid, "OUT_OF_RANGE"},
  };
  for (const auto& bad : all) {
    DecodeRequest request = MakeDecodeRequest(prefill, decode, c.prompt, c.sampling, 4);
    request.set_cache_salt(NewSalt());
    bad.change(request);
    Expect(run, absl::StrCat("decode worker, ", bad.what),
           Decode(cluster.channel("decode-0"), request).status, bad.code, bad.reason);
  }
}

void TryPrefill(RowRun& run, ProcessCluster& cluster, const WorkerFace& prefill, const Case& c) {
  const std::string method = "/baton.internal.v1.PrefillService/Prefill";
  const Code invalid = Code::kInvalidArgument, unmet = Code::kFailedPrecondition;
  const std::vector<Bad<PrefillRequest>> all = {
      {"stale epoch", [](auto& r) { r.set_prefill_epoch(1); }, unmet, "STALE_EPOCH"},
      {"another model", [](auto& r) { r.set_model_fingerprint(1); }, unmet, "MODEL_MISMATCH"},
      {"another layout", [](auto& r) { r.set_kv_layout_fingerprint(1); }, unmet, "KV_LAYOUT"},
      {"no tokens", [](auto& r) { r.clear_tokens(); }, invalid, "PROMPT_LENGTH"},
      {"too many tokens", [](auto& r) { r.mutable_tokens()->Resize(100'000, 1); }, invalid,
       "PROMPT_LENGTH"},
      {"negative token", [](auto& r) { r.set_tokens(0, -1); }, invalid, "OUT_OF_RANGE"},
      {"token too large", [](auto& r) { r.set_tokens(0, 1 << 30); }, invalid, "OUT_OF_RANGE"},
      {"first_block -1", [](auto& r) { r.set_first_block(-1); }, invalid, "FIRST_BLOCK"},
      {"first_block outside", [](auto& r) { r.set_first_block(1 << 30); }, invalid, "FIRST_BLOCK"},
      {"temperature NaN", [](auto& r) { r.mutable_sampling()->set_temperature(kNan); }, invalid,
       "OUT_OF_RANGE"},
  };
  const auto channel = cluster.channel("prefill-0");
  PrefillRequest good;
  good.set_transfer_id(7);
  good.set_model_fingerprint(prefill.card().model_fingerprint());
  good.set_kv_layout_fingerprint(prefill.card().kv_layout().fingerprint());
  good.set_prefill_epoch(prefill.card().epoch());
  good.mutable_tokens()->Add(c.prompt.begin(), c.prompt.end());
  *good.mutable_sampling() = worker::ToProto(c.sampling);
  for (const auto& bad : all) {
    PrefillRequest request = good;
    bad.change(request);
    request.set_checksum(transfer::RequestChecksum(request));
    Expect(run, absl::StrCat("prefill worker, ", bad.what),
           Send(channel, method, request.SerializeAsString()), bad.code, bad.reason);
  }
  good.set_checksum(transfer::RequestChecksum(good) ^ 1);
  Expect(run, "prefill worker, checksum", Send(channel, method, good.SerializeAsString()),
         Code::kDataLoss, "CHECKSUM");
  Expect(run, "prefill worker, garbage", Send(channel, method, "\xff\xff\xff\xff\x07garbage"),
         Code::kDataLoss, "MALFORMED_REQUEST");
}

// Workers that tell the router what no worker of ours would.
struct BadWorker {
  std::string what;
  std::function<void(WorkerCard&)> change;
  std::function<void(FakeWorker&)> say;  // once it is watched
  std::string detail;                    // what the router says of it
};

std::vector<BadWorker> BadWorkers() {
  using internal::v1::WatchResponse;
  return {
      {"no id", [](auto& c) { c.clear_worker_id(); }, nullptr, "lacks its id"},
      {"no epoch", [](auto& c) { c.clear_epoch(); }, nullptr, "lacks its id"},
      {"no block size", [](auto& c) { c.mutable_kv_layout()->set_block_tokens(0); }, nullptr,
       "lacks its id"},
      {"negative context", [](auto& c) { c.set_max_model_len(-1); }, nullptr, "lacks its id"},
      {"another role", [](auto& c) { c.set_role(baton::v1::WORKER_ROLE_PREFILL); }, nullptr,
       "listed as a decode worker"},
      {"another tokenizer", [](auto& c) { c.set_tokenizer_fingerprint(1); }, nullptr,
       "but the router's is"},
      {"another model", [](auto& c) { c.set_model_fingerprint(1); }, nullptr,
       "but this cluster serves"},
      {"another layout", [](auto& c) { c.mutable_kv_layout()->set_fingerprint(1); }, nullptr,
       "but this cluster has"},
      {"second card", nullptr,
       [](FakeWorker& w) {
         WatchResponse event;
         event.mutable_card()->set_worker_id("x");
         w.Tell(event);
       },
       "a second card"},
      {"second snapshot", nullptr,
       [](FakeWorker& w) {
         WatchResponse event;
         event.mutable_snapshot()->set_last(true);
         w.Tell(event);
       },
       "a second snapshot"},
      {"lost delta", nullptr, [](FakeWorker& w) { w.TellDelta(17, {1}, {}); }, "some were lost"},
      {"more keys than blocks", [](auto& c) { c.set_total_blocks(100); },
       [](FakeWorker& w) {
         std::vector<uint64_t> keys(101);
         for (size_t i = 0; i < keys.size(); ++i) keys[i] = i + 1;
         w.TellDelta(1, keys, {});
       },
       "more cached blocks than blocks"},
  };
}

void TryWatch(RowRun& run, const WorkerCard& good) {
  const std::vector<BadWorker> all = BadWorkers();
  // The router's first worker says what the cluster serves: bad ones come when it knows that, at
  // addresses that it has been told.
  std::vector<std::string> addresses;
  ClusterOptions options;
  options.prefill_workers = options.decode_workers = 1;
  {
    std::vector<std::unique_ptr<FakeWorker>> holders;  // together, so that no two get one port
    for (size_t i = 0; i < all.size(); ++i) {
      holders.push_back(std::make_unique<FakeWorker>(good));
      addresses.push_back(holders.back()->address());
    }
  }
  options.more_decode_addresses = addresses;
  ProcessCluster* cluster = run.StartCluster(options);
  if (cluster == nullptr) return;
  std::vector<std::unique_ptr<FakeWorker>> workers;
  for (size_t i = 0; i < all.size(); ++i) {
    WorkerCard card = good;
    card.set_worker_id(absl::StrCat("bad-", i));
    if (all[i].change) all[i].change(card);
    workers.push_back(std::make_unique<FakeWorker>(card, addresses[i]));
  }
  for (size_t i = 0; i < all.size(); ++i) {
    run.Injected();
    bool found = false;
    std::string last;
    const absl::Time end = absl::Now() + absl::Seconds(20);
    while (!found && absl::Now() < end) {
      // Streams come anew; each hears it.
      if (all[i].say && workers[i]->AwaitWatches(1)) all[i].say(*workers[i]);
      const auto statuses = cluster->Workers("router");
      if (!statuses.ok()) break;
      for (const auto& status : *statuses) {
        if (status.address != addresses[i]) continue;
        last = absl::StrCat(status.state, " ", status.detail);
        found = absl::StrContains(status.detail, all[i].detail);
      }
    }
    run.Require(found, absl::StrCat("watched worker, ", all[i].what, ": ", last));
  }
  // Some are ready again by now and would hold a request for good.
  workers.clear();
  const auto gone = [&] {
    const auto statuses = cluster->Workers("router");
    return statuses.ok() && absl::c_none_of(*statuses, [&](const auto& status) {
             return status.state == "ready" && absl::c_linear_search(addresses, status.address);
           });
  };
  const absl::Time end = absl::Now() + absl::Seconds(20);
  bool all_gone = false;
  while (!(all_gone = gone()) && absl::Now() < end) absl::SleepFor(absl::Milliseconds(10));
  run.Require(all_gone, "the router keeps a worker that has ended");
  Case c = run.Cases(1, {}).front();
  ClientCall client;
  run.tally().Count(c, client.Run(cluster->channel("router"), c, {}));
}

// Bytes that are no HTTP/2 at all.
void TryGarbage(RowRun& run, const std::string& address) {
  int port = 0;
  if (!absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) return;
  constexpr absl::string_view kOpenings[] = {
      "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
      "", ""};
  for (int kind = 0; kind < 4; ++kind) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<uint16_t>(port));
    std::string bytes(kOpenings[kind]);
    for (int i = 0; kind >= 1 && i < 4096; ++i) bytes.push_back(static_cast<char>(run.random()()));
    if (connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0) {
      (void)!send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      run.Injected();
    } else {
      run.Fail(absl::StrCat("nobody listens at ", address));
    }
    close(fd);
  }
}

void Malformed(RowRun& run) {
  ClusterOptions options;
  options.prefill_workers = options.decode_workers = 1;
  ProcessCluster* cluster = run.StartCluster(options);
  if (cluster == nullptr) return;
  const Case c = run.Cases(1, {40, 60, 8, 8}).front();
  const auto prefill = WorkerFace::Of(cluster->channel("prefill-0"), cluster->address("prefill-0"));
  const auto decode = WorkerFace::Of(cluster->channel("decode-0"), cluster->address("decode-0"));
  if (!prefill.ok() || !decode.ok()) return run.Fail("no card");
  TryRouter(run, *cluster, c);
  TryDecode(run, *cluster, *prefill, *decode, c);
  TryPrefill(run, *cluster, *prefill, c);
  for (const std::string& name : cluster->names()) {
    TryGarbage(run, cluster->address(name));
    TryGarbage(run, cluster->metrics_address(name));
  }
  // All live, and answer as before.
  ClientCall client;
  run.tally().Count(c, client.Run(cluster->channel("router"), c, {}));
  run.AwaitFreed(absl::Now());
  for (const std::string& name : cluster->names()) {
    run.Require(cluster->process(name).running(), absl::StrCat(name, " has ended"));
  }
  const WorkerCard card = decode->card();
  run.Judge();
  TryWatch(run, card);
  run.Judge();
}

}  // namespace

std::vector<Row> MalformedRows() {
  return {{"malformed", "~60 malformed inputs × gRPC/HTTP/KV/worker stream", "each",
           "exact code and reason; no crash", Malformed}};
}

}  // namespace baton::testing
