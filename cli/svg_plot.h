// Line charts as SVG, with nothing but the standard library.
#ifndef BATON_CLI_SVG_PLOT_H_
#define BATON_CLI_SVG_PLOT_H_

#include <string>
#include <utility>
#include <vector>

namespace baton::cli {

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // in ascending x; non-finite points are skipped
  bool dashed = false;                            // a bound rather than a measurement: no marks
};

struct Chart {
  std::string title, x_label, y_label;
  std::vector<Series> series;
};

// Round values from 0 to at least `highest`, four to six of them.
std::vector<double> Ticks(double highest);

// Lays the charts out in a grid, `columns` to a row. Both axes begin at 0.
std::string RenderSvg(const std::vector<Chart>& charts, int columns = 3);

}  // namespace baton::cli

#endif  // BATON_CLI_SVG_PLOT_H_
