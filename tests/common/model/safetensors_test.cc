#include "common/model/safetensors.h"

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

constexpr char kGood[] =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
    R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})";

TEST(SafetensorsTest, ReadsAGoodFile) {
  const ModelDir dir;
  std::string data(32, '\0');
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i);
  // No padding: the data starts at an odd address, and trailing spaces are the format's own.
  for (const char* padding : {"", " ", "       "}) {
    dir.Write("x.safetensors", SafetensorsBytes(std::string(kGood) + padding, data));
    const auto file = OpenSafetensors(dir.PathOf("x.safetensors"));
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_EQ((*file)->tensors().size(), 2);
    const TensorEntry& b = (*file)->tensors()[1];
    EXPECT_EQ(b.name, "b");
    EXPECT_EQ(b.weight_dtype, backend::DType::kBF16);
    EXPECT_EQ(b.shape, std::vector<uint64_t>{4});
    EXPECT_EQ((*file)->Bytes(b), absl::string_view(data).substr(24));
    EXPECT_TRUE((*file)->CheckUnchanged().ok());
  }
}

TEST(SafetensorsTest, AcceptsNoTensorsEmptyTensorsAndScalars) {
  const ModelDir dir;
  dir.Write("x.safetensors", SafetensorsBytes("{}", ""));
  EXPECT_TRUE(OpenSafetensors(dir.PathOf("x.safetensors")).ok());
  dir.Write("x.safetensors",
            SafetensorsBytes(R"({"e":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]},)"
                             R"("s":{"dtype":"I64","shape":[],"data_offsets":[0,8]}})",
                             std::string(8, 'x')));
  const auto file = OpenSafetensors(dir.PathOf("x.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->tensors()[1].weight_dtype, std::nullopt);
}

TEST(SafetensorsTest, FindsATruncationAfterOpening) {
  const ModelDir dir;
  dir.Write("x.safetensors", SafetensorsBytes(kGood, std::string(32, 'x')));
  const auto file = OpenSafetensors(dir.PathOf("x.safetensors"));
  ASSERT_TRUE(file.ok());
  std::filesystem::resize_file(dir.PathOf("x.safetensors"), 40);
  EXPECT_THAT(std::string((*file)->CheckUnchanged().message()), HasSubstr("another size"));
}

TEST(SafetensorsTest, RefusesWhatIsNoFile) {
  const ModelDir dir;
  EXPECT_EQ(OpenSafetensors(dir.PathOf("gone")).status().code(), absl::StatusCode::kNotFound);
  std::filesystem::create_directory(dir.PathOf("folder"));
  EXPECT_THAT(std::string(OpenSafetensors(dir.PathOf("folder")).status().message()),
              HasSubstr("regular file"));
}

struct BadFile {
  const char* name;
  std::string bytes;
  const char* message;
};

std::string Tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "{\"t\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets +
         "}}";
}

std::vector<BadFile> BadFiles() {
  const std::string eight(8, 'x');
  const auto file = [&](const std::string& header) { return SafetensorsBytes(header, eight); };
  const std::string good = Tensor("F32", "[2]", "[0,8]");
  return {
      {"Empty", "", "found 0 bytes"},
      {"ShorterThanLength", "\x08", "header size"},
      {"LengthBeyondFile", SafetensorsBytes(good, eight, 1000), "header size: found 1000"},
      {"LengthAboveLimit", SafetensorsBytes(good, eight, 100'000'001), "header size"},
      {"LengthThatWraps", SafetensorsBytes(good, eight, INT64_MAX), "header size"},
      {"LengthAllOnes", std::string(8, '\xff') + good, "header size: found 18446744073709551615"},
      {"LengthZero", SafetensorsBytes("", eight, 0), "header size: found 0"},
      {"LengthTooShort", SafetensorsBytes(good, eight, 20), "not valid JSON"},
      {"NoBrace", file(" " + good), "start with '{'"},
      {"NotJson", file("{\"t\":"), "not valid JSON"},
      {"Garbage", file(good + "x"), "not valid JSON"},
      {"NotUtf8", file("{\"\xff\":1}"), "not valid JSON"},
      {"Deep", file("{\"t\":" + std::string(100000, '[')), "t: found a list"},
      {"KeyTwice",
       file("{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
            "\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}"),
       "\"t\" appears twice"},
      {"FieldTwice", file("{\"t\":{\"dtype\":\"F32\",\"dtype\":\"F16\"}}"),
       "\"dtype\" appears twice"},
      {"TensorIsANumber", file("{\"t\":1}"), "t: found 1"},
      {"UnknownDType", file(Tensor("F31", "[2]", "[0,8]")), "dtype: found \"F31\""},
      {"DTypeIsANumber", file("{\"t\":{\"dtype\":4,\"shape\":[2],\"data_offsets\":[0,8]}}"),
       "t.dtype: found 4"},
      {"NoDType", file("{\"t\":{\"shape\":[2],\"data_offsets\":[0,8]}}"), "\"t\": found 2 fields"},
      {"UnknownField",
       file("{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}}"), "t.x"},
      {"NegativeExtent", file(Tensor("F32", "[-2]", "[0,8]")), "t.shape[0]: found -2"},
      {"FractionalExtent", file(Tensor("F32", "[2.0]", "[0,8]")), "t.shape[0]: found 2"},
      {"HugeExtent", file(Tensor("F32", "[99999999999999999999]", "[0,8]")), "t.shape[0]"},
      {"ProductWrapsToEight",
       file(Tensor("F32", "[4611686018427387904, 4611686018427387904, 2]", "[0,8]")),
       "shape: found"},
      {"ProductWrapsToZero", file(Tensor("F32", "[4294967296, 4294967296]", "[0,8]")),
       "product below 2^64"},
      {"ZeroAfterOverflow",
       file(Tensor("F32", "[4611686018427387904, 4611686018427387904, 0]", "[0,0]")), "shape"},
      {"TooManyExtents", file(Tensor("F32", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2]", "[0,8]")),
       "at most 16"},
      {"ShapeAgainstSpan", file(Tensor("F32", "[3]", "[0,8]")), "expected 12 bytes for F32 [3]"},
      {"EndBeforeBegin", file(Tensor("F32", "[2]", "[8,0]")), "data_offsets: found [8, 0]"},
      {"OneOffset", file(Tensor("F32", "[2]", "[0]")), "1 data_offsets"},
      {"ThreeOffsets", file(Tensor("F32", "[2]", "[0,8,9]")), "t.data_offsets[2]"},
      {"GapAtStart", SafetensorsBytes(Tensor("F32", "[1]", "[4,8]"), eight), "found begin 4"},
      {"Overlap",
       file("{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
            "\"u\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}"),
       "\"u\": data_offsets: found begin 4, expected 8"},
      {"EndsBeforeFile", SafetensorsBytes(good, std::string(9, 'x')), "found 9 bytes behind"},
      {"EndsBehindFile", SafetensorsBytes(good, std::string(7, 'x')), "found 7 bytes behind"},
      {"SubByteRemainder", SafetensorsBytes(Tensor("F4", "[3]", "[0,1]"), "x"), "shape"},
      {"MetadataNumber", file("{\"__metadata__\":{\"a\":1}}"), "__metadata__.a: found 1"},
      {"MetadataNested", file("{\"__metadata__\":{\"a\":{}}}"), "__metadata__.a: found an object"},
      {"MetadataList", file("{\"__metadata__\":[]}"), "__metadata__: found a list"},
  };
}

TEST(SafetensorsTest, RefusesEveryBadFile) {
  const ModelDir dir;
  for (const BadFile& bad : BadFiles()) {
    SCOPED_TRACE(bad.name);
    dir.Write("bad.safetensors", bad.bytes);
    const auto file = OpenSafetensors(dir.PathOf("bad.safetensors"));
    ASSERT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(dir.PathOf("bad.safetensors")));
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(bad.message));
  }
}

// Every truncation and every changed byte is refused or read within bounds (asan watches).
TEST(SafetensorsTest, SurvivesEveryTruncationAndFlip) {
  const ModelDir dir;
  const std::string good = SafetensorsBytes(kGood, std::string(32, 'x'));
  const std::string path = dir.PathOf("x.safetensors");
  const auto read_all = [&] {
    const auto file = OpenSafetensors(path);
    if (!file.ok()) return false;
    size_t sum = 0;
    for (const TensorEntry& entry : (*file)->tensors()) {
      for (char c : (*file)->Bytes(entry)) sum += static_cast<unsigned char>(c);
    }
    return sum != SIZE_MAX;
  };
  for (size_t size = 0; size < good.size(); ++size) {
    dir.Write("x.safetensors", good.substr(0, size));
    EXPECT_FALSE(read_all()) << size << " bytes";
  }
  for (size_t i = 0; i < good.size(); ++i) {
    for (const int flip : {0x01, 0x02, 0x10, 0x80}) {
      std::string changed = good;
      changed[i] = static_cast<char>(changed[i] ^ flip);
      dir.Write("x.safetensors", changed);
      read_all();
    }
  }
}

}  // namespace
}  // namespace baton::model
