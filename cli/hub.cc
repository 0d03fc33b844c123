#include "cli/hub.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/base/model_directory.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"

namespace baton::cli {
namespace {

constexpr size_t kMaxListingBytes = size_t{16} << 20;
constexpr size_t kMaxFiles = 10'000;
constexpr int64_t kMaxFileBytes = int64_t{1} << 42;  // 4 TiB
constexpr int kMaxRedirects = 5;
constexpr size_t kMaxShownBytes = 200;  // of a server's answer, in a message
constexpr absl::Duration kAnswerWithin = absl::Seconds(60);

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string SavedToken() {
  std::string path = Variable("HF_TOKEN_PATH");
  if (path.empty()) path = HubHome() + "/token";
  std::ifstream file(path);
  std::string token;
  file >> token;
  return std::string(WithoutByteOrderMark(token));
}

std::string WithoutQuery(const std::string& url) { return url.substr(0, url.find('?')); }

// "https://host:port"
std::string OriginOf(const std::string& url) {
  const size_t host = url.find("://");
  if (host == std::string::npos) return "";
  return absl::AsciiStrToLower(url.substr(0, url.find_first_of("/?#", host + 3)));
}

// Where a redirect leads; empty if it leaves HTTPS, or is neither a URL nor an absolute path.
std::string Target(const std::string& from, const std::string& location) {
  if (absl::StartsWith(location, "//")) return from.substr(0, from.find(':') + 1) + location;
  if (absl::StartsWith(location, "/")) return OriginOf(from) + location;
  const bool allowed = absl::StartsWithIgnoreCase(location, "https://") ||
                       (absl::StartsWithIgnoreCase(location, "http://") &&
                        !absl::StartsWithIgnoreCase(from, "https://"));
  return allowed ? location : "";
}

bool IsRedirect(int status) { return status / 100 == 3 && status != 304; }

absl::Status FailureOfHub(const std::string& url, const HttpResponse& response) {
  const auto code = [&] {
    switch (response.status) {
      case 401:
        return absl::StatusCode::kUnauthenticated;
      case 403:
        return absl::StatusCode::kPermissionDenied;
      case 404:
        return absl::StatusCode::kNotFound;
      case 429:
        return absl::StatusCode::kUnavailable;
      default:
        return response.status / 100 == 5 ? absl::StatusCode::kUnavailable
                                          : absl::StatusCode::kUnknown;
    }
  }();
  const bool wants_token = response.status == 401 || response.status == 403;
  const std::string why = response.Header("x-error-message");
  std::string said(absl::StripAsciiWhitespace(why.empty() ? response.body : why));
  if (said.size() > kMaxShownBytes) said.resize(kMaxShownBytes);
  return absl::Status(
      code,
      absl::StrCat(WithoutQuery(url), " answered ", response.status, said.empty() ? "" : ": ",
                   absl::CHexEscape(said),
                   wants_token ? " (expected a token with access to the model in HF_TOKEN)"
                   : response.status == 404
                       ? " (expected a model that exists and is public, or a token in HF_TOKEN)"
                       : ""));
}

// Names become paths below a directory, whose files they must not leave.
bool IsSafeName(absl::string_view name) {
  if (name.empty() || name.size() > 1024 || absl::StrContains(name, '\\')) return false;
  if (absl::c_any_of(name, [](char c) { return absl::ascii_iscntrl(c); })) return false;
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '/');
  return absl::c_all_of(parts, [](absl::string_view part) {
    return !part.empty() && part != "." && part != ".." && part.size() <= 255;
  });
}

bool IsHex(absl::string_view text) { return absl::c_all_of(text, absl::ascii_isxdigit); }

std::string Escaped(absl::string_view path) {
  std::string escaped;
  for (const char c : path) {
    const bool plain = absl::ascii_isalnum(c) || absl::StrContains("-_.~/", c);
    absl::StrAppend(&escaped,
                    plain ? std::string(1, c)
                          : absl::StrCat("%", absl::Hex(static_cast<uint8_t>(c), absl::kZeroPad2)));
  }
  return escaped;
}

absl::Status SystemError(const std::string& what, const std::string& path) {
  return absl::UnknownError(absl::StrCat(what, " ", path, ": ", std::strerror(errno)));
}

}  // namespace

HubOptions HubOptionsFromEnvironment() {
  HubOptions options;
  if (const std::string endpoint = Variable("HF_ENDPOINT"); !endpoint.empty()) {
    options.endpoint = std::string(absl::StripSuffix(endpoint, "/"));
  }
  options.token = std::string(absl::StripAsciiWhitespace(Variable("HF_TOKEN")));
  if (options.token.empty()) options.token = SavedToken();
  return options;
}

std::string Hub::FileUrl(const std::string& model, const std::string& commit,
                         const std::string& name) const {
  return absl::StrCat(options_.endpoint, "/", model, "/resolve/", commit, "/", Escaped(name));
}

