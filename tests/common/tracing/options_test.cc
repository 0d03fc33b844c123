#include "common/tracing/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <map>

#include "common/base/error.h"

namespace baton::tracing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

TracingOptions From(const std::map<std::string, std::string>& environment) {
  TracingOptions options;
  ReadEnvironment(
      [&environment](const char* name) {
        const auto found = environment.find(name);
        return found == environment.end() ? nullptr : found->second.c_str();
      },
      &options);
  return options;
}

TEST(TracingOptions, NothingIsTracedByDefault) {
  const TracingOptions options = From({});
  EXPECT_EQ(options.endpoint, "");
  EXPECT_EQ(options.sample_ratio, 1);
  EXPECT_TRUE(Validate(options).ok());
}

TEST(TracingOptions, TheEndpointOfTracesGoesBeforeTheOneOfAllSignals) {
  EXPECT_EQ(From({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318"}}).endpoint,
            "http://c:4318/v1/traces");
  EXPECT_EQ(From({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/otlp/"}}).endpoint,
            "http://c:4318/otlp/v1/traces");
  EXPECT_EQ(From({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318"},
                  {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://t/x"}})
                .endpoint,
            "https://t/x");
  EXPECT_EQ(
      From({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"}, {"OTEL_SDK_DISABLED", "True"}}).endpoint,
      "");
  EXPECT_EQ(From({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"}, {"OTEL_TRACES_EXPORTER", "none"}})
                .endpoint,
            "");
}

TEST(TracingOptions, AnEndpointWithoutAPathIsCompleted) {
  EXPECT_EQ(TracesUrl("http://c:4318"), "http://c:4318/v1/traces");
  EXPECT_EQ(TracesUrl("http://c:4318/"), "http://c:4318/v1/traces");
  EXPECT_EQ(TracesUrl("https://c/otlp/traces"), "https://c/otlp/traces");
}

TEST(TracingOptions, Samplers) {
  const auto ratio = [](const char* sampler, const char* argument) {
    const TracingOptions options =
        From({{"OTEL_TRACES_SAMPLER", sampler}, {"OTEL_TRACES_SAMPLER_ARG", argument}});
    EXPECT_TRUE(options.environment.ok()) << options.environment;
    return options.sample_ratio;
  };
  EXPECT_EQ(ratio("", "0.25"), 0.25);
  EXPECT_EQ(ratio("parentbased_traceidratio", "0.5"), 0.5);
  EXPECT_EQ(ratio("always_off", "0.5"), 0);
  EXPECT_EQ(ratio("parentbased_always_on", "0.5"), 1);
}

TEST(TracingOptions, PairsAreDecoded) {
  const TracingOptions options =
      From({{"OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b%3D, x = y=z ,"},
            {"OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test"},
            {"OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "2500"},
            {"OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca.pem"},
            {"OTEL_SERVICE_NAME", "me"}});
  EXPECT_TRUE(options.environment.ok()) << options.environment;
  EXPECT_THAT(options.headers, ElementsAre(Pair("api-key", "a b="), Pair("x", "y=z")));
  EXPECT_THAT(options.resource, ElementsAre(Pair("deployment.environment.name", "test")));
  EXPECT_EQ(options.timeout, absl::Milliseconds(2500));
  EXPECT_EQ(options.ca, "/ca.pem");
  EXPECT_EQ(options.service_name, "me");
}

TEST(TracingOptions, WhatIsWrongIsNamedWithoutSecrets) {
  const std::map<std::string, std::string> cases[] = {
      {{"OTEL_TRACES_SAMPLER", "jaeger_remote"}},
      {{"OTEL_TRACES_SAMPLER_ARG", "much"}},
      {{"OTEL_RESOURCE_ATTRIBUTES", "secret"}},
      {{"OTEL_EXPORTER_OTLP_HEADERS", "=secret"}},
      {{"OTEL_EXPORTER_OTLP_TRACES_HEADERS", "a=secret%0"}},
      {{"OTEL_EXPORTER_OTLP_HEADERS", "a=secret%0d%0aX: y"}},
      {{"OTEL_EXPORTER_OTLP_TIMEOUT", "0"}},
      {{"OTEL_EXPORTER_OTLP_TIMEOUT", "soon"}},
  };
  for (std::map<std::string, std::string> environment : cases) {
    const std::string name = environment.begin()->first;
    EXPECT_TRUE(Validate(From(environment)).ok()) << name << ": nothing is traced";
    environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = "http://c";
    const absl::Status status = Validate(From(environment));
    EXPECT_EQ(ErrorField(status), name);
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("secret")));
  }
}

TEST(TracingOptions, FlagsAreChecked) {
  for (const char* url :
       {"c:4318", "grpc://c", "http://", "http:///v1", "http://a b", "http://a\n"}) {
    TracingOptions options;
    options.endpoint = url;
    EXPECT_EQ(ErrorField(Validate(options)), "--otlp-traces-endpoint") << url;
  }
  TracingOptions options;
  CLI::App app;
  AddTracingFlags(app, options);
  app.parse("--otlp-traces-endpoint http://c --trace-sample-ratio 0.1 --otel-service-name me");
  EXPECT_TRUE(Validate(options).ok());
  EXPECT_EQ(options.sample_ratio, 0.1);
  EXPECT_EQ(options.service_name, "me");
  EXPECT_THROW(app.parse("--trace-sample-ratio 1.5"), CLI::ParseError);
  options.sample_ratio = 2;  // as the environment may have it
  EXPECT_EQ(ErrorField(Validate(options)), "--trace-sample-ratio");
}

}  // namespace
}  // namespace baton::tracing
