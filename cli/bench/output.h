// What becomes of a benchmark's result: lines or JSON on stdout, a file, a picture.
#ifndef BATON_CLI_BENCH_OUTPUT_H_
#define BATON_CLI_BENCH_OUTPUT_H_

#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace baton::cli {

struct OutputOptions {
  std::string label;
  std::vector<std::pair<std::string, std::string>> metadata;  // separate keys in the JSON
  bool save_result = false;
  std::string result_dir, result_filename;  // empty: here; BenchOutput::filename
  std::string plot;                         // file for an SVG; empty: none
  bool json = false;                        // print the JSON object instead of lines
  bool progress = false;                    // show a progress bar on stderr
};

struct BenchOutput {
  std::string lines, json, svg;
  std::string filename;  // of the saved result, unless the options have one
};

// Prints, and writes the files that are asked for. Returns the first error; it still does the rest.
absl::Status Write(const OutputOptions& options, const BenchOutput& output, std::ostream& out);

// Now, as "20240131-235959".
std::string BenchDate();

}  // namespace baton::cli

#endif  // BATON_CLI_BENCH_OUTPUT_H_
