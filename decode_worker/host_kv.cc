#include "decode_worker/host_kv.h"

#include "absl/types/span.h"

namespace baton::decode_worker {

bool HostKv::SwapOut(Sequence& sequence) {
  Drop(sequence);
  const int block_tokens = engine_.kv_layout().block_tokens;
  const int blocks = (sequence.computed_tokens + block_tokens - 1) / block_tokens;
  const int64_t bytes = static_cast<int64_t>(engine_.kv_layout().BlockBytes()) * blocks;
  // Log probabilities of the prompt come from computing it whole.
  const bool whole = sequence.call->prompt_logprobs && !sequence.call->answered;
  if (bytes == 0 || whole || bytes_ + bytes > max_bytes_) return false;
  if (!estimate_.CopyIsCheaper(bytes, sequence.computed_tokens)) return false;
  const absl::Duration begin = clock_.SinceStart();
  sequence.host_copy.bytes.resize(static_cast<size_t>(bytes));
  sequence.host_copy.computed_tokens = sequence.computed_tokens;
  engine_.ReadBlocks(absl::MakeConstSpan(sequence.blocks.ids()).first(static_cast<size_t>(blocks)),
                     sequence.host_copy.bytes.data());
  bytes_ += bytes;
  metrics_.SwappedOut(bytes);
  estimate_.Copied(bytes, clock_.SinceStart() - begin);
  return true;
}

void HostKv::SwapIn(Sequence& sequence) {
  if (sequence.host_copy.computed_tokens > sequence.computed_tokens) {
    const size_t block_bytes = engine_.kv_layout().BlockBytes();
    const size_t cached =
        static_cast<size_t>(sequence.computed_tokens / engine_.kv_layout().block_tokens);
    const size_t blocks = sequence.host_copy.bytes.size() / block_bytes;
    engine_.WriteBlocks(absl::MakeConstSpan(sequence.blocks.ids()).subspan(cached, blocks - cached),
                        sequence.host_copy.bytes.data() + cached * block_bytes);
    metrics_.SwappedIn(static_cast<int64_t>((blocks - cached) * block_bytes));
    sequence.computed_tokens = sequence.host_copy.computed_tokens;
  }
  Drop(sequence);
}

void HostKv::Drop(Sequence& sequence) {
  bytes_ -= static_cast<int64_t>(sequence.host_copy.bytes.size());
  sequence.host_copy = HostCopy();
}

}  // namespace baton::decode_worker
