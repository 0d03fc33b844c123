#include "common/chat/model_chat.h"

#include <filesystem>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/gguf_bytes.h"
#include "tests/testing/model_dir.h"

namespace baton::chat {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using testing::ModelDir;

json::Value Json(const std::string& text) { return json::Parse(text, "test").value(); }

Conversation Hello() { return {.messages = Json(R"([{"role": "user", "content": "Hi"}])")}; }

std::string TextOf(const ModelDir& dir, const Conversation& conversation) {
  const auto chat = ModelChat::Load(dir.path());
  if (!chat.ok()) return chat.status().ToString();
  const auto rendered = chat->Render(conversation, absl::UnixEpoch());
  return rendered.ok() ? rendered->text : rendered.status().ToString();
}

std::string LoadError(const ModelDir& dir) {
  const auto chat = ModelChat::Load(dir.path());
  EXPECT_EQ(ErrorReason(chat.status()), "BAD_CHAT_TEMPLATE") << chat.status();
  return std::string(chat.status().message());
}

TEST(ModelChatTest, ReadsTheTemplateFile) {
  const ModelDir dir;
  dir.Write("chat_template.jinja",
            "file {{ bos_token }}{{ eos_token }}{{ messages[0].content }}\n");
  dir.Write("tokenizer_config.json",
            R"({"chat_template": "config", "bos_token": "<s>", "eos_token": {"content": "</s>"}})");
  EXPECT_EQ(TextOf(dir, Hello()), "file <s></s>Hi");
}

TEST(ModelChatTest, ReadsTheFieldOfTheConfig) {
  const ModelDir dir;
  dir.Write("tokenizer_config.json", R"({"chat_template": "config {{ tools is none }}"})");
  EXPECT_EQ(TextOf(dir, Hello()), "config True");
}

TEST(ModelChatTest, ReadsAGgufFile) {
  testing::GgufBytes bytes;
  bytes.Add("tokenizer.ggml.model", "gpt2")
      .Add("tokenizer.ggml.tokens", std::vector<std::string>{"<s>", "</s>"})
      .Add("tokenizer.ggml.token_type", std::vector<int32_t>{3, 3})
      .Add("tokenizer.ggml.bos_token_id", 0u)
      .Add("tokenizer.ggml.eos_token_id", 1u);
  const ModelDir dir;
  dir.Write("bare.gguf", bytes.Bytes());
  EXPECT_FALSE(ModelChat::Load(dir.PathOf("bare.gguf"))->has_template());
  bytes.Add("tokenizer.chat_template", "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}");
  dir.Write("model.gguf", bytes.Bytes());
  const auto chat = ModelChat::Load(dir.PathOf("model.gguf"));
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ(chat->bos_token(), "<s>");
  const auto rendered = chat->Render(Hello(), absl::UnixEpoch());
  EXPECT_EQ(rendered->text, "<s>Hi</s>");
  EXPECT_TRUE(rendered->starts_with_bos);
  dir.Write("broken.gguf", "GGUF");
  const absl::Status broken = ModelChat::Load(dir.PathOf("broken.gguf")).status();
  EXPECT_EQ(ErrorReason(broken), "BAD_CHAT_TEMPLATE") << broken;
  EXPECT_THAT(std::string(broken.message()), HasSubstr("broken.gguf: version"));
}

TEST(ModelChatTest, ToolsChooseTheirNamedTemplate) {
  Conversation with_tools = Hello();
  with_tools.tools = Json(R"([{"type": "function", "function": {"name": "f"}}])");
  const ModelDir named;
  named.Write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "tool_use", "template": "T{{ tools[0].function.name }}"},
                                    {"name": "default", "template": "D{{ tools }}"}]})");
  EXPECT_EQ(TextOf(named, Hello()), "DNone");
  EXPECT_EQ(TextOf(named, with_tools), "Tf");

  const ModelDir files;
  std::filesystem::create_directory(files.PathOf("additional_chat_templates"));
  files.Write("chat_template.jinja", "D");
  files.Write("additional_chat_templates/tool_use.jinja", "T");
  EXPECT_EQ(TextOf(files, Hello()), "D");
  EXPECT_EQ(TextOf(files, with_tools), "T");

  const ModelDir only_default;
  only_default.Write("tokenizer_config.json",
                     R"({"chat_template": [{"name": "default", "template": "D"}]})");
  EXPECT_EQ(TextOf(only_default, with_tools), "D");
}

