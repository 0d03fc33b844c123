#include "common/model/checkpoint.h"

#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/model_dir.h"

namespace baton::model {
namespace {

using baton::testing::ModelDir;
using baton::testing::SafetensorsBytes;
using ::testing::HasSubstr;

constexpr char kIndex[] = "model.safetensors.index.json";

// One f32 tensor of two values.
std::string Shard(const std::string& tensor, char fill = 'x') {
  return SafetensorsBytes(
      "{\"" + tensor + "\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
      std::string(8, fill));
}

void WriteShards(const ModelDir& dir) {
  dir.Write("one.safetensors", Shard("a"));
  dir.Write("two.safetensors", Shard("b"));
}

TEST(CheckpointTest, ReadsOneFileOrShards) {
  const ModelDir dir;
  WriteShards(dir);
  dir.Write(kIndex, R"({"metadata": {"total_size": 16, "more": [1, {}]},
                        "weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})");
  auto checkpoint = Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  ASSERT_NE(checkpoint->Find("b"), nullptr);
  EXPECT_EQ(checkpoint->Find("b")->file->path(), dir.PathOf("two.safetensors"));
  EXPECT_EQ(checkpoint->Find("c"), nullptr);
  EXPECT_EQ(checkpoint->size_bytes(), 16);
  // As Transformers does, the single file goes before the index.
  dir.Write("model.safetensors", Shard("single"));
  checkpoint = Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_NE(checkpoint->Find("single"), nullptr);
  EXPECT_EQ(checkpoint->Find("a"), nullptr);
}

TEST(CheckpointTest, FingerprintIsThatOfHeadersAndValues) {
  const auto fingerprint = [](const std::string& bytes) {
    const ModelDir dir;
    dir.Write("model.safetensors", bytes);
    return Checkpoint::Open(dir.path())->Fingerprint();
  };
  EXPECT_EQ(fingerprint(Shard("a")), fingerprint(Shard("a")));
  EXPECT_NE(fingerprint(Shard("a")), fingerprint(Shard("b")));
  EXPECT_NE(fingerprint(Shard("a", 'x')), fingerprint(Shard("a", 'y')));  // a fine-tune
}

TEST(CheckpointTest, NamesWhatIsMissing) {
  const ModelDir dir;
  const absl::Status status = Checkpoint::Open(dir.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.safetensors"));
}

TEST(CheckpointTest, RefusesEveryBadIndex) {
  const struct {
    const char* name;
    std::string index;
    const char* message;
    absl::StatusCode code = absl::StatusCode::kInvalidArgument;
  } cases[] = {
      {"Empty", "", "not valid JSON"},
      {"List", "[]", "expected {\"weight_map\""},
      {"Scalar", "1", "expected an object"},
      {"NoMap", "{\"metadata\": {}}", "weight_map: found nothing"},
      {"MapIsAList", "{\"weight_map\": []}", "weight_map: found a list"},
      {"MapIsText", "{\"weight_map\": \"one.safetensors\"}", "weight_map: found"},
      {"FileIsANumber", R"({"weight_map": {"a": 1}})", "weight_map.a: found 1"},
      {"FileIsNested", R"({"weight_map": {"a": {}}})", "weight_map.a: found an object"},
      {"Absolute", R"({"weight_map": {"a": "/etc/passwd"}})",
       "weight_map.a: found \"/etc/passwd\""},
      {"Upward", R"({"weight_map": {"a": "../x.safetensors"}})", "plain name"},
      {"Below", R"({"weight_map": {"a": "x/one.safetensors"}})", "plain name"},
      {"Hidden", R"({"weight_map": {"a": ".safetensors"}})", "plain name"},
      {"EmptyName", R"({"weight_map": {"a": ""}})", "plain name"},
      {"NulInName", R"({"weight_map": {"a": "one\u0000.safetensors"}})", "plain name"},
      {"OtherKind", R"({"weight_map": {"a": "pytorch_model.bin"}})", "plain name"},
      {"TensorTwice", R"({"weight_map": {"a": "one.safetensors", "a": "two.safetensors"}})",
       "\"a\" appears twice"},
      {"NoSuchFile", R"({"weight_map": {"a": "three.safetensors"}})", "three.safetensors",
       absl::StatusCode::kNotFound},
      {"NotInHeader",
       R"({"weight_map": {"a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors"}})",
       "found \"two.safetensors\" for \"c\""},
      {"NotInIndex", R"({"weight_map": {"a": "one.safetensors", "c": "two.safetensors"}})",
       "found nothing for \"b\", expected \"two.safetensors\""},
      {"WrongFile", R"({"weight_map": {"a": "two.safetensors", "b": "one.safetensors"}})",
       "for \"a\", expected \"one.safetensors\""},
      {"TwoFilesOfOneTensor",
       R"({"weight_map": {"a": "one.safetensors", "b": "two.safetensors", "z": "again.safetensors"}})",
       "for \"a\", expected \"again.safetensors\""},
  };
  const ModelDir dir;
  WriteShards(dir);
  dir.Write("again.safetensors", Shard("a"));
  for (const auto& bad : cases) {
    SCOPED_TRACE(bad.name);
    dir.Write(kIndex, bad.index);
    const absl::Status status = Checkpoint::Open(dir.path()).status();
    EXPECT_EQ(status.code(), bad.code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(dir.PathOf(kIndex)));
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.message));
  }
}

}  // namespace
}  // namespace baton::model
