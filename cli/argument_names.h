// What the user of a command has written, by the names of the request that it became.
#ifndef BATON_CLI_ARGUMENT_NAMES_H_
#define BATON_CLI_ARGUMENT_NAMES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace baton::cli {

enum class ArgumentStyle {
  kFlag,       // of a command line: "--top-p"
  kParameter,  // of `/set` in a chat: "top_p"
};

// Returns what sets a field of a request, which an error names as the router does
// ("sampling.top_p", "stop.max_tokens") or as the SDK does ("max_tokens"); an element of a list
// keeps its index. The field itself if no flag, or no parameter, sets it.
std::string ArgumentOf(absl::string_view field, ArgumentStyle style);

// The error's message, which begins with the field that it is about, if any, with the argument in
// place of the field.
std::string MessageWithArgument(const absl::Status& error, ArgumentStyle style);

}  // namespace baton::cli

#endif  // BATON_CLI_ARGUMENT_NAMES_H_
