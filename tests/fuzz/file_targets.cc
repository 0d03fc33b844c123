// Parsers of files: models come from anywhere.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/utf8.h"
#include "common/chat/chat_template.h"
#include "common/chat/tool_calls.h"
#include "common/gguf/documents.h"
#include "common/gguf/file.h"
#include "common/json/json.h"
#include "common/json/scanner.h"
#include "common/model/architecture.h"
#include "common/model/gguf_blocks.h"
#include "common/model/gguf_config.h"
#include "common/model/gguf_tensors.h"
#include "common/model/model_config.h"
#include "common/model/safetensors.h"
#include "common/security/api_keys.h"
#include "common/security/shared_secret.h"
#include "common/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/testing/gguf_bytes.h"
#include "tests/testing/model_dir.h"
#include "tests/testing/tiny_tokenizer.h"

namespace baton::fuzz {
namespace {

void FuzzJson(absl::string_view data) {
  const absl::StatusOr<json::Value> value = json::Parse(data, "input");
  if (!value.ok()) return;
  BATON_CHECK(!json::CanonicalText(*value).empty());
}

// A file without a directory, so that a run leaves nothing behind.
class MemoryFile {
 public:
  explicit MemoryFile(absl::string_view data) : fd_(memfd_create("fuzz", MFD_CLOEXEC)) {
    BATON_CHECK(fd_ >= 0);
    BATON_CHECK(write(fd_, data.data(), data.size()) == static_cast<ssize_t>(data.size()));
  }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return absl::StrCat("/proc/self/fd/", fd_); }

