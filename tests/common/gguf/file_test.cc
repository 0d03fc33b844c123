#include "common/gguf/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <random>
#include <string>
#include <tuple>

#include "tests/testing/gguf_bytes.h"
#include "tests/testing/model_dir.h"
#include "tests/testing/seed.h"

namespace baton::gguf {
namespace {

using ::baton::testing::GgufBytes;
using ::baton::testing::GgufText;
using ::baton::testing::LittleEndian;
using ::baton::testing::TinyGguf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kF32 = 0, kQ8_0 = 8;

class GgufFileTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& bytes) {
    dir_.Write("x.gguf", bytes);
    return File::Open(dir_.PathOf("x.gguf"));
  }
  void ExpectInvalid(const std::string& bytes, const std::string& message,
                     absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    const absl::Status status = Open(bytes).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("x.gguf: "));
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }

  testing::ModelDir dir_;
};

TEST_F(GgufFileTest, ReadsEveryTypeOfValue) {
  GgufBytes bytes;
  bytes.AddRaw("u8", 0, LittleEndian(uint8_t{200}))
      .AddRaw("i8", 1, LittleEndian(int8_t{-3}))
      .AddRaw("u16", 2, LittleEndian(uint16_t{60000}))
      .AddRaw("i16", 3, LittleEndian(int16_t{-30000}))
      .AddRaw("i32", 5, LittleEndian(int32_t{-7}))
      .AddRaw("u64", 10, LittleEndian(uint64_t{1} << 63))
      .AddRaw("i64", 11, LittleEndian(int64_t{-1} << 40))
      .AddRaw("f64", 12, LittleEndian(0.1))
      .Add("f32", 0.25f)
      .Add("yes", true)
      .Add("text", "\xc3\xa9")
      .Add("texts", std::vector<std::string>{"a", "", "bc"})
      .Add("numbers", std::vector<int32_t>{1, -2})
      .AddRaw("lists", 9,
              LittleEndian(uint32_t{9}) + LittleEndian(uint64_t{1}) + LittleEndian(uint32_t{0}) +
                  LittleEndian(uint64_t{3}) + "xyz");
  for (const uint32_t version : {2u, 3u}) {
    const auto file = Open(bytes.Bytes(version));
    ASSERT_TRUE(file.ok()) << file.status();
    const File& f = **file;
    EXPECT_EQ(*f.Integer("u8"), 200);
    EXPECT_EQ(*f.Integer("i8"), -3);
    EXPECT_EQ(*f.Integer("u16"), 60000);
    EXPECT_EQ(*f.Integer("i16"), -30000);
    EXPECT_EQ(*f.Integer("i32"), -7);
    EXPECT_EQ(*f.Integer("u64"), INT64_MAX);  // no field allows it
    EXPECT_EQ(*f.Integer("i64"), -(int64_t{1} << 40));
    EXPECT_EQ(*f.Real("f64"), 0.1);
    EXPECT_EQ(*f.Real("f32"), 0.25);
    EXPECT_EQ(*f.Real("i32"), -7);
    EXPECT_EQ(*f.Bool("yes"), true);
    EXPECT_EQ(*f.Text("text"), "\xc3\xa9");
    std::vector<std::string> texts;
    ASSERT_TRUE((*f.TextList("texts"))
                    ->ForEach([&](uint64_t, absl::string_view text) {
                      texts.emplace_back(text);
                      return absl::OkStatus();
                    })
                    .ok());
    EXPECT_THAT(texts, ElementsAre("a", "", "bc"));
    EXPECT_EQ((*f.IntegerList("numbers"))->At(1), -2);
    EXPECT_FALSE(f.Integer("none")->has_value());
    EXPECT_TRUE(f.Has("lists"));
    EXPECT_EQ(f.Integer("text").status().message(),
              f.path() + ": text: found \"\xc3\xa9\", expected an integer");
    EXPECT_THAT(std::string(f.TextList("numbers").status().message()),
                HasSubstr("numbers: found a list of 2, expected a list of texts"));
  }
}

TEST_F(GgufFileTest, ReadsTensors) {
  GgufBytes bytes;
  bytes.AddTensor("a", {3, 2}, kF32, std::string(24, 'a'))
      .AddTensor("b", {64}, kQ8_0, std::string(68, 'b'));
  std::string whole = bytes.Bytes();
  for (const bool padded : {true, false}) {
    if (!padded) whole.resize(whole.size() - 28);  // 96 - 68
    const auto file = Open(whole);
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_EQ((*file)->tensors().size(), 2u);
    const Tensor* b = (*file)->FindTensor("b");
    ASSERT_NE(b, nullptr);
    EXPECT_EQ(b->type->name, "Q8_0");
    EXPECT_THAT(b->extents, ElementsAre(64));
    EXPECT_EQ(b->begin, 32u);
    EXPECT_EQ(b->end, 100u);
    EXPECT_EQ(whole.substr((*file)->parts()[0].data_offset + b->begin, 68), std::string(68, 'b'));
    EXPECT_EQ((*file)->FindTensor("c"), nullptr);
  }
  whole.pop_back();
  ExpectInvalid(whole, "expected");
  ExpectInvalid(bytes.Bytes() + "x", "the end of the last tensor");
}