TEST(ModelChatTest, PassesVariables) {
  const ModelDir dir;
  dir.Write("chat_template.jinja",
            "{{ add_generation_prompt }} {{ documents is none }} {{ thinking }} {{ bos_token }} "
            "{{ image_token }} {{ additional_special_tokens }} {{ pad_token is defined }}");
  dir.Write(
      "tokenizer_config.json",
      R"({"bos_token": "<s>", "pad_token": null, "extra_special_tokens": {"image_token": "<i>"},
                "additional_special_tokens": ["<a>", {"content": "<b>"}]})");
  Conversation conversation = Hello();
  conversation.add_generation_prompt = false;
  conversation.variables = Json(R"({"thinking": {"budget": 5}, "bos_token": "<t>"})");
  EXPECT_EQ(TextOf(dir, conversation), "False True {'budget': 5} <t> <i> ['<a>', '<b>'] False");
  for (const char* name : {"messages", "tools", "documents", "add_generation_prompt"}) {
    conversation.variables = Json("{\"" + std::string(name) + "\": 1}");
    const auto rendered = ModelChat::Load(dir.path())->Render(conversation, absl::UnixEpoch());
    EXPECT_EQ(ErrorReason(rendered.status()), "BAD_CHAT_VARIABLE") << name;
  }
}

TEST(ModelChatTest, SaysWhetherTheTextStartsWithTheBosToken) {
  const auto starts = [](const std::string& source, const std::string& config) {
    const ModelDir dir;
    dir.Write("chat_template.jinja", source);
    dir.Write("tokenizer_config.json", config);
    return ModelChat::Load(dir.path())->Render(Hello(), absl::UnixEpoch())->starts_with_bos;
  };
  const std::string config = R"({"bos_token": "<s>"})";
  EXPECT_TRUE(starts("{{ bos_token }}x", config));
  EXPECT_TRUE(starts("<s>x", config));
  EXPECT_FALSE(starts(" {{ bos_token }}x", config));
  EXPECT_FALSE(starts("x", config));
  EXPECT_FALSE(starts("{{ bos_token }}x", R"({"bos_token": null})"));
  EXPECT_FALSE(starts("{{ bos_token }}x", "{}"));
}

