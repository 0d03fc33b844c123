#include "common/backend/cuda/cuda_options.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <string>

namespace baton::backend {
namespace {

// An environment variable, set or not, until the end of the scope.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = getenv(name)) before_ = before;
    value == nullptr ? unsetenv(name) : setenv(name, value, 1);
  }
  ~Variable() { before_ ? setenv(name_, before_->c_str(), 1) : unsetenv(name_); }

 private:
  const char* const name_;
  std::optional<std::string> before_;
};

TEST(CudaOptionsTest, MeasurementsAreKeptAmongTheUsersCaches) {
  const Variable caches("XDG_CACHE_HOME", "/var/caches"), home("HOME", "/home/somebody");
  EXPECT_EQ(DefaultCublasAlgorithms(), "/var/caches/baton/cublas_algorithms");
  for (const char* none : {static_cast<const char*>(nullptr), "", "relative/path"}) {
    const Variable no_caches("XDG_CACHE_HOME", none);
    EXPECT_EQ(DefaultCublasAlgorithms(), "/home/somebody/.cache/baton/cublas_algorithms");
    const Variable no_home("HOME", none);
    EXPECT_EQ(DefaultCublasAlgorithms(), "");
  }
}

}  // namespace
}  // namespace baton::backend
