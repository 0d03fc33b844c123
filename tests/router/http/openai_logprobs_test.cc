#include "router/http/openai_logprobs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/utf8.h"
#include "common/tokenizer/byte_level.h"
#include "router/http/openai_response.h"
#include "router/request/answer.h"
#include "router/request/response_sink.h"
#include "tests/testing/seed.h"
#include "tests/testing/tiny_tokenizer.h"

namespace baton::router {
namespace {

using ::baton::testing::Ids;
using ::baton::testing::kEndToken;
using ::baton::testing::kTinyVocabSize;
using DecodeResponse = internal::v1::DecodeResponse;
using Json = nlohmann::json;

constexpr int32_t kIdWithoutToken = 5000;
constexpr int32_t kAddedDay = 300;  // 日 again
// Tokens of several bytes, from kTinyVocabSize on.
const char* const kPartWords[] = {"a\xC3", "\xA9.", "\xF0\x9F",    "\x98\x80",    "\xC3\xA9",
                                  "b. c",  "日",    "bytes:\\xc3", "token_id:195"};
enum PartWord : int32_t {
  kAC3 = kTinyVocabSize,
  kA9Dot,
  kF09F,
  k9880,
  kEAcute,
  kBDotC,
  kDay,
  kLooksLikeBytes,
  kLooksLikeId
};

std::unique_ptr<tokenizer::Tokenizer> TokenizerOfParts() {
  Json json = Json::parse(testing::TinyTokenizerJson());
  int32_t id = kTinyVocabSize;
  for (const char* word : kPartWords) json["model"]["vocab"][tokenizer::BytesToNames(word)] = id++;
  Json added = json["added_tokens"][0];
  added.update({{"id", kAddedDay}, {"content", "日"}, {"special", false}});
  json["added_tokens"].push_back(added);
  auto tokenizer = tokenizer::Tokenizer::FromJson(json.dump(), "test.json");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

// What a client has of a choice, whole or streamed.
struct ReceivedLists {
  std::string text;
  Json tokens = Json::array(), token_logprobs = Json::array(), top_logprobs = Json::array();
  Json text_offset = Json::array();
  Json content = Json::array();  // for chat

  void Add(const Json& choice) {
    if (choice.contains("text")) text += choice["text"].get<std::string>();
    const Json& lists = choice["logprobs"];
    if (lists.is_null()) return;
    for (auto* list : {&tokens, &token_logprobs, &top_logprobs, &text_offset, &content}) {
      const char* name = list == &tokens           ? "tokens"
                         : list == &token_logprobs ? "token_logprobs"
                         : list == &top_logprobs   ? "top_logprobs"
                         : list == &text_offset    ? "text_offset"
                                                   : "content";
      if (lists.contains(name)) list->insert(list->end(), lists[name].begin(), lists[name].end());
    }
  }
  Json All() const { return {text, tokens, token_logprobs, top_logprobs, text_offset, content}; }
};

class OpenAiLogprobsTest : public ::testing::Test {
 protected:
  OpenAiLogprobsTest() : tokenizer_(TokenizerOfParts()) {
    prepared_.decode.set_max_tokens(1000);
    prepared_.decode.add_stop_token_ids(kEndToken);
    options_.logprobs = true;
  }

  // The deltas of an answer whose tokens arrive in messages of these sizes.
  void Generate(const std::vector<int32_t>& ids, const std::vector<size_t>& sizes,
                DecodeResponse::Finish finish) {
    Answer answer(*tokenizer_, prepared_);
    Answer::Cursor cursor = answer.AtStart();
    deltas_.clear();
    size_t at = 0;
    for (const size_t size : sizes) {
      DecodeResponse message;
      for (size_t i = at; i < at + size; ++i) {
        message.add_token_ids(ids[i]);
        v1::TokenLogprobs* token = message.add_logprobs();
        token->set_token_id(ids[i]);
        token->set_logprob(-1 - static_cast<float>(i));
        for (size_t k = 0; k < tops_.size(); ++k) {
          token->add_top()->set_token_id(tops_[k]);
          token->mutable_top(static_cast<int>(k))
              ->set_logprob(tops_[k] == ids[i] ? token->logprob()
                                               : -0.25f * static_cast<float>(k + 1));
        }
      }
      at += size;
      if (at == ids.size()) message.set_finish(finish);
      const auto delta = answer.Take(message, &cursor);
      ASSERT_TRUE(delta.ok()) << delta.status();
      if (*delta) deltas_.push_back(**delta);
    }
    generated_ = answer.generated_tokens();
  }
  void Generate(const std::vector<int32_t>& ids,
                DecodeResponse::Finish finish = DecodeResponse::FINISH_LENGTH) {
    Generate(ids, std::vector<size_t>(ids.size(), 1), finish);
  }

  ReceivedLists Streamed(bool chat = false) {
    options_.chat = chat;
    OpenAiResponse format(options_, *tokenizer_);
    format.SetEcho(echo_);
    ReceivedLists received;
    for (const v1::GenerateResponse& delta : deltas_) {
      const std::string event = format.Chunk(delta);
      if (event.empty()) continue;
      const Json choice = Json::parse(event.substr(6))["choices"][0];
      received.Add(choice);
      if (chat) received.text += choice["delta"].value("content", "");
    }
    return received;
  }
  ReceivedLists Whole(bool chat = false) {
    options_.chat = chat;
    OpenAiResponse format(options_, *tokenizer_);
    format.SetEcho(echo_);
    for (const v1::GenerateResponse& delta : deltas_) format.Add(delta);
    const Json choice = Json::parse(format.Whole({}))["choices"][0];
    ReceivedLists received;
    received.Add(choice);
    if (chat) received.text = choice["message"]["content"];
    return received;
  }

  std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
  PreparedRequest prepared_;
  OpenAiResponse::Options options_;
  std::vector<int32_t> tops_;
  std::vector<EchoedPrompt> echo_;
  std::vector<v1::GenerateResponse> deltas_;
  int generated_ = 0;
};

TEST_F(OpenAiLogprobsTest, OffsetsAreThoseOfTheCharacters) {
  const std::string prompt = "é😀z";
  echo_ = {EchoText(*tokenizer_, prompt, Ids(prompt), /*add_special_tokens=*/true)};
  Generate({kAC3, 0xA9, 'x', kF09F, k9880});
  v1::GenerateResponse& first = deltas_.front();
  for (size_t i = 1; i < Ids(prompt).size(); ++i) {
    first.add_prompt_logprobs()->set_token_id(Ids(prompt)[i]);
  }
  const ReceivedLists whole = Whole();
  EXPECT_EQ(whole.text, "é😀zaéx😀");
  EXPECT_EQ(whole.text_offset, Json({0, 0, 1, 1, 1, 1, 2, 3, 4, 5, 6, 6}));
  EXPECT_EQ(whole.tokens, Json({"bytes:\\xc3", "bytes:\\xa9", "bytes:\\xf0", "bytes:\\x9f",
                                "bytes:\\x98", "bytes:\\x80", "z", "bytes:a\\xc3", "bytes:\\xa9",
                                "x", "bytes:\\xf0\\x9f", "bytes:\\x98\\x80"}));
  EXPECT_EQ(Streamed().All(), whole.All());
}

TEST_F(OpenAiLogprobsTest, BytesAreThoseOfTheToken) {
  Generate({kF09F, k9880, 'z', kEndToken}, DecodeResponse::FINISH_STOP);
  const ReceivedLists whole = Whole(/*chat=*/true);
  ASSERT_EQ(whole.content.size(), 4u);
  EXPECT_EQ(whole.content[0]["token"], "bytes:\\xf0\\x9f");
  EXPECT_EQ(whole.content[0]["bytes"], Json({0xF0, 0x9F}));
  EXPECT_EQ(whole.content[1]["bytes"], Json({0x98, 0x80}));
  EXPECT_EQ(whole.content[2]["bytes"], Json({'z'}));
  EXPECT_EQ(whole.content[3]["token"], "<|end|>");
  EXPECT_EQ(whole.content[3]["bytes"], nullptr) << "it leaves none in the text";
}

TEST_F(OpenAiLogprobsTest, ShownSpecialTokensHaveBytes) {
  prepared_.decode.clear_stop_token_ids();
  prepared_.shown_special_tokens = options_.shown_special_tokens = {kEndToken};
  Generate({'a', kEndToken, 'b'});
  const ReceivedLists whole = Whole(/*chat=*/true);
  EXPECT_EQ(whole.text, "a<|end|>b");
  EXPECT_EQ(whole.content[1]["bytes"].size(), 7u);
}

TEST_F(OpenAiLogprobsTest, NoTwoTokensShareAKey) {
  // Two parts of characters, two tokens with one text, two ids without a token, and a token whose
  // text is the name of a part.
  tops_ = {kLooksLikeBytes, 0xC3, 0xA9, kDay, kAddedDay, kIdWithoutToken, kIdWithoutToken + 1};
  Generate({kAddedDay, 'a'});
  const ReceivedLists whole = Whole();
  EXPECT_EQ(whole.top_logprobs[0], Json({{"bytes:\\xc3", -0.25},
                                         {absl::StrCat("token_id:", 0xC3), -0.5},
                                         {"bytes:\\xa9", -0.75},
                                         {absl::StrCat("token_id:", kDay), -1.0},
                                         {"日", -1.0},
                                         {"token_id:5000", -1.5},
                                         {"token_id:5001", -1.75}}));
  tops_ = {kLooksLikeId, kLooksLikeBytes, 0xC3};
  Generate({'a'});
  EXPECT_EQ(
      Whole().top_logprobs[0],
      Json(
          {{"token_id:195", -0.25}, {"bytes:\\xc3", -0.5}, {"token_id:195'", -0.75}, {"a", -1.0}}));
}

TEST_F(OpenAiLogprobsTest, TheChosenTokenIsAmongTheTop) {
  tops_ = {'x', 'y'};
  Generate({'y', 'a'});
  const ReceivedLists whole = Whole();
  EXPECT_EQ(whole.top_logprobs[0], Json({{"x", -0.25}, {"y", -1.0}}));
  EXPECT_EQ(whole.top_logprobs[1], Json({{"x", -0.25}, {"y", -0.5}, {"a", -2.0}}));
}

TEST_F(OpenAiLogprobsTest, WhatAStopStringCutsIsNotListed) {
  prepared_.stops = {"END"};
  Generate(Ids("abEND"));
  for (const bool chat : {false, true}) {
    EXPECT_EQ(Whole(chat).All(), Streamed(chat).All());
    EXPECT_EQ(Whole(chat).text, "ab");
  }
  EXPECT_EQ(Whole().tokens, Json({"a", "b"}));
  EXPECT_EQ(Whole().token_logprobs, Json({-1.0, -2.0}));
  EXPECT_EQ(Whole().top_logprobs.size(), 2u);
  EXPECT_EQ(Whole().text_offset, Json({0, 1}));
  EXPECT_EQ(Whole(/*chat=*/true).content.size(), 2u);
  EXPECT_EQ(generated_, 5) << "all are counted";
}

TEST_F(OpenAiLogprobsTest, ATokenInWhichAStopStringBeginsIsListed) {
  prepared_.stops = {". c"};
  Generate({'a', kBDotC});
  EXPECT_EQ(Whole().text, "ab");
  EXPECT_EQ(Whole().tokens, Json({"a", "b. c"}));
  EXPECT_EQ(Streamed().All(), Whole().All());
  prepared_.stops = {"b. c"};
  Generate({'a', kBDotC});
  EXPECT_EQ(Whole().tokens, Json({"a"}));
  Generate({kBDotC});
  EXPECT_EQ(Whole().tokens, Json::array()) << "an answer without text";
  EXPECT_EQ(Whole(/*chat=*/true).content, Json::array());
}

TEST_F(OpenAiLogprobsTest, AStopTokenWithTextIsCutToo) {
  prepared_.decode.add_stop_token_ids('z');
  Generate({'a', 'z'}, DecodeResponse::FINISH_STOP);
  EXPECT_EQ(Whole().text, "a");
  EXPECT_EQ(Whole().tokens, Json({"a"}));
  EXPECT_EQ(Streamed().All(), Whole().All());
}

TEST_F(OpenAiLogprobsTest, EntriesComeWithTheirText) {
  prepared_.stops = {"ENDS"};
  Generate(Ids("aENx"));
  OpenAiResponse format(options_, *tokenizer_);
  std::vector<std::string> events;
  for (const v1::GenerateResponse& delta : deltas_) events.push_back(format.Chunk(delta));
  ASSERT_EQ(events.size(), 4u);
  EXPECT_TRUE(absl::StrContains(events[0], R"("tokens":["a"])"));
  EXPECT_EQ(events[1], "");
  EXPECT_EQ(events[2], "");
  EXPECT_TRUE(absl::StrContains(events[3], R"("tokens":["E","N","x"])"));
}

TEST_F(OpenAiLogprobsTest, AnEchoedTextHasTheSpecialTokensThatItNames) {
  const std::string text = "a<|end|>b";
  const EchoedPrompt named =
      EchoText(*tokenizer_, text, std::vector<int32_t>{'a', kEndToken, 'b'}, true);
  EXPECT_EQ(named.text, text);
  EXPECT_EQ(named.offsets, (std::vector<int64_t>{0, 1, 8}));
  const EchoedPrompt ids = EchoIds(*tokenizer_, std::vector<int32_t>{'a', kEndToken, 'b'}, true);
  EXPECT_EQ(ids.text, "ab");
  EXPECT_EQ(ids.offsets, (std::vector<int64_t>{0, 1, 1}));
  EXPECT_FALSE(EchoIds(*tokenizer_, std::vector<int32_t>{'a'}, false).first_token.has_value());
}

TEST_F(OpenAiLogprobsTest, AnEchoedTextLeavesOutWhatTheTokenizerAddsAndIsAsItIsNormalised) {
  Json json = Json::parse(testing::TinyTokenizerJson());
  json["normalizer"] = {{"type", "Lowercase"}};
  json["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<|end|>"}, {"type_id", 0}}}},
        {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"pair", Json::array()},
      {"special_tokens",
       {{"<|end|>", {{"id", "<|end|>"}, {"ids", {kEndToken}}, {"tokens", {"<|end|>"}}}}}}};
  const auto tokenizer = tokenizer::Tokenizer::FromJson(json.dump(), "test.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const EchoedPrompt prompt =
      EchoText(**tokenizer, "\xC3\x89z", *(*tokenizer)->Encode("\xC3\x89z", true), true);
  EXPECT_EQ(prompt.text, "éz");
  EXPECT_EQ(prompt.first_token, kEndToken);
  EXPECT_EQ(prompt.offsets, (std::vector<int64_t>{0, 0, 0, 1}));
}

