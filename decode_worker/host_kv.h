// KV of preempted sequences, swapped out to host memory where that is cheaper than computing it
// again.
//
// Thread: owned by the loop; unsynchronized.
#ifndef BATON_DECODE_WORKER_HOST_KV_H_
#define BATON_DECODE_WORKER_HOST_KV_H_

#include <cstdint>

#include "common/base/clock.h"
#include "common/engine/engine.h"
#include "decode_worker/load_estimate.h"
#include "decode_worker/metrics.h"
#include "decode_worker/sequence.h"

namespace baton::decode_worker {

class HostKv {
 public:
  // All references must outlive it. max_bytes 0: nothing is swapped out.
  HostKv(engine::Engine& engine, const Clock& clock, LoadEstimate& estimate, DecodeMetrics& metrics,
         int64_t max_bytes)
      : engine_(engine),
        clock_(clock),
        estimate_(estimate),
        metrics_(metrics),
        max_bytes_(max_bytes) {}

  // Copies the sequence's computed KV to host memory, unless that is full or recomputing is
  // cheaper: then false.
  bool SwapOut(Sequence& sequence);
  // Copies back into those blocks of the sequence that do not hold KV yet (the prefix cache fills
  // the first ones), and drops the copy.
  void SwapIn(Sequence& sequence);
  void Drop(Sequence& sequence);

 private:
  // The first block whose window pages are copied.
  int FirstWindowed(const kv::BlockLease& blocks, int computed_tokens) const;

  engine::Engine& engine_;
  const Clock& clock_;
  LoadEstimate& estimate_;
  DecodeMetrics& metrics_;
  const int64_t max_bytes_;
  int64_t bytes_ = 0;
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_HOST_KV_H_
