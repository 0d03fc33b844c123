// Sends a prompt to a router and prints the answer as it arrives:
//   ask HOST:PORT PROMPT [SECOND PROMPT]
// The caller reads the first answer. A second one arrives meanwhile, by callbacks.
#include <future>
#include <iostream>
#include <memory>
#include <string>

#include "baton/client.h"
#include "baton/error.h"

namespace {

int Fail(const absl::Status& status) {
  std::cerr << "ask: " << status.message();
  // The reason is stable, for programs: docs/errors.md lists all of them.
  if (const std::string reason = baton::ErrorReason(status); !reason.empty()) {
    std::cerr << " [" << reason << "]";
  }
  if (const auto retry_after = baton::ErrorRetryAfter(status)) {
    std::cerr << " (retry after " << absl::FormatDuration(*retry_after) << ")";
  }
  // The cluster's logs have the id.
  if (const std::string id = baton::ErrorRequestId(status); !id.empty()) {
    std::cerr << " (request " << id << ")";
  }
  std::cerr << std::endl;
  return 1;
}

baton::client::GenerateRequest Request(const char* prompt) {
  baton::client::GenerateRequest request;
  request.text = prompt;
  request.max_tokens = 64;
  request.sampling.temperature = 0;
  return request;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    std::cerr << "usage: ask HOST:PORT PROMPT [SECOND PROMPT]" << std::endl;
    return 2;
  }
  baton::client::ClientOptions options;
  options.wait_for_ready = false;  // fail at once, after retries, if there is no router
  const auto client = baton::client::Client::Create(argv[1], options);
  if (!client.ok()) return Fail(client.status());

  std::promise<absl::Status> ended;  // before the stream that uses them
  std::string second;
  std::unique_ptr<baton::client::CallbackStream> background;
  if (argc == 4) {
    background = (*client)->Generate(
        Request(argv[3]), {[&second](const baton::client::Delta& delta) { second += delta.text; },
                           [&ended](const absl::Status& status, const baton::client::Completion&) {
                             ended.set_value(status);
                           }});
  }

  const auto stream = (*client)->Generate(Request(argv[2]));
  for (const auto& delta : *stream) std::cout << delta.text << std::flush;
  std::cout << std::endl;
  if (!stream->status().ok()) return Fail(stream->status());
  std::cerr << stream->usage().generated_tokens << " tokens" << std::endl;

  if (background != nullptr) {
    const absl::Status status = ended.get_future().get();
    if (!status.ok()) return Fail(status);
    std::cout << second << std::endl;
  }
  return 0;
}
