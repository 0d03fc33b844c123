#include "cli/svg_plot.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace baton::cli {
namespace {

// In pixels, of one chart.
constexpr double kWidth = 420, kHeight = 330;
constexpr double kLeft = 62, kRight = 16, kTop = 34, kBottom = 92;
constexpr double kPlotWidth = kWidth - kLeft - kRight, kPlotHeight = kHeight - kTop - kBottom;
// Distinct for people who see red and green alike (Okabe and Ito).
constexpr const char* kColors[] = {"#0072B2", "#D55E00", "#009E73",
                                   "#CC79A7", "#E69F00", "#56B4E9"};

std::string Escape(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

std::string Text(double x, double y, const std::string& text, const std::string& attributes) {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" %s>%s</text>\n", x, y, attributes,
                         Escape(text));
}

bool IsFinite(const std::pair<double, double>& point) {
  return std::isfinite(point.first) && std::isfinite(point.second);
}

std::string RenderSeries(const Series& series, const std::string& color, double x_top,
                         double y_top) {
  std::string path, marks;
  for (const auto& point : series.points) {
    if (!IsFinite(point)) continue;
    const double x = kLeft + point.first / x_top * kPlotWidth;
    const double y = kTop + kPlotHeight - point.second / y_top * kPlotHeight;
    absl::StrAppendFormat(&path, "%s%.1f %.1f", path.empty() ? "M" : " L", x, y);
    // Over time there are too many points to mark.
    if (!series.dashed && series.points.size() <= 20) {
      absl::StrAppendFormat(&marks, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n", x, y,
                            color);
    }
  }
  if (path.empty()) return "";
  return absl::StrFormat("<path d=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"1.8\"%s/>\n%s",
                         path, color, series.dashed ? " stroke-dasharray=\"5 4\"" : "", marks);
}

std::string RenderChart(const Chart& chart) {
  double x_highest = 0, y_highest = 0;
  for (const Series& series : chart.series) {
    for (const auto& point : series.points) {
      if (!IsFinite(point)) continue;
      x_highest = std::max(x_highest, point.first);
      y_highest = std::max(y_highest, point.second);
    }
  }
  const std::vector<double> x_ticks = Ticks(x_highest), y_ticks = Ticks(y_highest);
  std::string out = Text(kLeft, 20, chart.title, "font-size=\"14\" font-weight=\"bold\"");
  for (double tick : y_ticks) {
    const double y = kTop + kPlotHeight - tick / y_ticks.back() * kPlotHeight;
    absl::StrAppendFormat(&out,
                          "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" "
                          "stroke=\"#ddd\"/>\n",
                          kLeft, kLeft + kPlotWidth, y, y);
    absl::StrAppend(&out,
                    Text(kLeft - 6, y + 4, absl::StrFormat("%g", tick), "text-anchor=\"end\""));
  }
  for (double tick : x_ticks) {
    absl::StrAppend(&out, Text(kLeft + tick / x_ticks.back() * kPlotWidth, kTop + kPlotHeight + 16,
                               absl::StrFormat("%g", tick), "text-anchor=\"middle\""));
  }
  absl::StrAppend(&out, Text(kLeft + kPlotWidth / 2, kTop + kPlotHeight + 33, chart.x_label,
                             "text-anchor=\"middle\""));
  absl::StrAppend(&out,
                  Text(0, 0, chart.y_label,
                       absl::StrFormat("text-anchor=\"middle\" transform=\"translate(14 %.1f) "
                                       "rotate(-90)\"",
                                       kTop + kPlotHeight / 2)));
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const std::string color = kColors[i % std::size(kColors)];
    absl::StrAppend(&out, RenderSeries(chart.series[i], color, x_ticks.back(), y_ticks.back()));
    // The legend: two columns below the axis.
    const double x = kLeft + static_cast<double>(i % 2) * kPlotWidth / 2;
    const double y = kTop + kPlotHeight + 52 + 14 * static_cast<double>(i / 2);
    absl::StrAppend(&out, Text(x, y, absl::StrCat("— ", chart.series[i].name),
                               absl::StrCat("fill=\"", color, "\"")));
  }
  return out;
}

}  // namespace

std::vector<double> Ticks(double highest) {
  if (!std::isfinite(highest) || highest <= 0) highest = 1;
  const double rough = highest / 5;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (double factor : {1.0, 2.0, 2.5, 5.0}) {
    if (factor * power >= rough * (1 - 1e-9)) {
      step = factor * power;
      break;
    }
  }
  std::vector<double> ticks;
  const int count = static_cast<int>(std::ceil(highest / step - 1e-9));
  for (int i = 0; i <= count; ++i) ticks.push_back(i * step);
  return ticks;
}

std::string RenderSvg(const std::vector<Chart>& charts, int columns) {
  const int count = static_cast<int>(charts.size());
  const int rows = (count + columns - 1) / columns;
  std::string out = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" "
      "fill=\"white\"/>\n",
      kWidth * std::min(count, columns), kHeight * rows);
  for (int i = 0; i < count; ++i) {
    absl::StrAppendFormat(&out, "<g transform=\"translate(%.0f %.0f)\">\n%s</g>\n",
                          kWidth * (i % columns), kHeight * (i / columns), RenderChart(charts[i]));
  }
  return absl::StrCat(out, "</svg>\n");
}

}  // namespace baton::cli
