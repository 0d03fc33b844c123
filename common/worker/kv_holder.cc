#include "common/worker/kv_holder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/error.h"

namespace baton::worker {
namespace {

absl::Status Draining() {
  return MakeError(absl::StatusCode::kUnavailable, "DRAINING", "this worker drains");
}

}  // namespace

KvHolder::KvHolder(const KvHolderOptions& options, const kv::KvLayout& layout, kv::BlockPool& pool,
                   kv::RadixCache* cache, std::shared_ptr<MidStepMailbox> mid_step,
                   KvExchangeMetrics& metrics)
    : options_(options),
      layout_(layout),
      cache_(cache),
      most_pinned_(static_cast<int>(options.max_pinned_share * pool.counts().total)),
      mid_step_(std::move(mid_step)),
      metrics_(metrics) {}

absl::StatusOr<std::shared_ptr<void>> KvHolder::Enter() {
  if (!options_.enabled) {
    metrics_.Served(FetchResult::kRefused);
    return MakeError(absl::StatusCode::kFailedPrecondition, "KV_FETCH_OFF",
                     "this worker sends no cached KV (--kv-fetch)");
  }
  std::shared_ptr<void> token(nullptr, [entered = entered_](void*) { entered->fetch_sub(1); });
  if (entered_->fetch_add(1) < options_.max_fetches) return token;
  metrics_.Served(FetchResult::kRefused);
  return MakeError(
      absl::StatusCode::kResourceExhausted, "KV_FETCH_LIMIT",
      absl::StrCat("this worker sends cached KV to ", options_.max_fetches, " callers, its bound"));
}

void KvHolder::Submit(KvFetch fetch) {
  const std::shared_ptr<transfer::KvSender> sender = fetch.sender;
  if (mid_step_->Post([this, fetch = std::move(fetch)](bool) { Serve(fetch); })) return;
  metrics_.Served(FetchResult::kRefused);
  sender->Finish(Draining());
}

void KvHolder::Serve(const KvFetch& fetch) {
  if (draining_) {
    metrics_.Served(FetchResult::kRefused);
    fetch.sender->Finish(Draining());
    return;
  }
  kv::Match match;
  if (cache_ != nullptr)
    match = cache_->MatchPrefix(fetch.root, fetch.tokens, kv::RadixCache::kNoLimit);
  const int cached = match.blocks.size();
  const int requested = static_cast<int>(fetch.tokens.size()) / layout_.block_tokens;
  // Those before first_block cannot be evicted either while the ones behind them are in use.
  const int excess = match.blocks.page_count() - (most_pinned_ - pinned_pages_);
  int allowed = excess > 0 ? cached - std::min(cached, excess) : cached;
  // The caller has made room for the window pages before the end that it has asked for, no other.
  if (layout_.windowed() && allowed < requested) allowed = 0;
  if (cached > fetch.first_block && excess > 0 && allowed <= fetch.first_block) {
    metrics_.Served(FetchResult::kRefused);
    fetch.sender->Finish(MakeError(
        absl::StatusCode::kResourceExhausted, "KV_FETCH_LIMIT",
        absl::StrCat("fetches pin ", pinned_pages_, layout_.windowed() ? " KV pages" : " KV blocks",
                     ", the bound is ", most_pinned_)));
    return;
  }
  const int count = std::max(0, allowed - fetch.first_block);
  metrics_.Served(count == requested - fetch.first_block ? FetchResult::kFetched
                                                         : FetchResult::kPartial);
  fetch.sender->SendAccepted(count, (fetch.first_block + count) * layout_.block_tokens);
  if (count > 0) {
    match.blocks.SplitAt(allowed).Release();
    match.blocks.SetUse(kv::BlockUse::kHeld);
    const uint64_t number = ++last_;
    const auto blocks = std::make_shared<transfer::PinnedBlocks>(
        match.blocks.Tables(0, allowed), [this, number, mid_step = mid_step_]() mutable {
          MidStepMailbox& target = *mid_step;
          target.Post([this, number](bool) { Release(number); });
        });
    pinned_pages_ += match.blocks.page_count();
    pinned_[number] = std::move(match.blocks);
    std::vector<transfer::LayerBlocks> layers;
    for (int layer = 0; layer < layout_.layers; ++layer) {
      const int begin =
          std::max(fetch.first_block, layout_.FirstNeededBlock(layer, allowed, allowed));
      if (begin < allowed) layers.push_back({layer, begin, allowed});
    }
    fetch.sender->SendCached(layers, blocks);
  }
  fetch.sender->SendCommit(0, 0);
  fetch.sender->Finish(absl::OkStatus());
}

void KvHolder::Release(uint64_t number) {
  const auto found = pinned_.find(number);
  BATON_CHECK(found != pinned_.end()) << "fetch " << number;
  pinned_pages_ -= found->second.page_count();
  pinned_.erase(found);
}

void KvHolder::ReleaseAll() {
  pinned_.clear();
  pinned_pages_ = 0;
}

}  // namespace baton::worker
