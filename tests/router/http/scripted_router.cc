// A router with HTTP over scripted workers, for tests in other languages:
//
//     scripted_router MODEL_DIR [MAX_MODEL_LEN]
//
// Prints the HTTP address and serves until its standard input ends. MODEL_DIR has
// chat_template.jinja; the tokenizer is the tiny one, written there. The answer to a prompt is what
// stands between its last "(((" and the ")))" after it, or else "no script", one byte at a time.
#include <algorithm>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "tests/testing/fake_cluster.h"
#include "tests/testing/http_client.h"

namespace baton::testing {
namespace {

void Answer(DecodeCall call) {
  const std::string prompt(call.request.tokens().begin(), call.request.tokens().end());
  const size_t begin = prompt.rfind("(((");
  const size_t end = prompt.find(")))", begin);
  const std::string text =
      begin == std::string::npos ? "no script" : prompt.substr(begin + 3, end - begin - 3);
  const int n = std::max(1, call.request.n());
  for (int choice = 0; choice < n; ++choice) {
    std::vector<int32_t> ids = Ids(text);
    ids.push_back(kEndToken);
    const auto most = static_cast<size_t>(call.request.max_tokens());
    const bool cut = ids.size() > most;
    if (cut) ids.resize(most);
    for (size_t i = 0; i + 1 < ids.size(); ++i) call.SendTokens({ids[i]}, choice);
    call.FinishChoice(choice, {ids.back()},
                      cut ? internal::v1::DecodeResponse::FINISH_LENGTH
                          : internal::v1::DecodeResponse::FINISH_STOP);
  }
  call.stream->End(grpc::Status::OK);
}

int Main(const std::string& model_dir, int max_model_len) {
  WriteTinyTokenizer(model_dir);
  const uint64_t fingerprint = (*tokenizer::Tokenizer::Load(model_dir))->fingerprint();
  internal::v1::WorkerCard card = FakeCard(v1::WORKER_ROLE_DECODE, fingerprint);
  card.set_max_model_len(max_model_len);
  FakeWorker worker(card);
  worker.SetReply(Answer);
  router::Options options;
  options.model_dir = model_dir;
  options.served_model_name = "tiny";
  options.listen = "127.0.0.1:0";
  options.http_listen = "127.0.0.1:0";
  options.decode_workers = {worker.address()};
  auto server = router::RouterServer::Start(options);
  BATON_CHECK(server.ok()) << server.status();
  while (!absl::StrContains(HttpGet((*server)->http_address(), "/readyz"), "200 OK")) {
    absl::SleepFor(absl::Milliseconds(2));  // its streams to the worker announce nothing
  }
  std::cout << (*server)->http_address() << std::endl;
  std::cin.ignore(std::numeric_limits<std::streamsize>::max());
  return 0;
}

}  // namespace
}  // namespace baton::testing

int main(int argc, char** argv) {
  int max_model_len = 8192;
  if (argc < 2 || argc > 3 || (argc == 3 && !absl::SimpleAtoi(argv[2], &max_model_len))) return 2;
  return baton::testing::Main(argv[1], max_model_len);
}
