// The prompts of `baton bench serve`: random ones, or those of a file.
#ifndef BATON_CLI_BENCH_DATASET_H_
#define BATON_CLI_BENCH_DATASET_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/random.h"

namespace baton::cli {

struct BenchPrompt {
  std::string text;  // the prompt; empty: token_ids are
  // Beside a text this is empty, or has as many ids as the text counts for (SpellPrompts()).
  std::vector<int32_t> token_ids;
  int output_tokens = 0;  // to generate
  double at_s = 0;        // dataset "trace": seconds after its first request
};

// Named after the flags of `vllm bench serve`, with its defaults. Lengths are tokens.
struct DatasetOptions {
  std::string name = "random";  // one of kDatasets
  std::string path;             // of sharegpt, custom and trace
  int num_prompts = 1000;
  uint64_t seed = 0;
  bool shuffle = true;        // the entries of sharegpt and custom
  bool oversample = true;     // repeat them if there are fewer than num_prompts
  int random_prefix_len = 0;  // shared by all prompts, before random_input_len
  int random_input_len = 1024;
  int random_output_len = 128;
  double random_range_ratio = 0;  // lengths are uniform within length * (1 ± ratio)
  int prefix_repetition_prefix_len = 256;
  int prefix_repetition_suffix_len = 256;
  int prefix_repetition_num_prefixes = 10;
  int prefix_repetition_output_len = 128;
  std::optional<int> sharegpt_output_len;  // absent: as long as the answer in the file
  int custom_output_len = 256;             // -1: output_tokens of each line
  int trace_block_tokens = 512;            // of an entry of hash_ids
  double trace_seconds = 0.001;            // a unit of timestamp
};

inline const std::vector<std::string> kDatasets = {"random", "prefix_repetition", "sharegpt",
                                                   "custom", "trace"};

// A line of a trace.
struct TraceLine {
  double at_s = 0;  // after the first line
  int input_tokens = 0;
  int output_tokens = 0;
  std::vector<int64_t> blocks;  // hash_ids: of each block of the prompt; empty: not known
};

// Reads the first `num_prompts` lines of a trace. INVALID_ARGUMENT and NOT_FOUND as MakePrompts().
absl::StatusOr<std::vector<TraceLine>> ReadTrace(const DatasetOptions& options);

// Returns the prompt of a line: equal blocks are equal tokens, those without a block are drawn from
// `random`.
std::vector<int32_t> TracePrompt(const DatasetOptions& options, const TraceLine& line,
                                 int vocab_size, Random* random);

// The number of tokens of a text.
using TokenCounter = std::function<absl::StatusOr<int>(const std::string&)>;

// Returns num_prompts prompts, or fewer if the file has fewer. They depend only on the arguments
// and the file. Token ids are below `vocab_size`.
//
// - sharegpt: a JSON array of {"conversations": [{"value"}, {"value"}, ...]}. The first two turns
//   are prompt and answer. As in vLLM, prompts of fewer than 4 or more than 1,024 tokens, answers
//   of fewer than 4, and pairs of more than 2,048 are left out; a null `count` (allowed with
//   sharegpt_output_len only) leaves out none.
// - custom: lines of {"prompt": text, "output_tokens": n}, the latter optional.
// - trace: lines of {"timestamp", "input_length", "output_length", "hash_ids"}, as Mooncake
//   publishes them. Equal hash_ids give equal blocks of the prompt; without hash_ids (Azure's
//   traces have none) prompts share nothing.
//
// INVALID_ARGUMENT, with the line, for a file with anything else; NOT_FOUND if it cannot be opened.
absl::StatusOr<std::vector<BenchPrompt>> MakePrompts(const DatasetOptions& options, int vocab_size,
                                                     const TokenCounter& count);

}  // namespace baton::cli

#endif  // BATON_CLI_BENCH_DATASET_H_
