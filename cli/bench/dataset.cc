#include "cli/bench/dataset.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "cli/random.h"
#include "common/base/splitmix64.h"
#include "common/base/status_macros.h"

namespace baton::cli {
namespace {

using JsonValue = nlohmann::json;
using Prompts = std::vector<BenchPrompt>;

constexpr int kMostTokens = 1 << 24;  // of one prompt or answer
constexpr size_t kMostLineBytes = size_t{64} << 20;
constexpr double kMostUnits = 1e15;  // of a timestamp
// vLLM's limits for pairs from ShareGPT.
constexpr int kFewestTokens = 4, kMostPromptTokens = 1024, kMostPairTokens = 2048;

Prompts RandomPrompts(const DatasetOptions& options, int vocab_size) {
  Random random(options.seed);
  const std::vector<int32_t> prefix = random.Tokens(options.random_prefix_len, vocab_size);
  const auto length = [&](int mean) {
    const int low = static_cast<int>(std::floor(mean * (1 - options.random_range_ratio)));
    const int high = static_cast<int>(std::ceil(mean * (1 + options.random_range_ratio)));
    return random.Between(std::max(low, 1), std::max(high, 1));
  };
  Prompts prompts(options.num_prompts);
  for (BenchPrompt& prompt : prompts) {
    prompt.token_ids = prefix;
    const std::vector<int32_t> rest = random.Tokens(length(options.random_input_len), vocab_size);
    prompt.token_ids.insert(prompt.token_ids.end(), rest.begin(), rest.end());
    prompt.output_tokens = length(options.random_output_len);
  }
  return prompts;
}

Prompts PrefixRepetition(const DatasetOptions& options, int vocab_size) {
  Random random(options.seed);
  std::vector<std::vector<int32_t>> prefixes(options.prefix_repetition_num_prefixes);
  for (auto& prefix : prefixes) {
    prefix = random.Tokens(options.prefix_repetition_prefix_len, vocab_size);
  }
  Prompts prompts(options.num_prompts);
  for (size_t i = 0; i < prompts.size(); ++i) {
    prompts[i].token_ids = prefixes[i % prefixes.size()];
    const auto suffix = random.Tokens(options.prefix_repetition_suffix_len, vocab_size);
    prompts[i].token_ids.insert(prompts[i].token_ids.end(), suffix.begin(), suffix.end());
    prompts[i].output_tokens = options.prefix_repetition_output_len;
  }
  random.Shuffle(&prompts);
  return prompts;
}

absl::StatusOr<std::ifstream> Open(const std::string& path) {
  std::ifstream file(path);
  // A directory opens, and fails at the first read.
  if (!file || file.peek() == std::ifstream::traits_type::eof()) {
    return absl::NotFoundError(absl::StrCat("cannot read ", path, ", or it is empty"));
  }
  return file;
}

// The text at `key`, or null.
const std::string* TextOf(const JsonValue& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? nullptr : found->get_ptr<const std::string*>();
}

std::optional<int> TokensOf(const JsonValue& object, const char* key, int fewest) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_integer()) return std::nullopt;
  // Unsigned numbers above int64 become negative, so they are refused.
  const int64_t value = found->get<int64_t>();
  if (value < fewest || value > kMostTokens) return std::nullopt;
  return static_cast<int>(value);
}

// Calls `add` for each line that is not blank. It returns what the line should have been, or "".
absl::Status ForEachLine(const std::string& path, int most,
                         const std::function<std::string(const JsonValue&)>& add) {
  BATON_ASSIGN_OR_RETURN(std::ifstream file, Open(path));
  std::string line;
  int taken = 0;
  for (int number = 1; taken < most && std::getline(file, line); ++number) {
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    const JsonValue parsed = line.size() > kMostLineBytes
                                 ? JsonValue(JsonValue::value_t::discarded)
                                 : JsonValue::parse(line, nullptr, /*allow_exceptions=*/false);
    const std::string expected = parsed.is_object() ? add(parsed) : "a JSON object";
    if (!expected.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ":", number, ": expected ", expected));
    }
    ++taken;
  }
  return absl::OkStatus();
}

