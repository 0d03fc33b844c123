// main() of the rooms' test programs. --sources=FILE,FILE,... runs only the tests that are written
// in those files, given from the top of the tree: an entry of ctest. A --gtest_filter comes first.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace {

bool WrittenInOneOf(const std::vector<std::string>& sources, absl::string_view file) {
  for (const std::string& source : sources) {
    if (file == source) return true;  // __FILE__ is relative to the root: cmake/BatonTargets.cmake
  }
  return false;
}

// A filter for the tests of those sources; empty if there is none, or if a test is in a file that
// is no source: no entry of ctest would run it.
std::string FilterFor(const std::vector<std::string>& sources) {
  std::string filter;
  const auto& all = *::testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const ::testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const ::testing::TestInfo& test = *suite.GetTestInfo(t);
      if (!absl::EndsWith(test.file(), ".cc")) {
        std::fprintf(stderr, "%s.%s is written in %s, expected a .cc file\n", suite.name(),
                     test.name(), test.file());
        return "";
      }
      if (WrittenInOneOf(sources, test.file())) {
        absl::StrAppend(&filter, filter.empty() ? "" : ":", suite.name(), ".", test.name());
      }
    }
  }
  return filter;
}

// The TempDir() of this process: entries of ctest run side by side, and write files of equal names.
class ScratchFolder {
 public:
  ScratchFolder() : path_(::testing::TempDir() + "/baton-test-XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) {
      std::perror(path_.c_str());
      std::exit(2);
    }
    setenv("TEST_TMPDIR", path_.c_str(), /*overwrite=*/1);
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

 private:
  std::string path_;
};

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (!absl::ConsumePrefix(&argument, "--sources=")) {
      std::fprintf(stderr, "%s: expected --sources=FILE,... or GoogleTest's flags\n", argv[i]);
      return 2;
    }
    if (GTEST_FLAG_GET(filter) != "*") continue;  // a death test's child, or the user's
    const std::string filter = FilterFor(absl::StrSplit(argument, ','));
    if (filter.empty()) {
      std::fprintf(stderr, "%s: no tests\n", argv[i]);
      return 2;
    }
    GTEST_FLAG_SET(filter, filter);
  }
  const ScratchFolder scratch;
  return RUN_ALL_TESTS();
}
