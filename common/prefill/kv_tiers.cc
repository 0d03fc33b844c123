#include "common/prefill/kv_tiers.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/prefill/reserved_blocks.h"

namespace baton::prefill {

KvTiers::KvTiers(const KvTiersOptions& options, const engine::Engine& engine, kv::BlockPool& pool,
                 kv::RadixCache* cache, const Clock& clock, TierMetrics& metrics,
                 worker::CacheJournal& journal, std::shared_ptr<Mailbox> mailbox)
    : options_(options),
      engine_(engine),
      pool_(pool),
      cache_(cache),
      clock_(clock),
      metrics_(metrics),
      mailbox_(std::move(mailbox)) {
  if (options_.stores.empty() || cache_ == nullptr) return;
  BATON_CHECK_GT(options_.segment_tokens, 0);
  BATON_CHECK_EQ(options_.segment_tokens % engine.kv_layout().block_tokens, 0);
  io_ = std::make_unique<TierIo>(options_.io, options_.stores, engine.kv_pool(), engine.kv_layout(),
                                 clock, metrics);
  if (options_.max_listed <= 0) return;
  listing_ =
      std::make_shared<TierListing>(engine.config().fingerprint, engine.kv_layout().Fingerprint(),
                                    options_.segment_tokens, options_.max_listed, journal);
  for (size_t i = 0; i < options_.stores.size(); ++i) {
    options_.stores[i]->Listen(
        [weak = std::weak_ptr<TierListing>(listing_), i](absl::string_view key, bool held) {
          if (const auto listing = weak.lock()) listing->OnChange(static_cast<int>(i), key, held);
        });
  }
}

SegmentRange KvTiers::RangeOf(kv::PrefixKey root, absl::Span<const int32_t> tokens,
                              absl::Span<const kv::PrefixKey> keys, int first, int end) const {
  const int blocks = options_.segment_tokens / engine_.kv_layout().block_tokens;
  SegmentRange range;
  range.root = root;
  range.segment_tokens = options_.segment_tokens;
  range.first_token = first * options_.segment_tokens;
  range.state = pool_.shape().recurrent;
  const auto whole = tokens.first(static_cast<size_t>(end * options_.segment_tokens));
  range.tokens.assign(whole.begin(), whole.end());
  const uint64_t layout = engine_.kv_layout().Fingerprint();
  for (int segment = first; segment < end; ++segment) {
    range.keys.push_back({engine_.config().fingerprint, layout, options_.segment_tokens,
                          keys[static_cast<size_t>((segment + 1) * blocks - 1)]});
  }
  return range;
}

void KvTiers::Consider(Prompt& prompt, const worker::StepCost& cost, int max_tokens_per_step,
                       std::function<void(Prompt&)> or_else) {
  // With log probabilities of the prompt, all of it is computed.
  if (io_ == nullptr || prompt.prompt_logprobs) return or_else(prompt);
  const int segments = (prompt.size() - 1) / options_.segment_tokens;
  const int cached = cache_->Peek(
      prompt.root, absl::MakeConstSpan(prompt.tokens)
                       .first(static_cast<size_t>(segments * options_.segment_tokens)));
  const int first = cached / options_.segment_tokens;
  if (first >= segments) return or_else(prompt);
  for (auto& [id, entry] : entries_) {
    if (entry.prompts.empty() || entry.range.root != prompt.root ||
        entry.range.first_token > cached ||
        entry.range.tokens.size() > static_cast<size_t>(segments * options_.segment_tokens) ||
        !std::equal(entry.range.tokens.begin(), entry.range.tokens.end(), prompt.tokens.begin())) {
      continue;
    }
    entry.prompts.push_back(&prompt);
    prompt.fetching = true;
    return;
  }
  // A store that does not return holds a thread: until it does, nothing is looked up.
  if (orphans_ > 0 || static_cast<int>(entries_.size()) >= options_.max_loads) {
    metrics_.LookedUp(TierLookup::kNoRoom);
    return or_else(prompt);
  }
  const uint64_t id = ++last_;
  Entry entry;
  entry.range = RangeOf(prompt.root, prompt.tokens, prompt.keys, first, segments);
  if (entry.range.state) {
    // The cache may have KV without a state, where its snapshots had to go.
    const int reached = cache_->ReachedBlocks(prompt.root, entry.range.tokens);
    entry.range.kv_begin =
        reached * engine_.kv_layout().block_tokens / options_.segment_tokens - first;
  }
  PrefillWork work;
  work.Add(segments * options_.segment_tokens - cached, cached);
  if (cost.known()) {
    entry.computing = absl::Seconds(
        cost.Seconds(worker::PrefillTerms(work, max_tokens_per_step), clock_.SinceStart()));
  }
  entry.began_at = clock_.SinceStart();
  entry.or_else = std::move(or_else);
  entry.prompts.push_back(&prompt);
  prompt.fetching = true;
  const Located at_once = io_->LocatedAtOnce(entry.range);
  if (!io_->asks() || at_once.segments == entry.range.size()) {
    Begin(id, entries_.emplace(id, std::move(entry)).first->second, at_once);
    return;
  }
  // A look-up over a network may take its share of what is lost at most.
  const absl::Duration within =
      entry.computing == absl::ZeroDuration() ? kUnmeasured : kMostLost * entry.computing;
  entry.give_up_at = clock_.SinceStart() + within + kGrace;
  Entry& added = entries_.emplace(id, std::move(entry)).first->second;
  if (io_->LookUpTime() > within) {
    Begin(id, added, at_once);
    return;
  }
  const bool asked =
      io_->LookUp(added.range, within, [this, id, mailbox = mailbox_](const Located& found) {
        mailbox->Post([this, id, found] { OnLookedUp(id, found); });
      });
  if (!asked) Begin(id, added, at_once);
}

void KvTiers::OnLookedUp(uint64_t id, const Located& found) {
  const auto at = entries_.find(id);
  if (at == entries_.end()) {
    --orphans_;
    return;
  }
  Begin(id, at->second, found);
}

void KvTiers::Begin(uint64_t id, Entry& entry, const Located& located) {
  const int found = located.segments;
  if (found == 0 || entry.prompts.empty())
    return Release(id, TierLookup::kAbsent, /*or_else=*/true);
  SegmentRange& range = entry.range;
  const int all = range.size();
  range.keys.resize(static_cast<size_t>(found));
  range.tokens.resize(static_cast<size_t>(range.first_token + found * range.segment_tokens));
  range.kv_begin = std::min(range.kv_begin, found);
  const absl::Duration computing = entry.computing * found / all;
  if (computing > absl::ZeroDuration() && located.expected >= kv::kMostLoadShare * computing) {
    return Release(id, TierLookup::kSlower, /*or_else=*/true);
  }
  if (!Reserve(entry)) return Release(id, TierLookup::kNoRoom, /*or_else=*/true);
  const absl::Duration each = computing == absl::ZeroDuration() ? kUnmeasured : computing / found;
  absl::Duration within = kUnmeasured;
  if (computing > absl::ZeroDuration()) {
    // What usually takes longer than may be lost gets its time.
    const absl::Duration asked = clock_.SinceStart() - entry.began_at;
    const absl::Duration usual = range.state ? std::min(2 * located.expected, computing)
                                             : std::min(2 * located.expected / found, each);
    within = std::max(kMostLost * entry.computing - asked, usual);
  }
  entry.give_up_at = clock_.SinceStart() + within + found * each + kGrace;
  const int last = entry.blocks.size() - 1;
  entry.load = std::make_shared<TierLoad>(
      range, entry.blocks.Tables(FirstLoaded(range), last + 1),
      range.state ? entry.blocks.PagesOf(last) : std::vector<int32_t>(), within, each);
  const bool begun = io_->Load(entry.load, [this, id, mailbox = mailbox_](int loaded) {
    mailbox->Post([this, id, loaded] { OnLoaded(id, loaded); });
  });
  if (!begun) Release(id, TierLookup::kNoRoom, /*or_else=*/true);
}

int KvTiers::FirstLoaded(const SegmentRange& range) const {
  return (range.first_token + range.kv_begin * range.segment_tokens) /
         engine_.kv_layout().block_tokens;
}

bool KvTiers::Reserve(Entry& entry) {
  const SegmentRange& range = entry.range;
  const int block_tokens = engine_.kv_layout().block_tokens;
  const int end = static_cast<int>(range.tokens.size()) / block_tokens;
  const int first = FirstLoaded(range);
  const kv::BlockShape& shape = pool_.shape();
  // Segments have the KV of all their tokens, also for layers with a window.
  const int64_t pages = range.state ? shape.PagesOf(end - first, 0) + shape.window_pages
                                    : int64_t{end - first} * shape.pages();
  if (pages + loading_pages() > options_.max_reserved_share * pool_.counts().total) return false;
  // The prefix cache may have changed since the look-up began.
  const int cached = range.state ? cache_->ReachedBlocks(range.root, range.tokens)
                                 : cache_->Peek(range.root, range.tokens) / block_tokens;
  if (cached < first) return false;
  std::optional<kv::BlockLease> blocks = ReserveBlocks(
      pool_, *cache_, range.root, range.tokens, first, range.state ? end : first, block_tokens);
  if (!blocks) return false;
  if (range.state) {
    // A block of the cache may have got the state meanwhile, or another load may be bringing it.
    if (pool_.WindowRefCount(blocks->ids().back()) > 0) return false;
    const int lacking = shape.window_pages - pool_.counts().free;
    if (lacking > 0 && cache_->EvictForSnapshot(lacking) < lacking) return false;
    if (blocks->AddWindows(end - 1, end) < end) return false;
  }
  entry.blocks = *std::move(blocks);
  return true;
}

int64_t KvTiers::loading_pages() const {
  int64_t pages = 0;
  for (const auto& [id, entry] : entries_) {
    if (entry.load == nullptr) continue;
    const std::vector<int32_t>& of_blocks = entry.load->pages;
    pages += std::count_if(of_blocks.begin(), of_blocks.end(), [](int32_t p) { return p >= 0; });
    if (of_blocks.empty()) pages += pool_.shape().window_pages;  // a state alone
  }
  return pages;
}

void KvTiers::OnLoaded(uint64_t id, int loaded) {
  const auto at = entries_.find(id);
  if (at == entries_.end()) {
    --orphans_;
    return;
  }
  Entry& entry = at->second;
  const SegmentRange& range = entry.range;
  if (loaded > 0) {
    const int tokens = range.first_token + loaded * range.segment_tokens;
    entry.blocks.SplitAt(tokens / engine_.kv_layout().block_tokens).Release();
    cache_->Insert(range.root, absl::MakeConstSpan(range.tokens).first(static_cast<size_t>(tokens)),
                   entry.blocks);
    for (int i = range.kv_begin; i < loaded; ++i) {
      UseOf(range.keys[static_cast<size_t>(i)].prefix).stored = true;
    }
    if (range.state) UseOf(range.keys.back().State().prefix).stored = true;
  }
  Release(id,
          loaded == range.size() ? TierLookup::kLoaded
          : loaded > 0           ? TierLookup::kPartial
                                 : TierLookup::kFailed,
          /*or_else=*/loaded == 0);
}

void KvTiers::Release(uint64_t id, TierLookup result, bool or_else) {
  metrics_.LookedUp(result);
  auto node = entries_.extract(id);
  for (Prompt* prompt : node.mapped().prompts) {
    prompt->fetching = false;
    if (or_else) node.mapped().or_else(*prompt);
  }
}

void KvTiers::Leave(Prompt& prompt) {
  for (auto& [id, entry] : entries_) {
    // What comes is cached all the same.
    if (std::erase(entry.prompts, &prompt) > 0) prompt.fetching = false;
  }
}

void KvTiers::Tick() {
  const absl::Duration now = clock_.SinceStart();
  std::vector<uint64_t> late;
  for (auto& [id, entry] : entries_) {
    if (now < entry.give_up_at) continue;
    if (entry.load == nullptr || entry.load->TryAbandon()) late.push_back(id);
  }
  for (const uint64_t id : late) {
    ++orphans_;
    BATON_LOG(Warning) << "a KV tier does not answer in time: its KV is computed";
    Release(id, TierLookup::kFailed, /*or_else=*/true);
  }
}

void KvTiers::CancelAll() {
  pending_.clear();
  if (io_ != nullptr) io_->Stop();
  for (auto& [id, entry] : entries_) {
    entry.prompts.clear();
    if (entry.load != nullptr) (void)entry.load->TryAbandon();
  }
}

KvTiers::Use& KvTiers::UseOf(kv::PrefixKey key) {
  const auto [at, added] = uses_.try_emplace(key);
  if (added) {
    at->second.recent = recent_.insert(recent_.begin(), key);
  } else {
    recent_.splice(recent_.begin(), recent_, at->second.recent);
  }
  if (uses_.size() > kMostCounted) {
    uses_.erase(recent_.back());
    recent_.pop_back();
  }
  return uses_.at(key);
}

void KvTiers::Used(const Prompt& prompt) {
  if (io_ == nullptr) return;
  const int segments = prompt.cacheable_tokens() / options_.segment_tokens;
  if (segments == 0) return;
  const auto stored = std::make_shared<Stored>();
  stored->root = prompt.root;
  stored->tokens.assign(prompt.tokens.begin(),
                        prompt.tokens.begin() + int64_t{segments} * options_.segment_tokens);
  stored->keys = prompt.keys;
  const SegmentRange range = RangeOf(prompt.root, stored->tokens, prompt.keys, 0, segments);
  std::vector<int> states;  // of these segments, the last one first
  if (range.state) {
    const int blocks = options_.segment_tokens / engine_.kv_layout().block_tokens;
    for (const int length : cache_->Snapshots(prompt.root, stored->tokens)) {
      if (length % blocks == 0) states.push_back(length / blocks - 1);
    }
  }
  // The last first: a segment is forgotten before those that it builds on.
  for (const int segment : states) {
    ++UseOf(range.keys[static_cast<size_t>(segment)].State().prefix).count;
  }
  for (int segment = segments - 1; segment >= 0; --segment) {
    ++UseOf(range.keys[static_cast<size_t>(segment)].prefix).count;
  }
  for (int segment = 0; segment < segments; ++segment) {
    if (!WriteIfDue(range.keys[static_cast<size_t>(segment)], {stored, segment})) break;
  }
  for (const int segment : states) {
    WriteIfDue(range.keys[static_cast<size_t>(segment)].State(), {stored, segment, true});
  }
  WritePending();
}

bool KvTiers::WriteIfDue(const kv_store::SegmentKey& key, PendingWrite pending) {
  Use& use = UseOf(key.prefix);
  if (use.count < options_.least_uses) return false;
  if (use.pending || (use.stored && !io_->LackedAtOnce(key))) return true;
  if (static_cast<int>(pending_.size()) >= options_.max_pending) {
    metrics_.Dropped();
    return false;
  }
  use.pending = true;
  pending_.push_back(std::move(pending));
  return true;
}

void KvTiers::WritePending() {
  while (!pending_.empty() && Write(pending_.front())) pending_.pop_front();
}

bool KvTiers::Write(const PendingWrite& pending) {
  const auto& [prompt, segment, state] = pending;
  const int blocks = options_.segment_tokens / engine_.kv_layout().block_tokens;
  const kv::BlockShape& shape = pool_.shape();
  const int end = (segment + 1) * blocks, first = state ? end - 1 : end - blocks;
  // Where there are states, the others are of no account to a segment.
  const int windows = state ? 1 : shape.recurrent ? 0 : blocks;
  if (!writes_.empty() && pinned_pages_ + shape.PagesOf(end - first, windows) >
                              options_.max_pinned_share * pool_.counts().total) {
    return false;
  }
  SegmentRange range = RangeOf(prompt->root, prompt->tokens, prompt->keys, segment, segment + 1);
  range.state = state;
  const kv::PrefixKey key = state ? range.keys.front().State().prefix : range.keys.front().prefix;
  if (!cache_->HasWindows(prompt->root, range.tokens, windows)) {  // evicted meanwhile
    metrics_.Dropped();
    NotStored(key);
    return true;
  }
  kv::BlockLease prefix = cache_->Lock(prompt->root, range.tokens, end - windows);
  kv::BlockLease lease = prefix.SplitAt(first);
  lease.SetUse(kv::BlockUse::kHeld);
  const uint64_t id = ++last_;
  const bool begun = io_->Write(
      std::move(range), lease.Tables(0, lease.size()),
      [this, id, mailbox = mailbox_] {
        mailbox->Post([this, id] {
          pinned_pages_ -= writes_.at(id).page_count();
          writes_.at(id).Release();
          WritePending();
        });
      },
      [this, id, key, mailbox = mailbox_](bool stored) {
        mailbox->Post([this, id, key, stored] {
          writes_.erase(id);
          if (!stored) {
            NotStored(key);
          } else if (const auto at = uses_.find(key); at != uses_.end()) {
            at->second.stored = true;
            at->second.pending = false;
          }
          WritePending();
        });
      });
  if (!begun) return false;
  pinned_pages_ += lease.page_count();
  writes_.emplace(id, std::move(lease));
  return true;
}

void KvTiers::NotStored(kv::PrefixKey key) {
  const auto at = uses_.find(key);
  if (at == uses_.end()) return;
  // Not with the next use again: a store that is full stays so for a while.
  at->second.stored = at->second.pending = false;
  at->second.count = 0;
}

}  // namespace baton::prefill
