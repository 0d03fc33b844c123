#include "benchmarks/router_sim/peer_router.h"

#include <algorithm>

namespace baton::benchmarks {

PeerRouter::PeerRouter(const PeerKind& kind, const RouterSetup& setup)
    : kind_(kind),
      setup_(setup),
      formula_(kind.make(setup)),
      random_(setup.seed),
      workers_(setup.workers) {
  const int blocks = setup.trace->block_count;
  for (Worker& worker : workers_) {
    worker.cached.resize(blocks);
    worker.brought.resize(blocks);
    if (kind.knows == Knows::kDispatches) {
      const int capacity = kind.tree_blocks > 0 ? kind.tree_blocks : setup.cache_blocks;
      worker.tree = std::make_unique<BlockCache>(blocks, capacity);
    }
  }
}

void PeerRouter::OnStreamStarted(int worker, int64_t now_us) { workers_[worker].up = true; }

void PeerRouter::OnStreamLost(int worker, int64_t now_us) {
  workers_[worker].up = false;
  DropAll(&workers_[worker]);
}

void PeerRouter::DropAll(Worker* worker) {
  worker->load.Clear();
  worker->cached.assign(worker->cached.size(), false);
  worker->cached_count = 0;
  if (worker->tree != nullptr) worker->tree->Clear();
}

void PeerRouter::OnEvent(int worker, const internal::v1::WatchResponse& event, int64_t now_us) {
  Worker& w = workers_[worker];
  if (event.has_card()) DropAll(&w);
  if (event.has_load()) {
    w.load = event.load();
    w.reported_us = now_us - setup_.event_delay_us;
  }
  const auto set = [&w](const auto& keys, bool cached) {
    for (uint64_t key : keys) w.cached[BlockOfKey(key)] = cached;
    w.cached_count += cached ? keys.size() : -keys.size();
  };
  set(event.snapshot().keys(), true);
  set(event.delta().removed(), false);
  set(event.delta().added(), true);
}

int PeerRouter::Match(const Worker& worker, const SimRequest& request) const {
  switch (kind_.knows) {
    case Knows::kNothing:
      return 0;
    case Knows::kDispatches:
      return worker.tree->Match(request.blocks);
    case Knows::kEvents:
    case Knows::kSpeculation:
      break;
  }
  const bool speculates = kind_.knows == Knows::kSpeculation;
  return static_cast<int>(std::partition_point(request.blocks.begin(), request.blocks.end(),
                                               [&](int32_t block) {
                                                 return worker.cached[block] ||
                                                        (speculates && worker.brought[block] > 0);
                                               }) -
                          request.blocks.begin());
}

int PeerRouter::Choose(int request, int avoid, int64_t now_us) {
  const SimRequest& r = setup_.trace->requests[request];
  candidates_.clear();
  for (int i = 0; i < setup_.workers; ++i) {
    Worker& w = workers_[i];
    if (!w.up || i == avoid) continue;
    Forget(&w, now_us);
    PeerCandidate c;
    c.worker = i;
    c.matched_blocks = Match(w, r);
    const int cached = CachedTokens(r, c.matched_blocks);
    c.match = static_cast<double>(cached) / r.prompt_tokens;
    c.running = w.load.running();
    c.queued = w.load.queued();
    c.queued_tokens = w.load.queued_tokens();
    if (w.load.running() > 0) {
      c.free_part = static_cast<double>(w.load.free_blocks()) / setup_.cache_blocks;
    }
    c.in_flight = static_cast<int>(w.in_flight.size());
    c.in_flight_tokens = w.in_flight_tokens;
    int64_t queue_us = std::max<int64_t>(w.load.remaining_work_us() - (now_us - w.reported_us), 0);
    for (auto d = w.in_flight.rbegin(); d != w.in_flight.rend(); ++d) {
      if (d->at_us <= w.reported_us) break;
      queue_us += d->work_us;
      c.queued += 1;
      c.queued_tokens += d->tokens;
    }
    c.queue_s = static_cast<double>(queue_us) * 1e-6;
    c.service_s = static_cast<double>(ServiceUs(setup_.cost, r, c.matched_blocks)) * 1e-6;
    candidates_.push_back(c);
  }
  if (candidates_.empty()) return -1;
  for (size_t i = candidates_.size() - 1; i > 0; --i) {
    std::swap(candidates_[i], candidates_[random_.Below(static_cast<int>(i) + 1)]);
  }
  const PeerCandidate& c =
      candidates_[formula_->Pick({&r, static_cast<double>(now_us) * 1e-6}, candidates_)];
  Worker& chosen = workers_[c.worker];
  const int tokens = r.prompt_tokens - CachedTokens(r, c.matched_blocks);
  chosen.in_flight.push_back({request, now_us, static_cast<int64_t>(c.service_s * 1e6), tokens});
  chosen.in_flight_tokens += tokens;
  for (int32_t block : r.blocks) ++chosen.brought[block];
  if (chosen.tree != nullptr) chosen.tree->Insert(r.blocks, nullptr, nullptr);
  return c.worker;
}

void PeerRouter::Forget(Worker* worker, int64_t now_us) {
  while (!worker->answered.empty() && worker->answered.front().forget_us <= now_us) {
    for (int32_t block : setup_.trace->requests[worker->answered.front().request].blocks) {
      --worker->brought[block];
    }
    worker->answered.pop_front();
  }
}

void PeerRouter::Remove(int request, int worker, bool answered, int64_t now_us) {
  Worker& w = workers_[worker];
  const auto found = std::find_if(w.in_flight.begin(), w.in_flight.end(),
                                  [&](const Dispatch& d) { return d.request == request; });
  Dispatch dispatch = *found;
  w.in_flight.erase(found);
  w.in_flight_tokens -= dispatch.tokens;
  dispatch.forget_us = answered ? now_us + setup_.event_delay_us : now_us;
  w.answered.push_back(dispatch);
  Forget(&w, now_us);
}

void PeerRouter::OnAnswer(int request, int worker, int64_t now_us) {
  Remove(request, worker, /*answered=*/true, now_us);
}

void PeerRouter::OnLoss(int request, int worker, int64_t now_us) {
  Remove(request, worker, /*answered=*/false, now_us);
}

int64_t PeerRouter::IndexBytes() const {
  // What a table of 8-byte keys with 4 bytes of worker and position takes, half of it empty.
  constexpr int64_t kBytesPerBlock = 24;
  int64_t blocks = 0;
  for (const Worker& worker : workers_) {
    if (kind_.knows == Knows::kNothing) continue;
    blocks += worker.tree != nullptr ? worker.tree->size() : worker.cached_count;
  }
  return blocks * kBytesPerBlock;
}

}  // namespace baton::benchmarks
