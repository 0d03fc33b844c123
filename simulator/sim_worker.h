// A simulated prefill worker, whose steps take a time that depends on the tokens to compute and on
// those cached before them.
//
// A step computes chunks of several prompts, of PrefillWorkerShape::step_tokens tokens together, in
// the order of the real worker's scheduler (common/prefill/scheduler.h) for one tenant and one
// priority: shortest remaining first with ageing, and a prompt waits for blocks that a prompt ahead
// of it computes. The pool bounds the prompts that run together; beside them the cache keeps its
// whole capacity, which is more than a real pool leaves it. With step_tokens 0, a worker computes
// one prompt at a time, first come, first served, in one step each.
#ifndef BATON_SIMULATOR_SIM_WORKER_H_
#define BATON_SIMULATOR_SIM_WORKER_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "baton/internal/v1/worker.pb.h"
#include "simulator/block_cache.h"
#include "simulator/trace.h"

namespace baton::simulator {

// The default KV: 32 layers, 8 KV heads of 128 dimensions, bfloat16, as of Llama 3 8B.
inline constexpr int kKvLayers = 32;
inline constexpr double kKvBytesPerToken = 2.0 * 2 * kKvLayers * 8 * 128;

// Microseconds of a step that computes n tokens behind c cached ones: fixed + token * n + pair * n
// * (c + n/2).
struct PrefillCost {
  double fixed_us = 5000;
  double token_us = 125;
  double pair_us = 0.0039;

  double Us(double cached, double computed) const { return fixed_us + ChunkUs(cached, computed); }
  // Without the step's fixed part.
  double ChunkUs(double cached, double computed) const {
    return token_us * computed + pair_us * computed * (cached + computed / 2);
  }
};

struct PrefillWorkerShape {
  PrefillCost cost;
  int cache_blocks = 4096;  // of the trace: the pool
  int step_tokens = 0;      // 0: a prompt is one step
  int most_jobs = 64;       // that run together, where step_tokens is not 0
  int chunk_tokens = 16;    // a chunk ends at a multiple of it, or with its prompt
  int reported_blocks = 1;  // a block of the trace is reported as so many smaller ones
  double kv_bytes_per_token = kKvBytesPerToken;
};

// At least the last token is computed.
inline int CachedTokens(const SimRequest& request, int matched_blocks) {
  return std::min(matched_blocks * kSimBlockTokens, request.prompt_tokens - 1);
}
inline int64_t ServiceUs(const PrefillCost& cost, const SimRequest& request, int matched_blocks) {
  const int cached = CachedTokens(request, matched_blocks);
  return static_cast<int64_t>(cost.Us(cached, request.prompt_tokens - cached));
}

// The card of a worker of either role, as far as both are alike.
internal::v1::WorkerCard SimCard(v1::WorkerRole role, const std::string& id, uint64_t epoch,
                                 int block_tokens, int total_blocks);

class SimWorker {
 public:
  SimWorker(const Trace& trace, const PrefillWorkerShape& shape);

  bool alive() const { return alive_; }
  // The worker is empty, and has a new epoch.
  void Start();
  // Returns the requests that were here, none of which is answered.
  std::vector<int> Kill();

  // Adds a request (an index into the trace). REQUIRES: alive.
  void Accept(int request);
  // Begins the next step, if none is under way and there is work, and returns when it will end; -1:
  // none was begun.
  int64_t Begin(int64_t now_us);
  // The requests whose first chunk is in the last step that was begun.
  const std::vector<int>& started() const { return started_; }
  struct CacheChanges {
    std::vector<int32_t> added, removed;  // blocks
  };
  struct Ended {
    int request;
    int cached_tokens;
  };
  struct Step {
    std::vector<Ended> ended;
    CacheChanges changes;
  };
  // Ends the step under way: its whole blocks enter the cache now. REQUIRES: one is under way.
  Step End();

  // Blocks of the request's prompt that are cached.
  int Match(int request) const { return cache_.Match(trace_.requests[request].blocks); }
  // The first `blocks` of a request's prompt have been fetched.
  CacheChanges Fetched(int request, int blocks);

  // What this worker tells routers.
  internal::v1::WorkerCard Card(const std::string& id) const;
  internal::v1::CacheSnapshot Snapshot() const;
  internal::v1::CacheDelta Delta(const CacheChanges& changes);  // numbered
  internal::v1::LoadReport Load(int64_t now_us) const;

  uint64_t epoch() const { return epoch_; }
  int64_t busy_us() const { return busy_us_; }

 private:
  // A waiting job's computed tokens are those cached when it was looked at last.
  struct Job {
    int request = 0;
    int64_t arrival_work = 0;  // tokens that the worker had computed when the job came
    int cached = 0, computed = 0;
    int planned = 0;   // tokens of the step under way
    int expected = 0;  // tokens to compute, as if those before it were cached
    int64_t expected_us = 0;
  };
  // The order of service: a key of less first.
  using Rank = std::pair<int64_t, uint64_t>;
  using Jobs = std::map<Rank, Job>;

  int Tokens(const Job& job) const { return trace_.requests[job.request].prompt_tokens; }
  int PoolBlocks(const Job& job) const { return Tokens(job) / kSimBlockTokens + 1; }
  Rank RankOf(const Job& job, uint64_t order) const;
  void Expect(Job* job) const;
  Job* Leader(const Job& job);
  bool Plan(Job* job, int limit, int* budget);
  void PlanStep();
  double StepUs() const;
  static void Settle(CacheChanges* changes);

  const Trace& trace_;
  const PrefillWorkerShape shape_;
  BlockCache cache_;
  std::vector<uint16_t> awaited_;  // by block: accepted requests that will bring it
  Jobs waiting_, running_;         // running_: in no order that changes
  uint64_t order_ = 0;             // of arrival
  int64_t work_ = 0;               // tokens computed
  int64_t waiting_us_ = 0, waiting_tokens_ = 0;
  int pool_blocks_ = 0;  // of running ones
  std::vector<int> started_;
  bool stepping_ = false;
  int64_t began_us_ = 0, step_us_ = 0;
  bool alive_ = false;
  uint64_t epoch_ = 0, sequence_ = 0;
  int64_t busy_us_ = 0;
};

}  // namespace baton::simulator

#endif  // BATON_SIMULATOR_SIM_WORKER_H_
