// As much HTTP as it takes to ask another server something in a benchmark.
#ifndef BATON_BENCHMARKS_SERVING_HTTP_CALL_H_
#define BATON_BENCHMARKS_SERVING_HTTP_CALL_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace baton::benchmarks {

// POSTs JSON to "http://host:port" + path over a connection of its own; blocks. The body of a 200,
// which must have a Content-Length or end with the connection (no chunks); any other answer is an
// error that has its first line. `timeout` is for each wait for bytes; DEADLINE_EXCEEDED if one is
// longer.
absl::StatusOr<std::string> HttpPost(const std::string& url, const std::string& path,
                                     const std::string& json, absl::Duration timeout);

// The same for a GET.
absl::StatusOr<std::string> HttpGet(const std::string& url, const std::string& path,
                                    absl::Duration timeout);

}  // namespace baton::benchmarks

#endif  // BATON_BENCHMARKS_SERVING_HTTP_CALL_H_
