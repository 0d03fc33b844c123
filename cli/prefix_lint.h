// `baton prefix lint`: finds what changes from one prompt to the next in texts that should be a
// stable prefix, and so end the part that prefix caches can reuse.
#ifndef BATON_CLI_PREFIX_LINT_H_
#define BATON_CLI_PREFIX_LINT_H_

#include <ostream>
#include <string>
#include <vector>

namespace baton::cli {

struct LintedFile {
  std::string name;
  std::string text;
};

struct LintFinding {
  std::string file;
  int line = 0;    // from 1
  int column = 0;  // from 1, in characters
  // "timestamp", "uuid", "hex", "request_id", "counter", "json_key_order"
  std::string kind;
  std::string text;  // what was found
  std::string suggestion;
};

// In the order of files and places. Key orders are compared among all JSON objects of all files
// that have the same keys; the first one found sets the order.
std::vector<LintFinding> LintPrefixes(const std::vector<LintedFile>& files);

// Reads the files, of at most 16 MiB each, and prints the findings. Returns 0 without findings, 1
// with some, 2 if a file cannot be read; the error is on `err`.
int RunPrefixLint(const std::vector<std::string>& paths, bool json, std::ostream& out,
                  std::ostream& err);

}  // namespace baton::cli

#endif  // BATON_CLI_PREFIX_LINT_H_
