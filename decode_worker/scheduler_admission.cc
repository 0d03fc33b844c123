// The part of DecodeScheduler that admits requests.
#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/kv/answer_blocks.h"
#include "decode_worker/beam_search.h"
#include "decode_worker/scheduler.h"
#include "decode_worker/shared_prefill.h"

namespace baton::decode_worker {
namespace {

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

// What the bounds on waiting requests are multiplied by.
int64_t BoundFactor(const Call& call) { return call.continuation ? 2 : 1; }

}  // namespace

int DecodeScheduler::BlocksFor(int64_t tokens) const {
  return static_cast<int>((tokens + options_.block_tokens - 1) / options_.block_tokens);
}

bool DecodeScheduler::IsLong(const Sequence& sequence) const {
  return options_.long_context_tokens > 0 &&
         static_cast<int>(sequence.tokens.size()) > options_.long_context_tokens;
}

// A sequence with several draws needs a slot for each: they become choices. So does a beam search,
// which may have fewer beams for a while.
int DecodeScheduler::Slots(const Sequence& sequence) const {
  return sequence.call->beams != nullptr ? sequence.call->beams->width() : sequence.draws;
}

int DecodeScheduler::UsedSlots() const {
  int slots = 0;
  const Call* search = nullptr;  // its beams are adjacent in rank, and counted at once
  for (const auto& [rank, sequence] : admitted_) {
    if (search != nullptr && sequence->call.get() == search) continue;
    slots += Slots(*sequence);
    search = sequence->call->beams != nullptr ? sequence->call.get() : nullptr;
  }
  return slots;
}

int DecodeScheduler::MaxSlots() const {
  return options_.max_num_seqs - (events_.lent_slots != nullptr ? events_.lent_slots() : 0);
}

int DecodeScheduler::running_slots() const { return UsedSlots() - ReceivingNow().slots; }

DecodeScheduler::Receiving DecodeScheduler::ReceivingNow() const {
  Receiving receiving;
  for (const auto& [rank, sequence] : admitted_) {
    if (sequence->state == Sequence::State::kRunning) continue;
    receiving.pages += sequence->blocks.page_count();
    receiving.slots += Slots(*sequence);
  }
  return receiving;
}

bool DecodeScheduler::WithinBound(const Receiving& receiving) const {
  return receiving.pages <= pool_.counts().total / 2 &&
         receiving.slots <= std::max(1, options_.max_num_seqs / 2);
}

void DecodeScheduler::EvictExcess() {
  Receiving left = ReceivingNow();
  for (auto it = admitted_.rbegin(); it != admitted_.rend() && !WithinBound(left); ++it) {
    Sequence& sequence = *it->second;
    if (sequence.state == Sequence::State::kRunning) continue;
    left.pages -= sequence.blocks.page_count();
    left.slots -= Slots(sequence);
    Evict(sequence, /*ended=*/false);
  }
}

int64_t DecodeScheduler::GrowthPages() const {
  const kv::BlockShape& shape = pool_.shape();
  if (!shape.recurrent) return int64_t{UsedSlots()} * shape.pages();
  int64_t pages = 0;
  for (const auto& [rank, sequence] : admitted_) {
    // The state of its last whole block and that of its next block; what it has beside these it
    // gives back before it grows.
    const int lacking = std::max(0, 2 - sequence->blocks.window_count());
    pages += Slots(*sequence) * shape.PagesOf(1, 0) + int64_t{lacking} * shape.window_pages;
  }
  return pages;
}

int DecodeScheduler::LongBound() const {
  return static_cast<int>(options_.long_context_share * pool_.counts().total);
}

int64_t DecodeScheduler::PagesFor(int64_t tokens) const {
  const int blocks = BlocksFor(tokens);
  return pool_.shape().PagesOf(blocks, WindowBlocksFor(blocks));
}

int DecodeScheduler::WindowBlocksFor(int blocks) const {
  return pool_.shape().ComputedWindows(blocks, BlocksFor(options_.max_num_batched_tokens) + 1,
                                       pool_.counts().total);
}

int DecodeScheduler::LongPages() const {
  if (options_.long_context_tokens == 0) return 0;
  absl::flat_hash_map<kv::BlockId, bool> blocks;  // choices share theirs; true: window pages, too
  for (const auto& [rank, sequence] : admitted_) {
    if (!IsLong(*sequence)) continue;
    for (int i = 0; i < sequence->blocks.size(); ++i) {
      blocks[sequence->blocks.ids()[static_cast<size_t>(i)]] |= sequence->blocks.has_window(i);
    }
  }
  int pages = 0;
  for (const auto& [block, windowed] : blocks) {
    pages += windowed ? pool_.shape().pages() : pool_.shape().full_pages;
  }
  return pages;
}

absl::Status DecodeScheduler::CheckFits(const Sequence& sequence) const {
  const Call& call = *sequence.call;
  const int choices = call.beams != nullptr ? call.beams->width() : sequence.draws;
  if (choices > options_.max_num_seqs) {
    return MakeError(
        kExhausted, "TOO_MANY_CHOICES",
        absl::StrCat(choices, " choices at once requested, the decode worker has slots for ",
                     options_.max_num_seqs, " (--max-num-seqs)"));
  }
  const int64_t prompt = static_cast<int64_t>(sequence.tokens.size());
  const int64_t pages =
      kv::PagesOfAnswer(prompt, call.max_tokens, call.beams != nullptr ? choices : 0,
                        options_.block_tokens, pool_.shape());
  if (pages <= pool_.counts().total) return absl::OkStatus();
  return MakeError(
      kExhausted, "KV_POOL_TOO_SMALL",
      absl::StrCat("a prompt of ", prompt, " tokens and an answer of ", call.max_tokens,
                   call.beams != nullptr ? absl::StrCat(" on ", choices, " beams") : "", " need ",
                   pages, pool_.shape().windowed() ? " KV pages" : " KV blocks",
                   ", the decode worker has ", pool_.counts().total));
}

absl::Status DecodeScheduler::CheckTenant(const Sequence& sequence) const {
  const auto it = tenants_.find(sequence.call->tenant);
  if (it == tenants_.end()) return absl::OkStatus();
  const TenantUse& use = it->second;
  const int64_t tokens = use.tokens + static_cast<int64_t>(sequence.tokens.size());
  const int64_t max_requests = BoundFactor(*sequence.call) * options_.max_tenant_requests;
  const int64_t max_tokens = BoundFactor(*sequence.call) * options_.max_tenant_tokens;
  const bool requests_full = max_requests > 0 && use.requests >= max_requests;
  const bool tokens_full = max_tokens > 0 && tokens > max_tokens;
  if (!requests_full && !tokens_full) return absl::OkStatus();
  return MakeError(kExhausted, "TENANT_LIMIT",
                   absl::StrCat("tenant \"", sequence.call->tenant, "\" has ", use.requests,
                                " requests of ", use.tokens, " prompt tokens here, the bounds are ",
                                max_requests, " and ", max_tokens));
}

absl::Status DecodeScheduler::Submit(std::unique_ptr<Sequence> sequence) {
  const int64_t tokens = static_cast<int64_t>(sequence->tokens.size());
  BATON_CHECK_GE(tokens, 1);
  if (absl::Status fits = CheckFits(*sequence); !fits.ok()) return fits;
  if (absl::Status within = CheckTenant(*sequence); !within.ok()) return within;
  // The bounds are on the queue: an empty one accepts a prompt of any length.
  const int64_t max_requests = BoundFactor(*sequence->call) * options_.max_queued_requests;
  const int64_t max_tokens = BoundFactor(*sequence->call) * options_.max_queued_tokens;
  if (waiting_.count() > 0 &&
      (waiting_.count() >= max_requests || waiting_tokens() + tokens > max_tokens)) {
    return MakeError(kExhausted, "QUEUE_FULL",
                     absl::StrCat("the decode worker's queue holds ", waiting_.count(),
                                  " requests and ", waiting_tokens(), " tokens, its bounds are ",
                                  max_requests, " and ", max_tokens));
  }
  ++call_sizes_[sequence->call->id];
  TenantUse& use = tenants_[sequence->call->tenant];
  ++use.requests;
  use.tokens += tokens;
  sequence->submission = ++submissions_;
  if (sequence->call->continuation) {
    waiting_.PushResumed(std::move(sequence));
  } else {
    const bool long_context = IsLong(*sequence);
    waiting_.PushNew(std::move(sequence), long_context);
  }
  return absl::OkStatus();
}

bool DecodeScheduler::MakeFree(int64_t count) {
  const int lacking = static_cast<int>(count - pool_.counts().free);
  if (lacking <= 0) return true;
  if (cache_ == nullptr || cache_->evictable_page_count() < lacking) return false;
  cache_->Evict(lacking);
  return true;
}

bool DecodeScheduler::TryAdmit(Sequence& sequence, bool receiving) {
  bound_reached_ = false;
  if (UsedSlots() + Slots(sequence) > MaxSlots()) return false;
  const Call& call = *sequence.call;
  const int tokens = static_cast<int>(sequence.tokens.size());
  kv::Match match;
  // At least the last token is computed: the next is drawn from its logits.
  if (cache_ != nullptr && MayReuse(sequence)) {
    match = cache_->MatchPrefix(call.root, sequence.tokens, tokens - 1);
  }
  const int transferred = sequence.transferred_tokens(pool_.shape());
  // Log probabilities of the whole prompt come with its last token.
  const bool lacks_logprobs = transferred < tokens && call.prompt_logprobs && !call.answered;
  bool here = call.prefill.address.empty() || sequence.compute_here ||
              transferred <= match.tokens || lacks_logprobs ||
              sequence.host_copy.computed_tokens > match.tokens ||
              tokens - match.tokens <= options_.local_prefill_max_tokens;
  if (!here && receiving_bound_) {
    const int blocks = BlocksFor(tokens);
    const Receiving own = {pool_.shape().PagesOf(blocks, pool_.shape().window_blocks + 1),
                           Slots(sequence)};
    Receiving all = ReceivingNow();
    all.pages += own.pages;
    all.slots += own.slots;
    here = !WithinBound(own);
    bound_reached_ = !here && !WithinBound(all);
    if (bound_reached_) return false;
  }
  if (here && receiving) return false;
  const int missing = BlocksFor(tokens) - match.blocks.size();
  // Of these, [window_begin, window_end) get window pages: those that it computes next here, or
  // those that are brought, which its next token sees.
  int window_begin = 0, window_end = missing;
  const int brought = here ? sequence.host_copy.computed_tokens : tokens;
  if (!here || brought > match.tokens) {
    // A copy of preempted KV has what the next token sees.
    const int first = here ? pool_.shape().FirstSeenBlock(brought, options_.block_tokens)
                           : pool_.shape().FirstBroughtBlock(transferred, options_.block_tokens);
    match.blocks.DropWindows(first);
    window_begin = std::clamp(first - match.blocks.size(), 0, missing);
  }
  if (here && pool_.shape().windowed()) {
    // What another sequence holds, too, is not free when this one has left it behind.
    const int windowed = WindowBlocksFor(BlocksFor(tokens)) - match.blocks.OwnWindows();
    // A spare for a state lies at the end.
    if (pool_.shape().recurrent && brought <= match.tokens) window_begin = missing - windowed;
    window_begin = std::max(0, window_begin);
    window_end = std::min(missing, window_begin + windowed);
  } else if (pool_.shape().recurrent) {
    window_end = std::min(missing, window_begin + 1);
  }
  const int64_t pages = pool_.shape().PagesOf(missing, window_end - window_begin);
  // Each admitted sequence may need its next block at any step.
  const int64_t reserve =
      admitted_.empty() ? 0 : GrowthPages() + (Slots(sequence) - 1) * pool_.shape().pages();
  const int evictable = cache_ != nullptr ? cache_->evictable_page_count() : 0;
  if (pool_.counts().free + evictable < pages + reserve) return false;
  BATON_CHECK(MakeFree(pages));

  const kv::BlockUse use = here ? kv::BlockUse::kActive : kv::BlockUse::kHeld;
  absl::StatusOr<kv::BlockLease> fresh = pool_.Acquire(missing, use, window_begin, window_end);
  BATON_CHECK(fresh.ok()) << fresh.status();
  match.blocks.SetUse(use);
  sequence.blocks = std::move(match.blocks);
  sequence.window_end = sequence.blocks.size() + window_end;
  sequence.blocks.Append(*std::move(fresh));
  sequence.computed_tokens = match.tokens;
  if (pool_.shape().recurrent && here) SetSnapshots(sequence);
  sequence.state = here ? Sequence::State::kRunning : Sequence::State::kReceiving;
  return true;
}

Sequence* DecodeScheduler::NextToAdmit() {
  const int long_pages = LongPages();
  bool long_one_waits = false;  // no long one overtakes it, or it might wait for ever
  return waiting_.Next([&](const Sequence& sequence) {
    if (!IsLong(sequence)) return false;
    // It may match window pages that others hold, beside its own. Were it counted for less than it
    // takes, it would be preempted and admitted again for ever.
    const int64_t shared = int64_t{pool_.shape().window_blocks} * pool_.shape().window_pages;
    const int64_t wanted = PagesFor(static_cast<int64_t>(sequence.tokens.size())) + shared;
    long_one_waits |= long_pages > 0 && long_pages + wanted > LongBound();
    return long_one_waits;
  });
}

// No request overtakes one that waits for blocks, or that might wait for ever.
Sequence* DecodeScheduler::Admit() {
  Sequence* const next = NextToAdmit();
  if (next == nullptr) return nullptr;
  while (!TryAdmit(*next, /*receiving=*/false)) {
    // No other sequence's blocks would help against the bound.
    if (bound_reached_ || !DisplaceFor(*next)) return nullptr;
  }
  return TakeWaiting(*next);
}

Sequence* DecodeScheduler::AdmitReceiving() {
  Sequence* const next = NextToAdmit();
  return next != nullptr && TryAdmit(*next, /*receiving=*/true) ? TakeWaiting(*next) : nullptr;
}

Sequence* DecodeScheduler::TakeWaiting(Sequence& next) {
  admitted_.emplace(next.Rank(), waiting_.Take(next));
  return &next;
}

// All sequences of a lower priority together must make enough room, or none is preempted.
bool DecodeScheduler::DisplaceFor(const Sequence& sequence) {
  int64_t pages = pool_.counts().free;
  if (cache_ != nullptr) pages += cache_->evictable_page_count();
  const auto tokens = static_cast<int64_t>(sequence.tokens.size());
  const bool computes = sequence.call->prefill.address.empty() || sequence.compute_here;
  const int64_t own = computes ? PagesFor(tokens) : pool_.shape().LeastPages(BlocksFor(tokens));
  const int64_t growth = pool_.shape().pages();  // of each slot that stays
  int coming = 0;                                // when the steps in flight are over
  for (const InflightStep& step : inflight_) coming += step.freed_for_admission;
  pages += coming;
  const int used_slots = UsedSlots() + Slots(sequence);
  if (coming > 0 && used_slots <= MaxSlots() && pages >= own + (used_slots - 1) * growth) {
    return false;
  }
  int staying = 0;  // slots of those that stay: each may need its next block at any step
  Sequence* last = nullptr;
  const Call* search = nullptr;
  for (const auto& [rank, other] : admitted_) {
    if (other->call->priority < sequence.call->priority) {
      // Evicted already: its blocks are freed at the end of its transfer.
      if (other->state == Sequence::State::kEvicted) return false;
      pages += other->blocks.page_count();
      last = other.get();
    } else if (other->call.get() != search) {
      staying += Slots(*other);
      search = other->call->beams != nullptr ? other->call.get() : nullptr;
    }
  }
  const int slots = staying + Slots(sequence);
  const int64_t wanted = own + (slots - 1) * growth;
  if (last == nullptr || pages < wanted || slots > MaxSlots()) return false;
  if (InflightStep* const step = LastStepOf(*last))
    step->freed_for_admission += last->blocks.page_count();
  return PreemptOrEvict(*last);
}

}  // namespace baton::decode_worker
