#include "cli/bench/conversations.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "cli/bench/arrivals.h"
#include "cli/bench/dataset.h"
#include "cli/random.h"
#include "common/base/splitmix64.h"
#include "common/base/status_macros.h"

namespace baton::cli {
namespace {

constexpr size_t kFewestBlocks = 2;  // that a turn shares with the one that it continues

std::vector<Conversation> DrawConversations(const ConversationOptions& options, int vocab_size) {
  Random random(options.seed);
  const std::vector<int32_t> tools = random.Tokens(options.tools_tokens, vocab_size);
  const auto length = [&](int mean) {
    const int low = static_cast<int>(std::floor(mean * (1 - options.range_ratio)));
    const int high = static_cast<int>(std::ceil(mean * (1 + options.range_ratio)));
    return random.Between(std::max(low, 1), std::max(high, 1));
  };
  std::vector<Conversation> conversations(options.conversations);
  for (Conversation& conversation : conversations) {
    for (int i = 0; i < options.turns; ++i) {
      ConversationTurn turn;
      if (i == 0) turn.tokens = tools;
      const std::vector<int32_t> user = random.Tokens(length(options.user_tokens), vocab_size);
      turn.tokens.insert(turn.tokens.end(), user.begin(), user.end());
      turn.output_tokens = length(options.answer_tokens);
      if (i > 0 && options.think_s > 0) turn.think_s = random.Exponential(1 / options.think_s);
      conversation.turns.push_back(std::move(turn));
    }
  }
  return conversations;
}

// Lines of a trace, by their numbers.
using Chain = std::vector<size_t>;

// Returns each conversation's lines, in the order of their first lines.
std::vector<Chain> Group(const std::vector<TraceLine>& lines, int block_tokens) {
  std::vector<Chain> chains;
  // From the hash of the full blocks of a conversation's last prompt to the conversation.
  absl::flat_hash_map<uint64_t, size_t> last;
  for (size_t number = 0; number < lines.size(); ++number) {
    const TraceLine& line = lines[number];
    std::vector<uint64_t> hashes(1);  // of the first i blocks
    for (const int64_t block : line.blocks) {
      hashes.push_back(SplitMix64(hashes.back() ^ SplitMix64(static_cast<uint64_t>(block))));
    }
    size_t chain = chains.size();
    for (size_t blocks = line.blocks.size(); blocks >= kFewestBlocks; --blocks) {
      const auto found = last.find(hashes[blocks]);
      if (found == last.end()) continue;
      const TraceLine& before = lines[chains[found->second].back()];
      if (line.input_tokens <= before.input_tokens + before.output_tokens) continue;
      chain = found->second;
      last.erase(found);
      break;
    }
    if (chain == chains.size()) chains.emplace_back();
    chains[chain].push_back(number);
    const auto full = static_cast<size_t>(line.input_tokens / block_tokens);
    if (full >= kFewestBlocks && full < hashes.size()) last[hashes[full]] = chain;
  }
  return chains;
}

absl::StatusOr<std::vector<Conversation>> ReadConversations(const ConversationOptions& options,
                                                            int vocab_size) {
  DatasetOptions file;
  file.path = options.trace;
  file.num_prompts = std::numeric_limits<int>::max();
  file.seed = options.seed;
  file.trace_seconds = options.trace_seconds;
  file.trace_block_tokens = options.trace_block_tokens;
  BATON_ASSIGN_OR_RETURN(const std::vector<TraceLine> lines, ReadTrace(file));
  const std::vector<Chain> chains = Group(lines, options.trace_block_tokens);
  const auto divided = [&](int tokens) { return std::max(tokens / options.length_divisor, 1); };
  file.trace_block_tokens = divided(options.trace_block_tokens);
  Random random(options.seed);
  std::vector<Conversation> conversations;
  double first_s = 0;
  for (const Chain& chain : chains) {
    if (static_cast<int>(chain.size()) < options.min_turns) continue;
    if (static_cast<int>(conversations.size()) == options.conversations) break;
    const TraceLine& opening = lines[chain.front()];
    if (conversations.empty()) first_s = opening.at_s;
    Conversation& conversation = conversations.emplace_back();
    conversation.start_s = opening.at_s - first_s;
    for (size_t i = 0; i < std::min(chain.size(), static_cast<size_t>(options.turns)); ++i) {
      TraceLine line = lines[chain[i]];
      ConversationTurn turn;
      turn.at_s = line.at_s - opening.at_s;
      if (i == 0) {
        line.input_tokens = divided(line.input_tokens);
        turn.tokens = TracePrompt(file, line, vocab_size, &random);
      } else {
        const TraceLine& before = lines[chain[i - 1]];
        turn.tokens = random.Tokens(
            divided(line.input_tokens - before.input_tokens - before.output_tokens), vocab_size);
      }
      turn.output_tokens = divided(line.output_tokens);
      conversation.turns.push_back(std::move(turn));
    }
  }
  return conversations;
}

}  // namespace

absl::StatusOr<Conversations> MakeConversations(const ConversationOptions& options, int vocab_size,
                                                int max_model_len) {
  Conversations made;
  std::vector<Conversation> drawn;
  if (options.trace.empty()) {
    made.shared_tokens = options.tools_tokens;
    drawn = DrawConversations(options, vocab_size);
  } else {
    BATON_ASSIGN_OR_RETURN(drawn, ReadConversations(options, vocab_size));
  }
  for (Conversation& conversation : drawn) {
    size_t fit = 0;
    int64_t tokens = 0;
    for (const ConversationTurn& turn : conversation.turns) {
      tokens += static_cast<int64_t>(turn.tokens.size()) + turn.output_tokens;
      if (max_model_len > 0 && tokens > max_model_len) break;
      ++fit;
    }
    made.turns_left_out += static_cast<int>(conversation.turns.size() - fit);
    conversation.turns.resize(fit);
    if (fit > 0) made.conversations.push_back(std::move(conversation));
  }
  if (made.conversations.empty()) {
    return absl::InvalidArgumentError(
        drawn.empty() ? "the trace has no conversation of so many turns"
                      : "the first turn of every conversation is longer than the model's context");
  }
  if (std::isfinite(options.rate) || options.trace.empty()) {
    const auto count = static_cast<int>(made.conversations.size());
    const std::vector<double> times = ArrivalTimes(count, options.rate, 1, options.seed);
    for (size_t i = 0; i < times.size(); ++i) made.conversations[i].start_s = times[i];
  }
  return made;
}

}  // namespace baton::cli
