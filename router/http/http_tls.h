// The TLS context of an HttpServer, made again when a file changes.
#ifndef BATON_ROUTER_HTTP_HTTP_TLS_H_
#define BATON_ROUTER_HTTP_HTTP_TLS_H_

#include <boost/asio/ssl/context.hpp>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/base/tls_files.h"
#include "common/security/reloaded_file.h"

namespace baton::router {

// TLS 1.2 and 1.3, without resumed sessions: each connection is checked by the files of now.
// Thread-safe.
class HttpTls {
 public:
  // INVALID_ARGUMENT, BAD_TLS_FILES. `clock` must outlive it.
  static absl::StatusOr<std::unique_ptr<HttpTls>> Load(const ServerTls& files, const Clock& clock);

  // For a new connection. Looks at the files at most once a second; files that turn bad, or a
  // certificate whose key has not come yet, leave the last good context.
  std::shared_ptr<boost::asio::ssl::context> Current();

 private:
  // A file and what it had; empty without a path.
  struct Source {
    Source(const std::string& path, const Clock& clock);
    // Whether the content is new.
    absl::StatusOr<bool> Look();
    security::ReloadedFile file;
    std::string content;
  };

  HttpTls(const ServerTls& files, const Clock& clock);
  absl::Status Reload() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  Source cert_ ABSL_GUARDED_BY(mutex_);
  Source key_ ABSL_GUARDED_BY(mutex_);
  Source client_ca_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<boost::asio::ssl::context> context_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_HTTP_TLS_H_