 private:
  const int fd_;
};

void FuzzSafetensors(absl::string_view data) {
  const MemoryFile memory(data);
  const auto file = model::OpenSafetensors(memory.path());
  if (!file.ok()) return;
  size_t bytes = 0;
  for (const model::TensorEntry& entry : (*file)->tensors()) {
    const absl::string_view tensor = (*file)->Bytes(entry);
    // Reads both ends: a span that leaves the file is a fault.
    if (!tensor.empty()) bytes += static_cast<unsigned char>(tensor.front() ^ tensor.back()) & 1;
    bytes += tensor.size();
  }
  BATON_CHECK(bytes <= 2 * data.size());
}

// Of a matrix that can be super-blocks.
void ReadLastRow(const model::TensorFile& file, const model::TensorEntry& entry) {
  if (entry.blocks == nullptr || entry.blocks->split == nullptr || entry.shape.size() != 2) return;
  const auto matrix = model::SuperBlocksOf(file, entry);
  if (!matrix.ok()) return;
  const auto cols = static_cast<size_t>(matrix->cols);
  std::vector<uint8_t> values(cols);
  std::vector<int8_t> factors(cols / 16);
  std::vector<uint16_t> scales(cols / static_cast<size_t>(matrix->super_columns));
  std::vector<uint16_t> leasts(scales.size());
  matrix->read(matrix->rows - 1, {values.data(), factors.data(), scales.data(), leasts.data()});
  for (const uint8_t value : values) BATON_CHECK(value < 1 << matrix->bits);
}

// Layers that differ, experts in one tensor, and merges beside pieces.
std::string Gemma4Gguf() {
  testing::GgufBytes bytes;
  bytes.Add("general.architecture", "gemma4").Add("gemma4.attention.sliding_window", 8u);
  for (const auto& [key, value] : {std::pair("context_length", 64u),
                                   {"embedding_length", 8u},
                                   {"block_count", 2u},
                                   {"attention.head_count", 2u},
                                   {"attention.key_length", 4u},
                                   {"attention.value_length", 4u},
                                   {"attention.key_length_swa", 2u},
                                   {"attention.value_length_swa", 2u},
                                   {"attention.shared_kv_layers", 0u},
                                   {"embedding_length_per_layer_input", 8u},
                                   {"expert_count", 4u},
                                   {"expert_used_count", 2u},
                                   {"expert_feed_forward_length", 16u}}) {
    bytes.Add(absl::StrCat("gemma4.", key), value);
  }
  return bytes.Add("gemma4.attention.head_count_kv", std::vector<int32_t>{2, 1})
      .Add("gemma4.feed_forward_length", std::vector<int32_t>{12, 12})
      .Add("gemma4.attention.sliding_window_pattern", std::vector<bool>{true, false})
      .Add("gemma4.attention.layer_norm_rms_epsilon", 1e-6f)
      .Add("tokenizer.ggml.model", "gemma4")
      .Add("tokenizer.ggml.tokens", std::vector<std::string>{"<bos>", "<0x0A>", "a", "b", "ab"})
      .Add("tokenizer.ggml.token_type", std::vector<int32_t>{3, 6, 1, 1, 1})
      .Add("tokenizer.ggml.merges", std::vector<std::string>{"a b"})
      .Add("tokenizer.ggml.bos_token_id", 0u)
      .AddTensor("token_embd.weight", {8, 5}, 0, std::string(160, '\1'))
      .AddTensor("rope_freqs.weight", {2}, 0, std::string("\0\0\x80\x3f\xca\xf2\x49\x71", 8))
      .AddTensor("blk.0.ffn_gate_up_exps.weight", {8, 64, 4}, 0, std::string(8192, '\1'))
      .Bytes();
}

// The container, its tensors, and what it has for each document, which the JSON reader must accept.
void FuzzGguf(absl::string_view data) {
  const MemoryFile memory(data);
  const auto files = model::OpenGgufTensors(memory.path());
  if (files.ok()) {
    BATON_CHECK(files->size() == 1);
    const model::TensorFile& file = *files->front();
    size_t bytes = 0;
    for (const model::TensorEntry& entry : file.tensors()) {
      const absl::string_view tensor = file.Bytes(entry);
      bytes += tensor.size() + (static_cast<unsigned char>(tensor.front() ^ tensor.back()) & 1);
      ReadLastRow(file, entry);
    }
    BATON_CHECK(bytes <= 2 * data.size());
  }
  for (const char* name : {"generation_config.json", "tokenizer.json", "tokenizer_config.json"}) {
    const auto document = gguf::ReadDocument(memory.path(), name);
    if (!document.ok() || !*document) continue;
    const absl::StatusOr<json::Value> value = json::Parse(**document, name);
    // A token that occurs twice is refused here, and only here.
    BATON_CHECK(value.ok() || absl::StrContains(value.status().message(), "twice")) << **document;
  }
  const auto file = gguf::File::Open(memory.path());
  if (!file.ok()) return;
  const auto config = model::GgufConfigJson(**file);
  if (!config.ok()) return;
  const absl::StatusOr<json::Value> value = json::Parse(*config, "config.json");
  BATON_CHECK(value.ok()) << *config;
  const auto fields = model::JsonFields::Make(*value, "config.json");
  BATON_CHECK(fields.ok()) << fields.status();
  model::ParseConfig(*fields).IgnoreError();
}

// The file, a byte 0xff, and a text.
void FuzzTokenizer(absl::string_view data) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(data, absl::MaxSplits('\xff', 1));
  const auto tokenizer = tokenizer::Tokenizer::FromJson(parts.first, "input");
  if (!tokenizer.ok()) return;
  for (const bool special : {false, true}) {
    const auto ids = (*tokenizer)->Encode(parts.second, special);
    if (!ids.ok()) continue;
    for (const int32_t id : *ids) BATON_CHECK(id >= 0 && id < (*tokenizer)->vocab_size());
    const ByteRange half[] = {{0, (parts.second.size() + 1) / 2}};
    const auto split = (*tokenizer)->Encode(parts.second, special, half);
    BATON_CHECK(split.ok()) << split.status();
    for (const int32_t id : *split) BATON_CHECK(id >= 0 && id < (*tokenizer)->vocab_size());
    const auto text = (*tokenizer)->Decode(*ids, special);
    BATON_CHECK(text.ok()) << text.status();
    BATON_CHECK(IsUtf8(*text));
  }
}

void FuzzConfig(absl::string_view data) {
  static const auto* const dir = new testing::ModelDir;  // removed by the system
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(data, absl::MaxSplits('\xff', 1));
  dir->Write("config.json", std::string(parts.first));
  dir->Write("generation_config.json", std::string(parts.second));
  const auto config = model::ReadModelConfig(dir->path());
  if (!config.ok()) return;
  BATON_CHECK(config->vocab_size > 0 && config->hidden_dim > 0 && !config->layers.empty());
  for (const model::LayerSpec& layer : config->layers) {
    BATON_CHECK(!layer.sublayers.empty());
    const model::AttentionSpec* attention = layer.attention_or_null();
    if (attention == nullptr) continue;
    BATON_CHECK(attention->kv_heads > 0 && attention->query_heads % attention->kv_heads == 0);
  }
}

