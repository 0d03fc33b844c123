// Sends a prompt to a router and prints the answer as it arrives:
//   ask HOST:PORT PROMPT
#include <iostream>

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
  std::cerr << std::endl;
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: ask HOST:PORT PROMPT" << std::endl;
    return 2;
  }
  const auto client = baton::client::Client::Create(argv[1]);
  if (!client.ok()) return Fail(client.status());

  baton::client::GenerateRequest request;
  request.text = argv[2];
  request.max_tokens = 64;
  request.sampling.temperature = 0;
  const auto stream = (*client)->Generate(request);
  while (const auto delta = stream->Next()) std::cout << delta->text << std::flush;
  std::cout << std::endl;
  if (!stream->status().ok()) return Fail(stream->status());
  std::cerr << stream->completion().usage.generated_tokens << " tokens" << std::endl;
  return 0;
}
