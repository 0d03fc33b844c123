#include "router/http/http_head.h"

#include <algorithm>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace baton::router {
namespace {

namespace http = boost::beast::http;

absl::string_view View(boost::beast::string_view text) { return {text.data(), text.size()}; }

std::vector<absl::string_view> ValuesOf(const HttpMessage& message, http::field name) {
  std::vector<absl::string_view> values;
  const auto [begin, end] = message.equal_range(name);
  for (auto field = begin; field != end; ++field) values.push_back(View(field->value()));
  return values;
}

// Returns "/path?query" for itself and for "http://host/path?query"; the URL may have no path.
absl::string_view WithoutHost(absl::string_view target) {
  for (const absl::string_view scheme : {"http://", "https://"}) {
    if (!absl::StartsWithIgnoreCase(target, scheme)) continue;
    target.remove_prefix(scheme.size());
    target.remove_prefix(std::min(target.find_first_of("/?"), target.size()));
    return target;
  }
  return target;
}

HttpRefusal CheckHost(const HttpMessage& message) {
  const std::vector<absl::string_view> hosts = ValuesOf(message, http::field::host);
  if (hosts.size() > 1) return {400, "more than one Host header"};
  if (hosts.empty())
    return message.version() >= 11 ? HttpRefusal{400, "no Host header"} : HttpRefusal{};
  if (hosts[0].find_first_of(" \t,/?#@\\") == absl::string_view::npos) return {};
  return {400, "the Host header is not a host with an optional port"};
}

HttpRefusal CheckLength(const HttpMessage& message) {
  const std::vector<absl::string_view> lengths = ValuesOf(message, http::field::content_length);
  if (lengths.size() > 1) return {400, "more than one Content-Length header"};
  if (lengths.empty() || absl::c_all_of(lengths[0], absl::ascii_isdigit)) return {};
  return {400, "the Content-Length header is not one whole number"};
}

HttpRefusal CheckTransferEncoding(const HttpMessage& message) {
  const std::vector<absl::string_view> values = ValuesOf(message, http::field::transfer_encoding);
  if (values.empty()) return {};
  if (message.version() < 11) return {400, "Transfer-Encoding in a request of HTTP/1.0"};
  if (message.find(http::field::content_length) != message.end()) {
    return {400, "both Transfer-Encoding and Content-Length"};
  }
  std::vector<std::string> codings;
  for (const absl::string_view value : values) {
    for (const absl::string_view coding : absl::StrSplit(value, ',')) {
      codings.push_back(absl::AsciiStrToLower(absl::StripAsciiWhitespace(coding)));
    }
  }
  if (codings.back() != "chunked" || absl::c_count(codings, "chunked") > 1) {
    return {400, "Transfer-Encoding does not end with one \"chunked\""};
  }
  if (codings.size() == 1) return {};
  return {501, "no transfer coding but \"chunked\" is supported"};
}

}  // namespace

HttpRequest HeadOf(const HttpMessage& message) {
  HttpRequest head;
  head.method = std::string(message.method_string());
  const absl::string_view target = WithoutHost(View(message.target()));
  head.path = std::string(target.substr(0, target.find('?')));
  if (head.path.empty() && !message.target().empty()) head.path = "/";
  for (const auto& field : message) {
    head.headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
  }
  return head;
}

HttpRefusal CheckHead(const HttpMessage& message) {
  for (const auto check : {CheckHost, CheckLength, CheckTransferEncoding}) {
    if (HttpRefusal refusal = check(message); refusal.status != 0) return refusal;
  }
  return {};
}

}  // namespace baton::router