// A template and, after a byte 0xff, the variables.
void FuzzChatTemplate(absl::string_view data) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(data, absl::MaxSplits('\xff', 1));
  const auto parsed = chat::ChatTemplate::Parse(parts.first, "input");
  if (!parsed.ok()) return;
  absl::StatusOr<json::Value> variables = json::Parse(parts.second, "variables");
  if (!variables.ok() || variables->kind != json::Value::Kind::kObject) {
    variables = json::Parse(
        R"({"messages": [{"role": "user", "content": "Hi"}], "bos_token": "<s>", "n": 3})",
        "fixed");
  }
  const chat::RenderLimits limits{20'000, 1 << 16, 1 << 20, 100};
  const auto text = parsed->Render(*variables, json::Value(), absl::UnixEpoch(), limits);
  if (text.ok()) BATON_CHECK(text->size() <= limits.max_output_bytes);
}

// The first byte is the format, the second the size of the pieces in which the text arrives.
void FuzzToolCalls(absl::string_view data) {
  if (data.size() < 2) return;
  constexpr chat::ToolCallFormat kFormats[] = {
      chat::ToolCallFormat::kHermes,  chat::ToolCallFormat::kLlama3,
      chat::ToolCallFormat::kMistral, chat::ToolCallFormat::kDeepSeek,
      chat::ToolCallFormat::kQwenXml, chat::ToolCallFormat::kGlm,
      chat::ToolCallFormat::kLfm2,    chat::ToolCallFormat::kGemma4,
      chat::ToolCallFormat::kHarmony};
  static const auto* const tools = new std::shared_ptr<const json::Value>(
      std::make_shared<const json::Value>(json::Parse(R"([{"function": {"name": "f", "parameters":
          {"properties": {"s": {"type": "string"}, "o": {"type": ["object", "null"]}}}}}])",
                                                      "tools")
                                              .value()));
  const chat::ToolCallFormat format =
      kFormats[static_cast<unsigned char>(data[0]) % std::size(kFormats)];
  const size_t piece = static_cast<unsigned char>(data[1]) % 16 + 1;
  data.remove_prefix(2);
  const auto parse = [&](size_t size) {
    chat::ToolCallParser parser(format, 1, *tools);
    chat::JoinedAnswer all;
    const auto add = [&all](const chat::ToolCallParser::Parts& parts) {
      for (const chat::AnswerPart& part : parts) all.Add(part);
    };
    for (size_t at = 0; at < data.size(); at += size) add(parser.Append(data.substr(at, size)));
    add(parser.Finish());
    return all;
  };
  const chat::JoinedAnswer whole = parse(std::max<size_t>(1, data.size()));
  const chat::JoinedAnswer pieces = parse(piece);
  BATON_CHECK(whole.text == pieces.text) << "in pieces of " << piece;
  BATON_CHECK(whole.calls.size() == pieces.calls.size());
  for (size_t i = 0; i < whole.calls.size(); ++i) {
    BATON_CHECK(whole.calls[i].arguments == pieces.calls[i].arguments);
    BATON_CHECK(whole.calls[i].is_whole == pieces.calls[i].is_whole);
    const std::string members = json::WholeMembers(whole.calls[i].arguments);
    BATON_CHECK(json::Parse(members, "arguments").ok()) << whole.calls[i].arguments;
    if (whole.calls[i].is_whole) BATON_CHECK(members == whole.calls[i].arguments) << members;
  }
}

void FuzzApiKeys(absl::string_view data) {
  const auto keys = security::ParseApiKeys(data);
  if (!keys.ok()) return;
  BATON_CHECK(keys->size() <= security::kMaxKeys);
  for (const auto& [digest, key] : *keys) BATON_CHECK(!key.tenant.empty());
}

void FuzzWorkerSecret(absl::string_view data) {
  const auto secrets = security::ParseSecrets(data);
  if (!secrets.ok()) return;
  BATON_CHECK(!secrets->empty());
  for (const std::string& secret : *secrets) BATON_CHECK(secret.size() >= 32);
}

}  // namespace

