// One HTTP request of a benchmark, over cli/http_client.h.
#ifndef BATON_BENCHMARKS_SERVING_HTTP_CALL_H_
#define BATON_BENCHMARKS_SERVING_HTTP_CALL_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace baton::benchmarks {

// POSTs JSON to "http://host:port" + path; blocks. The body of a 200; any other answer is
// UNAVAILABLE, with its status. DEADLINE_EXCEEDED if the whole answer takes longer than `timeout`.
absl::StatusOr<std::string> HttpPost(const std::string& url, const std::string& path,
                                     const std::string& json, absl::Duration timeout);

// The same for a GET.
absl::StatusOr<std::string> HttpGet(const std::string& url, const std::string& path,
                                    absl::Duration timeout);

}  // namespace baton::benchmarks

#endif  // BATON_BENCHMARKS_SERVING_HTTP_CALL_H_