// Answers of any tokens, with any stop strings and any sizes of messages.
class RandomAnswers : public OpenAiLogprobsTest {
 protected:
  int32_t PickToken() {
    const int32_t picks[] = {'a',
                             'b',
                             '.',
                             ' ',
                             'c',
                             0xC3,
                             0xA9,
                             0xF0,
                             0x9F,
                             0x98,
                             0x80,
                             0xE2,
                             0xFF,
                             kEndToken,
                             kIdWithoutToken,
                             kAC3,
                             kA9Dot,
                             kF09F,
                             k9880,
                             kEAcute,
                             kBDotC,
                             kDay,
                             kLooksLikeBytes};
    return picks[random_() % std::size(picks)];
  }
  void GenerateRandom() {
    prepared_.decode.clear_stop_token_ids();
    const bool stop_token = random_() % 4 == 0;
    const int32_t stop_id = random_() % 2 == 0 ? 'q' : kEndToken;
    prepared_.decode.add_stop_token_ids(stop_token ? stop_id : 'q');
    prepared_.stops.clear();
    for (const char* stop : {"é", "b. c", ".", "aa", "😀", "\uFFFD", "a.b"}) {
      if (random_() % 4 == 0) prepared_.stops.push_back(stop);
    }
    tops_.clear();
    std::set<int32_t> distinct;
    while (distinct.size() < 4) distinct.insert(PickToken());
    tops_.assign(distinct.begin(), distinct.end());
    ids_.clear();
    for (size_t left = random_() % 16; left > 0; --left) ids_.push_back(PickToken());
    ids_.push_back(stop_token ? stop_id : 'a');
    std::vector<size_t> sizes;
    for (size_t at = 0; at < ids_.size(); at += sizes.back()) {
      sizes.push_back(std::min<size_t>(1 + random_() % 3, ids_.size() - at));
    }
    Generate(ids_, sizes, stop_token ? DecodeResponse::FINISH_STOP : DecodeResponse::FINISH_LENGTH);
  }
  bool HasText(int32_t id) const { return id != kEndToken && id != kIdWithoutToken; }
  // The bytes of the first `count` tokens.
  std::string Bytes(size_t count) const {
    std::string bytes;
    for (size_t i = 0; i < count; ++i) {
      if (HasText(ids_[i])) bytes += *tokenizer_->BytesOf(ids_[i]);
    }
    return bytes;
  }
  int64_t Characters(const std::string& bytes) const {
    return CountCharacters(*tokenizer_->Decode(Ids(bytes), false));
  }
  void CheckCompletion(const ReceivedLists& received);
  void CheckChat(const ReceivedLists& received);