TEST_F(GgufFileTest, TakesTheFilesAlignment) {
  const auto aligned = [](const std::string& value, uint32_t type = 4) {
    return GgufBytes().AddRaw("general.alignment", type, value).AddTensor("a", {1}, kF32, "aaaa");
  };
  GgufBytes by_64 = aligned(LittleEndian(uint32_t{64}));
  std::string bytes = by_64.Header();
  bytes.resize((bytes.size() + 63) / 64 * 64);
  const auto file = Open(bytes + "aaaa");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->parts()[0].data_offset, bytes.size());
  for (const uint32_t alignment : {0u, 24u, 1u << 21}) {
    ExpectInvalid(aligned(LittleEndian(alignment)).Bytes(), "general.alignment: expected");
  }
  ExpectInvalid(aligned(std::string("\x20"), 0).Bytes(), "general.alignment: expected a uint32");
}

TEST_F(GgufFileTest, RefusesOtherFiles) {
  ExpectInvalid("", "header: found another file format");
  ExpectInvalid("GGU", "header: found another file format");
  ExpectInvalid("GGUF\x03", "version: found 1 bytes up to the file's end, expected 4");
  const auto unsupported = absl::StatusCode::kUnimplemented;
  ExpectInvalid(TinyGguf().Bytes(1), "version: found 1, expected 2 or 3", unsupported);
  ExpectInvalid(TinyGguf().Bytes(0x03000000), "as in a big-endian file", unsupported);
  ExpectInvalid(TinyGguf().AddRaw("split.count", 2, LittleEndian(uint16_t{3})).Bytes(),
                "split.count: found one of 3 files, expected the first of them, whose name ends in "
                "-00001-of-00003.gguf");
  ExpectInvalid(TinyGguf().AddRaw("split.count", 2, LittleEndian(uint16_t{5000})).Bytes(),
                "split.count: found 5000 files, expected at most 4096");
  EXPECT_TRUE(Open(TinyGguf().AddRaw("split.count", 2, LittleEndian(uint16_t{1})).Bytes()).ok());
  EXPECT_TRUE(absl::IsNotFound(File::Open(dir_.PathOf("none.gguf")).status()));
}

// A model in three files, of which the second has two tensors.
class GgufPartsTest : public ::testing::Test {
 protected:
  static GgufBytes Part(uint16_t number, uint16_t count = 3) {
    return GgufBytes()
        .AddRaw("split.no", 2, LittleEndian(number))
        .AddRaw("split.count", 2, LittleEndian(count));
  }
  static std::string Name(int number) {
    return "m-0000" + std::to_string(number) + "-of-00003.gguf";
  }
  static GgufBytes First(int32_t tensors = 3) {
    return Part(0).AddRaw("split.tensors.count", 5, LittleEndian(tensors)).Add("k", "of the model");
  }
  void SetUp() override {
    dir_.Write(Name(1), First().Bytes());
    dir_.Write(Name(2), Part(1)
                            .AddTensor("a", {1}, kF32, "aaaa")
                            .AddTensor("b", {3}, kF32, std::string(12, 'b'))
                            .Bytes());
    dir_.Write(Name(3), Part(2).AddTensor("c", {2}, kF32, "cccccccc").Bytes());
  }
  absl::StatusOr<std::unique_ptr<File>> Open(int number = 1) {
    return File::Open(dir_.PathOf(Name(number)));
  }
  void ExpectInvalid(int number, const std::string& message) {
    EXPECT_THAT(std::string(Open().status().message()), HasSubstr(Name(number) + ": " + message));
    EXPECT_TRUE(absl::IsInvalidArgument(Open().status()));
    SetUp();
  }

  testing::ModelDir dir_;
};

