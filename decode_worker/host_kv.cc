#include "decode_worker/host_kv.h"

#include <algorithm>
#include <vector>

#include "absl/types/span.h"
#include "common/base/check.h"

namespace baton::decode_worker {
namespace {

// The pages of a sequence's blocks [begin, end), block by block, with the window pages of those
// that are needed behind `computed_tokens`.
std::vector<int32_t> PagesToCopy(const kv::BlockLease& blocks, int begin, int end,
                                 int first_windowed) {
  const kv::BlockShape shape = blocks.shape();
  std::vector<int32_t> pages;
  for (int i = begin; i < end; ++i) {
    const std::vector<int32_t> of_block = blocks.PagesOf(i);
    const int count = i < first_windowed ? shape.full_pages : shape.pages();
    pages.insert(pages.end(), of_block.begin(), of_block.begin() + count);
    BATON_CHECK_GE(pages.back(), 0) << "block " << i << " has no window pages";
  }
  return pages;
}

}  // namespace

bool HostKv::SwapOut(Sequence& sequence) {
  Drop(sequence);
  const int block_tokens = engine_.kv_layout().block_tokens;
  const int blocks = (sequence.computed_tokens + block_tokens - 1) / block_tokens;
  const int first_windowed = FirstWindowed(sequence.blocks, sequence.computed_tokens);
  // Log probabilities of the prompt come from computing it whole.
  const bool whole = sequence.call->prompt_logprobs && !sequence.call->answered;
  // A beam search that starts again has left behind what its prompt's end needs.
  if (whole || sequence.blocks.LackingWindows(first_windowed, blocks) > 0) return false;
  const std::vector<int32_t> pages = PagesToCopy(sequence.blocks, 0, blocks, first_windowed);
  const int64_t bytes = engine_.kv_pool().block_stride_bytes * static_cast<int64_t>(pages.size());
  if (bytes == 0 || bytes_ + bytes > max_bytes_) return false;
  if (!estimate_.CopyIsCheaper(bytes, sequence.computed_tokens)) return false;
  const absl::Duration begin = clock_.SinceStart();
  sequence.host_copy.bytes.resize(static_cast<size_t>(bytes));
  sequence.host_copy.computed_tokens = sequence.computed_tokens;
  engine_.ReadPages(pages, sequence.host_copy.bytes.data());
  bytes_ += bytes;
  metrics_.SwappedOut(bytes);
  estimate_.Copied(bytes, clock_.SinceStart() - begin);
  return true;
}

void HostKv::SwapIn(Sequence& sequence) {
  if (sequence.host_copy.computed_tokens > sequence.computed_tokens) {
    const int block_tokens = engine_.kv_layout().block_tokens;
    const int cached = sequence.computed_tokens / block_tokens;
    const int blocks = (sequence.host_copy.computed_tokens + block_tokens - 1) / block_tokens;
    const int first_windowed = FirstWindowed(sequence.blocks, sequence.host_copy.computed_tokens);
    const std::vector<int32_t> pages = PagesToCopy(sequence.blocks, cached, blocks, first_windowed);
    const int64_t bytes = engine_.kv_pool().block_stride_bytes * static_cast<int64_t>(pages.size());
    // The copy's last bytes are those of its last blocks.
    engine_.WritePages(pages, sequence.host_copy.bytes.data() +
                                  static_cast<int64_t>(sequence.host_copy.bytes.size()) - bytes);
    metrics_.SwappedIn(bytes);
    sequence.computed_tokens = sequence.host_copy.computed_tokens;
  }
  Drop(sequence);
}

int HostKv::FirstWindowed(const kv::BlockLease& blocks, int computed_tokens) const {
  return blocks.shape().FirstSeenBlock(computed_tokens, engine_.kv_layout().block_tokens);
}

void HostKv::Drop(Sequence& sequence) {
  bytes_ -= static_cast<int64_t>(sequence.host_copy.bytes.size());
  sequence.host_copy = HostCopy();
}

}  // namespace baton::decode_worker
