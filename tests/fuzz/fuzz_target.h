// Fuzz targets: one function for each parser of bytes that other processes, users or files supply.
// A target crashes, or fails a CHECK, if the parser breaks a promise.
#ifndef BATON_TESTS_FUZZ_FUZZ_TARGET_H_
#define BATON_TESTS_FUZZ_FUZZ_TARGET_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace baton::fuzz {

using FuzzFunction = void (*)(absl::string_view data);

struct FuzzTarget {
  const char* name;  // its corpus is corpus/NAME, if scripts/fuzz has run it
  FuzzFunction run;
  // A small valid input, and what mutations should insert. A fresh corpus begins with it.
  std::vector<std::string> seeds;
};

// All targets.
std::vector<FuzzTarget> Targets();

// What each source defines.
std::vector<FuzzTarget> FileTargets();
std::vector<FuzzTarget> MessageTargets();
std::vector<FuzzTarget> HttpTargets();
std::vector<FuzzTarget> GrammarTargets();

// A corpus file: for each input its length as 4 bytes, least significant first, then its bytes.
// An absent file is an empty corpus; a truncated one fails a CHECK.
std::vector<std::string> ReadCorpus(const std::string& path);

}  // namespace baton::fuzz

#endif  // BATON_TESTS_FUZZ_FUZZ_TARGET_H_