HttpRequest Hub::Request(const std::string& url) const {
  HttpRequest request;
  request.url = url;
  request.stall_timeout = options_.stall_timeout;
  // Other hosts, such as that of the large files, get no token: their URLs are signed.
  if (!options_.token.empty() && OriginOf(url) == OriginOf(options_.endpoint)) {
    request.headers.push_back("Authorization: Bearer " + options_.token);
  }
  return request;
}

absl::StatusOr<HubListing> Hub::List(const std::string& model, const std::string& revision) {
  const std::string url = absl::StrCat(options_.endpoint, "/api/models/", model, "/revision/",
                                       absl::StrReplaceAll(Escaped(revision), {{"/", "%2F"}}));
  std::string text;
  HttpRequest request = Request(url);
  request.timeout = kAnswerWithin;
  request.on_body = [&text](absl::string_view piece) {
    absl::StrAppend(&text, piece);
    return text.size() > kMaxListingBytes
               ? absl::DataLossError(
                     absl::StrCat("a listing of more than ", kMaxListingBytes, " bytes"))
               : absl::OkStatus();
  };
  BATON_ASSIGN_OR_RETURN(const HttpResponse response, http_.SendAndWait(std::move(request)));
  if (response.status != 200) return FailureOfHub(url, response);
  const auto expected = [&url](const std::string& what) {
    return absl::DataLossError(absl::StrCat(url, ": expected ", what));
  };
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("sha") || !json["sha"].is_string() ||
      !json.contains("siblings") || !json["siblings"].is_array() ||
      json["siblings"].size() > kMaxFiles) {
    return expected(absl::StrCat("{\"sha\", \"siblings\"} with at most ", kMaxFiles, " files"));
  }
  HubListing listing;
  listing.commit = absl::AsciiStrToLower(json["sha"].get<std::string>());
  if (listing.commit.size() != 40 || !IsHex(listing.commit)) {
    return expected("a \"sha\" of 40 hex digits");
  }
  for (const auto& sibling : json["siblings"]) {
    if (!sibling.is_object() || !sibling.contains("rfilename") ||
        !sibling["rfilename"].is_string()) {
      return expected("an \"rfilename\" in each of \"siblings\"");
    }
    listing.files.push_back(sibling["rfilename"].get<std::string>());
    if (!IsSafeName(listing.files.back())) {
      return expected(absl::StrCat("file names that stay in the model's directory, not \"",
                                   absl::CHexEscape(listing.files.back().substr(0, 100)), "\""));
    }
  }
  return listing;
}

absl::StatusOr<HubFile> Hub::Head(const std::string& model, const std::string& commit,
                                  const std::string& name) {
  std::string url = FileUrl(model, commit, name);
  HttpResponse response;
  for (int redirects = 0;; ++redirects) {
    HttpRequest request = Request(url);
    request.head = true;
    request.timeout = kAnswerWithin;
    BATON_ASSIGN_OR_RETURN(response, http_.SendAndWait(std::move(request)));
    if (!IsRedirect(response.status)) break;
    // The answer that leads to another host has all that is to know.
    if (!response.Header("x-linked-etag").empty()) break;
    const std::string next = Target(url, response.Header("location"));
    if (redirects == kMaxRedirects || OriginOf(next) != OriginOf(url)) {
      return absl::DataLossError(absl::StrCat(
          WithoutQuery(url), ": expected X-Linked-ETag beside a redirect to another host"));
    }
    url = next;
  }
  if (response.status != 200 && !IsRedirect(response.status)) return FailureOfHub(url, response);
  const auto expected = [&url](const std::string& what) {
    return absl::DataLossError(absl::StrCat(WithoutQuery(url), ": expected ", what));
  };
  const std::string answered = response.Header("x-repo-commit");
  if (!answered.empty() && answered != commit) {
    return expected(absl::StrCat("X-Repo-Commit ", commit, ", not ", absl::CHexEscape(answered)));
  }
  const auto either = [&response](const char* linked, const char* own) {
    const std::string value = response.Header(linked);
    return value.empty() ? response.Header(own) : value;
  };
  HubFile file;
  file.name = name;
  const std::string etag = either("x-linked-etag", "etag");
  absl::string_view tag = etag;
  absl::ConsumePrefix(&tag, "W/");
  file.hash = absl::AsciiStrToLower(absl::StripPrefix(absl::StripSuffix(tag, "\""), "\""));
  if (!IsHex(file.hash) || (file.hash.size() != 40 && file.hash.size() != 64)) {
    return expected(absl::StrCat("an ETag of 40 or 64 hex digits, not \"",
                                 absl::CHexEscape(etag.substr(0, 100)), "\""));
  }
  const std::string size = either("x-linked-size", "content-length");
  if (!absl::SimpleAtoi(size, &file.bytes) || file.bytes < 0 || file.bytes > kMaxFileBytes) {
    return expected(absl::StrCat("a size of 0 to ", kMaxFileBytes, " bytes, not \"",
                                 absl::CHexEscape(size.substr(0, 100)), "\""));
  }
  return file;
}

