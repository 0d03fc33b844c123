// What the router simulator replays: requests as prompts of numbered blocks. Read from a file in
// Mooncake's format, or generated (load_generator.h).
#ifndef BATON_SIMULATOR_TRACE_H_
#define BATON_SIMULATOR_TRACE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/kv/prefix_key.h"

namespace baton::simulator {

inline constexpr int kSimBlockTokens = 512;

struct SimRequest {
  int64_t at_us = 0;  // at replay speed 1
  int prompt_tokens = 0;
  // Whole blocks only, as workers cache no others. An id stands for a block *and all before it*:
  // equal ids have equal predecessors. Ids are dense from 0.
  std::vector<int32_t> blocks = {};
  // Of the answer, the first one included. 0: the trace does not say.
  int output_tokens = 0;
  // The whole blocks that the answer completes, behind those of the prompt.
  std::vector<int32_t> answer_blocks = {};
};

struct Trace {
  std::string name;
  std::vector<SimRequest> requests;  // by rising at_us
  int block_count = 0;               // ids are below it
};

// One JSON object a line: timestamp (ms), input_length, hash_ids (one per 512 tokens, the partial
// last block included) and output_length. hash_ids may be missing: the prompt shares nothing. So
// may output_length: the answer's length is 0, for unknown. If all timestamps are whole seconds,
// requests of equal ones are spread evenly until the next one. INVALID_ARGUMENT with the line if
// one is not of this form; NOT_FOUND if the file cannot be opened.
absl::StatusOr<Trace> ReadMooncakeTrace(const std::string& path, std::string name);

// The router knows blocks by keys. This is a bijection, so that simulated peers can go back.
kv::PrefixKey BlockKey(int32_t block);
int32_t BlockOfKey(kv::PrefixKey key);
// Workers with smaller blocks, so many in one of the trace, have as many keys for it: those of
// blocks numbered in order, block * per_block + 0, 1, ....
template <class Take>
void ForEachKey(absl::Span<const int32_t> blocks, int per_block, Take take) {
  for (int32_t block : blocks) {
    for (int i = 0; i < per_block; ++i) take(BlockKey(block * per_block + i));
  }
}

// The part of all prompt tokens that one cache of unlimited size, filled at arrival, would have
// had: no policy hits more.
double InfiniteCacheHitRate(const Trace& trace);

}  // namespace baton::simulator

#endif  // BATON_SIMULATOR_TRACE_H_
