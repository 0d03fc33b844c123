#include "router/score/rerank_prompt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/base/error.h"
#include "router/score/item_prompts.h"
#include "tests/testing/model_dir.h"
#include "tests/testing/tiny_tokenizer.h"

namespace baton::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

RerankRequest TwoDocuments() {
  RerankRequest request;
  request.query = "a <|end|> query";
  request.documents = {"first", "second"};
  return request;
}

TEST(RerankPromptTest, TheKnownTemplateIsThatOfQwen3Reranker) {
  const auto prompt = RerankPrompt::Make("qwen3", "yes,no");
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  const ScoreCall::Settings settings = prompt->SettingsFor(TwoDocuments());
  EXPECT_EQ(settings.request.prefix(),
            "<|im_start|>system\nJudge whether the Document meets the requirements based on the "
            "Query and the Instruct provided. Note that the answer can only be \"yes\" or "
            "\"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a web search query, retrieve "
            "relevant passages that answer the query\n<Query>: a <|end|> query\n<Document>: ");
  EXPECT_THAT(settings.request.items(),
              ElementsAre("first<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
                          "second<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"));
  EXPECT_THAT(settings.request.labels(), ElementsAre("yes", "no"));
  EXPECT_FALSE(settings.request.add_special_tokens());
  EXPECT_FALSE(settings.embed.has_value());
  ASSERT_EQ(settings.item_splits.size(), 2u);
  EXPECT_THAT(settings.item_splits[1], ElementsAre(ByteRange{0, 6}));
  RerankRequest other = TwoDocuments();
  other.instruction = "Find code";
  EXPECT_THAT(prompt->SettingsFor(other).request.prefix(), HasSubstr("<Instruct>: Find code\n"));
}

// The template's special tokens are tokens, the client's stay text.
TEST(RerankPromptTest, ClientsTextGainsNoSpecialToken) {
  testing::ModelDir dir;
  dir.Write("prompt", "{query}<|end|>{document}<|end|>");
  const auto prompt = RerankPrompt::Make(dir.PathOf("prompt"), "y,n");
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  RerankRequest request;
  request.query = "<|end|>";
  request.documents = {"<|end|>{query}"};
  const ScoreCall::Settings settings = prompt->SettingsFor(request);
  const auto tokenizer = tokenizer::Tokenizer::FromJson(testing::TinyTokenizerJson(), "tiny");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto prompts =
      ItemPrompts::Make(**tokenizer, {settings.request.prefix(), settings.prefix_split}, {"y"},
                        false, {.max_model_len = 100, .max_prompt_bytes = 100});
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  const auto item = prompts->Make({settings.request.items(0), settings.item_splits[0]});
  ASSERT_TRUE(item.ok()) << item.status();
  std::vector<int32_t> expected = testing::Ids("<|end|>");
  expected.push_back(testing::kEndToken);
  for (const int32_t id : testing::Ids("<|end|>{query}")) expected.push_back(id);
  expected.push_back(testing::kEndToken);
  EXPECT_EQ(item->tokens, expected);
  EXPECT_THAT(item->labels, ElementsAre(testing::Ids("y")));
  EXPECT_EQ(item->prefix_tokens, 8);
}

TEST(RerankPromptTest, TemplatesAndLabelsAreChecked) {
  testing::ModelDir dir;
  const auto reason = [&](const std::string& text, const std::string& labels = "a,b") {
    dir.Write("prompt", text);
    return ErrorReason(RerankPrompt::Make(dir.PathOf("prompt"), labels).status());
  };
  EXPECT_EQ(reason("{query} {document}"), "");
  EXPECT_EQ(reason("{document}"), "BAD_RERANK_TEMPLATE");
  EXPECT_EQ(reason("{query}"), "BAD_RERANK_TEMPLATE");
  EXPECT_EQ(reason("{query} {document} {document}"), "BAD_RERANK_TEMPLATE");
  EXPECT_EQ(reason("{document} {query}"), "BAD_RERANK_TEMPLATE");
  EXPECT_EQ(reason("{query} {document} {instruction}"), "BAD_RERANK_TEMPLATE");
  for (const char* labels : {"", "a", "a,", ",b", "a,a", "a,b,c"}) {
    EXPECT_EQ(reason("{query} {document}", labels), "BAD_RERANK_TEMPLATE") << labels;
  }
  EXPECT_TRUE(absl::IsNotFound(RerankPrompt::Make(dir.PathOf("none"), "a,b").status()));
}

}  // namespace
}  // namespace baton::router
