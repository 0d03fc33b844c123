#include "common/base/request_limits.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"

namespace baton {
namespace {

TEST(RequestLimitsTest, EverySamplingNumberHasItsRange) {
  EXPECT_TRUE(CheckSamplingNumbers({}).ok());
  using Numbers = SamplingNumbers;
  const float nan = std::nanf("");
  const struct {
    const char* field;
    std::vector<float> good;
    std::vector<float> bad;
    std::function<void(Numbers&, float)> set;
  } rows[] = {
      {"temperature", {0, 2}, {-0.1f, 2.1f, nan}, [](Numbers& n, float v) { n.temperature = v; }},
      {"top_p", {0.1f, 1}, {0, 1.1f, nan}, [](Numbers& n, float v) { n.top_p = v; }},
      {"top_k", {-1, 0, 1 << 20}, {-2}, [](Numbers& n, float v) { n.top_k = static_cast<int>(v); }},
      {"min_p", {0, 1}, {-0.1f, 1.1f, nan}, [](Numbers& n, float v) { n.min_p = v; }},
      {"repetition_penalty",
       {0.1f, 2},
       {0, 2.1f, nan},
       [](Numbers& n, float v) { n.repetition_penalty = v; }},
      {"frequency_penalty",
       {-2, 2},
       {-2.1f, 2.1f, nan},
       [](Numbers& n, float v) { n.frequency_penalty = v; }},
      {"presence_penalty",
       {-2, 2},
       {-2.1f, 2.1f, nan},
       [](Numbers& n, float v) { n.presence_penalty = v; }},
      {"logprobs",
       {0, 20},
       {-1, 21},
       [](Numbers& n, float v) { n.logprobs = static_cast<int>(v); }},
  };
  for (const auto& row : rows) {
    for (const float value : row.good) {
      Numbers numbers;
      row.set(numbers, value);
      EXPECT_TRUE(CheckSamplingNumbers(numbers).ok()) << row.field << " " << value;
    }
    for (const float value : row.bad) {
      Numbers numbers;
      row.set(numbers, value);
      const absl::Status status = CheckSamplingNumbers(numbers);
      EXPECT_EQ(ErrorReason(status), "OUT_OF_RANGE") << row.field << " " << value;
      EXPECT_EQ(ErrorField(status), std::string("sampling.") + row.field) << value;
    }
  }
}

TEST(RequestLimitsTest, AWrongTokenIdIsFoundAtEachPosition) {
  for (size_t count = 1; count <= 50; ++count) {
    const std::vector<int32_t> good(count, 9);
    ASSERT_TRUE(CheckTokenIds("ids", good, 10).ok()) << count;
    for (size_t position = 0; position < count; ++position) {
      for (const int32_t id : {-1, 10, std::numeric_limits<int32_t>::min()}) {
        std::vector<int32_t> ids = good;
        ids[position] = id;
        EXPECT_EQ(
            CheckTokenIds("ids", ids, 10).message(),
            absl::StrCat("ids: id ", id, " at position ", position, " given, 0 to 9 expected"));
      }
    }
  }
  EXPECT_FALSE(CheckTokenIds("ids", {0}, 0).ok());
}

TEST(RequestLimitsTest, BiasesIdsAndNames) {
  EXPECT_TRUE(CheckLogitBiasCount(1024).ok());
  EXPECT_EQ(CheckLogitBiasCount(1025).message(),
            "sampling.logit_bias: 1025 ids given, at most 1024 expected");
  EXPECT_TRUE(CheckLogitBias(7, -100).ok());
  EXPECT_EQ(CheckLogitBias(7, 100.5f).message(),
            "sampling.logit_bias: 100.5 for id 7 given, -100 to 100 expected");
  EXPECT_FALSE(CheckLogitBias(7, std::nanf("")).ok());
  EXPECT_TRUE(CheckLogitBiasId(9, 10).ok());
  EXPECT_EQ(ErrorReason(CheckLogitBiasId(10, 10)), "OUT_OF_RANGE");
  EXPECT_EQ(ErrorReason(CheckLogitBiasId(-1, 10)), "OUT_OF_RANGE");
  EXPECT_TRUE(CheckTokenIds("ids", {0, 9}, 10).ok());
  EXPECT_EQ(CheckTokenIds("ids", {0, 10}, 10).message(),
            "ids: id 10 at position 1 given, 0 to 9 expected");
  EXPECT_TRUE(CheckRange("n", 16, 1, 16).ok());
  EXPECT_EQ(CheckRange("n", 17, 1, 16).message(), "n: 17 given, 1 to 16 expected");
  EXPECT_TRUE(CheckLengthPenalty(-10).ok());
  EXPECT_FALSE(CheckLengthPenalty(std::nanf("")).ok());
  EXPECT_TRUE(CheckStopTokenIdCount("stop", 256, 256).ok());
  EXPECT_EQ(ErrorReason(CheckStopTokenIdCount("stop", 257, 256)), "TOO_MANY_STOPS");
  EXPECT_TRUE(CheckTenant(std::string(128, 't')).ok());
  EXPECT_EQ(ErrorReason(CheckTenant(std::string(129, 't'))), "BAD_TENANT");
  EXPECT_EQ(ErrorReason(CheckTenant("a\tb")), "BAD_TENANT");
}

}  // namespace
}  // namespace baton