  std::mt19937_64 random_;
  std::vector<int32_t> ids_;
};

void RandomAnswers::CheckCompletion(const ReceivedLists& received) {
  const int64_t length = CountCharacters(received.text);
  const size_t count = received.tokens.size();
  ASSERT_EQ(received.token_logprobs.size(), count);
  ASSERT_EQ(received.top_logprobs.size(), count);
  ASSERT_EQ(received.text_offset.size(), count);
  ASSERT_LE(count, static_cast<size_t>(generated_));
  int64_t last = 0;
  for (size_t i = 0; i < static_cast<size_t>(generated_); ++i) {
    const bool listed = i < count;
    if (HasText(ids_[i])) {
      // The character that has the token's first byte.
      const int64_t begin = Characters(Bytes(i) + tokenizer_->BytesOf(ids_[i])->substr(0, 1)) - 1;
      EXPECT_EQ(listed, begin < length) << "token " << i;
      if (listed) {
        EXPECT_EQ(received.text_offset[i], begin) << "token " << i;
      }
    }
    if (!listed) continue;
    const int64_t offset = received.text_offset[i];
    EXPECT_GE(offset, last);
    EXPECT_LE(offset, length);
    last = offset;
    EXPECT_EQ(received.token_logprobs[i], -1.0 - static_cast<double>(i));
    std::set<int32_t> named(tops_.begin(), tops_.end());
    named.insert(ids_[i]);
    EXPECT_EQ(received.top_logprobs[i].size(), named.size()) << received.top_logprobs[i];
    EXPECT_EQ(received.top_logprobs[i][received.tokens[i].get<std::string>()],
              received.token_logprobs[i]);
  }
}

