#include "common/kv/answer_blocks.h"

#include <algorithm>

namespace baton::kv {
namespace {

// Beams write to different blocks, and each beam may see a window of these, or has its state, and a
// copy of it where it splits.
int64_t WindowsOfAnswer(int beams, const BlockShape& shape) {
  return (shape.LeastWindows() + (beams > 0 && shape.recurrent ? 1 : 0)) * std::max(beams, 1);
}

}  // namespace

int64_t BlocksOfAnswer(int64_t prompt_tokens, int64_t max_tokens, int beams, int block_tokens) {
  const int64_t blocks = (prompt_tokens + max_tokens - 1 + block_tokens - 1) / block_tokens;
  if (beams == 0) return blocks;
  const int64_t shared = prompt_tokens / block_tokens;
  // A beam that splits has a copy of its parent's last block beside the parent's own.
  return shared + (blocks - shared + 1) * beams;
}

int64_t PagesOfAnswer(int64_t prompt_tokens, int64_t max_tokens, int beams, int block_tokens,
                      const BlockShape& shape) {
  const int64_t blocks = BlocksOfAnswer(prompt_tokens, max_tokens, beams, block_tokens);
  return shape.PagesOf(blocks, WindowsOfAnswer(beams, shape));
}

int64_t LongestAnswer(int64_t prompt_tokens, int beams, int block_tokens, int64_t pages,
                      const BlockShape& shape) {
  const int64_t blocks = shape.MostBlocks(pages, WindowsOfAnswer(beams, shape));
  int64_t of_one = blocks;
  if (beams > 0) {
    const int64_t shared = prompt_tokens / block_tokens;
    of_one = blocks < shared ? 0 : shared - 1 + (blocks - shared) / beams;
  }
  return std::max<int64_t>(0, of_one * block_tokens - prompt_tokens + 1);
}

}  // namespace baton::kv
