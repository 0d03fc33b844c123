#include "benchmarks/router_sim/peer_router.h"

#include <algorithm>

namespace baton::simulator::sweeps {

PeerRouter::PeerRouter(const PeerKind& kind, const RouterSetup& setup)
    : kind_(kind),
      setup_(setup),
      first_(kind.tier == Tier::kDecode ? setup.workers : 0),
      formula_(kind.make(setup)),
      random_(setup.seed),
      workers_(kind.tier == Tier::kDecode ? setup.decode_workers : setup.workers) {
  const int blocks = setup.trace->block_count;
  for (Worker& worker : workers_) {
    worker.cached.resize(blocks);
    worker.brought.resize(blocks);
    if (kind.knows == Knows::kDispatches) {
      const int of_worker = Decodes() ? setup.decode_cache_blocks : setup.cache_blocks;
      const int capacity = kind.tree_blocks > 0 ? kind.tree_blocks : of_worker;
      worker.tree = std::make_unique<BlockCache>(blocks, capacity);
    }
  }
}

void PeerRouter::OnStreamStarted(int worker, int64_t now_us) {
  if (Chooses(worker)) workers_[worker - first_].up = true;
}

void PeerRouter::OnStreamLost(int worker, int64_t now_us) {
  if (!Chooses(worker)) return;
  workers_[worker - first_].up = false;
  DropAll(&workers_[worker - first_]);
}

void PeerRouter::DropAll(Worker* worker) {
  worker->load.Clear();
  worker->cached.assign(worker->cached.size(), false);
  worker->cached_count = 0;
  if (worker->tree != nullptr) worker->tree->Clear();
}

void PeerRouter::OnEvent(int worker, const internal::v1::WatchResponse& event, int64_t now_us) {
  if (!Chooses(worker)) return;
  Worker& w = workers_[worker - first_];
  if (event.has_card()) {
    DropAll(&w);
    w.total_blocks = std::max(event.card().total_blocks(), 1);
    w.load.set_free_blocks(w.total_blocks);
  }
  if (event.has_load()) {
    w.load = event.load();
    w.reported_us = now_us - setup_.event_delay_us;
  }
  const auto set = [this, &w](const auto& keys, bool cached) {
    for (uint64_t key : keys) w.cached[BlockOfKey(key) / setup_.reported_blocks] = cached;
    const int64_t blocks = keys.size() / setup_.reported_blocks;
    w.cached_count += cached ? blocks : -blocks;
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

SimRoute PeerRouter::Choose(int request, int avoid, int64_t now_us) {
  const SimRequest& r = setup_.trace->requests[request];
  candidates_.clear();
  const int block_tokens = kSimBlockTokens / setup_.reported_blocks;
  for (int i = 0; i < static_cast<int>(workers_.size()); ++i) {
    Worker& w = workers_[i];
    if (!w.up || first_ + i == avoid) continue;
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
      c.free_part = static_cast<double>(w.load.free_blocks()) / w.total_blocks;
    }
    c.blocks_per_token = 1.0 / block_tokens;
    c.used_blocks = w.total_blocks - w.load.free_blocks();
    c.in_flight = static_cast<int>(w.in_flight.size());
    c.in_flight_tokens = w.in_flight_tokens;
    int64_t queue_us = std::max<int64_t>(w.load.remaining_work_us() - (now_us - w.reported_us), 0);
    for (auto d = w.in_flight.rbegin(); d != w.in_flight.rend(); ++d) {
      if (d->at_us <= w.reported_us) break;
      queue_us += d->work_us;
      c.queued += 1;
      c.queued_tokens += d->tokens;
      c.used_blocks += d->tokens / block_tokens + 1;
    }
    c.queue_s = static_cast<double>(queue_us) * 1e-6;
    c.service_s = static_cast<double>(ServiceUs(setup_.cost, r, c.matched_blocks)) * 1e-6;
    candidates_.push_back(c);
  }
  if (candidates_.empty()) return {};
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
  return Decodes() ? SimRoute{-1, first_ + c.worker} : SimRoute{first_ + c.worker, -1};
}

void PeerRouter::Forget(Worker* worker, int64_t now_us) {
  while (!worker->answered.empty() && worker->answered.front().forget_us <= now_us) {
    for (int32_t block : setup_.trace->requests[worker->answered.front().request].blocks) {
      --worker->brought[block];
    }
    worker->answered.pop_front();
  }
}

void PeerRouter::Remove(int request, const SimRoute& route, bool answered, int64_t now_us) {
  Worker& w = workers_[IndexOf(route)];
  const auto found = std::find_if(w.in_flight.begin(), w.in_flight.end(),
                                  [&](const Dispatch& d) { return d.request == request; });
  if (found == w.in_flight.end()) return;  // its prompt was computed before it was lost
  Dispatch dispatch = *found;
  w.in_flight.erase(found);
  w.in_flight_tokens -= dispatch.tokens;
  dispatch.forget_us = answered ? now_us + setup_.event_delay_us : now_us;
  w.answered.push_back(dispatch);
  Forget(&w, now_us);
}

void PeerRouter::OnAnswer(int request, const SimRoute& route, int64_t now_us) {
  if (!Decodes()) Remove(request, route, /*answered=*/true, now_us);
}

void PeerRouter::OnEnd(int request, const SimRoute& route, const SimAnswer& answer,
                       int64_t now_us) {
  if (Decodes()) Remove(request, route, /*answered=*/true, now_us);
}

void PeerRouter::OnLoss(int request, const SimRoute& route, int64_t now_us) {
  Remove(request, route, /*answered=*/false, now_us);
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

}  // namespace baton::simulator::sweeps
