#include "router/request/prompt_history.h"

#include <algorithm>
#include <bitset>
#include <utility>

namespace baton::router {
namespace {

// Two prompts agree again after a difference where this many tokens are the same; fewer may be so
// by chance.
constexpr int kAgreement = 8;
// A difference is at most this long in either prompt: a timestamp, an id.
constexpr int kLongestDifference = 64;
// So many of the newest prompts with the same common beginning are searched for an agreement.
constexpr int kSearched = 2;
// Other namespaces are compared by tokens: only in this many of the newest prompts.
constexpr int kOtherSalts = 8;

using Tokens = absl::Span<const int32_t>;

int CommonPrefix(Tokens a, Tokens b) {
  const size_t count = std::min(a.size(), b.size());
  return static_cast<int>(std::mismatch(a.begin(), a.begin() + count, b.begin()).first - a.begin());
}

// How many tokens are the same after the shortest difference at the beginning of the two.
int AgreementAfter(Tokens a, Tokens b) {
  const auto places = [](Tokens tokens) {
    return std::clamp(static_cast<int>(tokens.size()) - kAgreement + 1, 0, kLongestDifference + 1);
  };
  std::bitset<256> in_b;  // most tokens of another text are not
  for (int j = 0; j < places(b); ++j) in_b.set(static_cast<uint8_t>(b[j]));
  std::vector<std::pair<int, int>> equal;  // tokens: the sum of their places, and the one in a
  for (int i = 0; i < places(a); ++i) {
    if (!in_b.test(static_cast<uint8_t>(a[i]))) continue;
    for (int j = 0; j < places(b); ++j) {
      if (a[i] == b[j]) equal.emplace_back(i + j, i);
    }
  }
  std::sort(equal.begin(), equal.end());
  for (const auto& [sum, i] : equal) {
    const int same = CommonPrefix(a.subspan(i), b.subspan(sum - i));
    if (same >= kAgreement) return same;
  }
  return 0;
}

std::vector<int32_t> Around(Tokens tokens, int position) {
  const int begin = std::max(0, position - kShownTokens);
  const Tokens shown = tokens.subspan(begin, position - begin + 1 + kShownTokens);
  return {shown.begin(), shown.end()};
}

}  // namespace

// 0 if it is less than `at_least`: then one look-up is enough.
int PromptHistory::CommonBlocks(const Kept& kept, const PromptChain& prompt, int at_least) {
  const int count = static_cast<int>(std::min(kept.keys.size(), prompt.keys.size()));
  if (count < at_least) return 0;
  if (at_least > 0 && kept.keys[at_least - 1] != prompt.keys[at_least - 1]) return 0;
  // Keys are the same up to the first difference of tokens, and differ after it.
  int same = at_least;
  int differs = count;
  while (same < differs) {
    const int middle = (same + differs) / 2;
    if (kept.keys[middle] == prompt.keys[middle]) {
      same = middle + 1;
    } else {
      differs = middle;
    }
  }
  return same;
}

int PromptHistory::CommonTokens(const Kept& kept, const PromptChain& prompt, int common_blocks) {
  const size_t begin = size_t{1} * common_blocks * prompt.block_tokens;
  const size_t length = prompt.block_tokens;
  return static_cast<int>(begin) +
         CommonPrefix(absl::MakeConstSpan(kept.tokens).subspan(begin, length),
                      prompt.tokens.subspan(begin, length));
}

void PromptHistory::Drop(Order::iterator kept) {
  bytes_ -= kept->bytes();
  auto tenant = tenants_.find(kept->tenant);
  std::vector<Order::iterator>& prompts = tenant->second;
  prompts.erase(std::find(prompts.begin(), prompts.end(), kept));
  if (prompts.empty()) tenants_.erase(tenant);
  order_.erase(kept);
}

void PromptHistory::Add(const PromptChain& prompt, absl::string_view request_id) {
  if (max_bytes_ == 0) return;
  Kept made;
  made.tenant = std::string(prompt.tenant);
  made.root = prompt.root;
  made.tokens.Assign(prompt.tokens.begin(), prompt.tokens.end());
  made.keys.assign(prompt.keys.begin(), prompt.keys.end());
  made.request_id = std::string(request_id);
  Insert(std::move(made), prompt.block_tokens);
}

void PromptHistory::Add(absl::string_view tenant, kv::PrefixKey root, int block_tokens,
                        TokenIds tokens, std::vector<kv::PrefixKey> keys,
                        absl::string_view request_id) {
  if (max_bytes_ == 0) return;
  Insert({std::string(tenant), root, std::move(tokens), std::move(keys), std::string(request_id)},
         block_tokens);
}

void PromptHistory::Insert(Kept made, int block_tokens) {
  const int64_t made_bytes = made.bytes();
  const PromptChain prompt = {made.tenant, made.root, block_tokens, made.tokens, made.keys};
  absl::MutexLock lock(&mutex_);
  std::vector<Order::iterator> replaced;
  if (auto tenant = tenants_.find(prompt.tenant); tenant != tenants_.end()) {
    for (const Order::iterator& kept : tenant->second) {
      if (kept->root != prompt.root || kept->tokens.size() > static_cast<int>(prompt.tokens.size()))
        continue;
      const int blocks = static_cast<int>(kept->keys.size());
      if (CommonBlocks(*kept, prompt, blocks) < blocks) continue;
      if (CommonTokens(*kept, prompt, blocks) == kept->tokens.size()) {
        replaced.push_back(kept);
      }
    }
    if (replaced.empty() && tenant->second.size() >= kPromptsPerTenant) {
      replaced.push_back(tenant->second.front());
    }
  }
  for (const Order::iterator& kept : replaced) Drop(kept);
  if (made_bytes > max_bytes_) return;
  while (bytes_ + made_bytes > max_bytes_) Drop(std::prev(order_.end()));
  bytes_ += made_bytes;
  order_.push_front(std::move(made));
  tenants_[order_.front().tenant].push_back(order_.begin());
}

std::optional<PromptMiss> PromptHistory::Explain(const PromptChain& prompt,
                                                 int cached_tokens) const {
  // The last token is always computed.
  const int size = static_cast<int>(prompt.tokens.size());
  const auto whole_blocks = [&](int tokens) {
    return std::min(tokens, size - 1) / prompt.block_tokens * prompt.block_tokens;
  };
  if (cached_tokens >= whole_blocks(size)) return std::nullopt;
  absl::MutexLock lock(&mutex_);
  const auto tenant = tenants_.find(prompt.tenant);
  if (tenant == tenants_.end()) return std::nullopt;
  const std::vector<Order::iterator>& prompts = tenant->second;

  // The longest common beginning in the same namespace, and the prompts that have it, newest first.
  int most_blocks = 0;
  int common = -1;
  std::vector<const Kept*> closest;
  for (auto it = prompts.rbegin(); it != prompts.rend(); ++it) {
    const Kept& kept = **it;
    if (kept.root != prompt.root) continue;
    const int blocks = CommonBlocks(kept, prompt, most_blocks);
    if (blocks < most_blocks) continue;
    const int tokens = CommonTokens(kept, prompt, blocks);
    if (tokens < common) continue;
    if (tokens > common) closest.clear();
    most_blocks = blocks;
    common = tokens;
    closest.push_back(&kept);
  }

  PromptMiss miss;
  if (!closest.empty() && whole_blocks(common) > cached_tokens) {
    miss.cause = v1::CACHE_MISS_CAUSE_EVICTED;
    miss.lost_tokens = whole_blocks(common) - cached_tokens;
    miss.earlier_request_id = closest.front()->request_id;
    return miss;
  }
  int searched = 0;
  for (const Kept* kept : closest) {
    const Tokens earlier = kept->tokens;
    const bool parts = common < size && common < static_cast<int>(earlier.size());
    if (!parts) continue;
    if (searched++ == kSearched) break;
    const int lost = AgreementAfter(prompt.tokens.subspan(common), earlier.subspan(common));
    if (lost == 0 && common < prompt.block_tokens) continue;  // another prompt
    if (miss.cause != v1::CACHE_MISS_CAUSE_UNSPECIFIED && lost <= miss.lost_tokens) continue;
    miss.cause = v1::CACHE_MISS_CAUSE_CHANGED;
    miss.lost_tokens = lost;
    miss.earlier_request_id = kept->request_id;
    miss.first_different_token = common;
    miss.shown = Around(prompt.tokens, common);
    miss.earlier_shown = Around(earlier, common);
  }
  int others = 0;
  for (auto it = prompts.rbegin(); it != prompts.rend() && others < kOtherSalts; ++it) {
    const Kept& kept = **it;
    if (kept.root == prompt.root) continue;
    ++others;
    const int lost = whole_blocks(CommonPrefix(prompt.tokens, kept.tokens)) - cached_tokens;
    if (lost <= miss.lost_tokens) continue;
    miss = PromptMiss();
    miss.cause = v1::CACHE_MISS_CAUSE_OTHER_SALT;
    miss.lost_tokens = lost;
    miss.earlier_request_id = kept.request_id;
  }
  if (miss.cause == v1::CACHE_MISS_CAUSE_UNSPECIFIED) return std::nullopt;
  return miss;
}

int64_t PromptHistory::bytes() const {
  absl::MutexLock lock(&mutex_);
  return bytes_;
}

}  // namespace baton::router
