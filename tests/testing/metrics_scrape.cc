#include "tests/testing/metrics_scrape.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "tests/testing/http_client.h"

namespace baton::testing {
namespace {

double Number(absl::string_view text) {
  double value = 0;
  if (text == "+Inf") return std::numeric_limits<double>::infinity();
  return absl::SimpleAtod(text, &value) ? value : std::numeric_limits<double>::quiet_NaN();
}

// name{label="value",…} number. No label value of ours has a quote or a backslash.
MetricsScrape::Sample ReadSample(absl::string_view line) {
  MetricsScrape::Sample sample;
  const size_t end = line.rfind(' ');
  sample.value = Number(line.substr(end + 1));
  const std::pair<absl::string_view, absl::string_view> head =
      absl::StrSplit(line.substr(0, end), absl::MaxSplits('{', 1));
  sample.name = std::string(head.first);
  absl::string_view rest = head.second;
  while (!rest.empty() && rest != "}") {
    const size_t equals = rest.find("=\""), quote = rest.find('"', equals + 2);
    if (quote == absl::string_view::npos) break;
    sample.labels.emplace(rest.substr(0, equals), rest.substr(equals + 2, quote - equals - 2));
    rest.remove_prefix(quote + 1);
    absl::ConsumePrefix(&rest, ",");
  }
  return sample;
}

}  // namespace

void MetricsScrape::ReadHistogram(const std::string& name, std::vector<double>* bounds,
                                  std::vector<double>* counts) const {
  std::vector<std::pair<double, double>> buckets;
  for (const Sample& sample : samples) {
    if (sample.name == name + "_bucket") {
      buckets.emplace_back(Number(sample.labels.at("le")), sample.value);
    }
  }
  std::sort(buckets.begin(), buckets.end());
  for (const auto& [bound, count] : buckets) {
    bounds->push_back(bound);
    counts->push_back(count);
  }
  if (!bounds->empty()) bounds->pop_back();  // +Inf
}

MetricsScrape ScrapeMetrics(const std::string& metrics_address) {
  const std::string answer = HttpGet(metrics_address, "/metrics");
  MetricsScrape scrape;
  const size_t body = answer.find("\r\n\r\n");
  if (body == std::string::npos) return scrape;
  scrape.text = answer.substr(body + 4);
  for (absl::string_view line : absl::StrSplit(scrape.text, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> words = absl::StrSplit(line, absl::MaxSplits(' ', 3));
    if (words[0] != "#") {
      scrape.samples.push_back(ReadSample(line));
    } else if (words.size() == 4) {
      MetricsScrape::Family& family = scrape.families[words[2]];
      (words[1] == "TYPE" ? family.type : family.help) = words[3];
    }
  }
  return scrape;
}

double MetricSum(const std::string& metrics_address, const std::string& name,
                 const std::string& label) {
  const MetricsScrape scrape = ScrapeMetrics(metrics_address);
  double sum = 0;
  for (absl::string_view line : absl::StrSplit(scrape.text, '\n')) {
    if (!absl::StartsWith(line, name + "{") || !absl::StrContains(line, label)) continue;
    sum += Number(line.substr(line.rfind(' ') + 1));
  }
  return sum;
}

}  // namespace baton::testing