TEST_F(GgufPartsTest, AreOneModel) {
  const auto file = Open();
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(*(*file)->Text("k"), "of the model");
  ASSERT_EQ((*file)->parts().size(), 3u);
  ASSERT_EQ((*file)->tensors().size(), 3u);
  EXPECT_EQ((*file)->parts()[0].data_bytes, 0u);
  EXPECT_EQ((*file)->parts()[1].data_bytes, 64u);
  for (const auto& [name, part, bytes] :
       {std::tuple("a", 1u, "aaaa"), {"b", 1u, "bbbbbbbbbbbb"}, {"c", 2u, "cccccccc"}}) {
    const Tensor* tensor = (*file)->FindTensor(name);
    ASSERT_NE(tensor, nullptr);
    ASSERT_EQ(tensor->part, part);
    const baton::gguf::Part& of = (*file)->parts()[part];
    EXPECT_EQ(of.map->bytes().substr(of.data_offset + tensor->begin, tensor->end - tensor->begin),
              bytes);
  }
}

TEST_F(GgufPartsTest, AreCheckedOneByOne) {
  std::filesystem::remove(dir_.PathOf(Name(2)));
  EXPECT_TRUE(absl::IsNotFound(Open().status()));
  EXPECT_THAT(std::string(Open().status().message()), HasSubstr(Name(2)));
  SetUp();
  dir_.Write(Name(3), Part(2, 4).Bytes());
  ExpectInvalid(3, "split.count: found 4, expected 3 as in ");
  dir_.Write(Name(3), GgufBytes().Bytes());
  ExpectInvalid(3, "split.count: found nothing, expected 3 as in ");
  dir_.Write(Name(3), Part(1).AddTensor("c", {2}, kF32, "cccccccc").Bytes());
  ExpectInvalid(3, "split.no: found 1, expected 2, as the file's name says");
  dir_.Write(Name(1), Part(2).Bytes());
  ExpectInvalid(1, "split.no: found 2, expected 0, as the file's name says");
  dir_.Write(Name(3), Part(2).AddTensor("b", {2}, kF32, "cccccccc").Bytes());
  ExpectInvalid(3, "\"b\": found in a file before, too, expected once");
  dir_.Write(Name(1), First(4).Bytes());
  ExpectInvalid(1, "split.tensors.count: found 4, expected 3, which the 3 files have");
  dir_.Write(Name(2), Part(1).Bytes() + "x");
  EXPECT_FALSE(Open().ok());
  SetUp();
  dir_.Write(Name(2), "GGUF");
  ExpectInvalid(2, "version: found 0 bytes");
  // Only the first one's name is that of the model.
  EXPECT_THAT(std::string(Open(2).status().message()),
              HasSubstr("expected the first of them, whose name ends in -00001-of-00003.gguf"));
}

TEST_F(GgufFileTest, ChecksMetadata) {
  const uint64_t huge = uint64_t{1} << 60;
  const auto entry = [](uint32_t type, const std::string& value) {
    return GgufBytes().AddRaw("k", type, value).Bytes();
  };
  ExpectInvalid(entry(13, "x"), "k: found type 13, expected 0 to 12");
  ExpectInvalid(entry(7, "\x02"), "k: found a bool of 2, expected 0 or 1");
  ExpectInvalid(entry(8, LittleEndian(huge) + "x"),
                "k: text: found 1 bytes up to the file's end, expected 1152921504606846976");
  ExpectInvalid(entry(9, LittleEndian(uint32_t{4}) + LittleEndian(huge)),
                "k: length of the list: found 1152921504606846976, expected at most 0");
  ExpectInvalid(
      entry(9, LittleEndian(uint32_t{8}) + LittleEndian(uint64_t{3}) + GgufText("a") + "1234567"),
      "k: length of the list: found 3, expected at most 2");
  ExpectInvalid(entry(9, LittleEndian(uint32_t{8}) + LittleEndian(uint64_t{1}) +
                             LittleEndian(uint64_t{9}) + "12345678"),
                "k: [0]: text: found 8 bytes up to the file's end, expected 9");
  ExpectInvalid(entry(9, LittleEndian(uint32_t{7}) + LittleEndian(uint64_t{2}) + "\x01\x03"),
                "k: found a bool of 3");
  ExpectInvalid(entry(9, LittleEndian(uint32_t{77}) + LittleEndian(uint64_t{0})),
                "k: type of the list's elements: found 77");
  ExpectInvalid(GgufBytes().Add("k", 1u).Add("k", 2u).Bytes(), "k: found twice");
  ExpectInvalid(GgufBytes().Add("", 1u).Bytes(), "metadata 0: found the key \"\"");
  ExpectInvalid(GgufBytes().Add("a\n", 1u).Bytes(), "metadata 0: found the key \"a\\n\"");
  ExpectInvalid("GGUF" + LittleEndian(uint32_t{3}) + LittleEndian(uint64_t{0}) + LittleEndian(huge),
                "count of metadata: found 1152921504606846976, expected at most 0");
  ExpectInvalid("GGUF" + LittleEndian(uint32_t{3}) + LittleEndian(huge) + LittleEndian(uint64_t{0}),
                "count of tensors: found 1152921504606846976, expected at most 0");

  const auto nested = [&](int levels) {
    std::string list = LittleEndian(uint32_t{0}) + LittleEndian(uint64_t{0});
    for (int i = 1; i < levels; ++i) {
      list = LittleEndian(uint32_t{9}) + LittleEndian(uint64_t{1}) + list;
    }
    return entry(9, list);
  };
  EXPECT_TRUE(Open(nested(4)).ok());
  ExpectInvalid(nested(5), "expected at most 4 levels");
  ExpectInvalid(nested(1000), "expected at most 4 levels");

  const auto nan = Open(GgufBytes().Add("k", std::numeric_limits<float>::quiet_NaN()).Bytes());
  EXPECT_THAT(std::string((*nan)->Real("k").status().message()),
              HasSubstr("k: found no finite number"));
  const auto huge_text = Open(GgufBytes().Add("k", std::string((16 << 20) + 1, 'x')).Bytes());
  EXPECT_THAT(std::string((*huge_text)->Text("k").status().message()),
              HasSubstr("k: found 16777217 bytes, expected at most 16777216"));
  const auto latin1 = Open(GgufBytes().Add("k", "\xe9").Bytes());
  EXPECT_THAT(std::string((*latin1)->Text("k").status().message()), HasSubstr("UTF-8"));
}