// Repeats the prompts until there are as many as asked for.
void Oversample(const DatasetOptions& options, Prompts* prompts) {
  const size_t distinct = prompts->size();
  for (size_t i = 0; options.oversample && distinct > 0 &&
                     prompts->size() < static_cast<size_t>(options.num_prompts);
       ++i) {
    const BenchPrompt again = (*prompts)[i % distinct];  // push_back may move it
    prompts->push_back(again);
  }
}

absl::StatusOr<Prompts> CustomPrompts(const DatasetOptions& options) {
  Prompts prompts;
  const int most = options.shuffle ? kMostTokens : options.num_prompts;
  BATON_RETURN_IF_ERROR(ForEachLine(options.path, most, [&](const JsonValue& line) -> std::string {
    const std::string* text = TextOf(line, "prompt");
    if (text == nullptr || text->empty()) return "a text \"prompt\"";
    int output_tokens = options.custom_output_len;
    if (output_tokens < 0) {
      const std::optional<int> own = TokensOf(line, "output_tokens", 1);
      if (!own) return absl::StrCat("\"output_tokens\" from 1 to ", kMostTokens);
      output_tokens = *own;
    }
    prompts.push_back({*text, {}, output_tokens});
    return "";
  }));
  if (options.shuffle) Random(options.seed).Shuffle(&prompts);
  if (prompts.size() > static_cast<size_t>(options.num_prompts)) {
    prompts.resize(options.num_prompts);
  }
  Oversample(options, &prompts);
  return prompts;
}

struct Pair {
  std::string prompt, answer;
};

// Nothing of an entry stays in memory but its first two turns.
absl::StatusOr<std::vector<Pair>> ReadShareGpt(const std::string& path) {
  BATON_ASSIGN_OR_RETURN(std::ifstream file, Open(path));
  std::vector<Pair> pairs;
  const auto root = JsonValue::parse(
      file,
      [&](int depth, JsonValue::parse_event_t event, JsonValue& value) {
        if (depth != 1 || event != JsonValue::parse_event_t::object_end) return true;
        const auto turns = value.find("conversations");
        if (turns != value.end() && turns->is_array() && turns->size() >= 2 &&
            (*turns)[0].is_object() && (*turns)[1].is_object()) {
          const std::string* prompt = TextOf((*turns)[0], "value");
          const std::string* answer = TextOf((*turns)[1], "value");
          if (prompt != nullptr && answer != nullptr && !prompt->empty()) {
            pairs.push_back({*prompt, *answer});
          }
        }
        return false;  // forget the entry
      },
      /*allow_exceptions=*/false);
  if (!root.is_array() || pairs.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path,
                     ": expected a JSON array of {\"conversations\": [{\"value\": prompt}, "
                     "{\"value\": answer}, ...]}, with two turns in some"));
  }
  return pairs;
}

absl::StatusOr<Prompts> ShareGptPrompts(const DatasetOptions& options, const TokenCounter& count) {
  BATON_ASSIGN_OR_RETURN(std::vector<Pair> pairs, ReadShareGpt(options.path));
  if (options.shuffle) Random(options.seed).Shuffle(&pairs);
  Prompts prompts;
  for (Pair& pair : pairs) {
    if (prompts.size() == static_cast<size_t>(options.num_prompts)) break;
    int output_tokens = options.sharegpt_output_len.value_or(0);
    if (count != nullptr) {
      BATON_ASSIGN_OR_RETURN(const int prompt_tokens, count(pair.prompt));
      if (!options.sharegpt_output_len) {
        BATON_ASSIGN_OR_RETURN(output_tokens, count(pair.answer));
        if (output_tokens < kFewestTokens) continue;
      }
      if (prompt_tokens < kFewestTokens || prompt_tokens > kMostPromptTokens ||
          prompt_tokens + output_tokens > kMostPairTokens) {
        continue;
      }
    }
    prompts.push_back({std::move(pair.prompt), {}, output_tokens});
  }
  Oversample(options, &prompts);
  return prompts;
}

