#include "tests/testing/tiny_tokenizer.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace baton::testing {
namespace {

// The printable stand-in of a byte in byte-level vocabularies.
int CodePointOf(int byte) {
  const auto printable = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
  };
  if (printable(byte)) return byte;
  int code_point = 256;
  for (int b = 0; b < byte; ++b) code_point += printable(b) ? 0 : 1;
  return code_point;
}

}  // namespace

std::string TinyTokenizerJson(const std::vector<std::string>& words) {
  std::vector<std::string> vocab;
  for (int byte = 0; byte < 256; ++byte) {
    vocab.push_back(
        absl::StrCat("\"\\u", absl::Hex(CodePointOf(byte), absl::kZeroPad4), "\":", byte));
  }
  for (size_t i = 0; i < words.size(); ++i) {
    vocab.push_back(absl::StrCat("\"", words[i], "\":", kTinyVocabSize + static_cast<int>(i)));
  }
  return absl::StrCat(
      R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":256,)",
      R"("content":"<|end|>","single_word":false,"lstrip":false,"rstrip":false,)",
      R"("normalized":false,"special":true}],"normalizer":null,"pre_tokenizer":{)",
      R"("type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},)",
      R"("post_processor":null,"decoder":{"type":"ByteLevel","add_prefix_space":true,)",
      R"("trim_offsets":true,"use_regex":true},"model":{"type":"BPE","dropout":null,)",
      R"("unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,)",
      R"("fuse_unk":false,"byte_fallback":false,"ignore_merges":false,"vocab":{)",
      absl::StrJoin(vocab, ","), R"(},"merges":[]}})");
}

void WriteTinyTokenizer(const std::string& dir) {
  std::filesystem::create_directories(dir);
  std::ofstream(dir + "/tokenizer.json") << TinyTokenizerJson();
}

std::vector<int32_t> Ids(const std::string& text) {
  std::vector<int32_t> ids;
  for (unsigned char byte : text) ids.push_back(byte);
  return ids;
}

}  // namespace baton::testing