absl::Status Hub::Download(const std::string& model, const std::string& commit, const HubFile& file,
                           const std::string& path, const std::function<void(int64_t)>& on_bytes) {
  int failures = 0;
  absl::Duration pause = options_.pause;
  for (;;) {
    int64_t fresh = 0;
    const absl::Status status =
        Append(FileUrl(model, commit, file.name), file, path, [&](int64_t bytes) {
          fresh += bytes;
          on_bytes(bytes);
        });
    const bool may_pass = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
    if (!may_pass) return status;
    if (fresh > 0) {
      failures = 0;
      pause = options_.pause;
    }
    if (++failures > options_.retries) return status;
    absl::SleepFor(pause);
    pause *= 2;
  }
}

absl::Status Hub::Append(const std::string& first_url, const HubFile& file, const std::string& path,
                         const std::function<void(int64_t)>& on_bytes) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return SystemError("cannot open", path);
  const absl::Cleanup close_fd = [fd] { close(fd); };
  int64_t have = lseek(fd, 0, SEEK_END);
  const auto start_again = [&]() -> absl::Status {
    on_bytes(-have);
    have = 0;
    if (ftruncate(fd, 0) != 0 || lseek(fd, 0, SEEK_SET) != 0)
      return SystemError("cannot cut", path);
    return absl::OkStatus();
  };
  if (have > file.bytes) BATON_RETURN_IF_ERROR(start_again());
  if (have == file.bytes) return absl::OkStatus();
  std::string url = first_url;
  for (int redirects = 0;; ++redirects) {
    HttpRequest request = Request(url);
    const int64_t begin = have;
    if (begin > 0) request.headers.push_back(absl::StrCat("Range: bytes=", begin, "-"));
    request.on_head = [&](const HttpResponse& head) -> absl::Status {
      if (head.status == 200 && begin > 0) return start_again();  // it has no ranges
      if (head.status == 206 &&
          !absl::StartsWith(head.Header("content-range"), absl::StrCat("bytes ", begin, "-"))) {
        return absl::DataLossError(
            absl::StrCat(WithoutQuery(url), ": expected Content-Range from ", begin));
      }
      return absl::OkStatus();
    };
    request.on_body = [&](absl::string_view piece) -> absl::Status {
      if (have + static_cast<int64_t>(piece.size()) > file.bytes) {
        return absl::DataLossError(
            absl::StrCat(WithoutQuery(url), ": expected ", file.bytes, " bytes, got more"));
      }
      for (absl::string_view rest = piece; !rest.empty();) {
        const ssize_t written = write(fd, rest.data(), rest.size());
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return SystemError("cannot write", path);
        rest.remove_prefix(static_cast<size_t>(written));
        have += written;
        on_bytes(written);
      }
      return absl::OkStatus();
    };
    BATON_ASSIGN_OR_RETURN(const HttpResponse response, http_.SendAndWait(std::move(request)));
    if (IsRedirect(response.status) && redirects < kMaxRedirects) {
      const std::string next = Target(url, response.Header("location"));
      if (next.empty()) {
        return absl::DataLossError(absl::StrCat(
            WithoutQuery(url), ": expected a redirect to an http URL, or https after https"));
      }
      url = next;
      continue;
    }
    if (response.status != 200 && response.status != 206) return FailureOfHub(url, response);
    if (have == file.bytes) {
      // Before its name says that it is whole.
      return fsync(fd) == 0 ? absl::OkStatus() : SystemError("cannot write", path);
    }
    return absl::UnavailableError(
        absl::StrCat(WithoutQuery(url), ": expected ", file.bytes, " bytes, got ", have));
  }
}

absl::Status CheckHash(const std::string& path, const HubFile& file) {
  const bool sha256 = file.hash.size() == 64;
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        &EVP_MD_CTX_free);
  if (EVP_DigestInit_ex(context.get(), sha256 ? EVP_sha256() : EVP_sha1(), nullptr) != 1) {
    return absl::InternalError("OpenSSL has no SHA-256 or no SHA-1");
  }
  if (!sha256) {  // as Git hashes a file
    const std::string header = absl::StrCat("blob ", file.bytes);
    EVP_DigestUpdate(context.get(), header.c_str(), header.size() + 1);
  }
  std::ifstream stream(path, std::ios::binary);
  std::vector<char> buffer(size_t{1} << 20);
  while (stream.read(buffer.data(), static_cast<std::streamsize>(buffer.size())),
         stream.gcount() > 0) {
    EVP_DigestUpdate(context.get(), buffer.data(), static_cast<size_t>(stream.gcount()));
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  EVP_DigestFinal_ex(context.get(), digest, &size);
  const std::string hash =
      absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), size));
  if (hash == file.hash) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      file.name, ": expected ", sha256 ? "SHA-256 " : "Git hash ", file.hash, ", got ", hash));
}

}  // namespace baton::cli
