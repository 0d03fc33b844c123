// Exit codes of Baton's programs. docs/cli.md has them as a table.
#ifndef BATON_COMMON_BASE_EXIT_CODE_H_
#define BATON_COMMON_BASE_EXIT_CODE_H_

#include "absl/status/status.h"

namespace baton {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;
// The command line, or the request that it describes, is invalid: repeating it fails again.
inline constexpr int kExitUsage = 2;
// The router cannot be reached, no worker is ready, or the cluster is full: retry later.
inline constexpr int kExitUnavailable = 3;
inline constexpr int kExitDeadline = 4;       // --timeout-ms passed
inline constexpr int kExitInterrupted = 130;  // Ctrl-C, as a shell reports it

// The exit code of a command whose call to a router ended with `status`.
int ExitCode(const absl::Status& status);

// The exit code of a server that could not start. kExitUsage, which its supervisor takes as a
// reason not to start it again, if no later start can succeed with these flags: they are invalid,
// or this build or device cannot do what they ask for. kExitFailure for what may pass, such as a
// file that is missing, an address in use or memory that others take.
int ExitCodeOfStart(const absl::Status& status);

// The exit code of a program whose command line CLI11 has refused with `cli11_code`, or that has
// only printed its help (`cli11_code` 0).
inline int ExitCodeOfParse(int cli11_code) { return cli11_code == 0 ? kExitOk : kExitUsage; }

}  // namespace baton

#endif  // BATON_COMMON_BASE_EXIT_CODE_H_
