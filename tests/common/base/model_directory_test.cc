#include "common/base/model_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kRevision[] = "c0ffee0123456789c0ffee0123456789c0ffee01";

constexpr const char* kVariables[] = {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME",
                                      "HF_HUB_OFFLINE"};

std::string MessageFor(const std::string& model) {
  return std::string(FindModel(model).status().message());
}

// Each test begins without any of the variables.
class ModelDirectoryTest : public ::testing::Test {
 protected:
  ModelDirectoryTest() {
    for (const char* name : kVariables) {
      if (const char* value = getenv(name)) saved_[name] = value;
      unsetenv(name);
    }
  }
  ~ModelDirectoryTest() override {
    for (const char* name : kVariables) unsetenv(name);
    for (const auto& [name, value] : saved_) setenv(name.c_str(), value.c_str(), 1);
    std::filesystem::remove_all(directory_);
  }

  // Puts a model in the cache `hub` and returns its snapshot.
  std::string Download(const std::string& hub, const std::string& folder) {
    const std::string model = absl::StrCat(directory_, "/", hub, "/", folder);
    std::filesystem::create_directories(model + "/snapshots/" + kRevision);
    std::filesystem::create_directories(model + "/refs");
    std::ofstream(model + "/refs/main") << kRevision;
    return model + "/snapshots/" + kRevision;
  }
  void Set(const char* name, const std::string& value) {
    setenv(name, absl::StrCat(directory_, "/", value).c_str(), 1);
  }

  const std::string directory_ = absl::StrCat(::testing::TempDir(), "/models-", getpid());
  std::map<std::string, std::string> saved_;
};

TEST_F(ModelDirectoryTest, ADirectoryIsTaken) {
  std::filesystem::create_directories(directory_);
  const auto found = FindModel(directory_);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->path, directory_);
  EXPECT_EQ(found->id, "");
}

TEST_F(ModelDirectoryTest, AGgufFileIsTaken) {
  std::filesystem::create_directories(directory_);
  const std::string file = directory_ + "/m.gguf";
  EXPECT_THAT(MessageFor(file), HasSubstr("m.gguf\" is no file"));
  // No id of a model, although it could be one.
  EXPECT_THAT(MessageFor("m.gguf"), HasSubstr("\"m.gguf\" is no file"));
  std::ofstream(file) << "x";
  std::ofstream(directory_ + "/m.bin") << "x";
  ASSERT_TRUE(FindModel(file).ok()) << FindModel(file).status();
  EXPECT_EQ(FindModel(file)->path, file);
  EXPECT_EQ(FindModel(file)->id, "");
  EXPECT_THAT(MessageFor(directory_ + "/m.bin"),
              HasSubstr("is a file, expected a directory or a file whose name ends in .gguf"));
}

TEST_F(ModelDirectoryTest, TheEnvironmentSaysWhereTheCacheIs) {
  // From the last to the first that counts.
  const std::string in_home = Download("home/.cache/huggingface/hub", "models--org--m");
  const std::string in_xdg = Download("xdg/huggingface/hub", "models--org--m");
  const std::string in_hf = Download("hf/hub", "models--org--m");
  const std::string in_hub = Download("hub", "models--org--m");
  Set("HOME", "home");
  EXPECT_EQ(FindModel("org/m")->path, in_home);
  EXPECT_EQ(FindModel("org/m")->id, "org/m");
  Set("XDG_CACHE_HOME", "xdg");
  EXPECT_EQ(FindModel("org/m")->path, in_xdg);
  Set("HF_HOME", "hf");
  EXPECT_EQ(FindModel("org/m")->path, in_hf);
  Set("HF_HUB_CACHE", "hub");
  EXPECT_EQ(FindModel("org/m")->path, in_hub);
}

TEST_F(ModelDirectoryTest, AnIdMayLackAnOrganisation) {
  Set("HF_HUB_CACHE", "hub");
  const std::string snapshot = Download("hub", "models--gpt2");
  EXPECT_EQ(FindModel("gpt2")->path, snapshot);
}

