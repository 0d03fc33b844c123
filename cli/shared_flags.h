// Flags that several commands of `baton` share.
#ifndef BATON_CLI_SHARED_FLAGS_H_
#define BATON_CLI_SHARED_FLAGS_H_

#include <string>

#include "cli/router_flags.h"
#include "client/cpp/client.h"

namespace CLI {
class App;
}

namespace baton::cli {

// --address, else $BATON_ADDRESS, and the flags of AddRouterAccess().
void AddAddress(CLI::App* app, std::string* address, RouterAccess* access);

// --temperature, --top-p, --top-k, --min-p and the penalties.
void AddSampling(CLI::App* app, client::Sampling* sampling);

}  // namespace baton::cli

#endif  // BATON_CLI_SHARED_FLAGS_H_
