// What a process' /metrics says.
#ifndef BATON_TESTS_TESTING_METRICS_SCRAPE_H_
#define BATON_TESTS_TESTING_METRICS_SCRAPE_H_

#include <map>
#include <string>
#include <vector>

namespace baton::testing {

struct MetricsScrape {
  struct Family {
    std::string type;
    std::string help;
  };
  struct Sample {
    std::string name;
    std::map<std::string, std::string> labels;
    double value = 0;
  };

  std::string text;  // in Prometheus' format
  std::map<std::string, Family> families;
  std::vector<Sample> samples;

  // Of a histogram without labels beside the common ones, from its _bucket samples.
  void ReadHistogram(const std::string& name, std::vector<double>* bounds,
                     std::vector<double>* counts) const;
};

// Empty if the process does not answer.
MetricsScrape ScrapeMetrics(const std::string& metrics_address);

// A counter or gauge, all its series with `label` (e.g. `code="CANCELLED"`; empty: all) added up; 0
// if the process does not answer or does not export it.
double MetricSum(const std::string& metrics_address, const std::string& name,
                 const std::string& label = "");

}  // namespace baton::testing

#endif  // BATON_TESTS_TESTING_METRICS_SCRAPE_H_
