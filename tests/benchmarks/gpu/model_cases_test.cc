#include "benchmarks/gpu/model_cases.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"

namespace baton::gpu_bench {
namespace {

// A figure that the device cannot give is said to be one, and fails nothing.
TEST(ModelCasesTest, AModelThatDoesNotFitIsSkipped) {
  const Grid grid = Grid::Tiny();
  ModelShape model = grid.models[0];
  model.vocab = 600'000;
  for (const bool steps : {true, false}) {
    ::testing::internal::CaptureStdout();
    const absl::Status status = steps ? TimeSteps(grid, model, ::testing::TempDir())
                                      : TimePrefill(grid, model, ::testing::TempDir());
    const std::string output = ::testing::internal::GetCapturedStdout();
    ASSERT_TRUE(status.ok()) << status;
    const std::vector<std::string> rows = absl::StrSplit(output, '\n', absl::SkipEmpty());
    EXPECT_EQ(rows.size(), 4u);
    for (const std::string& row : rows) {
      EXPECT_TRUE(absl::StrContains(row, "\"skipped\": \"the model does not fit")) << row;
    }
  }
}

TEST(ModelCasesTest, AFolderThatCannotBeWrittenIsAnError) {
  const Grid grid = Grid::Tiny();
  EXPECT_EQ(TimeSteps(grid, grid.models[0], "/no/such/folder").code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace baton::gpu_bench