std::vector<FuzzTarget> FileTargets() {
  using std::string_literals::operator""s;
  const std::string tensors = R"({"a": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]}})";
  const std::string config = R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2",
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 128, "vocab_size": 300, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu", "torch_dtype": "float32",
    "tie_word_embeddings": true, "eos_token_id": [1, 2],
    "rope_scaling": {"rope_type": "linear", "factor": 2.0}})";
  // Layers of one sublayer, and a number that JSON has no word for.
  const std::string nemotron = R"({"architectures": ["NemotronHForCausalLM"], "hidden_size": 64,
    "hybrid_override_pattern": "M-*E", "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "intermediate_size": 96, "vocab_size": 300, "mamba_num_heads": 4,
    "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 32, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 24, "eos_token_id": 1,
    "moe_shared_expert_intermediate_size": 40, "time_step_limit": [0.0, Infinity]})";
  return {
      {"json", FuzzJson, {R"({"a": [1, -2.5e3, "x\u00e9", null, true], "b": {}})"}},
      {"safetensors", FuzzSafetensors, {testing::SafetensorsBytes(tensors, "12345678")}},
      {"gguf",
       FuzzGguf,
       {testing::TinyGguf()
            .Add("tokenizer.ggml.model", "gpt2")
            .Add("tokenizer.ggml.pre", "qwen2")
            .Add("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b", "ab", "<|im_end|>"})
            .Add("tokenizer.ggml.token_type", std::vector<int32_t>{1, 1, 1, 3})
            .Add("tokenizer.ggml.merges", std::vector<std::string>{"a b"})
            .Add("tokenizer.chat_template", "{{ messages[0].content }}")
            .Add("general.sampling.temp", 0.5f)
            .Bytes(),
        testing::TinyGguf()
            .Add("tokenizer.ggml.model", "llama")
            .Add("tokenizer.ggml.tokens", std::vector<std::string>{"<unk>", "<0x0A>", "a", "\u2581",
                                                                   "\u2581a", "  ", "</s>"})
            .Add("tokenizer.ggml.scores", std::vector<float>{0, 0, -3, -2, -1, -1000, -1000})
            .Add("tokenizer.ggml.token_type", std::vector<int32_t>{2, 6, 1, 1, 1, 4, 3})
            .Add("tokenizer.ggml.bos_token_id", 6u)
            .Add("tokenizer.ggml.add_space_prefix", true)
            .Bytes(),
        testing::TinyGguf(/*Q4_K*/ 12, std::string(size_t{8} * 144, '\1')).Bytes(), Gemma4Gguf()}},
      {"tokenizer",
       FuzzTokenizer,
       {absl::StrCat(testing::TinyTokenizerJson({"word"}), "\xff", "some words <|end|>")}},
      {"config",
       FuzzConfig,
       {absl::StrCat(config, "\xff", R"({"do_sample": true, "top_k": 5})"), nemotron}},
      {"chat_template",
       FuzzChatTemplate,
       {"{{ bos_token }}{% for m in messages %}{{ m['role'] | upper }}: {{ m.content + 'x' * n }}"
        "{% endfor %}",
        "{% macro f(a, b=2) %}{% if a is defined and not a == b %}{{ a ~ b }}{% endif %}{% "
        "endmacro %}"
        "{% set ns = namespace(i=0) %}{% for x in range(5) if x % 2 %}{% set ns.i = ns.i + x %}"
        "{{ loop.index0 }}{{ f(x) }}{% endfor %}{{ messages[::-1] | tojson }}{{ ns.i }}"}},
      {"api_keys",
       FuzzApiKeys,
       {absl::StrCat("# keys\nsha256:", std::string(64, 'a'),
                     " tenant=a admin\nsha256:", std::string(64, 'b'),
                     " tenant=b max-concurrent-requests=5 requests-per-minute=60\n")}},
      {"worker_secret", FuzzWorkerSecret, {absl::StrCat(std::string(40, 's'), "\n")}},
      {"tool_calls",
       FuzzToolCalls,
       {absl::StrCat("\x00\x03"s,
                     R"(Yes. <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>)"),
        absl::StrCat("\x01\x03"s, R"(<|python_tag|>{"name": "f", "parameters": {"a": "b"}})"),
        absl::StrCat("\x02\x03"s, R"([TOOL_CALLS][{"name": "f", "arguments": {"a": [1, 2]}}])"),
        absl::StrCat("\x03\x03"s,
                     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n"
                     "```json\n{\"a\": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
        absl::StrCat("\x04\x03"s,
                     "<tool_call>\n<function=f>\n<parameter=s>\n5\n</parameter>\n<parameter=o>\n"
                     "{\"a\": 1}\n</parameter>\n</function>\n</tool_call>"),
        absl::StrCat("\x05\x03"s,
                     "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>a</arg_value>\n<arg_key>o"
                     "</arg_key>\n<arg_value>null</arg_value>\n</tool_call>"),
        absl::StrCat("\x06\x03"s,
                     "<|tool_call_start|>[f(s='a\\n', o={\"b\": [1, True]}), g()]"
                     "<|tool_call_end|>"),
        absl::StrCat("\x07\x03"s, "<|tool_call>call:f{s:<|\"|>a<|\"|>,o:{k:[1,null]}}<tool_call|>"),
        absl::StrCat("\x08\x03"s,
                     "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}"
                     "<|call|>")}},
  };
}

}  // namespace baton::fuzz
