// The conversations of `baton bench agent`: drawn from a seed, or those of a trace.
#ifndef BATON_CLI_BENCH_CONVERSATIONS_H_
#define BATON_CLI_BENCH_CONVERSATIONS_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::cli {

struct ConversationTurn {
  std::vector<int32_t> tokens;  // behind the last turn's prompt and answer; in turn 1, the prompt
  int output_tokens = 0;
  double at_s = 0;     // sent no earlier than this after the conversation's start,
  double think_s = 0;  // and than this after the last answer
};

struct Conversation {
  double start_s = 0;  // ascending
  std::vector<ConversationTurn> turns;
};

struct ConversationOptions {
  int conversations = 16;  // of a trace: at most
  int turns = 8;           // of each; of a trace: at most
  uint64_t seed = 0;
  double rate = std::numeric_limits<double>::infinity();  // new conversations a second; see below
  // Without a trace. Lengths of users' texts and answers are uniform within length * (1 +- ratio).
  int tools_tokens = 2000;  // at the beginning of all conversations
  int user_tokens = 200;
  int answer_tokens = 100;
  double range_ratio = 0;
  double think_s = 1;  // mean of an exponential distribution
  // With a trace, in the form of the dataset "trace" of `baton bench serve`.
  std::string trace;
  double trace_seconds = 0.001;  // a unit of timestamp
  int trace_block_tokens = 512;  // of an entry of hash_ids
  int length_divisor = 1;        // all lengths are divided by it, for small models
  int min_turns = 2;             // shorter conversations are left out
};

struct Conversations {
  std::vector<Conversation> conversations;
  int shared_tokens = 0;   // at the beginning of all conversations; 0: not known, as of a trace
  int turns_left_out = 0;  // the model's context is too short for them and all later ones
};

// Conversations depend only on the arguments and the file. Token ids are below `vocab_size`; no
// turn has more than `max_model_len` tokens with its answer (0: no limit).
//
// A line of a trace continues the conversation of an earlier line if its hash_ids begin with those
// of all full blocks of that line's prompt, at least two, and its prompt is longer than that line's
// prompt and answer together; of several such lines, that with the most blocks. Its new tokens are
// what its prompt is longer. Later turns have the answers that the server gives, not the blocks of
// the trace; conversations share blocks in their first turn. They begin at the times of the trace
// if `rate` is infinite, and all at once without a trace.
//
// INVALID_ARGUMENT if no turn is left. Errors of the file are those of ReadTrace().
absl::StatusOr<Conversations> MakeConversations(const ConversationOptions& options, int vocab_size,
                                                int max_model_len);

}  // namespace baton::cli

#endif  // BATON_CLI_BENCH_CONVERSATIONS_H_