TEST_F(GgufFileTest, ChecksTensors) {
  const auto tensor = [](std::vector<uint64_t> extents, uint32_t type = kF32,
                         const std::string& name = "a") {
    return GgufBytes().AddTensor(name, extents, type, "aaaa").Bytes();
  };
  EXPECT_TRUE(Open(tensor({1})).ok());
  ExpectInvalid(tensor({}), "tensor 0: \"a\": found 0 dimensions, expected 1 to 4");
  ExpectInvalid(tensor({1, 1, 1, 1, 1}), "found 5 dimensions");
  ExpectInvalid(tensor({1, 0}), "dimension 1: found 0, expected at least 1");
  ExpectInvalid(tensor({uint64_t{1} << 40, uint64_t{1} << 40}), "a product below 2^64");
  ExpectInvalid(tensor({uint64_t{1} << 62}), "blocks of 4 bytes at offset 0");
  ExpectInvalid(tensor({2048}), "expected them in the file's");
  ExpectInvalid(tensor({33}, kQ8_0), "found rows of 33 elements, expected a multiple of 32");
  ExpectInvalid(tensor({1}, 4), "found type 4, expected one of the format's",
                absl::StatusCode::kUnimplemented);
  ExpectInvalid(tensor({1}, kF32, ""), "name: found 0 bytes");
  ExpectInvalid(tensor({1}, kF32, std::string(65, 'x')), "name: found 65 bytes");
  ExpectInvalid(
      GgufBytes().AddTensor("a", {1}, kF32, "aaaa").AddTensor("a", {1}, kF32, "aaaa").Bytes(),
      "tensor 1: found \"a\" twice");
  // The second begins where no tensor ends.
  ExpectInvalid(GgufBytes()
                    .AddTensor("a", {1}, kF32, std::string(64, 'a'))
                    .AddTensor("b", {1}, kF32, "aaaa")
                    .Bytes(),
                "tensor 1: \"b\": found offset 64, expected 32");
}

// Whatever the file holds, it is read or refused with its name.
TEST_F(GgufFileTest, SurvivesDamage) {
  const uint32_t seed = testing::TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  GgufBytes tiny = TinyGguf();
  tiny.Add("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b", "ab"})
      .Add("tokenizer.ggml.token_type", std::vector<int32_t>{1, 1, 1});
  const std::string header = tiny.Header(), whole = tiny.Bytes();
  const auto check = [&](const std::string& bytes) {
    const auto file = Open(bytes);
    if (!file.ok()) {
      ASSERT_THAT(std::string(file.status().message()), HasSubstr("x.gguf: "));
      return;
    }
    for (const Tensor& tensor : (*file)->tensors()) {
      ASSERT_LE(tensor.begin, tensor.end);
      ASSERT_LE((*file)->parts()[0].data_offset + tensor.end, bytes.size());
    }
  };
  for (size_t size = 0; size < header.size(); size += 1 + random() % 5) {
    check(whole.substr(0, size));
  }
  for (int round = 0; round < 1500; ++round) {
    std::string bytes = whole;
    const int flips = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < flips; ++i) {
      bytes[random() % header.size()] ^= static_cast<char>(1u << random() % 8);
    }
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    check(bytes);
  }
}

}  // namespace
}  // namespace baton::gguf
