#include "common/prefill/kv_fetcher.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/random_id.h"
#include "common/prefill/reserved_blocks.h"
#include "common/transfer/checksum.h"

namespace baton::prefill {
namespace {

constexpr size_t kMaxHolders = 256;
// The weight of a fetch's rate in the mean over a holder's fetches.
constexpr double kNewRateWeight = 0.3;

using Result = internal::v1::OfferKvResponse;

// Blocks that the two prompts share from the start.
int SharedBlocks(absl::Span<const int32_t> a, absl::Span<const int32_t> b, int block_tokens) {
  const auto [end, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<int>(end - a.begin()) / block_tokens;
}

}  // namespace

StartFetch FetchOver(transfer::PeerChannels& peers) {
  return
      [&peers](const std::string& address, const internal::v1::FetchKvRequest& request,
               absl::Time deadline, transfer::TransferPlan plan, transfer::PrefillEvents events) {
        return transfer::PrefillCall::StartFetch(peers.Get(address), request, deadline,
                                                 std::move(plan), std::move(events));
      };
}

KvFetcher::KvFetcher(const KvFetcherOptions& options, const engine::Engine& engine,
                     kv::BlockPool& pool, kv::RadixCache* cache, const Clock& clock,
                     worker::KvExchangeMetrics& metrics, std::shared_ptr<Mailbox> mailbox)
    : options_(options),
      engine_(engine),
      pool_(pool),
      cache_(cache),
      clock_(clock),
      metrics_(metrics),
      mailbox_(std::move(mailbox)) {}

double KvFetcher::ExpectedSeconds(const Holder& holder, int first_block, int end) const {
  const double rate =
      holder.bytes_per_second > 0 ? holder.bytes_per_second : options_.default_bytes_per_second;
  return static_cast<double>(engine_.kv_layout().NeededBytes(first_block, end, end)) / rate;
}

KvFetcher::Holder& KvFetcher::HolderOf(const internal::v1::WorkerRef& worker) {
  if (!holders_.contains(worker.worker_id()) && holders_.size() >= kMaxHolders) {
    holders_.erase(std::min_element(
        holders_.begin(), holders_.end(),
        [](const auto& a, const auto& b) { return a.second.used_at < b.second.used_at; }));
  }
  Holder& holder = holders_[worker.worker_id()];
  holder.used_at = clock_.SinceStart();
  return holder;
}

void KvFetcher::Consider(Prompt& prompt, const worker::StepCost& cost, int max_tokens_per_step) {
  // With log probabilities of the prompt, all of it is computed.
  if (options_.start == nullptr || cache_ == nullptr || prompt.prompt_logprobs) return;
  const int block_tokens = engine_.kv_layout().block_tokens;
  const int matchable = (prompt.size() - 1) / block_tokens;
  const absl::Span<const int32_t> whole =
      absl::MakeConstSpan(prompt.tokens)
          .first(static_cast<size_t>(matchable) * static_cast<size_t>(block_tokens));
  const int cached = cache_->Peek(prompt.root, whole) / block_tokens;
  for (auto& [id, fetch] : fetches_) {
    if (fetch.cancelled || fetch.root != prompt.root || fetch.first_block > cached) continue;
    if (SharedBlocks(fetch.tokens, whole, block_tokens) < cached + options_.min_blocks) continue;
    fetch.prompts.push_back(&prompt);
    prompt.fetching = true;
    return;
  }
  const internal::v1::WorkerRef& worker = prompt.kv_hint.holder;
  const int held = std::min(matchable, prompt.kv_hint.tokens / block_tokens);
  if (worker.address().empty() || worker.worker_id() == options_.worker_id ||
      held < cached + options_.min_blocks) {
    return;
  }
  const Holder& holder = HolderOf(worker);
  const absl::Duration now = clock_.SinceStart();
  if (now < holder.paused_until) return;
  PrefillWork work;
  work.Add((held - cached) * block_tokens, cached * block_tokens);
  const double computing = cost.Seconds(worker::PrefillTerms(work, max_tokens_per_step), now);
  // A worker that has not measured its steps yet trusts the router's hint.
  if (cost.known() && ExpectedSeconds(holder, cached, held) >= computing) return;
  Fetch* fetch = Begin({prompt.request_id, worker, prompt.cache_salt, prompt.root,
                        whole.first(static_cast<size_t>(held) * static_cast<size_t>(block_tokens)),
                        cached, prompt.deadline, prompt.trace_context});
  if (fetch == nullptr) return;
  fetch->prompts.push_back(&prompt);
  prompt.fetching = true;
}

KvFetcher::Fetch* KvFetcher::Begin(const Wish& wish) {
  if (static_cast<int>(fetches_.size()) >= options_.max_fetches) return nullptr;
  const int block_tokens = engine_.kv_layout().block_tokens;
  const int blocks = static_cast<int>(wish.tokens.size()) / block_tokens;
  const int missing = blocks - wish.first_block;
  const kv::BlockShape& shape = pool_.shape();
  const int window_begin = shape.FirstWindowBlock(blocks);
  const int64_t own_pages =
      shape.PagesOf(missing, blocks - std::max(window_begin, wish.first_block));
  const int64_t reserved = own_pages + reserved_pages();
  if (reserved > options_.max_reserved_share * pool_.counts().total) return nullptr;
  std::optional<kv::BlockLease> reserved_blocks = ReserveBlocks(
      pool_, *cache_, wish.root, wish.tokens, wish.first_block, window_begin, block_tokens);
  if (!reserved_blocks) return nullptr;
  const uint64_t id = ++last_;
  Fetch& fetch = fetches_[id];
  fetch.request_id = wish.request_id;
  fetch.holder = wish.holder;
  fetch.root = wish.root;
  fetch.tokens.assign(wish.tokens.begin(), wish.tokens.end());
  fetch.first_block = wish.first_block;
  fetch.blocks = *std::move(reserved_blocks);
  fetch.reserved_pages = own_pages;
  fetch.began = clock_.SinceStart();
  if (options_.awake != nullptr) fetch.awake_began = options_.awake->SinceStart();

  internal::v1::FetchKvRequest request;
  request.set_request_id(wish.request_id);
  request.set_transfer_id(RandomId64());
  request.set_model_fingerprint(engine_.config().fingerprint);
  request.set_kv_layout_fingerprint(engine_.kv_layout().Fingerprint());
  request.set_takes_layer_runs(true);
  request.set_holder_epoch(wish.holder.epoch());
  request.set_worker_id(options_.worker_id);
  request.set_cache_salt(wish.cache_salt);
  request.mutable_tokens()->Add(wish.tokens.begin(), wish.tokens.end());
  request.set_first_block(wish.first_block);
  request.set_checksum(transfer::RequestChecksum(request));
  transfer::TransferPlan plan;
  plan.transfer_id = request.transfer_id();
  plan.sender_epoch = wish.holder.epoch();
  plan.layout = engine_.kv_layout();
  plan.pool = engine_.kv_pool();
  plan.first_block = wish.first_block;
  plan.blocks = fetch.blocks.Tables(wish.first_block, blocks);
  plan.fetch = true;
  plan.trace = wish.trace;
  transfer::PrefillEvents events;
  events.on_first_token = [](const transfer::FirstToken&) {};
  events.on_end = [this, id, mailbox = mailbox_](absl::Status status,
                                                 const transfer::TransferSummary& summary) {
    mailbox->Post([this, id, status, summary] { OnEnd(id, status, summary); });
  };
  events.on_closed = [this, id, mailbox = mailbox_] {
    mailbox->Post([this, id] { open_calls_.erase(id); });
  };
  const absl::Duration within = std::min(
      kMostTime, kLeastTime + absl::Seconds(4 * ExpectedSeconds(HolderOf(wish.holder),
                                                                wish.first_block, blocks)));
  fetch.call =
      options_.start(wish.holder.address(), request, std::min(wish.deadline, clock_.Now() + within),
                     std::move(plan), std::move(events));
  open_calls_.emplace(id, fetch.call);
  return &fetch;
}

int64_t KvFetcher::reserved_pages() const {
  int64_t pages = 0;
  for (const auto& [id, fetch] : fetches_) pages += fetch.reserved_pages;
  return pages;
}

bool KvFetcher::PausedDuring(const Fetch& fetch) const {
  return options_.awake != nullptr &&
         options_.awake->SincePause() <= options_.awake->SinceStart() - fetch.awake_began;
}

void KvFetcher::Leave(Prompt& prompt) {
  if (!std::exchange(prompt.fetching, false)) return;
  for (auto& [id, fetch] : fetches_) {
    if (std::erase(fetch.prompts, &prompt) == 0) continue;
    if (fetch.prompts.empty() && !fetch.of_offer) Cancel(fetch);
    return;
  }
}

void KvFetcher::Cancel(Fetch& fetch) {
  if (!std::exchange(fetch.cancelled, true)) fetch.call->Cancel();
}

void KvFetcher::CancelOffers() {
  for (auto& [id, fetch] : fetches_) {
    if (fetch.of_offer && fetch.prompts.empty()) Cancel(fetch);
  }
}

void KvFetcher::CancelAll() {
  for (auto& [id, fetch] : fetches_) Cancel(fetch);
  // Also those that have committed: the peer may leave its stream open.
  for (const auto& [id, call] : open_calls_) call->Cancel();
}

void KvFetcher::OnEnd(uint64_t id, const absl::Status& status,
                      const transfer::TransferSummary& summary) {
  // The writer has stopped: the blocks may be given away.
  auto node = fetches_.extract(id);
  BATON_CHECK(!node.empty()) << "fetch " << id;
  Fetch& fetch = node.mapped();
  const absl::Duration now = clock_.SinceStart();
  const absl::Duration took = now - fetch.began;
  worker::FetchResult result = worker::FetchResultOf(status);
  if (status.ok()) {
    const int count = summary.block_count;
    result =
        count == fetch.missing() ? worker::FetchResult::kFetched : worker::FetchResult::kPartial;
    const int whole = fetch.first_block + count;
    fetch.blocks.SplitAt(whole).Release();
    // What a window does not reach has not been sent.
    fetch.blocks.DropWindows(pool_.shape().FirstWindowBlock(whole));
    const size_t tokens =
        static_cast<size_t>(whole) * static_cast<size_t>(engine_.kv_layout().block_tokens);
    cache_->Insert(fetch.root, absl::MakeConstSpan(fetch.tokens).first(tokens), fetch.blocks);
    if (count > 0 && took > absl::ZeroDuration()) {
      Holder& holder = HolderOf(fetch.holder);
      const double rate = static_cast<double>(summary.kv_bytes) / absl::ToDoubleSeconds(took);
      holder.bytes_per_second =
          holder.bytes_per_second == 0
              ? rate
              : (1 - kNewRateWeight) * holder.bytes_per_second + kNewRateWeight * rate;
    }
  } else {
    if (!fetch.cancelled && !PausedDuring(fetch)) {
      HolderOf(fetch.holder).paused_until = now + kPause;
    }
    BATON_LOG(Info) << "fetch of cached KV from " << fetch.holder.address() << " for request "
                    << fetch.request_id << " failed: " << status;
  }
  metrics_.Received(result, summary.kv_bytes, took);
  for (Prompt* prompt : fetch.prompts) prompt->fetching = false;
}

Result::Result KvFetcher::TakeOffer(const worker::KvOffer& offer, bool busy) {
  const auto answer = [this](worker::OfferResult counted, Result::Result result) {
    metrics_.Offered(counted);
    return result;
  };
  const int block_tokens = engine_.kv_layout().block_tokens;
  const int blocks = static_cast<int>(offer.tokens.size()) / block_tokens;
  if (options_.start == nullptr || cache_ == nullptr) {
    return answer(worker::OfferResult::kBusy, Result::RESULT_BUSY);
  }
  const int cached = cache_->Peek(offer.root, offer.tokens) / block_tokens;
  if (cached == blocks) return answer(worker::OfferResult::kCached, Result::RESULT_CACHED);
  const auto of_offers = std::count_if(fetches_.begin(), fetches_.end(),
                                       [](const auto& entry) { return entry.second.of_offer; });
  // What requests retain does not give way to an offer.
  const int room = pool_.counts().free + cache_->evictable_page_count() -
                   cache_->retained_block_count() * pool_.shape().pages();
  const absl::Duration now = clock_.SinceStart();
  Fetch* fetch = nullptr;
  if (!busy && of_offers < options_.max_offer_fetches &&
      pool_.shape().PagesOf(blocks - cached, pool_.shape().window_blocks) <= room &&
      now >= HolderOf(offer.holder).paused_until) {
    fetch = Begin({offer.request_id, offer.holder, offer.cache_salt, offer.root, offer.tokens,
                   cached, clock_.Now() + kMostTime, TraceContext()});
  }
  if (fetch == nullptr) return answer(worker::OfferResult::kBusy, Result::RESULT_BUSY);
  fetch->of_offer = true;
  return answer(worker::OfferResult::kTaken, Result::RESULT_TAKEN);
}

}  // namespace baton::prefill
