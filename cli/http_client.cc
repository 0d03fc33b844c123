#include "cli/http_client.h"

#include <curl/curl.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "common/base/check.h"
#include "common/base/version.h"

namespace baton::cli {
namespace {

using Done = std::function<void(absl::StatusOr<HttpResponse>)>;

constexpr size_t kMaxBodyBytes = 1 << 20;
constexpr size_t kMaxHeadBytes = 256 << 10;
constexpr long kConnectMs = 20'000;  // NOLINT(runtime/int): curl's type
constexpr int kPollMs = 10'000;      // Send() and the destructor wake the poll

template <class T>
void Set(CURL* easy, CURLoption option, T value) {
  BATON_CHECK(curl_easy_setopt(easy, option, value) == CURLE_OK) << "curl option " << option;
}

// "https://host:port" of a URL, which may contain secrets behind it.
std::string Origin(const std::string& url) {
  const size_t host = url.find("://");
  return host == std::string::npos ? url : url.substr(0, url.find_first_of("/?#", host + 3));
}

}  // namespace

// A request under way. It stays where it is: curl has pointers to it.
class HttpClient::Transfer {
 public:
  Transfer(HttpRequest request, Done done) : request_(std::move(request)), done_(std::move(done)) {
    for (const std::string& header : request_.headers) AddHeader(header);
    if (request_.json) {
      AddHeader("Content-Type: application/json");
      AddHeader("Expect:");  // else curl waits for a 100 before it sends a long body
    }
    Set(easy_, CURLOPT_URL, request_.url.c_str());
    Set(easy_, CURLOPT_PROTOCOLS_STR, "http,https");
    Set(easy_, CURLOPT_NOSIGNAL, 1L);
    Set(easy_, CURLOPT_HTTPHEADER, headers_);
    Set(easy_, CURLOPT_USERAGENT, user_agent_.c_str());
    Set(easy_, CURLOPT_CONNECTTIMEOUT_MS, kConnectMs);
    if (request_.head) Set(easy_, CURLOPT_NOBODY, 1L);
    if (request_.timeout < absl::InfiniteDuration()) {
      Set(easy_, CURLOPT_TIMEOUT_MS,
          std::max(1L, static_cast<long>(absl::ToInt64Milliseconds(request_.timeout))));
    }
    if (request_.stall_timeout < absl::InfiniteDuration()) {
      Set(easy_, CURLOPT_LOW_SPEED_LIMIT, 1L);
      Set(easy_, CURLOPT_LOW_SPEED_TIME,
          std::max(1L, static_cast<long>(absl::ToInt64Seconds(request_.stall_timeout))));
    }
    if (request_.json) {
      Set(easy_, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request_.json->size()));
      Set(easy_, CURLOPT_POSTFIELDS, request_.json->data());
    }
    Set(easy_, CURLOPT_HEADERFUNCTION, &Transfer::OnHeader);
    Set(easy_, CURLOPT_HEADERDATA, this);
    Set(easy_, CURLOPT_WRITEFUNCTION, &Transfer::OnBody);
    Set(easy_, CURLOPT_WRITEDATA, this);
    Set(easy_, CURLOPT_ERRORBUFFER, error_);
  }
  ~Transfer() {
    curl_easy_cleanup(easy_);
    curl_slist_free_all(headers_);
  }
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  CURL* easy() const { return easy_; }

  void End(CURLcode code) {
    if (status_.ok() && code == CURLE_OK) ReportHead();
    if (!status_.ok()) return done_(status_);
    if (code == CURLE_OK) return done_(std::move(response_));
    const std::string message = absl::StrCat(Origin(request_.url), ": ",
                                             error_[0] != '\0' ? error_ : curl_easy_strerror(code));
    if (code == CURLE_OPERATION_TIMEDOUT) return done_(absl::DeadlineExceededError(message));
    const bool wrong = code == CURLE_URL_MALFORMAT || code == CURLE_UNSUPPORTED_PROTOCOL;
    done_(wrong ? absl::InvalidArgumentError(message) : absl::UnavailableError(message));
  }

 private:
  void AddHeader(const std::string& header) {
    headers_ = curl_slist_append(headers_, header.c_str());
  }

  static size_t OnHeader(char* data, size_t, size_t bytes, void* self) {
    return static_cast<Transfer*>(self)->TakeHeader({data, bytes}) ? bytes : 0;
  }
  static size_t OnBody(char* data, size_t, size_t bytes, void* self) {
    return static_cast<Transfer*>(self)->TakeBody({data, bytes}) ? bytes : 0;
  }