void RandomAnswers::CheckChat(const ReceivedLists& received) {
  std::string bytes;
  size_t with_text = 0;
  for (const Json& entry : received.content) {
    if (entry["bytes"].is_null()) continue;
    ++with_text;
    for (const Json& byte : entry["bytes"]) bytes.push_back(static_cast<char>(byte.get<int>()));
  }
  const std::string decoded = *tokenizer_->Decode(Ids(bytes), false);
  if (IsUtf8(bytes)) {
    EXPECT_EQ(decoded, bytes);
  }
  const bool cut = decoded != received.text;
  EXPECT_TRUE(absl::StartsWith(decoded, received.text)) << decoded << " and " << received.text;
  if (cut) {
    EXPECT_TRUE(with_text > 0 && !deltas_.back().matched_stop().empty());
  }
}

TEST_F(RandomAnswers, ListsDescribeTheText) {
  random_.seed(testing::TestSeed());
  for (int round = 0; round < 500 && !HasFailure(); ++round) {
    GenerateRandom();
    SCOPED_TRACE(absl::StrCat("round ", round, ": ", ::testing::PrintToString(ids_), " stops ",
                              ::testing::PrintToString(prepared_.stops)));
    for (const bool chat : {false, true}) EXPECT_EQ(Streamed(chat).All(), Whole(chat).All());
    CheckCompletion(Whole());
    CheckChat(Whole(/*chat=*/true));
  }
}

}  // namespace
}  // namespace baton::router
