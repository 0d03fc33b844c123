#include "router/http/response_store.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/json/json.h"
#include "router/http/body_reader.h"
#include "router/http/json_readers.h"
#include "router/http/openai_error.h"
#include "router/http/responses_items.h"
#include "router/http/responses_request.h"

namespace baton::router {
namespace {

constexpr int64_t kEntryBytes = 512;  // about what an entry takes beside its texts

// `messages`, an array, with more of them.
std::string Joined(std::string messages, const Value& more) {
  if (more.items.empty()) return messages;
  const std::string text = json::ToText(more);
  if (messages == "[]") return text;
  messages.back() = ',';
  return absl::StrCat(messages, absl::string_view(text).substr(1));
}

absl::Status PreviousNotFound(absl::string_view id) {
  constexpr char kField[] = "previous_response_id";
  return WithDetails(
      MakeError(absl::StatusCode::kNotFound, "PREVIOUS_RESPONSE_NOT_FOUND",
                absl::StrCat(kField, ": this router has no response ", json::Quoted(id),
                             ": it was not stored, or is no longer; send the whole conversation "
                             "as input")),
      "", kField, /*retry_after=*/std::nullopt);
}

}  // namespace

void ResponseStore::Put(absl::string_view tenant, absl::string_view id, Stored stored) {
  Entry entry = {std::string(id), std::string(tenant), nullptr, kEntryBytes, absl::ZeroDuration()};
  entry.bytes += static_cast<int64_t>(stored.response.size() + stored.messages.size() +
                                      2 * id.size() + tenant.size());
  if (entry.bytes > max_bytes_) return;
  entry.stored = std::make_shared<const Stored>(std::move(stored));
  absl::MutexLock lock(&mutex_);
  entry.expires = clock_.SinceStart() + ttl_;
  if (const auto old = by_id_.find(id); old != by_id_.end()) Remove(old->second);
  bytes_ += entry.bytes;
  entries_.push_front(std::move(entry));
  by_id_[entries_.front().id] = entries_.begin();
  const int expired = RemoveExpired();
  int evicted = 0;
  for (; bytes_ > max_bytes_; ++evicted) Remove(std::prev(entries_.end()));
  Tell(evicted, expired);
}

std::shared_ptr<const ResponseStore::Stored> ResponseStore::Find(absl::string_view tenant,
                                                                 absl::string_view id) {
  absl::MutexLock lock(&mutex_);
  DropExpired();
  const auto found = FindEntry(tenant, id);
  if (found == entries_.end()) return nullptr;
  found->expires = clock_.SinceStart() + ttl_;
  entries_.splice(entries_.begin(), entries_, found);
  return found->stored;
}

bool ResponseStore::Erase(absl::string_view tenant, absl::string_view id) {
  absl::MutexLock lock(&mutex_);
  DropExpired();
  const auto found = FindEntry(tenant, id);
  if (found == entries_.end()) return false;
  Remove(found);
  Tell(/*evicted=*/0, /*expired=*/0);
  return true;
}

int64_t ResponseStore::bytes() {
  absl::MutexLock lock(&mutex_);
  DropExpired();
  return bytes_;
}

ResponseStore::Entries::iterator ResponseStore::FindEntry(absl::string_view tenant,
                                                          absl::string_view id) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || found->second->tenant != tenant) return entries_.end();
  return found->second;
}

void ResponseStore::Remove(Entries::iterator entry) {
  bytes_ -= entry->bytes;
  by_id_.erase(entry->id);
  entries_.erase(entry);
}

// The least recently used entry expires first.
int ResponseStore::RemoveExpired() {
  const absl::Duration now = clock_.SinceStart();
  int expired = 0;
  for (; !entries_.empty() && entries_.back().expires <= now; ++expired) {
    Remove(std::prev(entries_.end()));
  }
  return expired;
}

void ResponseStore::DropExpired() {
  if (const int expired = RemoveExpired(); expired > 0) Tell(/*evicted=*/0, expired);
}

void ResponseStore::Tell(int evicted, int expired) {
  on_change_({static_cast<int64_t>(entries_.size()), bytes_, evicted, expired});
}

absl::Status BindToStore(const std::shared_ptr<ResponseStore>& store, const std::string& tenant,
                         OpenAiRequest& request) {
  ResponsesRequest& responses = *request.responses;
  std::vector<Value>& messages = request.conversation.messages.items;
  const auto input = messages.begin() + static_cast<std::ptrdiff_t>(responses.lead);
  const bool keeps = responses.store && store->stores();
  Value own = json::ArrayValue();
  if (keeps) own.items.assign(input, messages.end());
  std::string conversation = "[]";
  if (!responses.previous_response_id.empty()) {
    const auto previous = store->Find(tenant, responses.previous_response_id);
    if (previous == nullptr) return PreviousNotFound(responses.previous_response_id);
    absl::StatusOr<Value> earlier =
        json::Parse(previous->messages, "the conversation", kMaxBodyValues);
    if (!earlier.ok()) {
      return OutOfRange("previous_response_id", "a longer conversation",
                        absl::StrCat("at most ", kMaxBodyValues, " JSON values expected"));
    }
    request.json_bytes += static_cast<int64_t>(sizeof(Value)) * json::CountValues(*earlier) +
                          static_cast<int64_t>(previous->messages.size());
    if (keeps) conversation = previous->messages;
    messages.insert(input, std::make_move_iterator(earlier->items.begin()),
                    std::make_move_iterator(earlier->items.end()));
  }
  if (!keeps) return absl::OkStatus();
  conversation = Joined(std::move(conversation), own);
  responses.kept_bytes = static_cast<int64_t>(conversation.size());
  responses.keep = [store, tenant, conversation = std::move(conversation)](
                       const std::string& id, std::string response, const Value& answer) {
    store->Put(tenant, id, {std::move(response), Joined(conversation, answer)});
  };
  return absl::OkStatus();
}

HttpResponse StoredResponse(ResponseStore& store, absl::string_view tenant,
                            absl::string_view method, absl::string_view id) {
  if (method != "GET" && method != "HEAD" && method != "DELETE") {
    HttpResponse response =
        PlainError(405, "a response takes GET, HEAD, DELETE", "method_not_allowed");
    response.headers.emplace_back("Allow", "GET, HEAD, DELETE");
    return response;
  }
  const auto stored = store.Find(tenant, id);
  if (stored == nullptr) {
    return PlainError(404, absl::StrCat("this router has no response ", json::Quoted(id)),
                      "response_not_found");
  }
  std::string body = stored->response;
  if (method == "DELETE") {
    store.Erase(tenant, id);
    body = absl::StrCat(R"({"id":")", id, R"(","object":"response","deleted":true})");
  }
  return {200, {{"Content-Type", "application/json"}}, std::move(body)};
}

}  // namespace baton::router
