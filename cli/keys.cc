#include "cli/keys.h"

#include <nlohmann/json.hpp>

#include "cli/generate.h"
#include "common/base/exit_code.h"
#include "common/security/api_keys.h"

namespace baton::cli {

int RunNewKey(const KeysOptions& options, std::ostream& out, std::ostream& err) {
  const absl::StatusOr<security::NewKey> made = security::MakeApiKey(options.tenant, options.admin);
  if (!made.ok()) {
    err << "baton keys new: " << Describe(made.status()) << std::endl;
    return ExitCode(made.status());
  }
  if (options.json) {
    const nlohmann::ordered_json json = {{"key", made->key}, {"line", made->line}};
    out << json.dump() << std::endl;
    return kExitOk;
  }
  out << "key, shown only now: " << made->key << "\n"
      << "line for the file of --api-keys: " << made->line << std::endl;
  return kExitOk;
}

}  // namespace baton::cli
