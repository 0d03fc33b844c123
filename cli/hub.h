// The Hugging Face Hub's HTTP protocol: the files of a model, and how to get one.
#ifndef BATON_CLI_HUB_H_
#define BATON_CLI_HUB_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/http_client.h"

namespace baton::cli {

struct HubOptions {
  std::string endpoint = "https://huggingface.co";
  std::string token;  // empty: none. Sent to the endpoint's host only
  // A transfer that breaks is resumed so often, after a pause that doubles each time, as long as no
  // try brings a byte.
  int retries = 5;
  absl::Duration pause = absl::Seconds(1);
  absl::Duration stall_timeout = absl::Seconds(60);  // without a byte
};

// From HF_ENDPOINT, and HF_TOKEN or the token that `hf auth login` has saved.
HubOptions HubOptionsFromEnvironment();

struct HubListing {
  std::string commit;
  std::vector<std::string> files;  // paths in the repository, none of which leads out of it
};

// What the Hub says of one file.
struct HubFile {
  std::string name;
  std::string hash;  // lower-case hex: SHA-256 if it has 64 digits, else that of a Git blob
  int64_t bytes = 0;
};

// Errors name the URL without its query, and what was expected. One thread at a time.
class Hub {
 public:
  explicit Hub(HubOptions options) : options_(std::move(options)) {}

  // NOT_FOUND: no such model or revision. UNAUTHENTICATED, PERMISSION_DENIED: it wants a token, or
  // another one. DATA_LOSS: the answer is not a listing, or has a path that leads out.
  absl::StatusOr<HubListing> List(const std::string& model, const std::string& revision);

  absl::StatusOr<HubFile> Head(const std::string& model, const std::string& commit,
                               const std::string& name);

  // Appends to the file at `path` what it lacks of `file`; creates it. Its content is not checked:
  // see CheckHash(). `on_bytes` gets the bytes of each piece, negative if it starts again.
  absl::Status Download(const std::string& model, const std::string& commit, const HubFile& file,
                        const std::string& path, const std::function<void(int64_t)>& on_bytes);

 private:
  std::string FileUrl(const std::string& model, const std::string& commit,
                      const std::string& name) const;
  HttpRequest Request(const std::string& url) const;
  // One try of Download(), which adds to `written`.
  absl::Status Append(const std::string& url, const HubFile& file, const std::string& path,
                      const std::function<void(int64_t)>& on_bytes);

  const HubOptions options_;
  HttpClient http_;
};

// DATA_LOSS, with both hashes, if the file at `path` has not the content of `file`.
absl::Status CheckHash(const std::string& path, const HubFile& file);

}  // namespace baton::cli

#endif  // BATON_CLI_HUB_H_
