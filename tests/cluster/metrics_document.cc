#include "tests/cluster/metrics_document.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"

namespace baton {
namespace {

constexpr char kBegin[] = "<!-- Made from the code by tests/cluster/metrics_test.cc. -->\n";
constexpr char kEnd[] = "<!-- End of what is made from the code. -->\n";
// In this order.
const std::pair<const char*, std::vector<std::string>> kSections[] = {
    {"All processes", {"router", "prefill", "decode"}},
    {"Router", {"router"}},
    {"Both workers", {"prefill", "decode"}},
    {"Prefill worker", {"prefill"}},
    {"Decode worker", {"decode"}}};

// A metric with what each role says of it.
struct Row {
  telemetry::MetricDescription metric;
  std::vector<std::string> roles;
  std::vector<std::string> helps;  // of each role
};

std::vector<Row> Rows(const Declared& declared) {
  std::vector<Row> rows;
  for (const char* role : {"router", "prefill", "decode"}) {
    for (const telemetry::MetricDescription& metric : declared.at(role)) {
      auto row = std::find_if(rows.begin(), rows.end(),
                              [&metric](const Row& one) { return one.metric.name == metric.name; });
      if (row == rows.end()) row = rows.insert(rows.end(), Row{metric, {}, {}});
      row->roles.push_back(role);
      row->helps.push_back(metric.help);
      for (size_t i = 0; i < metric.labels.size(); ++i) {
        std::vector<std::string>& values = row->metric.labels[i].values;
        for (const std::string& value : metric.labels[i].values) {
          if (std::find(values.begin(), values.end(), value) == values.end()) {
            values.push_back(value);
          }
        }
      }
    }
  }
  return rows;
}

std::string LabelsText(const std::vector<telemetry::Label>& labels) {
  return absl::StrJoin(labels, "; ", [](std::string* out, const telemetry::Label& label) {
    absl::StrAppend(out, "`", label.name, "`", label.values.empty() ? "" : ": ",
                    absl::StrJoin(label.values, ", "));
  });
}

std::string HelpText(const Row& row) {
  const bool same = std::all_of(row.helps.begin(), row.helps.end(),
                                [&row](const auto& help) { return help == row.helps[0]; });
  if (same) return row.helps[0];
  std::vector<std::string> parts;
  for (size_t i = 0; i < row.roles.size(); ++i) {
    // Of several roles that say the same, the last.
    if (i + 1 < row.roles.size() && row.helps[i] == row.helps[i + 1]) continue;
    const bool both = i > 0 && row.helps[i] == row.helps[i - 1];
    parts.push_back(absl::StrCat("*", both ? "workers" : row.roles[i], ":* ", row.helps[i]));
  }
  return absl::StrJoin(parts, " ");
}

void Number(std::string* out, double value) { absl::StrAppendFormat(out, "%.10g", value); }

}  // namespace

std::string MetricTables(const Declared& declared) {
  const std::vector<Row> rows = Rows(declared);
  std::string text;
  for (const auto& [title, roles] : kSections) {
    const auto is_here = [&roles = roles](const Row& row) { return row.roles == roles; };
    if (std::none_of(rows.begin(), rows.end(), is_here)) continue;
    absl::StrAppend(&text, "\n## ", title, "\n\n| metric | type | more labels | meaning |\n",
                    "|---|---|---|---|\n");
    for (const Row& row : rows) {
      if (row.roles != roles) continue;
      absl::StrAppend(&text, "| `", row.metric.name, "` | ", row.metric.type, " | ",
                      LabelsText(row.metric.labels), " | ", HelpText(row), " |\n");
    }
  }
  absl::StrAppend(&text, "\n## Buckets\n\n| histogram | upper bounds |\n|---|---|\n");
  std::vector<std::pair<std::vector<double>, std::vector<std::string>>> lists;
  for (const Row& row : rows) {
    if (row.metric.type != "histogram") continue;
    auto list = std::find_if(lists.begin(), lists.end(),
                             [&row](const auto& one) { return one.first == row.metric.bounds; });
    if (list == lists.end()) list = lists.insert(lists.end(), {row.metric.bounds, {}});
    list->second.push_back(absl::StrCat("`", row.metric.name, "`"));
  }
  for (const auto& [bounds, names] : lists) {
    absl::StrAppend(&text, "| ", absl::StrJoin(names, ", "), " | ",
                    absl::StrJoin(bounds, ", ", Number), " |\n");
  }
  return text + "\n";
}

std::string WithTables(const std::string& document, const std::string& tables) {
  const size_t begin = document.find(kBegin), end = document.find(kEnd);
  BATON_CHECK(begin != std::string::npos && end != std::string::npos && begin < end);
  return document.substr(0, begin) + kBegin + tables + document.substr(end);
}

}  // namespace baton