TEST(ModelChatTest, ParsesArgumentsUnlessTheTemplateNeedsTexts) {
  const auto text = [](const std::string& expression, const std::string& arguments) {
    const ModelDir dir;
    dir.Write("chat_template.jinja",
              "{% for m in messages if m.tool_calls %}{% for c in m.tool_calls %}"
              "{% set a = c.function.arguments %}{{ " +
                  expression + " }}{% endfor %}{% endfor %}");
    return TextOf(dir, {.messages = Json(R"([{"role": "assistant", "tool_calls": [
        {"function": {"name": "f", "arguments": )" +
                                         arguments + "}}]}]")});
  };
  const std::string given = R"("{\"n\":1}")";
  EXPECT_EQ(text("a | tojson", given), R"({"n": 1})");
  EXPECT_EQ(text("a.items() | map('join', '=') | join", given), "n=1");
  EXPECT_EQ(text("a + '!'", given), R"({"n":1}!)");
  EXPECT_EQ(text("a", given), R"({"n":1})");
  EXPECT_EQ(text("a if a is string else a | tojson", given), R"({"n": 1})");
  EXPECT_EQ(text("a | tojson", R"({"n": 1})"), R"({"n": 1})");
  EXPECT_EQ(text("a | tojson", R"("no {")"), R"("no {")");
  // The template would fail at a text, or leave it out.
  const std::string cut_off = R"("{\"n\":1, \"s\": \"x")";
  EXPECT_EQ(text("a.items() | map('join', '=') | join", cut_off), "n=1");
  EXPECT_EQ(text("a.items() | map('join', '=') | join", R"("no {")"), "");
  EXPECT_EQ(text("a | tojson if a is mapping", cut_off), R"({"n": 1})");
  EXPECT_EQ(text("a if a is string else a | tojson", cut_off), R"({"n":1, "s": "x)");
}

TEST(ModelChatTest, ReportsTheFormatOfToolCalls) {
  const ModelDir dir;
  dir.Write("tokenizer_config.json",
            R"({"chat_template": [{"name": "tool_use", "template": "{{ tools }}[TOOL_CALLS]"},
                                  {"name": "default", "template": "x"}]})");
  EXPECT_EQ(ModelChat::Load(dir.path())->tool_call_format(), ToolCallFormat::kMistral);
  dir.Write("chat_template.jinja", R"({{ tools }}<tool_call>{\"name\": )");
  EXPECT_EQ(ModelChat::Load(dir.path())->tool_call_format(), ToolCallFormat::kHermes);
  dir.Write("chat_template.jinja", R"(<tool_call>{\"name\": )");
  EXPECT_EQ(ModelChat::Load(dir.path())->tool_call_format(), ToolCallFormat::kUnsupported)
      << "the template leaves the tools out";
  dir.Write("chat_template.jinja", "{{ messages }}");
  EXPECT_EQ(ModelChat::Load(dir.path())->tool_call_format(), ToolCallFormat::kUnsupported);
}

TEST(ModelChatTest, KnowsTheFormatsOfPublishedTemplates) {
  const std::pair<const char*, ToolCallFormat> expected[] = {
      {"Qwen-Qwen2.5-7B-Instruct", ToolCallFormat::kHermes},
      {"Qwen-Qwen3-0.6B", ToolCallFormat::kHermes},
      {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use", ToolCallFormat::kHermes},
      {"meta-llama-Llama-3.1-8B-Instruct", ToolCallFormat::kLlama3},
      {"meta-llama-Llama-3.2-3B-Instruct", ToolCallFormat::kLlama3},
      {"mistralai-Mistral-Nemo-Instruct-2407", ToolCallFormat::kMistral},
      {"Mistral-Small-3.2-24B-Instruct-2506", ToolCallFormat::kMistral},
      {"Qwen3-Coder", ToolCallFormat::kQwenXml},
      {"Qwen3.5-4B", ToolCallFormat::kQwenXml},
      {"NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", ToolCallFormat::kQwenXml},
      {"StepFun3.5-Flash", ToolCallFormat::kQwenXml},
      {"ByteDance-Seed-OSS", ToolCallFormat::kQwenXml},
      {"GLM-4.6", ToolCallFormat::kGlm},
      {"Spark2.5", ToolCallFormat::kGlm},
      {"GLM-4.7-Flash", ToolCallFormat::kGlm},
      {"LFM2-8B-A1B", ToolCallFormat::kLfm2},
      {"LFM2.5-8B-A1B", ToolCallFormat::kLfm2},
      {"google-gemma-4-31B-it", ToolCallFormat::kGemma4},
      {"openai-gpt-oss-120b", ToolCallFormat::kHarmony},
      // They render calls and results, but no tools.
      {"llama-cpp-deepseek-r1", ToolCallFormat::kUnsupported},
      {"deepseek-ai-DeepSeek-V3.1", ToolCallFormat::kUnsupported},
      {"google-gemma-2-2b-it", ToolCallFormat::kUnsupported},
  };
  for (const auto& [name, format] : expected) {
    const std::string source =
        testing::ReadAll(std::string(BATON_CHAT_TEMPLATES "/") + name + ".jinja");
    ASSERT_FALSE(source.empty()) << name << ": scripts/setup fetches the templates";
    const ModelDir dir;
    dir.Write("chat_template.jinja", source);
    dir.Write("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
    const auto chat = ModelChat::Load(dir.path());
    ASSERT_TRUE(chat.ok()) << chat.status();
    EXPECT_EQ(chat->tool_call_format(), format) << name;
    const ToolCallSyntax* const syntax = chat->tool_call_syntax();
    const bool forces = !SyntaxesOf(format).empty() &&
                        // It gives each call an id, which a model makes up.
                        !absl::StrContains(name, "Mistral-Small-3.2") &&
                        // It has marks of its own around the calls.
                        !absl::StrContains(name, "Seed-OSS");
    ASSERT_EQ(syntax != nullptr, forces) << name;
    if (!forces) continue;
    const bool is_second = format == ToolCallFormat::kMistral ||
                           absl::StrContains(name, "GLM-4.7") || absl::StrContains(name, "Spark");
    EXPECT_EQ(syntax, &SyntaxesOf(format)[is_second ? 1 : 0]) << name;
  }
}

// Text of the conversation is split, unless split_special_tokens is false.
TEST(ModelChatTest, TellsTheConversationsTextFromTheTemplates) {
  const ModelDir dir;
  dir.Write("chat_template.jinja",
            "{{ bos_token }}{{ messages[0].content }}{{ tools[0] }}{{ mood }}</s>");
  dir.Write("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
  const auto chat = ModelChat::Load(dir.path());
  ASSERT_TRUE(chat.ok()) << chat.status();
  Conversation conversation = Hello();
  conversation.tools = Json(R"(["t"])");
  conversation.variables = Json(R"({"mood": "m"})");
  auto rendered = chat->Render(conversation, absl::UnixEpoch());
  ASSERT_TRUE(rendered.ok()) << rendered.status();
  EXPECT_EQ(rendered->text, "<s>Hitm</s>");
  EXPECT_EQ(rendered->split, (ByteRanges{{3, 7}}));
  EXPECT_TRUE(rendered->starts_with_bos);
  conversation.split_special_tokens = false;
  rendered = chat->Render(conversation, absl::UnixEpoch());
  EXPECT_EQ(rendered->text, "<s>Hitm</s>");
  EXPECT_TRUE(rendered->split.empty());
  // A conversation may spell the BOS token, but text that is split has none.
  conversation.variables = Json(R"({"bos_token": ""})");
  conversation.messages.items[0].items[1].scalar.text = "<s>";
  EXPECT_TRUE(chat->Render(conversation, absl::UnixEpoch())->starts_with_bos);
  conversation.split_special_tokens = true;
  EXPECT_FALSE(chat->Render(conversation, absl::UnixEpoch())->starts_with_bos);
  // A variable of the request is text of the conversation, too.
  conversation.variables = Json(R"({"bos_token": "<s>"})");
  EXPECT_FALSE(chat->Render(conversation, absl::UnixEpoch())->starts_with_bos);
}

TEST(ModelChatTest, ATemplateHasNoByteOrderMark) {
  const ModelDir file;
  file.Write("chat_template.jinja",
             "\xEF\xBB\xBF"
             "file {{ messages[0].content }}");
  EXPECT_EQ(TextOf(file, Hello()), "file Hi");
  const ModelDir config;
  config.Write("tokenizer_config.json",
               "\xEF\xBB\xBF{\"chat_template\": \"\xEF\xBB\xBF"
               "config\"}");
  EXPECT_EQ(TextOf(config, Hello()), "config");
}

// Contents may be null or absent, for example beside tool calls.
TEST(ModelChatTest, MissingContentsAreEmptyUnlessTheTemplateTakesNull) {
  const auto text = [](const char* source) {
    const ModelDir dir;
    dir.Write("chat_template.jinja", source);
    return TextOf(dir, {.messages = Json(R"([
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f"}}]},
        {"role": "assistant"}])")});
  };
  EXPECT_EQ(text("{% for m in messages %}[{{ m.content }}]{% endfor %}"), "[Hi][][]");
  EXPECT_EQ(text("{% for m in messages %}[{{ m.content + '.' }}]{% endfor %}"), "[Hi.][.][.]");
  EXPECT_EQ(text("None {{ messages | map(attribute='content') | list | tojson }}"),
            "None [\"Hi\", \"\", \"\"]");
  EXPECT_EQ(text("{% for m in messages %}[{{ 'call' if m.content is none else m.content }}]"
                 "{% endfor %}"),
            "[Hi][call][call]");
  EXPECT_EQ(text("{% for m in messages %}{{ raise_exception('tools') if m.role == 'tool' }}"
                 "[{{ m.content }}]{% endfor %}"),
            "[Hi][][]");
}

// This renders the demo model's template without ModelChat, which may replace null.
TEST(ModelChatTest, TheDemoModelsTemplateLeavesOutNull) {
  const auto demo =
      ChatTemplate::Parse(testing::ReadAll(BATON_DEMO_MODEL "/chat_template.jinja"), "demo");
  ASSERT_TRUE(demo.ok()) << demo.status();
  const auto text = demo->Render(
      Json(
          R"({"messages": [{"content": "a"}, {"content": null}, {"content": ""}, {"role": "b"}]})"),
      json::Value(), absl::UnixEpoch());
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->text, "a\n");
}

TEST(ModelChatTest, TheSyntaxOfCallsIsWhatTheTemplateWrites) {
  const auto opening = [](const std::string& call) -> std::string {
    const ModelDir dir;
    dir.Write("chat_template.jinja",
              "{{ tools | tojson if tools }}{% for m in messages %}{{ m.content }}"
              "{% for c in m.tool_calls or [] %}" +
                  call + "{% endfor %}{% endfor %}");
    const auto chat = ModelChat::Load(dir.path());
    EXPECT_TRUE(chat.ok()) << chat.status();
    if (chat->tool_call_format() == ToolCallFormat::kUnsupported) return "unsupported";
    const ToolCallSyntax* const syntax = chat->tool_call_syntax();
    return syntax == nullptr ? "unknown" : absl::StrCat(syntax->opening, syntax->before_name);
  };
  EXPECT_EQ(opening("<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": "
                    "{{ c.function.arguments | tojson }}}\n</tool_call>"),
            "<tool_call>\n{\"name\": \"");
  EXPECT_EQ(opening("<tool_call>{\"name\": \"{{ c.function.name }}\"}</tool_call>"), "unknown");
  EXPECT_EQ(opening("[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}"),
            "[TOOL_CALLS]");
  EXPECT_EQ(opening("[TOOL_CALLS]{{ c.function.name }}[CALL_ID]{{ c.id }}[ARGS]"
                    "{{ c.function.arguments | tojson }}"),
            "unknown");
  EXPECT_EQ(opening("{{ c.function.name }}"), "unsupported");
}

TEST(ModelChatTest, ADirectoryMayHaveNoTemplate) {
  for (const char* config : {"", "{}", R"({"chat_template": null, "bos_token": "<s>"})"}) {
    const ModelDir dir;
    if (*config != '\0') dir.Write("tokenizer_config.json", config);
    const auto chat = ModelChat::Load(dir.path());
    ASSERT_TRUE(chat.ok()) << chat.status();
    EXPECT_FALSE(chat->has_template());
    EXPECT_EQ(ErrorReason(chat->Render(Hello(), absl::UnixEpoch()).status()), "NO_CHAT_TEMPLATE");
  }
}

TEST(ModelChatTest, RolesAreOpenAisAndThoseThatATemplateNames) {
  const ModelDir dir;
  dir.Write("tokenizer_config.json",
            R"({"chat_template": [{"name": "default", "template": "{{ 'ipython' }}"},
                                  {"name": "tool_use", "template": "{{ \"critic\" }} poet"}]})");
  const auto chat = ModelChat::Load(dir.path());
  ASSERT_TRUE(chat.ok()) << chat.status();
  for (const char* role :
       {"system", "developer", "user", "assistant", "tool", "function", "ipython", "critic"}) {
    EXPECT_TRUE(chat->KnowsRole(role)) << role;
  }
  for (const char* role : {"poet", "", "User", "ipytho"})
    EXPECT_FALSE(chat->KnowsRole(role)) << role;
}

TEST(ModelChatTest, ABadTemplateFailsAtLoad) {
  const ModelDir file;
  file.Write("chat_template.jinja", "\n{% if %}");
  file.Write("tokenizer_config.json", R"({"chat_template": "good"})");
  EXPECT_THAT(LoadError(file),
              EndsWith("/chat_template.jinja:2: found the end of the tag, expected "
                       "an expression"));
  const ModelDir tools;
  tools.Write("tokenizer_config.json",
              R"({"chat_template": [{"name": "default", "template": "good"},
                                    {"name": "tool_use", "template": "{{"}]})");
  EXPECT_THAT(LoadError(tools), HasSubstr("tokenizer_config.json: chat_template \"tool_use\":1: "));
  for (const char* config : {"{", "{\"chat_template\": 5}", "{\"chat_template\": []}",
                             R"({"chat_template": [{"name": "tool_use", "template": "x"}]})",
                             R"({"chat_template": [{"name": "default", "template": 5}]})"}) {
    const ModelDir dir;
    dir.Write("tokenizer_config.json", config);
    EXPECT_THAT(LoadError(dir), HasSubstr("tokenizer_config.json")) << config;
  }
  const ModelDir folder;
  std::filesystem::create_directory(folder.PathOf("chat_template.jinja"));
  EXPECT_THAT(LoadError(folder), HasSubstr("found no regular file"));
  const ModelDir large;
  large.Write("chat_template.jinja", std::string(kMaxSourceBytes + 1, ' '));
  EXPECT_THAT(LoadError(large), HasSubstr("expected at most"));
}

}  // namespace
}  // namespace baton::chat
