#include "common/prefill/tier_io.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/backend/backend.h"
#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/named_thread.h"

namespace baton::prefill {
namespace {

using kv_store::SegmentBytes;
using kv_store::SegmentKey;
using kv_store::SegmentStore;

constexpr double kNewWeight = 0.3;  // of a measurement

bool AnyAsks(const std::vector<std::shared_ptr<SegmentStore>>& stores) {
  return std::any_of(stores.begin(), stores.end(),
                     [](const auto& store) { return !store->knows_its_keys(); });
}

}  // namespace

void TimeMean::Add(absl::Duration value, absl::Duration now) {
  absl::MutexLock lock(&mutex_);
  const bool known = mean_ > absl::ZeroDuration() && now - added_at_ < kForgetAfter;
  mean_ = known ? (1 - kNewWeight) * mean_ + kNewWeight * value : value;
  added_at_ = now;
}

absl::Duration TimeMean::Get(absl::Duration now) const {
  absl::MutexLock lock(&mutex_);
  return now - added_at_ < kForgetAfter ? mean_ : absl::ZeroDuration();
}

absl::Duration TimeMean::Last() const {
  absl::MutexLock lock(&mutex_);
  return mean_;
}

bool TierLoad::TryAbandon() {
  absl::MutexLock lock(&mutex_);
  if (!copying_) abandoned_ = true;
  return abandoned_;
}

bool TierLoad::BeginCopy() {
  absl::MutexLock lock(&mutex_);
  copying_ = !abandoned_;
  return copying_;
}

void TierLoad::EndCopy() {
  absl::MutexLock lock(&mutex_);
  copying_ = false;
}

TierIo::TierIo(const Options& options, std::vector<std::shared_ptr<SegmentStore>> stores,
               const backend::KvPool& pool, const kv::KvLayout& layout, const Clock& clock,
               TierMetrics& metrics)
    : options_(options),
      stores_(std::move(stores)),
      asks_(AnyAsks(stores_)),
      pool_(pool),
      layout_(layout),
      clock_(clock),
      metrics_(metrics),
      load_times_(stores_.size()),
      loads_(static_cast<size_t>(options.most_loads)),
      writes_(static_cast<size_t>(options.most_writes)) {
  for (int i = 0; i < options_.load_threads; ++i) {
    threads_.push_back(NamedThread("kv-tier-loads", [this] { Work(loads_); }));
  }
  threads_.push_back(NamedThread("kv-tier-writes", [this] { Work(writes_); }));
}

TierIo::~TierIo() {
  Stop();
  for (BoundedQueue<Task>* queue : {&loads_, &writes_}) {
    queue->Close();
    while (queue->TryPop()) {
    }
  }
  for (std::thread& thread : threads_) thread.join();
}

void TierIo::Work(BoundedQueue<Task>& queue) {
  while (std::optional<Task> task = queue.Pop()) (*task)();
}

Located TierIo::Locate(const SegmentRange& range, bool ask, absl::Time deadline) {
  const auto keys = absl::MakeConstSpan(range.keys);
  Located found = {.segments = range.kv_begin, .expected = absl::ZeroDuration()};
  std::vector<absl::Duration> times(static_cast<size_t>(range.kv_begin));
  for (bool more = true; more;) {
    more = false;
    for (size_t s = 0; s < stores_.size(); ++s) {
      SegmentStore& store = *stores_[s];
      const auto rest = keys.subspan(static_cast<size_t>(found.segments));
      if (rest.empty() || (!ask && !store.knows_its_keys())) continue;
      const absl::StatusOr<int> count = store.CountLeading(rest, deadline);
      if (!count.ok()) {
        metrics_.Failed(store.kind(), "look_up", count.status());
        continue;
      }
      const absl::Duration each = load_times_[s].Get(clock_.SinceStart());
      found.segments += *count;
      found.expected += *count * each;
      times.resize(static_cast<size_t>(found.segments), each);
      more = more || *count > 0;
    }
  }
  return range.state ? EndAtState(range, found.segments, times, ask, deadline) : found;
}

Located TierIo::EndAtState(const SegmentRange& range, int found,
                           absl::Span<const absl::Duration> times, bool ask, absl::Time deadline) {
  std::vector<SegmentKey> states;
  for (int i = 0; i < found; ++i) states.push_back(range.keys[static_cast<size_t>(i)].State());
  Located located;
  absl::Duration of_state;
  for (size_t s = 0; s < stores_.size(); ++s) {
    SegmentStore& store = *stores_[s];
    if (states.empty() || (!ask && !store.knows_its_keys())) continue;
    const absl::StatusOr<int> count = store.CountToLast(states, deadline);
    if (!count.ok()) {
      metrics_.Failed(store.kind(), "look_up", count.status());
    } else if (*count > located.segments) {
      located.segments = *count;
      of_state = load_times_[s].Get(clock_.SinceStart());
    }
  }
  if (located.segments == 0) return located;
  located.expected = of_state * StateSegments(layout_, range.segment_tokens);
  for (int i = 0; i < located.segments; ++i) located.expected += times[static_cast<size_t>(i)];
  return located;
}

double TierIo::StateSegments(const kv::KvLayout& layout, int segment_tokens) {
  return static_cast<double>(layout.state_pieces()) /
         (segment_tokens / layout.block_tokens * layout.attention_layers());
}

Located TierIo::LocatedAtOnce(const SegmentRange& range) {
  return Locate(range, /*ask=*/false, absl::InfiniteFuture());
}

bool TierIo::LackedAtOnce(const SegmentKey& key) {
  return std::any_of(stores_.begin(), stores_.end(), [&key](const auto& store) {
    return store->knows_its_keys() &&
           store->CountLeading({&key, 1}, absl::InfiniteFuture()).value_or(0) == 0;
  });
}

bool TierIo::LookUp(SegmentRange range, absl::Duration within, std::function<void(Located)> done) {
  return loads_.TryPush([this, range = std::move(range), within, done = std::move(done)] {
    const absl::Duration begin = clock_.SinceStart();
    const Located found = Locate(range, /*ask=*/true, clock_.Now() + within);
    const absl::Duration now = clock_.SinceStart();
    look_up_time_.Add(now - begin, now);
    done(found);
  });
}

bool TierIo::Load(std::shared_ptr<TierLoad> load, std::function<void(int)> done) {
  return loads_.TryPush([this, load = std::move(load), done = std::move(done)] {
    std::optional<Late> late;
    const int loaded = RunLoad(*load, &late);
    const bool probes = late && !stopping_ && !probing_.exchange(true);
    done(loaded);
    if (!probes) return;
    Probe(*load, *late);
    probing_ = false;
  });
}

void TierIo::Probe(const TierLoad& load, const Late& late) {
  const kv_store::Segment segment = ValueOf(load.range, late.index);
  const absl::Duration most = segment.state ? load.each * load.range.size() : load.each;
  const absl::Duration begin = clock_.SinceStart();
  const absl::Status status =
      stores_[late.store]
          ->Get(KeyOf(load.range, late.index), kv_store::EncodedBytes(segment, layout_),
                clock_.Now() + most)
          .status();
  const absl::Duration took = clock_.SinceStart() - begin;
  if (status.ok()) {
    Took(late.store, segment, took);
  } else if (absl::IsDeadlineExceeded(status)) {
    Took(late.store, segment, 2 * most);  // how long is not known: computing is faster
  }
}

void TierIo::Took(size_t s, const kv_store::Segment& segment, absl::Duration time) {
  if (segment.state) time /= StateSegments(layout_, segment.segment_tokens);
  const absl::Duration now = clock_.SinceStart();
  load_times_[s].Add(time, now);
  if (stores_[s]->knows_its_keys()) local_load_time_.Add(time, now);
}

kv_store::Segment TierIo::ValueOf(const SegmentRange& range, int index) const {
  const bool state = index == range.size();
  const int end = range.first_token + (state ? index : index + 1) * range.segment_tokens;
  return {range.keys.front().model_fingerprint,
          range.keys.front().layout_fingerprint,
          range.root,
          absl::MakeConstSpan(range.tokens).first(static_cast<size_t>(end)),
          range.segment_tokens,
          state};
}

SegmentKey TierIo::KeyOf(const SegmentRange& range, int index) {
  return index == range.size() ? range.keys.back().State() : range.keys[static_cast<size_t>(index)];
}

int TierIo::RunLoad(TierLoad& load, std::optional<Late>* late) {
  const SegmentRange& range = load.range;
  const absl::Time begin = clock_.Now();
  for (int i = range.kv_begin; i < range.size() + (range.state ? 1 : 0); ++i) {
    const absl::Duration within = load.within + (range.state ? 0 : i) * load.each;
    if (stopping_ || !LoadValue(load, i, begin + within, late)) return range.state ? 0 : i;
  }
  return range.size();
}

bool TierIo::LoadValue(TierLoad& load, int index, absl::Time deadline, std::optional<Late>* late) {
  const kv_store::Segment segment = ValueOf(load.range, index);
  const SegmentKey key = KeyOf(load.range, index);
  const size_t bytes = kv_store::EncodedBytes(segment, layout_);
  for (size_t s = 0; s < stores_.size(); ++s) {
    SegmentStore& store = *stores_[s];
    const absl::Duration begin = clock_.SinceStart();
    if (clock_.Now() >= deadline) return false;
    const absl::StatusOr<SegmentBytes> value = store.Get(key, bytes, deadline);
    if (absl::IsNotFound(value.status())) continue;
    const absl::StatusOr<absl::Span<const std::byte>> kv =
        value.ok() ? kv_store::Decode(**value, segment, layout_) : value.status();
    if (!kv.ok()) {
      metrics_.Failed(store.kind(), "load", kv.status());
      if (absl::IsDataLoss(kv.status())) {
        BATON_LOG(Warning) << "the " << store.kind() << " tier's value of segment "
                           << key.ToString() << " is dropped: " << kv.status();
        store.Remove(key, deadline);
      }
      if (absl::IsDeadlineExceeded(kv.status())) *late = Late{s, index};
      continue;
    }
    if (!Copy(load, index, *kv)) return false;
    const absl::Duration took = clock_.SinceStart() - begin;
    metrics_.Loaded(store.kind(), bytes, took);
    Took(s, segment, took);
    for (size_t faster = 0; faster < s; ++faster) Promote(faster, key, *value);
    return true;
  }
  return false;
}

// A load waits for no other store's I/O, which it was not priced with.
void TierIo::Promote(size_t s, const SegmentKey& key, const SegmentBytes& value) {
  SegmentStore& store = *stores_[s];
  if (!store.knows_its_keys()) return;
  const auto put = [this, &store, key, value] {
    if (stopping_) return;
    if (store.Put(key, value, clock_.Now() + options_.put_deadline).ok()) {
      metrics_.Stored(store.kind(), value->size());
    }
  };
  if (store.in_memory()) return put();
  // What finds no room here is promoted by a later load. Half of the places are for other writes.
  if (2 * ++promotions_ > options_.most_writes || !writes_.TryPush([this, put] {
        put();
        --promotions_;
      })) {
    --promotions_;
  }
}

void TierIo::ForEachLayer(
    const kv_store::Segment& segment, absl::Span<const int32_t> pages, int begin, int blocks,
    absl::FunctionRef<void(int slot, absl::Span<const int32_t> of_layer)> visit) const {
  const size_t stride = pages.size() / static_cast<size_t>(pool_.tables);
  const int attention = layout_.attention_layers();
  const int end = segment.state ? layout_.layers : attention;
  for (int layer = segment.state ? attention : 0; layer < end; ++layer) {
    const auto [table, slot] = pool_.PlaceOf(layer);
    visit(slot, pages.subspan(static_cast<size_t>(table) * stride + static_cast<size_t>(begin),
                              static_cast<size_t>(blocks)));
  }
}

bool TierIo::Copy(TierLoad& load, int index, absl::Span<const std::byte> kv) {
  const kv_store::Segment segment = ValueOf(load.range, index);
  const int blocks = segment.state ? 1 : segment.segment_tokens / layout_.block_tokens;
  const auto chunk = static_cast<size_t>(layout_.ChunkBytes());
  const int first = segment.state ? 0 : (index - load.range.kv_begin) * blocks;
  if (!load.BeginCopy()) return false;
  const std::byte* from = kv.data();
  const auto write = [&](int slot, absl::Span<const int32_t> of_layer) {
    if (pool_.copier != nullptr) pool_.copier->Write({slot}, of_layer, from);
    for (const int32_t page : of_layer) {
      if (pool_.copier == nullptr) std::memcpy(pool_.Chunk(page, slot), from, chunk);
      from += chunk;
    }
  };
  ForEachLayer(segment, segment.state ? load.state_pages : load.pages, first, blocks, write);
  load.EndCopy();
  BATON_CHECK_EQ(from - kv.data(), static_cast<std::ptrdiff_t>(kv.size()));
  return true;
}

bool TierIo::Write(SegmentRange segment, std::vector<int32_t> pages, std::function<void()> copied,
                   std::function<void(bool)> done) {
  BATON_CHECK_EQ(segment.size(), 1);
  return writes_.TryPush([this, segment = std::move(segment), pages = std::move(pages),
                          copied = std::move(copied),
                          done = std::move(done)] { done(RunWrite(segment, pages, copied)); });
}

bool TierIo::RunWrite(const SegmentRange& segment, const std::vector<int32_t>& pages,
                      const std::function<void()>& copied) {
  const int index = segment.state ? 1 : 0;
  const SegmentKey key = KeyOf(segment, index);
  const kv_store::Segment written = ValueOf(segment, index);
  const auto chunk = static_cast<size_t>(layout_.ChunkBytes());
  const SegmentBytes value = kv_store::Encode(written, layout_, [&](absl::Span<std::byte> kv) {
    std::byte* to = kv.data();
    const auto blocks = static_cast<int>(pages.size()) / pool_.tables;
    const auto read = [&](int slot, absl::Span<const int32_t> of_layer) {
      if (pool_.copier != nullptr) pool_.copier->Read({slot}, of_layer, /*written=*/nullptr, to);
      for (const int32_t page : of_layer) {
        if (pool_.copier == nullptr) std::memcpy(to, pool_.Chunk(page, slot), chunk);
        to += chunk;
      }
    };
    ForEachLayer(written, pages, 0, blocks, read);
  });
  copied();
  bool everywhere = true;
  for (const auto& store : stores_) {
    if (stopping_) return false;
    const absl::Time deadline = clock_.Now() + options_.put_deadline;
    // Another worker may have stored it; and a value goes over a network once.
    if (store->CountLeading({&key, 1}, deadline).value_or(0) == 1) continue;
    const absl::Status status = store->Put(key, value, deadline);
    if (status.ok()) {
      metrics_.Stored(store->kind(), value->size());
    } else {
      metrics_.Failed(store->kind(), "store", status);
      everywhere = false;
    }
  }
  return everywhere;
}

void TierIo::ReportUsage() {
  for (const auto& store : stores_) {
    if (store->knows_its_keys()) metrics_.SetUsage(store->kind(), store->usage());
  }
}

}  // namespace baton::prefill