  bool TakeHeader(absl::string_view line) {
    head_bytes_ += line.size();
    if (head_bytes_ > kMaxHeadBytes) {
      status_ = absl::UnavailableError(absl::StrCat(Origin(request_.url), ": too many headers"));
      return false;
    }
    if (absl::StartsWith(line, "HTTP/")) response_.headers.clear();  // after a 100
    const std::pair<absl::string_view, absl::string_view> field =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (!field.second.empty()) {
      response_.headers[absl::AsciiStrToLower(field.first)] =
          std::string(absl::StripAsciiWhitespace(field.second));
    }
    return true;
  }

  bool TakeBody(absl::string_view piece) {
    ReportHead();
    if (!status_.ok()) return false;
    if (request_.on_body && response_.status / 100 == 2) {
      status_ = request_.on_body(piece);
      return status_.ok();
    }
    absl::StrAppend(&response_.body, piece.substr(0, kMaxBodyBytes - response_.body.size()));
    return true;
  }

  void ReportHead() {
    if (response_.status != 0) return;
    long status = 0;  // NOLINT(runtime/int): curl's type
    curl_easy_getinfo(easy_, CURLINFO_RESPONSE_CODE, &status);
    response_.status = static_cast<int>(status);
    if (request_.on_head) status_ = request_.on_head(response_);
  }

  const HttpRequest request_;
  const Done done_;
  const std::string user_agent_ = absl::StrReplaceAll(VersionLine("baton"), {{" ", "/"}});
  CURL* const easy_ = curl_easy_init();
  curl_slist* headers_ = nullptr;
  char error_[CURL_ERROR_SIZE] = "";
  size_t head_bytes_ = 0;
  HttpResponse response_;
  absl::Status status_;  // of a callback
};

// Owns all transfers, on its thread; Send() hands it new ones.
class HttpClient::Loop {
 public:
  Loop() : thread_([this] { Run(); }) {}
  ~Loop() {
    {
      absl::MutexLock lock(&mutex_);
      stopped_ = true;
    }
    curl_multi_wakeup(multi_);
    thread_.join();
    for (const auto& [easy, transfer] : running_) curl_multi_remove_handle(multi_, easy);
    running_.clear();
    curl_multi_cleanup(multi_);
  }

  void Add(std::unique_ptr<Transfer> transfer) {
    {
      absl::MutexLock lock(&mutex_);
      fresh_.push_back(std::move(transfer));
    }
    curl_multi_wakeup(multi_);
  }

 private:
  static CURLM* Start() {
    static const CURLcode started = curl_global_init(CURL_GLOBAL_DEFAULT);
    BATON_CHECK(started == CURLE_OK);
    return curl_multi_init();
  }

  bool TakeFresh() {
    absl::MutexLock lock(&mutex_);
    for (auto& transfer : fresh_) {
      CURL* const easy = transfer->easy();
      running_[easy] = std::move(transfer);
      curl_multi_add_handle(multi_, easy);
    }
    fresh_.clear();
    return !stopped_;
  }

  void Run() {
    while (TakeFresh()) {
      int count = 0;
      curl_multi_perform(multi_, &count);
      while (const CURLMsg* message = curl_multi_info_read(multi_, &count)) {
        if (message->msg != CURLMSG_DONE) continue;
        CURL* const easy = message->easy_handle;
        const CURLcode code = message->data.result;  // `message` dies with the handle
        curl_multi_remove_handle(multi_, easy);
        const auto ended = running_.extract(easy);
        ended.mapped()->End(code);
      }
      curl_multi_poll(multi_, nullptr, 0, kPollMs, nullptr);
    }
  }

  CURLM* const multi_ = Start();
  absl::flat_hash_map<CURL*, std::unique_ptr<Transfer>> running_;  // the thread's
  absl::Mutex mutex_;
  std::vector<std::unique_ptr<Transfer>> fresh_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // the last member
};

std::string HttpResponse::Header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

HttpClient::HttpClient() : loop_(std::make_unique<Loop>()) {}

HttpClient::~HttpClient() = default;

void HttpClient::Send(HttpRequest request, Done done) {
  loop_->Add(std::make_unique<Transfer>(std::move(request), std::move(done)));
}

absl::StatusOr<HttpResponse> HttpClient::SendAndWait(HttpRequest request) {
  absl::StatusOr<HttpResponse> response;
  absl::Notification ended;
  Send(std::move(request), [&](absl::StatusOr<HttpResponse> got) {
    response = std::move(got);
    ended.Notify();
  });
  ended.WaitForNotification();
  return response;
}

}  // namespace baton::cli