TEST_F(ModelDirectoryTest, AGgufFileOfAModelMayBeInTheCache) {
  Set("HF_HUB_CACHE", "hub");
  const std::string snapshot = Download("hub", "models--org--m");
  std::filesystem::create_directories(snapshot + "/sub");
  // As there: a link to the blob.
  std::ofstream(directory_ + "/blob") << "x";
  for (const char* file : {"/m-Q8_0.gguf", "/sub/m+1.GGUF"}) {
    std::filesystem::create_symlink(directory_ + "/blob", snapshot + file);
  }
  for (const char* file : {"/m-Q8_0.gguf", "/sub/m+1.GGUF"}) {
    const auto found = FindModel(absl::StrCat("org/m", file));
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->path, snapshot + file);
    EXPECT_EQ(found->id, absl::StrCat("org/m", file));
  }
  std::string message = MessageFor("org/m/m-Q4_0.gguf");
  EXPECT_THAT(message, HasSubstr("is neither a file nor a GGUF file in the Hugging Face cache"));
  EXPECT_THAT(message, HasSubstr(snapshot + "/m-Q4_0.gguf is missing"));
  EXPECT_THAT(message, HasSubstr("baton pull org/m --include 'm-Q4_0.gguf'"));
  message = MessageFor("org/other/m-Q4_0.gguf");
  EXPECT_THAT(message, HasSubstr("/hub/models--org--other/refs/main has no revision"));
  // A folder, what leads out of the snapshot, and what is no id.
  std::filesystem::create_directories(snapshot + "/folder.gguf");
  EXPECT_THAT(MessageFor("org/m/folder.gguf"), HasSubstr("folder.gguf is missing"));
  std::ofstream(directory_ + "/hub/models--org--m/snapshots/out.gguf") << "x";
  for (const char* file : {"org/m/../out.gguf", "org/m//x.gguf", "/org/m/x.gguf", "../m/x.gguf",
                           "org/m.gguf", "org--m/a/x.gguf", "org/m/.gguf"}) {
    EXPECT_THAT(MessageFor(file), HasSubstr("is no file")) << file;
  }
}

TEST_F(ModelDirectoryTest, TheErrorHasWhatWasSearched) {
  Set("HF_HUB_CACHE", "hub");
  std::string message = MessageFor("org/m");
  EXPECT_THAT(message, HasSubstr(directory_ + "/hub/models--org--m/refs/main"));
  EXPECT_THAT(message, HasSubstr("baton pull org/m"));
  std::filesystem::remove_all(Download("hub", "models--org--m"));
  message = MessageFor("org/m");
  EXPECT_THAT(message, HasSubstr(absl::StrCat("/snapshots/", kRevision, " is missing")));
  setenv("HF_HUB_OFFLINE", "1", 1);
  message = MessageFor("org/m");
  EXPECT_THAT(message, Not(HasSubstr("download")));
}

TEST_F(ModelDirectoryTest, NothingOutsideTheCacheIsReached) {
  Set("HF_HUB_CACHE", "hub");
  const std::string snapshot = Download("hub", "models--org--m");
  std::ofstream(directory_ + "/hub/models--org--m/refs/main") << "../refs";
  EXPECT_TRUE(absl::IsNotFound(FindModel("org/m").status()));
  for (const char* model :
       {"", "a/b/c", "../no-such-model", "org/..", "org--m", "/no/such", "org/m/", ".m"}) {
    EXPECT_THAT(MessageFor(model), HasSubstr("is no directory")) << model;
  }
}

TEST_F(ModelDirectoryTest, IdsAndRevisionsAreNoPathsOutOfTheCache) {
  for (const char* model : {"org/m", "m", "Org-1/m_2.5"}) EXPECT_TRUE(IsHubModel(model)) << model;
  for (const char* model : {"", "a/b/c", "/m", "a/", "..", "a/..", "a--b", "-m", "a b", "a\\b"}) {
    EXPECT_FALSE(IsHubModel(model)) << model;
  }
  for (const char* revision : {"main", kRevision, "refs/pr/1", "v1.0"}) {
    EXPECT_TRUE(IsHubRevision(revision)) << revision;
  }
  for (const char* revision : {"", "/main", "a/../b", "..", "a//b", "a?b", "a%2Fb", "-x"}) {
    EXPECT_FALSE(IsHubRevision(revision)) << revision;
  }
  EXPECT_EQ(HubModelFolder("org/m"), "models--org--m");
}

}  // namespace
}  // namespace baton
