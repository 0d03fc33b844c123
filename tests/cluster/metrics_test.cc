// What a live cluster exports is what the code declares, what docs/metrics.md says, and what
// Prometheus' conventions ask for; and its histograms read as clients measure.
//
// docs/metrics.md holds tables made from the declarations. To renew them, run
//   BATON_RENEW=1 build/cpu-release/tests/cluster_test --gtest_filter=MetricsDocumentTest.*
#include "decode_worker/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/registry.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/prefill/metrics.h"
#include "router/metrics.h"
#include "tests/cluster/metrics_document.h"
#include "tests/cluster/whole_cluster.h"
#include "tests/testing/histogram_quantile.h"
#include "tests/testing/metrics_scrape.h"

namespace baton {
namespace {

using ::testing::ElementsAreArray;

constexpr char kDocument[] = "docs/metrics.md";

Declared DeclaredMetrics() {
  prometheus::Registry of_router, of_prefill, of_decode;  // one per process
  return {{"router", router::RouterMetrics(&of_router, "m").descriptions()},
          {"prefill", prefill::PrefillMetrics(of_prefill, "m").descriptions()},
          {"decode", decode_worker::DecodeMetrics(of_decode, "m").descriptions()}};
}

std::string FileText(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(MetricsDocumentTest, ItsTablesAreThoseOfTheCode) {
  const std::string document = FileText(kDocument);
  const std::string renewed = WithTables(document, MetricTables(DeclaredMetrics()));
  if (std::getenv("BATON_RENEW") != nullptr) std::ofstream(kDocument) << renewed;
  EXPECT_EQ(FileText(kDocument), renewed) << "renew it as the head of " << __FILE__ << " says";
}

TEST(MetricsDocumentTest, OneNameHasOneTypeAndTheSameLabelsInAllRoles) {
  std::map<std::string, telemetry::MetricDescription> first;
  for (const auto& [role, metrics] : DeclaredMetrics()) {
    std::set<std::string> names;
    for (const telemetry::MetricDescription& metric : metrics) {
      EXPECT_TRUE(names.insert(metric.name).second) << metric.name << " is declared twice";
      const telemetry::MetricDescription& other = first.emplace(metric.name, metric).first->second;
      EXPECT_EQ(metric.type, other.type) << metric.name;
      EXPECT_EQ(metric.bounds, other.bounds) << metric.name << ": cannot be added up";
      ASSERT_EQ(metric.labels.size(), other.labels.size()) << metric.name;
      for (size_t i = 0; i < metric.labels.size(); ++i) {
        EXPECT_EQ(metric.labels[i].name, other.labels[i].name) << metric.name;
      }
    }
  }
}

// The first breach of Prometheus' conventions on names, or nothing.
std::string Breach(const telemetry::MetricDescription& metric) {
  const auto has = [&metric](const char* words) {
    return std::regex_search(metric.name, std::regex(absl::StrCat("_(", words, ")(_|$)")));
  };
  const bool counter = metric.type == "counter";
  const bool info = absl::EndsWith(metric.name, "_info");
  if (!std::regex_match(metric.name, std::regex("baton(_[a-z0-9]+)+"))) return "not in snake case";
  if (counter != absl::EndsWith(metric.name, "_total")) return "_total is for counters";
  if (has("bucket|count|sum")) return "a suffix of histograms";
  if (has("counter|gauge|histogram|metric")) return "names its type";
  if (has("ms|us|ns|milliseconds|microseconds|minutes|hours|days|kb|mb|gb|kib|mib|gib|bits|"
          "percent|percentage|kilobytes|megabytes")) {
    return "not in base units";
  }
  if (has("duration|latency|time") && !has("seconds")) return "a time without its unit";
  if (!std::regex_match(metric.name,
                        std::regex(".*_(seconds|bytes|ratio|bytes_per_second)(_total)?")) &&
      has("seconds|bytes|ratio")) {
    return "the unit is not last";
  }
  if (info && metric.type != "gauge") return "facts are gauges";
  if (metric.help.empty() || metric.help.back() != '.') return "help is no sentence";
  static constexpr const char* kUnbounded =
      "(request|session|user|tenant|peer|worker|client|trace)(_id)?|address|instance|job|le|"
      "prompt|role|model";
  for (const telemetry::Label& label : metric.labels) {
    if (!std::regex_match(label.name, std::regex("[a-z]+(_[a-z]+)*"))) return "label's name";
    if (std::regex_match(label.name, std::regex(kUnbounded))) return "label of identities";
  }
  return "";
}

TEST(MetricConventionsTest, AllMetricsKeepThem) {
  for (const auto& [role, metrics] : DeclaredMetrics()) {
    EXPECT_GT(metrics.size(), 15u);
    for (const auto& metric : metrics) EXPECT_EQ(Breach(metric), "") << role << " " << metric.name;
  }
}

TEST(MetricConventionsTest, EachRuleCanFail) {
  const auto breach = [](const char* name, const char* type, const char* help = "Help.",
                         const char* label = "code") {
    return Breach({name, type, help, {{label, {}}}, {}});
  };
  EXPECT_EQ(breach("baton_a_seconds", "histogram"), "");
  EXPECT_EQ(breach("baton_a_bytes_total", "counter"), "");
  EXPECT_EQ(breach("baton_a_bytes_per_second", "gauge"), "");
  EXPECT_NE(breach("baton:a", "gauge"), "");
  EXPECT_NE(breach("baton_aB", "gauge"), "");
  EXPECT_NE(breach("baton_a", "counter"), "");
  EXPECT_NE(breach("baton_a_total", "gauge"), "");
  EXPECT_NE(breach("baton_a_count", "gauge"), "");
  EXPECT_NE(breach("baton_a_gauge", "gauge"), "");
  EXPECT_NE(breach("baton_a_ms", "gauge"), "");
  EXPECT_NE(breach("baton_a_duration", "histogram"), "");
  EXPECT_NE(breach("baton_bytes_sent", "gauge"), "");
  EXPECT_NE(breach("baton_bytes_per_second_sent", "gauge"), "");
  EXPECT_NE(breach("baton_a_info", "histogram"), "");
  EXPECT_NE(breach("baton_a", "gauge", ""), "");
  EXPECT_NE(breach("baton_a", "gauge", "Help"), "");
  EXPECT_NE(breach("baton_a", "gauge", "Help.", "Code"), "");
  EXPECT_NE(breach("baton_a", "gauge", "Help.", "request_id"), "");
  EXPECT_NE(breach("baton_a", "gauge", "Help.", "tenant"), "");
}

class LiveMetricsTest : public WholeClusterTest {
 protected:
  // Seconds to the first token of each request, which all come at once.
  std::vector<double> Flood(int requests) {
    std::vector<double> seconds(static_cast<size_t>(requests));
    std::vector<std::thread> clients;
    for (int i = 0; i < requests; ++i) {
      clients.emplace_back([this, i, &seconds] {
        GenerateRequest request;
        for (int j = 0; j < 150; ++j) {
          request.mutable_token_ids()->add_ids((i * 151 + j * 7) % kVocabulary);
        }
        request.mutable_stop()->set_max_tokens(60);
        request.mutable_stop()->set_ignore_eos(true);
        request.set_return_token_ids(true);  // so that no text is held back
        auto stub = baton::v1::InferenceService::NewStub(channel_);
        grpc::ClientContext context;
        context.set_deadline(testing::TestDeadline());
        const absl::Time begin = absl::Now();
        auto reader = stub->Generate(&context, request);
        GenerateResponse response;
        EXPECT_TRUE(reader->Read(&response));
        seconds[static_cast<size_t>(i)] = absl::ToDoubleSeconds(absl::Now() - begin);
        while (reader->Read(&response)) {
        }
        EXPECT_TRUE(reader->Finish().ok());
      });
    }
    for (std::thread& client : clients) client.join();
    return seconds;
  }

  // Each role's scrapes.
  std::vector<std::pair<std::string, testing::MetricsScrape>> Scrapes() {
    std::vector<std::pair<std::string, testing::MetricsScrape>> scrapes;
    scrapes.emplace_back("router", testing::ScrapeMetrics(router_->metrics_address()));
    for (const auto& worker : prefill_) {
      scrapes.emplace_back("prefill", testing::ScrapeMetrics(worker->metrics_address()));
    }
    for (const auto& worker : decode_) {
      scrapes.emplace_back("decode", testing::ScrapeMetrics(worker->metrics_address()));
    }
    return scrapes;
  }
};

// promtool is not everywhere; what it checks is checked above, too.
void ExpectPromtoolAccepts(const testing::MetricsScrape& scrape) {
  if (std::system("promtool --version >/dev/null 2>&1") != 0) return;
  const std::string path = ::testing::TempDir() + "/metrics_scrape";
  std::ofstream file(path);
  for (absl::string_view line : absl::StrSplit(scrape.text, '\n', absl::SkipEmpty())) {
    file << line << "\n";
  }
  file.close();
  EXPECT_EQ(std::system(("promtool check metrics <" + path).c_str()), 0);
  std::remove(path.c_str());
}

void ExpectDeclared(const std::string& role, const testing::MetricsScrape& scrape,
                    const std::vector<telemetry::MetricDescription>& metrics) {
  std::map<std::string, const telemetry::MetricDescription*> declared;
  std::vector<std::string> names, exported;
  for (const auto& metric : metrics) declared.emplace(metric.name, &metric);
  for (const auto& [name, metric] : declared) names.push_back(name);
  for (const auto& [name, family] : scrape.families) exported.push_back(name);
  ASSERT_THAT(exported, ElementsAreArray(names)) << role;
  for (const std::string& name : exported) {
    const testing::MetricsScrape::Family& family = scrape.families.at(name);
    EXPECT_EQ(family.type, declared.at(name)->type) << name;
    EXPECT_EQ(family.help, declared.at(name)->help) << name;
  }
  std::map<std::string, size_t> series;
  for (const testing::MetricsScrape::Sample& sample : scrape.samples) {
    std::string name = sample.name;
    if (!declared.contains(name)) name = name.substr(0, name.rfind('_'));  // of a histogram
    ASSERT_TRUE(declared.contains(name)) << sample.name;
    std::set<std::string> labels = {"role", "model"};
    for (const telemetry::Label& label : declared.at(name)->labels) labels.insert(label.name);
    if (absl::EndsWith(sample.name, "_bucket")) labels.insert("le");
    std::set<std::string> found;
    for (const auto& [label, value] : sample.labels) found.insert(label);
    EXPECT_EQ(found, labels) << sample.name;
    EXPECT_EQ(sample.labels.at("role"), role) << sample.name;
    EXPECT_EQ(sample.labels.at("model"), "demo") << sample.name;
    EXPECT_LE(++series[sample.name], 500u) << sample.name;
  }
}

TEST_F(LiveMetricsTest, AClusterExportsWhatIsDeclaredAndMeasuresWhatClientsDo) {
  worker::WorkerOptions options = WorkerOptions();
  options.max_num_seqs = 2;  // so that the flood below waits in line
  StartCluster(options, {}, AllPromptsMove());
  const Declared declared = DeclaredMetrics();
  // Before the first request: rates include the first events.
  for (const auto& [role, scrape] : Scrapes()) ExpectDeclared(role, scrape, declared.at(role));

  const std::vector<double> ttft = Flood(100);
  ExpectIdle();
  const auto scrapes = Scrapes();
  for (const auto& [role, scrape] : scrapes) {
    ExpectDeclared(role, scrape, declared.at(role));
    ExpectPromtoolAccepts(scrape);
  }
  std::vector<double> bounds, counts;
  scrapes[0].second.ReadHistogram("baton_time_to_first_token_seconds", &bounds, &counts);
  ASSERT_EQ(counts.back(), 100);
  for (const double quantile : {0.5, 0.99}) {
    const double exact = testing::ExactQuantile(quantile, ttft);
    const double read = testing::HistogramQuantile(quantile, bounds, counts);
    EXPECT_LE(std::abs(testing::BucketOf(read, bounds) - testing::BucketOf(exact, bounds)), 1)
        << quantile << ": the router says " << read << " s, clients " << exact << " s";
  }

  // Each transfer is measured on both of its sides.
  double prefills = 0, sent = 0, received = 0, sent_bytes = 0, received_bytes = 0;
  for (const auto& worker : prefill_) {
    const std::string& address = worker->metrics_address();
    prefills += testing::MetricSum(address, "baton_prefill_duration_seconds_count");
    sent += testing::MetricSum(address, "baton_kv_transfer_duration_seconds_count");
    sent_bytes += testing::MetricSum(address, "baton_kv_transfer_bytes_total");
  }
  for (const auto& worker : decode_) {
    const std::string& address = worker->metrics_address();
    received += testing::MetricSum(address, "baton_kv_transfer_size_bytes_count");
    received_bytes += testing::MetricSum(address, "baton_kv_transfer_bytes_total");
  }
  EXPECT_EQ(prefills, 100);
  EXPECT_EQ(sent, prefills);
  EXPECT_EQ(received, prefills);
  EXPECT_GT(sent_bytes, 0);
  EXPECT_EQ(received_bytes, sent_bytes);
}

}  // namespace
}  // namespace baton