// False if there is something else.
bool ReadBlocks(const JsonValue& line, std::vector<int64_t>* blocks) {
  const auto found = line.find("hash_ids");
  if (found == line.end() || found->is_null()) return true;
  if (!found->is_array()) return false;
  for (const JsonValue& id : *found) {
    if (!id.is_number_integer()) return false;
    blocks->push_back(id.get<int64_t>());
  }
  return true;
}

absl::StatusOr<Prompts> TracePrompts(const DatasetOptions& options, int vocab_size) {
  BATON_ASSIGN_OR_RETURN(const std::vector<TraceLine> lines, ReadTrace(options));
  Prompts prompts;
  Random random(options.seed);
  for (const TraceLine& line : lines) {
    prompts.push_back({"", TracePrompt(options, line, vocab_size, &random),
                       std::max(line.output_tokens, 1),  // a request generates at least one
                       line.at_s});
  }
  return prompts;
}

}  // namespace

absl::StatusOr<std::vector<TraceLine>> ReadTrace(const DatasetOptions& options) {
  std::vector<TraceLine> lines;
  double first_s = 0;
  const auto add = [&](const JsonValue& line) -> std::string {
    const auto when = line.find("timestamp");
    if (when == line.end() || !when->is_number()) return "a number \"timestamp\"";
    const double units = when->get<double>();
    if (!(units >= 0 && units <= kMostUnits)) {
      return absl::StrCat("\"timestamp\" from 0 to ", kMostUnits);
    }
    const std::optional<int> input = TokensOf(line, "input_length", 1);
    const std::optional<int> output = TokensOf(line, "output_length", 0);
    if (!input || !output) {
      return absl::StrCat("\"input_length\" from 1 and \"output_length\" from 0, to ", kMostTokens);
    }
    std::vector<int64_t> blocks;
    if (!ReadBlocks(line, &blocks)) return "integers in \"hash_ids\"";
    if (!blocks.empty() &&
        static_cast<int64_t>(blocks.size()) < *input / options.trace_block_tokens) {
      return absl::StrCat("an entry of \"hash_ids\" for each ", options.trace_block_tokens,
                          " tokens of \"input_length\"");
    }
    const double at_s = units * options.trace_seconds;
    if (lines.empty()) first_s = at_s;
    if (!lines.empty() && at_s - first_s < lines.back().at_s) return "ascending \"timestamp\"s";
    lines.push_back({at_s - first_s, *input, *output, std::move(blocks)});
    return "";
  };
  BATON_RETURN_IF_ERROR(ForEachLine(options.path, options.num_prompts, add));
  return lines;
}

std::vector<int32_t> TracePrompt(const DatasetOptions& options, const TraceLine& line,
                                 int vocab_size, Random* random) {
  std::vector<int32_t> prompt;
  prompt.reserve(line.input_tokens);
  for (const int64_t block : line.blocks) {
    const int rest = line.input_tokens - static_cast<int>(prompt.size());
    if (rest == 0) break;
    Random of_block(SplitMix64(options.seed ^ SplitMix64(static_cast<uint64_t>(block))));
    const auto ids = of_block.Tokens(std::min(rest, options.trace_block_tokens), vocab_size);
    prompt.insert(prompt.end(), ids.begin(), ids.end());
  }
  const auto own = random->Tokens(line.input_tokens - static_cast<int>(prompt.size()), vocab_size);
  prompt.insert(prompt.end(), own.begin(), own.end());
  return prompt;
}

absl::StatusOr<std::vector<BenchPrompt>> MakePrompts(const DatasetOptions& options, int vocab_size,
                                                     const TokenCounter& count) {
  if (options.name == "random") return RandomPrompts(options, vocab_size);
  if (options.name == "prefix_repetition") return PrefixRepetition(options, vocab_size);
  absl::StatusOr<Prompts> prompts = options.name == "sharegpt" ? ShareGptPrompts(options, count)
                                    : options.name == "custom" ? CustomPrompts(options)
                                                               : TracePrompts(options, vocab_size);
  if (prompts.ok() && prompts->empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.path, ": expected at least one prompt that can be sent"));
  }
  return prompts;
}

}  // namespace baton::cli
