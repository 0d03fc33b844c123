#include "common/base/named_thread.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <array>
#include <memory>
#include <string>

namespace baton {
namespace {

TEST(NamedThreadTest, HasItsNameBeforeItRuns) {
  std::string found;
  NamedThread("fifteen-letters", [&found] {
    std::array<char, 16> name = {};
    pthread_getname_np(pthread_self(), name.data(), name.size());
    found = name.data();
  }).join();
  EXPECT_EQ(found, "fifteen-letters");
}

TEST(NamedThreadTest, TakesWhatCanOnlyBeMoved) {
  int found = 0;
  NamedThread("mover", [&found, value = std::make_unique<int>(7)] { found = *value; }).join();
  EXPECT_EQ(found, 7);
}

}  // namespace
}  // namespace baton
