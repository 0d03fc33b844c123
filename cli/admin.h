// The commands for operators: `baton workers`, `loads`, `drain`, `undrain`, `flush-cache` and
// `cancel`.
#ifndef BATON_CLI_ADMIN_H_
#define BATON_CLI_ADMIN_H_

#include <cstdint>
#include <ostream>
#include <string>

#include "baton/v1/admin.pb.h"
#include "cli/router_flags.h"

namespace baton::cli {

struct AdminOptions {
  std::string address = "127.0.0.1:50051";
  RouterAccess access;
  std::string worker;      // drain, undrain, flush-cache: its address or id; empty: all workers
  bool wait = false;       // drain: until the worker is drained
  std::string request_id;  // cancel
  std::string tenant;      // cancel
  bool json = false;       // one JSON object instead of text
  int64_t timeout_ms = 60'000;
};

// `command` is the name of one of the commands above. Returns the exit code
// (common/base/exit_code.h); an error and its reason are on `err`.
int RunAdmin(const std::string& command, const AdminOptions& options, std::ostream& out,
             std::ostream& err);

// The message on one line, with the field names of the proto and with fields that are 0.
std::string JsonLine(const google::protobuf::Message& message);

// "prefill"; "ready": as in logs and metric labels; "compute".
std::string Short(v1::WorkerRole role);
std::string Short(v1::WorkerState state);
std::string Short(v1::WorkerCapability capability);

}  // namespace baton::cli

#endif  // BATON_CLI_ADMIN_H_
