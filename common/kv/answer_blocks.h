// How many KV blocks a request needs on a decode worker, and the longest answer that so many hold:
// a worker refuses what can never fit, and routers choose the length of answers by the same rule.
#ifndef BATON_COMMON_KV_ANSWER_BLOCKS_H_
#define BATON_COMMON_KV_ANSWER_BLOCKS_H_

#include <cstdint>

#include "common/kv/block_pool.h"

namespace baton::kv {

// The most blocks that an answer of `max_tokens` behind a prompt needs at once. The KV of the last
// token is never read. Choices can run one after another and count as one; the beams of a search
// (`beams`, 0: none) cannot. REQUIRES: all are in the ranges of requests, block_tokens >= 1.
int64_t BlocksOfAnswer(int64_t prompt_tokens, int64_t max_tokens, int beams, int block_tokens);

// The pages that those blocks need at once.
int64_t PagesOfAnswer(int64_t prompt_tokens, int64_t max_tokens, int beams, int block_tokens,
                      const BlockShape& shape);

// The largest max_tokens of which PagesOfAnswer is at most `pages`; 0 if that of 1 is more.
int64_t LongestAnswer(int64_t prompt_tokens, int beams, int block_tokens, int64_t pages,
                      const BlockShape& shape = {});

}  // namespace baton::kv

#endif  // BATON_COMMON_KV_ANSWER_BLOCKS_H_
