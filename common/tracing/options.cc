#include "common/tracing/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/error.h"
#include "common/base/percent_decoded.h"
#include "common/base/status_macros.h"

namespace baton::tracing {
namespace {

constexpr size_t kMaxUrlBytes = 2048;
constexpr absl::Duration kMaxTimeout = absl::Minutes(1);

absl::Status Bad(absl::string_view name, absl::string_view message) {
  return InvalidField("BAD_FLAG", name, message);
}

absl::Status CheckUrl(absl::string_view name, const std::string& url) {
  const size_t scheme = absl::StartsWith(url, "https://")  ? 8
                        : absl::StartsWith(url, "http://") ? 7
                                                           : 0;
  const bool printable = std::all_of(url.begin(), url.end(), [](char c) {
    return absl::ascii_isgraph(static_cast<unsigned char>(c));
  });
  const bool host = scheme > 0 && url.size() > scheme && url[scheme] != '/';
  if (host && printable && url.size() <= kMaxUrlBytes) return absl::OkStatus();
  return Bad(name, "http://host:port or https://host:port expected, perhaps with a path");
}

// "key=value,key=value" with percent-encoded values. The message has no value: some are secret.
absl::Status ReadPairs(const char* name, absl::string_view text, Resource* pairs) {
  for (const absl::string_view piece : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(piece, absl::MaxSplits('=', 1));
    const std::string key(absl::StripAsciiWhitespace(pair.first));
    const auto value = PercentDecoded(absl::StripAsciiWhitespace(pair.second));
    const auto has_control = [](const std::string& s) {
      return std::any_of(s.begin(), s.end(),
                         [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); });
    };
    if (key.empty() || !absl::StrContains(piece, '=') || !value || has_control(key) ||
        has_control(*value)) {
      return Bad(name, "key=value,key=value expected, with percent-encoded values");
    }
    pairs->emplace_back(key, *value);
  }
  return absl::OkStatus();
}

absl::Status ReadSampler(const std::string& sampler, const char* argument, double* ratio) {
  if (absl::EndsWith(sampler, "always_off")) {
    *ratio = 0;
  } else if (absl::EndsWith(sampler, "always_on")) {
    *ratio = 1;
  } else if (!sampler.empty() && !absl::EndsWith(sampler, "traceidratio")) {
    return Bad("OTEL_TRACES_SAMPLER",
               "always_on, always_off or traceidratio expected, perhaps with parentbased_ before");
  } else if (argument != nullptr && !absl::SimpleAtod(argument, ratio)) {
    return Bad("OTEL_TRACES_SAMPLER_ARG", absl::StrCat("\"", argument, "\" is not a number"));
  }
  return absl::OkStatus();
}

struct Variable {
  std::string name;
  const char* value = nullptr;
};
// The first that is set of OTEL_EXPORTER_OTLP_TRACES_<suffix> and OTEL_EXPORTER_OTLP_<suffix>.
Variable OfExporter(const GetEnvironment& get, absl::string_view suffix) {
  Variable found;
  for (const char* prefix : {"OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"}) {
    found.name = absl::StrCat(prefix, suffix);
    found.value = get(found.name.c_str());
    if (found.value != nullptr && *found.value != '\0') return found;
  }
  found.value = nullptr;
  return found;
}

absl::Status ReadAll(const GetEnvironment& get, TracingOptions* options) {
  const auto text = [&get](const char* name) {
    const char* value = get(name);
    return std::string(value == nullptr ? "" : value);
  };
  const std::string own = text("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
  std::string shared = text("OTEL_EXPORTER_OTLP_ENDPOINT");
  if (text("OTEL_TRACES_EXPORTER") != "none" &&
      !absl::EqualsIgnoreCase(text("OTEL_SDK_DISABLED"), "true")) {
    if (!own.empty()) {
      options->endpoint = own;
    } else if (!shared.empty()) {
      while (absl::EndsWith(shared, "/")) shared.pop_back();
      options->endpoint = absl::StrCat(shared, "/v1/traces");
    }
  }
  options->service_name = text("OTEL_SERVICE_NAME");
  BATON_RETURN_IF_ERROR(ReadSampler(text("OTEL_TRACES_SAMPLER"), get("OTEL_TRACES_SAMPLER_ARG"),
                                    &options->sample_ratio));
  BATON_RETURN_IF_ERROR(
      ReadPairs("OTEL_RESOURCE_ATTRIBUTES", text("OTEL_RESOURCE_ATTRIBUTES"), &options->resource));
  if (const Variable headers = OfExporter(get, "HEADERS"); headers.value != nullptr) {
    BATON_RETURN_IF_ERROR(ReadPairs(headers.name.c_str(), headers.value, &options->headers));
  }
  if (const Variable ca = OfExporter(get, "CERTIFICATE"); ca.value != nullptr) {
    options->ca = ca.value;
  }
  if (const Variable timeout = OfExporter(get, "TIMEOUT"); timeout.value != nullptr) {
    int64_t ms = 0;
    if (!absl::SimpleAtoi(timeout.value, &ms) || ms < 1 || absl::Milliseconds(ms) > kMaxTimeout) {
      return Bad(timeout.name, "1 to 60000 (ms) expected");
    }
    options->timeout = absl::Milliseconds(ms);
  }
  return absl::OkStatus();
}

}  // namespace

void ReadEnvironment(const GetEnvironment& get, TracingOptions* options) {
  options->environment = ReadAll(get, options);
}

void AddTracingFlags(CLI::App& app, TracingOptions& options) {
  ReadEnvironment([](const char* name) { return std::getenv(name); }, &options);
  // --help shows no values of the environment.
  app.add_option("--otlp-traces-endpoint", options.endpoint,
                 "URL of a collector for traces by OTLP/HTTP, e.g. http://127.0.0.1:4318; empty: "
                 "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, or nothing is traced")
      ->always_capture_default(false)
      ->default_str("");
  app.add_option("--trace-sample-ratio", options.sample_ratio,
                 "share of the traces that begin here to record, 0 to 1; a caller's own decision "
                 "is kept")
      ->check(CLI::Range(0.0, 1.0))
      ->always_capture_default(false)
      ->default_str("1");
  app.add_option("--otel-service-name", options.service_name,
                 "service.name of the spans; empty: the program's name")
      ->always_capture_default(false)
      ->default_str("");
}

absl::Status Validate(const TracingOptions& options) {
  if (options.endpoint.empty()) return absl::OkStatus();
  BATON_RETURN_IF_ERROR(options.environment);
  BATON_RETURN_IF_ERROR(CheckUrl("--otlp-traces-endpoint", options.endpoint));
  if (options.sample_ratio >= 0 && options.sample_ratio <= 1) return absl::OkStatus();
  return Bad("--trace-sample-ratio", absl::StrCat(options.sample_ratio, " given, 0 to 1 expected"));
}

std::string TracesUrl(const std::string& endpoint) {
  const size_t host = endpoint.find("://");
  const size_t path = host == std::string::npos ? host : endpoint.find('/', host + 3);
  if (path == std::string::npos) return absl::StrCat(endpoint, "/v1/traces");
  return path + 1 == endpoint.size() ? absl::StrCat(endpoint, "v1/traces") : endpoint;
}

}  // namespace baton::tracing
