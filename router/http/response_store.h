// Responses that clients may continue, read and delete by their ids: OpenAI's `store`.
#ifndef BATON_ROUTER_HTTP_RESPONSE_STORE_H_
#define BATON_ROUTER_HTTP_RESPONSE_STORE_H_

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "router/http/http_server.h"
#include "router/http/openai_request.h"

namespace baton::router {

// In the memory of one router: a restart loses it, and other routers do not have it. Thread-safe.
class ResponseStore {
 public:
  struct Stored {
    std::string response;  // the response object
    // The conversation up to and with the answer, without instructions: an array of messages.
    std::string messages;
  };

  // What is held after a change, and how many responses went in it that no client deleted.
  struct Change {
    int64_t responses = 0;
    int64_t bytes = 0;
    int evicted = 0;  // for others
    int expired = 0;
  };
  // Called for each change, in order, from any thread. Must not call back into the store.
  using OnChange = std::function<void(const Change& change)>;

  // `clock` must outlive it. At most `max_bytes` are held; beyond, what was used least recently
  // goes. 0: nothing is stored. A response goes once it was not used for `ttl`.
  ResponseStore(const Clock& clock, int64_t max_bytes, absl::Duration ttl, OnChange on_change)
      : clock_(clock), max_bytes_(max_bytes), ttl_(ttl), on_change_(std::move(on_change)) {}

  bool stores() const { return max_bytes_ > 0; }
  // Stores nothing if it alone is larger than all may be.
  void Put(absl::string_view tenant, absl::string_view id, Stored stored);
  // Null if there is none; so it is for a response of another tenant.
  std::shared_ptr<const Stored> Find(absl::string_view tenant, absl::string_view id);
  bool Erase(absl::string_view tenant, absl::string_view id);
  int64_t bytes();  // that are held

 private:
  struct Entry {
    std::string id;
    std::string tenant;
    std::shared_ptr<const Stored> stored;
    int64_t bytes = 0;
    absl::Duration expires;
  };
  using Entries = std::list<Entry>;

  Entries::iterator FindEntry(absl::string_view tenant, absl::string_view id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Remove(Entries::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int RemoveExpired() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);  // returns how many
  void DropExpired() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Tell(int evicted, int expired) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock& clock_;
  const int64_t max_bytes_;
  const absl::Duration ttl_;
  const OnChange on_change_;

  absl::Mutex mutex_;
  Entries entries_ ABSL_GUARDED_BY(mutex_);  // the most recently used first
  absl::flat_hash_map<std::string, Entries::iterator> by_id_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Puts the conversation that the request continues before its input, and has its response stored if
// it asks for that. NOT_FOUND, PREVIOUS_RESPONSE_NOT_FOUND. OUT_OF_RANGE if both are more than
// kMaxBodyValues JSON values. REQUIRES: request.responses.
absl::Status BindToStore(const std::shared_ptr<ResponseStore>& store, const std::string& tenant,
                         OpenAiRequest& request);

// The answer to GET or DELETE (others: 405) of the response `id`.
HttpResponse StoredResponse(ResponseStore& store, absl::string_view tenant,
                            absl::string_view method, absl::string_view id);

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_RESPONSE_STORE_H_
