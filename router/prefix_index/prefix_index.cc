#include "router/prefix_index/prefix_index.h"

#include <algorithm>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "common/base/brief_lock.h"
#include "common/base/check.h"

namespace baton::router {
namespace {

// Changed under one hold of the lock: some 5 µs.
constexpr size_t kKeysPerHold = 64;
// Owners of members that no worker has.
constexpr int kFree = -1;
constexpr int kDead = -2;
constexpr int kHidden = -3;

}  // namespace

PrefixIndex::PrefixIndex(int worker_count) { Grow(worker_count); }

void PrefixIndex::Grow(int worker_count) {
  BATON_CHECK_LE(worker_count, kMaxWorkers);
  absl::MutexLock lock(&mutex_);
  if (worker_count > static_cast<int>(workers_.size())) workers_.resize(worker_count);
}

void PrefixIndex::SetCapacity(int worker, int64_t key_count) {
  absl::MutexLock lock(&mutex_);
  BATON_CHECK(worker >= 0 && static_cast<size_t>(worker) < workers_.size()) << worker;
  workers_[worker].capacity = key_count;
}

bool PrefixIndex::Add(int worker, absl::Span<const uint64_t> keys, std::vector<uint64_t>* fresh) {
  if (!HasRoom(worker, keys)) return false;
  for (size_t begin = 0; begin < keys.size(); begin += kKeysPerHold) {
    BriefLock lock(&mutex_);
    AddSome(worker, keys.subspan(begin, kKeysPerHold), fresh);
    SweepSome(1);
  }
  return true;
}

bool PrefixIndex::HasRoom(int worker, absl::Span<const uint64_t> keys) {
  BriefReaderLock lock(&mutex_);
  BATON_CHECK(worker >= 0 && static_cast<size_t>(worker) < workers_.size()) << worker;
  const Worker& w = workers_[worker];
  const int64_t room = w.capacity - w.keys;
  if (static_cast<int64_t>(keys.size()) <= room) return true;
  // Some may be there already, or come twice.
  std::vector<uint64_t> fresh;
  for (uint64_t key : keys) {
    if (w.member < 0 || !sets_.Contains(table_.Find(key), w.member)) fresh.push_back(key);
  }
  std::sort(fresh.begin(), fresh.end());
  return std::unique(fresh.begin(), fresh.end()) - fresh.begin() <= room;
}

void PrefixIndex::AddSome(int worker, absl::Span<const uint64_t> keys,
                          std::vector<uint64_t>* fresh) {
  for (uint64_t key : keys) table_.Prefetch(key);
  const int member = TakeMember(worker);
  HolderSets* sets = &sets_;
  int64_t added = 0;
  for (uint64_t key : keys) {
    table_.Insert(key, [&](Set set) {
      bool changed;
      const Set with = sets->Insert(set, member, &changed);
      added += changed ? 1 : 0;
      if (changed && fresh != nullptr) fresh->push_back(key);
      return with;
    });
  }
  workers_[worker].keys += added;
}

void PrefixIndex::Remove(int worker, absl::Span<const uint64_t> keys) {
  for (size_t begin = 0; begin < keys.size(); begin += kKeysPerHold) {
    BriefLock lock(&mutex_);
    RemoveSome(worker, keys.subspan(begin, kKeysPerHold));
    SweepSome(1);
  }
}

void PrefixIndex::RemoveSome(int worker, absl::Span<const uint64_t> keys) {
  BATON_CHECK(worker >= 0 && static_cast<size_t>(worker) < workers_.size()) << worker;
  const int member = workers_[worker].member;
  if (member < 0) return;
  for (uint64_t key : keys) table_.Prefetch(key);
  HolderSets* sets = &sets_;
  int64_t removed = 0;
  for (uint64_t key : keys) {
    table_.Update(key, [&](Set set) {
      bool changed;
      const Set without = sets->Erase(set, member, &changed);
      removed += changed ? 1 : 0;
      return without;
    });
  }
  workers_[worker].keys -= removed;
}

void PrefixIndex::DropWorker(int worker) {
  absl::MutexLock lock(&mutex_);
  if (static_cast<size_t>(worker) >= workers_.size()) return;
  ShowMember(worker);
  Worker& w = workers_[worker];
  if (w.member < 0 || w.keys == 0) return;
  owners_[w.member] = kDead;
  ++dead_count_;
  w.member = -1;
  w.keys = 0;
}

void PrefixIndex::Hide(int worker) {
  absl::MutexLock lock(&mutex_);
  Worker& w = workers_[worker];
  w.hidden = true;
  if (w.member < 0 || owners_[w.member] == kHidden) return;
  owners_[w.member] = kHidden;
  ++hidden_count_;
}

void PrefixIndex::Show(int worker) {
  absl::MutexLock lock(&mutex_);
  ShowMember(worker);
}

void PrefixIndex::ShowMember(int worker) {
  Worker& w = workers_[worker];
  w.hidden = false;
  if (w.member < 0 || owners_[w.member] != kHidden) return;
  owners_[w.member] = worker;
  --hidden_count_;
}

int PrefixIndex::TakeMember(int worker) {
  Worker& w = workers_[worker];
  if (w.member >= 0) return w.member;
  if (free_members_.empty() && owners_.size() > static_cast<size_t>(HolderSets::kMaxMember)) {
    // So many drops without a change in between that none is free: no bit by bit.
    while (dead_count_ > 0) SweepSome(KeyTable::kSegments);
  }
  if (free_members_.empty()) {
    w.member = static_cast<int>(owners_.size());
    owners_.push_back(worker);
  } else {
    w.member = free_members_.back();
    free_members_.pop_back();
    owners_[w.member] = worker;
  }
  if (w.hidden) {
    owners_[w.member] = kHidden;
    ++hidden_count_;
  }
  return w.member;
}

void PrefixIndex::SweepSome(int segments) {
  if (dead_count_ == 0) return;
  if (sweeping_.empty()) {
    for (size_t i = 0; i < owners_.size(); ++i) {
      if (owners_[i] == kDead) sweeping_.push_back(static_cast<int>(i));
    }
  }
  const int end = std::min(sweep_at_ + segments, KeyTable::kSegments);
  HolderSets* sets = &sets_;
  const int* owners = owners_.data();
  for (; sweep_at_ < end; ++sweep_at_) {
    table_.ChangeSegment(sweep_at_, [&](Set set) {
      absl::InlinedVector<int, 8> dead;
      sets->ForEach(set, [&](int member) {
        if (owners[member] == kDead) dead.push_back(member);
      });
      bool changed;
      for (int member : dead) set = sets->Erase(set, member, &changed);
      return set;
    });
  }
  if (sweep_at_ < KeyTable::kSegments) return;
  for (int member : sweeping_) owners_[member] = kFree;
  // The low numbers are taken first: the sets' bytes do not care, but people who debug do.
  free_members_.insert(free_members_.end(), sweeping_.rbegin(), sweeping_.rend());
  dead_count_ -= static_cast<int>(sweeping_.size());
  sweeping_.clear();
  sweep_at_ = 0;
}

void PrefixIndex::Sweep(int segments) {
  absl::MutexLock lock(&mutex_);
  SweepSome(segments);
}

bool PrefixIndex::swept() const {
  absl::ReaderMutexLock lock(&mutex_);
  return dead_count_ == 0;
}

int PrefixIndex::LiveCount(Set set) const {
  if (dead_count_ == 0 && hidden_count_ == 0) return sets_.Count(set);
  const int* owners = owners_.data();
  int live = 0;
  sets_.ForEach(set, [&](int member) { live += owners[member] >= 0 ? 1 : 0; });
  return live;
}

// All at a time, so that their cache misses overlap.
void PrefixIndex::Look(absl::Span<const kv::PrefixKey> chain, absl::Span<Probe> probes) const {
  for (const Probe& probe : probes) table_.Prefetch(chain[probe.position]);
  for (Probe& probe : probes) {
    probe.set = table_.Find(chain[probe.position]);
    __builtin_prefetch(sets_.Address(probe.set));
  }
  for (Probe& probe : probes) probe.count = LiveCount(probe.set);
}

void PrefixIndex::Match(absl::Span<const kv::PrefixKey> chain, std::vector<int>* depths,
                        int (*depth_of)(int)) const {
  BriefReaderLock lock(&mutex_);
  if (depths->size() < workers_.size()) depths->resize(workers_.size());
  if (chain.empty()) return;
  const HolderSets* sets = &sets_;
  const int* owners = owners_.data();
  const auto tell = [&](Set set, int keys) {
    const int depth = depth_of(keys);
    sets->ForEach(set, [&](int member) {
      const int worker = owners[member];
      if (worker >= 0) (*depths)[worker] = std::max((*depths)[worker], depth);
    });
  };
  // Stretches of the chain whose ends have different numbers of holders; behind the end of the
  // chain is no holder.
  absl::InlinedVector<std::pair<Probe, Probe>, 32> stretches, next;
  absl::InlinedVector<Probe, 32> cuts;
  cuts.push_back({0, HolderSets::kEmpty, 0});
  Look(chain, absl::MakeSpan(cuts));
  if (cuts[0].count == 0) return;
  const Probe end = {static_cast<int>(chain.size()), HolderSets::kEmpty, 0};
  stretches.emplace_back(cuts[0], end);
  int probes = 1;
  while (!stretches.empty()) {
    // Many stretches hide each other's misses; a few are cut into more pieces for that.
    const int most_pieces = stretches.size() <= 2 ? 5 : 2;
    cuts.clear();
    for (const auto& [first, last] : stretches) {
      const int gap = last.position - first.position;
      const int pieces = std::min(most_pieces, gap);
      for (int piece = 1; piece < pieces; ++piece) {
        const int64_t offset = int64_t{gap} * piece / pieces;
        cuts.push_back({first.position + static_cast<int>(offset), HolderSets::kEmpty, 0});
      }
    }
    probes += static_cast<int>(cuts.size());
    if (probes > kMaxProbes) cuts.clear();
    Look(chain, absl::MakeSpan(cuts));
    next.clear();
    auto cut = cuts.begin();
    for (const auto& [first, last] : stretches) {
      if (cut == cuts.end() || cut->position > last.position) {
        // Nothing in between, or no more probes: those of the first key hold it at least.
        tell(first.set, first.position + 1);
        continue;
      }
      Probe left = first;
      for (; cut != cuts.end() && cut->position < last.position; ++cut) {
        if (left.count != cut->count) next.emplace_back(left, *cut);
        left = *cut;
      }
      if (left.count != last.count) next.emplace_back(left, last);
    }
    stretches.swap(next);
  }
}

int PrefixIndex::MatchDepth(int worker, absl::Span<const kv::PrefixKey> chain) const {
  absl::ReaderMutexLock lock(&mutex_);
  if (static_cast<size_t>(worker) >= workers_.size() || workers_[worker].member < 0) return 0;
  const int member = workers_[worker].member;
  const auto first_missing =
      std::partition_point(chain.begin(), chain.end(), [&](kv::PrefixKey key) {
        mutex_.AssertReaderHeld();
        return sets_.Contains(table_.Find(key), member);
      });
  return static_cast<int>(first_missing - chain.begin());
}

int64_t PrefixIndex::key_count(int worker) const {
  absl::ReaderMutexLock lock(&mutex_);
  return static_cast<size_t>(worker) < workers_.size() ? workers_[worker].keys : 0;
}

int64_t PrefixIndex::distinct_key_count() const {
  absl::ReaderMutexLock lock(&mutex_);
  return table_.size();
}

int64_t PrefixIndex::memory_bytes() const {
  absl::ReaderMutexLock lock(&mutex_);
  return table_.memory_bytes() + sets_.memory_bytes();
}

}  // namespace baton::router
