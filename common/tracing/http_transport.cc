#include "common/tracing/http_transport.h"

#include <curl/curl.h>

#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/check.h"
#include "common/base/version.h"

namespace baton::tracing {
namespace {

constexpr int kPollMs = 10'000;  // Cancel() wakes the poll

class HttpTransport final : public SpanTransport {
 public:
  HttpTransport(const std::string& url, const Resource& headers, const std::string& ca) {
    AddHeader("Content-Type: application/json");
    AddHeader("Expect:");  // else curl waits for a 100 before it sends a long body
    for (const auto& [name, value] : headers) AddHeader(absl::StrCat(name, ": ", value));
    Set(CURLOPT_URL, url.c_str());
    Set(CURLOPT_PROTOCOLS_STR, "http,https");
    Set(CURLOPT_NOSIGNAL, 1L);
    Set(CURLOPT_HTTPHEADER, headers_);
    Set(CURLOPT_USERAGENT, absl::StrReplaceAll(VersionLine("baton"), {{" ", "/"}}).c_str());
    Set(CURLOPT_WRITEFUNCTION, &HttpTransport::KeepBeginning);
    Set(CURLOPT_WRITEDATA, &answer_);
    Set(CURLOPT_ERRORBUFFER, error_);
    if (!ca.empty()) Set(CURLOPT_CAINFO, ca.c_str());
  }
  ~HttpTransport() override {
    curl_easy_cleanup(easy_);
    curl_multi_cleanup(multi_);
    curl_slist_free_all(headers_);
  }

  absl::StatusOr<Reply> Post(const std::string& body, absl::Duration timeout) override {
    Set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
    Set(CURLOPT_POSTFIELDS, body.data());
    const int64_t ms = std::clamp<int64_t>(absl::ToInt64Milliseconds(timeout), 1, 3'600'000);
    Set(CURLOPT_TIMEOUT_MS, static_cast<long>(ms));  // NOLINT(runtime/int): curl's type
    error_[0] = '\0';
    answer_.clear();
    curl_multi_add_handle(multi_, easy_);
    const CURLcode code = Perform();
    curl_multi_remove_handle(multi_, easy_);
    if (code == CURLE_ABORTED_BY_CALLBACK) return absl::CancelledError("the process ends");
    if (code != CURLE_OK) {
      const char* why = error_[0] != '\0' ? error_ : curl_easy_strerror(code);
      return code == CURLE_OPERATION_TIMEDOUT ? absl::DeadlineExceededError(why)
                                              : absl::UnavailableError(why);
    }
    long status = 0;  // NOLINT(runtime/int): curl's type
    curl_off_t retry_after_s = 0;
    curl_easy_getinfo(easy_, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(easy_, CURLINFO_RETRY_AFTER, &retry_after_s);
    return Reply{static_cast<int>(status), absl::Seconds(retry_after_s), answer_};
  }

  void Cancel() override {
    cancelled_ = true;
    curl_multi_wakeup(multi_);
  }

 private:
  static CURLM* Start() {
    static const CURLcode started = curl_global_init(CURL_GLOBAL_DEFAULT);
    BATON_CHECK(started == CURLE_OK);
    return curl_multi_init();
  }

  static size_t KeepBeginning(char* data, size_t, size_t bytes, std::string* answer) {
    answer->append(data, std::min(bytes, kMaxAnswerBytes - answer->size()));
    return bytes;
  }

  template <class T>
  void Set(CURLoption option, T value) {
    BATON_CHECK(curl_easy_setopt(easy_, option, value) == CURLE_OK) << "curl option " << option;
  }
  void AddHeader(const std::string& header) {
    headers_ = curl_slist_append(headers_, header.c_str());
  }

  // CURLE_ABORTED_BY_CALLBACK: cancelled.
  CURLcode Perform() {
    while (!cancelled_) {
      int count = 0;
      curl_multi_perform(multi_, &count);
      while (const CURLMsg* message = curl_multi_info_read(multi_, &count)) {
        if (message->msg == CURLMSG_DONE) return message->data.result;
      }
      curl_multi_poll(multi_, nullptr, 0, kPollMs, nullptr);
    }
    return CURLE_ABORTED_BY_CALLBACK;
  }

  CURLM* const multi_ = Start();
  CURL* const easy_ = curl_easy_init();
  curl_slist* headers_ = nullptr;
  char error_[CURL_ERROR_SIZE] = "";
  std::string answer_;
  std::atomic<bool> cancelled_{false};
};

}  // namespace

std::unique_ptr<SpanTransport> MakeHttpTransport(const std::string& url, const Resource& headers,
                                                 const std::string& ca) {
  return std::make_unique<HttpTransport>(url, headers, ca);
}

}  // namespace baton::tracing
