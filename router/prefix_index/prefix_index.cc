#include "router/prefix_index/prefix_index.h"

#include <algorithm>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "common/base/brief_lock.h"
#include "common/base/check.h"

namespace baton::router {
namespace {

// Keys that are changed under one hold of the lock: some 5 µs.
constexpr size_t kKeysPerHold = 64;
// Owners of members that no worker has.
constexpr int kFree = -1;
constexpr int kDead = -2;
constexpr int kHidden = -3;
// Bounds of a match: the look-ups side by side where there is one stretch to cut, and how many of
// the likely depths are looked at.
constexpr int kCuts = 4;
constexpr size_t kMostLikely = 8;

using Positions = absl::InlinedVector<int, 32>;

// The ends of equal pieces, all but the last.
void CutBetween(int first, int last, int pieces, Positions* cuts) {
  const int gap = last - first;
  pieces = std::min(pieces, gap);
  for (int piece = 1; piece < pieces; ++piece) {
    cuts->push_back(first + static_cast<int>(int64_t{gap} * piece / pieces));
  }
}

// In order: the first key, and those where a match begins. At a likely depth both sides are looked
// at: if it is one, nothing is left to look for there.
Positions FirstCuts(const KeyChain& chain, absl::Span<const int> likely) {
  Positions cuts = {0};
  if (likely.empty()) {
    CutBetween(0, chain.size(), 1 + kCuts, &cuts);
    return cuts;
  }
  for (const int depth : likely.first(std::min(likely.size(), kMostLikely))) {
    const int keys = chain.KeysOf(depth);
    for (const int at : {keys - 1, keys}) {
      if (at > 0 && at < chain.size()) cuts.push_back(at);
    }
  }
  cuts.push_back(chain.size() - 1);
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  return cuts;
}

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
    // So many drops came without a change in between that none is free: this sweeps all at once.
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
void PrefixIndex::Look(const KeyChain& chain, absl::Span<Probe> probes) const {
  for (const Probe& probe : probes) table_.Prefetch(chain[probe.position]);
  for (Probe& probe : probes) {
    probe.set = table_.Find(chain[probe.position]);
    __builtin_prefetch(sets_.Address(probe.set));
  }
  for (Probe& probe : probes) probe.count = LiveCount(probe.set);
}

void PrefixIndex::Match(const KeyChain& chain, std::vector<int>* depths,
                        absl::Span<const int> likely, std::vector<int>* found) const {
  BriefReaderLock lock(&mutex_);
  if (depths->size() < workers_.size()) depths->resize(workers_.size());
  if (chain.size() == 0) return;
  const HolderSets* sets = &sets_;
  const int* owners = owners_.data();
  const auto tell = [&](const Probe& last) {
    const int depth = chain.DepthOf(last.position + 1);
    if (found != nullptr) found->push_back(depth);
    sets->ForEach(last.set, [&](int member) {
      const int worker = owners[member];
      if (worker >= 0) (*depths)[worker] = std::max((*depths)[worker], depth);
    });
  };
  // Stretches of the chain whose ends have different numbers of holders; behind the end of the
  // chain is no holder.
  absl::InlinedVector<std::pair<Probe, Probe>, 32> stretches, next;
  absl::InlinedVector<Probe, 32> cuts;
  Positions positions = FirstCuts(chain, likely);
  const auto look = [&] {
    mutex_.AssertReaderHeld();
    cuts.clear();
    for (const int position : positions) cuts.push_back({position, HolderSets::kEmpty, 0});
    Look(chain, absl::MakeSpan(cuts));
  };
  look();
  if (cuts[0].count == 0) return;
  auto cut = cuts.begin() + 1;
  stretches.emplace_back(cuts[0], Probe{chain.size(), HolderSets::kEmpty, 0});
  int probes = static_cast<int>(cuts.size());
  while (true) {
    next.clear();
    for (const auto& [first, last] : stretches) {
      if (cut == cuts.end() || cut->position > last.position) {
        // Nothing in between, or no more probes: those of the first key hold it at least.
        tell(first);
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
    if (stretches.empty()) return;
    // Many stretches hide each other's misses; a few are cut into more pieces for that.
    const int pieces = 1 + std::max(1, kCuts / static_cast<int>(stretches.size()));
    positions.clear();
    for (const auto& [first, last] : stretches) {
      CutBetween(first.position, last.position, pieces, &positions);
    }
    probes += static_cast<int>(positions.size());
    if (probes > kMaxProbes) positions.clear();
    look();
    cut = cuts.begin();
  }
}

void PrefixIndex::LimitTo(size_t most, absl::FunctionRef<kv::PrefixKey(size_t)> key_of,
                          std::vector<int>* depths) const {
  // Looked up together, so that their cache misses overlap.
  constexpr int kTogether = 32;
  std::vector<int> limited(depths->size(), 0);
  int deepest = 0, unknown = 0;
  for (const int depth : *depths) {
    deepest = std::max(deepest, depth);
    unknown += depth > 0 ? 1 : 0;
  }
  deepest = std::min(deepest, static_cast<int>(most));
  BriefReaderLock lock(&mutex_);
  const int* owners = owners_.data();
  for (int end = deepest; end > 0 && unknown > 0; end -= kTogether) {
    const int begin = std::max(0, end - kTogether);
    kv::PrefixKey keys[kTogether];
    for (int i = begin; i < end; ++i) {
      keys[i - begin] = key_of(static_cast<size_t>(i));
      table_.Prefetch(keys[i - begin]);
    }
    for (int i = end - 1; i >= begin; --i) {
      sets_.ForEach(table_.Find(keys[i - begin]), [&](int member) {
        const int worker = owners[member];
        // A worker may have come since the depths were looked up.
        if (worker < 0 || static_cast<size_t>(worker) >= limited.size()) return;
        if ((*depths)[worker] <= i || limited[worker] > 0) return;
        limited[worker] = i + 1;
        --unknown;
      });
    }
  }
  depths->swap(limited);
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
