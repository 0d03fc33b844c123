// The flags of `baton up`, most of which it passes on to the processes that it starts.
#ifndef BATON_CLI_UP_FLAGS_H_
#define BATON_CLI_UP_FLAGS_H_

#include <map>
#include <string>
#include <vector>

#include "cli/up.h"
#include "common/base/tls_files.h"

namespace CLI {
class App;
}

namespace baton::cli {

// Values that FinishUp() converts to fields of UpOptions.
struct UpFlags {
  std::string prefill = "1";  // a number, or "auto"
  // The flags that are passed to the router.
  std::string api_keys;
  ServerTls tls;
  bool insecure = false;
  bool no_split_special_tokens = false;
  bool strict_fields = false;
  std::string rerank_template, rerank_labels;
  std::vector<std::string> http_cors_origins;
  std::string max_local_prefill_tokens;  // empty: the router's default
  // The flags that are passed to the workers, which check them further.
  std::map<std::string, std::string> values;
  std::map<std::string, std::string> tier_values;  // of their KV tiers
  bool dequantize_weights = false;
  bool no_prefix_caching = false;
  bool no_deterministic = false;
  bool kv_fetch = false, kv_write_back = false;
  std::map<std::string, std::string> decode_values;  // of decode workers alone
};

void AddUp(CLI::App* app, UpOptions* up, UpFlags* flags);
// Call after parsing with AddUp()'s app. Throws CLI::ValidationError for a model that is not there
// and for files of TLS that are wrong: the processes would report them only after a while.
void FinishUp(const CLI::App& app, const UpFlags& flags, UpOptions* up);

}  // namespace baton::cli

#endif  // BATON_CLI_UP_FLAGS_H_
