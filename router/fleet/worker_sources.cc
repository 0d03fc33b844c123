#include "router/fleet/worker_sources.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/error.h"
#include "common/base/host_port.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"

namespace baton::router {
namespace {

absl::Status BadWorkers(absl::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, "BAD_WORKERS_FILE", message);
}

absl::Status Unreadable(const std::string& path, int error) {
  return MakeError(absl::StatusCode::kNotFound, "BAD_WORKERS_FILE",
                   absl::StrCat(path, " cannot be read: ", std::strerror(error)));
}

// At most `limit` bytes and one more, which says that it is longer.
absl::StatusOr<std::string> ReadRegularFile(const std::string& path, size_t limit) {
  // A pipe without a writer would otherwise block here for ever.
  const int file = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  if (file < 0) return Unreadable(path, errno);
  const absl::Cleanup close_file = [file] { close(file); };
  struct stat status = {};
  if (fstat(file, &status) != 0) return Unreadable(path, errno);
  if (!S_ISREG(status.st_mode)) {
    return BadWorkers(absl::StrCat(path, " is not a regular file"));
  }
  std::string content;
  char part[16 << 10];
  while (content.size() <= limit) {
    const ssize_t count = read(file, part, std::min(sizeof(part), limit + 1 - content.size()));
    if (count == 0) break;
    if (count > 0) {
      content.append(part, static_cast<size_t>(count));
    } else if (errno != EINTR) {
      return Unreadable(path, errno);
    }
  }
  return content;
}

}  // namespace

absl::StatusOr<std::vector<WorkerAddress>> ParseWorkers(absl::string_view text) {
  std::vector<WorkerAddress> workers;
  bool decode = false;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(WithoutByteOrderMark(text), '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    const bool is_decode = words[0] == "decode";
    if (words.size() != 2 || (!is_decode && words[0] != "prefill")) {
      return BadWorkers(absl::StrCat("line ", number, ": \"", line.substr(0, 300),
                                     "\", expected \"prefill host:port\" or \"decode host:port\""));
    }
    if (const absl::Status fits = CheckHostPort(words[1]); !fits.ok()) {
      return BadWorkers(absl::StrCat("line ", number, ": ", fits.message()));
    }
    decode = decode || is_decode;
    workers.push_back(
        {is_decode ? v1::WORKER_ROLE_DECODE : v1::WORKER_ROLE_PREFILL, std::string(words[1])});
  }
  if (!decode) return BadWorkers("it lists no decode worker, at least one expected");
  return workers;
}

absl::StatusOr<std::optional<std::vector<WorkerAddress>>> WorkersFile::Look() {
  std::string content;
  BATON_ASSIGN_OR_RETURN(content, ReadRegularFile(path_, kMaxBytes));
  if (content.size() > kMaxBytes) {
    return BadWorkers(absl::StrCat(path_, " is longer than ", kMaxBytes, " bytes"));
  }
  const bool certain = !last_look_ || *last_look_ == content;
  last_look_ = std::move(content);
  if (!certain) return std::nullopt;
  // Its writer may pause for longer than a period: ":5" is a port, but perhaps not yet all of it.
  if (!last_look_->empty() && last_look_->back() != '\n') {
    return BadWorkers(absl::StrCat(path_, ": the last line does not end, a newline expected"));
  }
  auto workers = ParseWorkers(*last_look_);
  if (!workers.ok()) {
    return BadWorkers(absl::StrCat(path_, ": ", workers.status().message()));
  }
  return *std::move(workers);
}

DnsWorkers::DnsWorkers(v1::WorkerRole role, const std::string& host_port, const Limits& limits,
                       Resolver& resolver)
    : role_(role), limits_(limits), resolver_(resolver) {
  const auto [host, port] = SplitHostPort(host_port);
  host_ = std::string(host);
  port_ = std::string(port);
  if (host_.front() == '[') host_ = host_.substr(1, host_.size() - 2);
}

absl::StatusOr<std::optional<std::vector<WorkerAddress>>> DnsWorkers::Look() {
  if (lookup_ == nullptr) lookup_ = resolver_.Resolve(host_);
  std::optional<HostAddresses> answer = lookup_->addresses();
  if (!answer) return std::nullopt;
  lookup_ = nullptr;
  std::vector<std::string> addresses;
  BATON_ASSIGN_OR_RETURN(addresses, *std::move(answer));
  if (addresses.empty()) {
    return MakeError(absl::StatusCode::kNotFound, "NAME_NOT_RESOLVED",
                     absl::StrCat(host_, " has no address"));
  }
  // In an order of their own: name servers rotate theirs.
  std::sort(addresses.begin(), addresses.end());
  std::vector<WorkerAddress> workers;
  for (const std::string& address : addresses) {
    const bool v6 = address.find(':') != std::string::npos;
    workers.push_back(
        {role_, v6 ? absl::StrCat("[", address, "]:", port_) : absl::StrCat(address, ":", port_)});
  }
  return workers;
}

}  // namespace baton::router
