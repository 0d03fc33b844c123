// A simulated prefill worker: one prompt at a time, first come, first served, at a cost that
// depends on the tokens to compute and on those cached before them.
#ifndef BATON_SIMULATOR_SIM_WORKER_H_
#define BATON_SIMULATOR_SIM_WORKER_H_

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "baton/internal/v1/worker.pb.h"
#include "simulator/block_cache.h"
#include "simulator/trace.h"

namespace baton::simulator {

// Microseconds to compute n tokens behind c cached ones: fixed + token * n + pair * n * (c + n/2).
struct PrefillCost {
  double fixed_us = 5000;
  double token_us = 125;
  double pair_us = 0.0039;

  double Us(double cached, double computed) const {
    return fixed_us + token_us * computed + pair_us * computed * (cached + computed / 2);
  }
};

// At least the last token is computed.
inline int CachedTokens(const SimRequest& request, int matched_blocks) {
  return std::min(matched_blocks * kSimBlockTokens, request.prompt_tokens - 1);
}
inline int64_t ServiceUs(const PrefillCost& cost, const SimRequest& request, int matched_blocks) {
  const int cached = CachedTokens(request, matched_blocks);
  return static_cast<int64_t>(cost.Us(cached, request.prompt_tokens - cached));
}

// Of a worker of either role, as far as both are alike.
internal::v1::WorkerCard SimCard(v1::WorkerRole role, const std::string& id, uint64_t epoch,
                                 int block_tokens, int total_blocks);

class SimWorker {
 public:
  // `reported_blocks`: a block of the trace is reported as so many smaller ones.
  SimWorker(const Trace& trace, PrefillCost cost, int cache_blocks, int reported_blocks = 1);

  bool alive() const { return alive_; }
  // Empty and with a new epoch.
  void Start();
  // Returns the requests that were here, none of which is answered.
  std::vector<int> Kill();

  // Adds a request (an index into the trace). REQUIRES: alive.
  void Accept(int request);
  // Begins the next request, if none runs and one waits: when it will end. -1: none was begun.
  int64_t Begin(int64_t now_us);
  struct Finished {
    int request;
    int cached_tokens;
    std::vector<int32_t> added, removed;  // blocks
  };
  // Ends the one that runs, whose blocks enter the cache now. REQUIRES: one runs.
  Finished End();

  // Blocks of the request's prompt that are cached.
  int Match(int request) const { return cache_.Match(trace_.requests[request].blocks); }
  // The first `blocks` of a request's prompt have been fetched. Its request and cached_tokens mean
  // nothing.
  Finished Fetched(int request, int blocks);

  // As this worker tells routers.
  internal::v1::WorkerCard Card(const std::string& id) const;
  internal::v1::CacheSnapshot Snapshot() const;
  internal::v1::CacheDelta Delta(const Finished& finished);  // numbered
  internal::v1::LoadReport Load(int64_t now_us) const;

  uint64_t epoch() const { return epoch_; }
  int running() const { return running_ ? job_.request : -1; }  // the request
  int64_t busy_us() const { return busy_us_; }

 private:
  struct Job {
    int request;
    int64_t work_us;  // of a waiting one, an estimate: as if those before it were cached
    int tokens;       // to compute
  };
  Job Estimate(int request) const;

  const Trace& trace_;
  const PrefillCost cost_;
  const int cache_blocks_, reported_blocks_;
  BlockCache cache_;
  std::vector<uint16_t> awaited_;  // by block: accepted requests that will bring it
  std::deque<Job> waiting_;
  int64_t waiting_us_ = 0, waiting_tokens_ = 0;
  bool running_ = false;
  Job job_ = {};
  int cached_tokens_ = 0;
  int64_t began_us_ = 0;
  bool alive_ = false;
  uint64_t epoch_ = 0, sequence_ = 0;
  int64_t busy_us_ = 0;
};

}  // namespace baton::simulator

#endif  // BATON_SIMULATOR_SIM_WORKER_H_
