#include "benchmarks/gpu/row.h"

#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"

namespace baton::gpu_bench {

Row::Row(absl::string_view part, absl::string_view what)
    : json_(absl::StrCat("{\"part\": \"", part, "\", \"what\": \"", what, "\"")) {}

Row& Row::Text(absl::string_view key, absl::string_view value) {
  absl::StrAppend(&json_, ", \"", key, "\": \"", value, "\"");
  return *this;
}

Row& Row::Number(absl::string_view key, double value) {
  BATON_CHECK(std::isfinite(value)) << key << " is " << value;
  absl::StrAppendFormat(&json_, ", \"%s\": %.10g", key, value);
  return *this;
}

Row& Row::Took(double seconds, const Work& work) {
  return Number("seconds", seconds).Number("bytes", work.bytes).Number("flops", work.flops);
}

void Row::Print() const {
  std::printf("%s\n", ToJson().c_str());
  std::fflush(stdout);
}

}  // namespace baton::gpu_bench
