#include "router/routing/candidates.h"

#include <limits>

namespace baton::router {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

inline double CandidateTable::PromptCost::Seconds(int prompt_tokens, int matched_blocks) const {
  const double most_cached = prompt_tokens - 1.0;  // the last token is always computed
  const double matched = matched_blocks * static_cast<double>(block_tokens);
  const double cached = matched < most_cached ? matched : most_cached;
  return cost.Prefill(prompt_tokens - cached, cached);
}

absl::Span<double> CostColumn::Resize(size_t count) {
  count_ = count;
  costs_.resize((count + kBlock - 1) / kBlock * kBlock);
  std::fill(costs_.begin() + static_cast<ptrdiff_t>(count), costs_.end(), kInfinity);
  return absl::MakeSpan(costs_).first(count);
}

void CostColumn::Seal() {
  constexpr size_t kLanes = 4;  // of their own, they do not wait for each other
  least_of_block_.resize(costs_.size() / kBlock);
  least_ = kInfinity;
  for (size_t block = 0; block < least_of_block_.size(); ++block) {
    const double* costs = &costs_[block * kBlock];
    double least[kLanes];
    for (size_t lane = 0; lane < kLanes; ++lane) least[lane] = costs[lane];
    for (size_t i = kLanes; i < kBlock; i += kLanes) {
      for (size_t lane = 0; lane < kLanes; ++lane) {
        least[lane] = costs[i + lane] < least[lane] ? costs[i + lane] : least[lane];
      }
    }
    least_of_block_[block] = std::min(std::min(least[0], least[1]), std::min(least[2], least[3]));
    least_ = std::min(least_, least_of_block_[block]);
  }
}

double CostColumn::BoundOf(size_t count) const {
  if (count == 0 || count > least_of_block_.size()) return kInfinity;
  std::vector<double> least = least_of_block_;
  std::nth_element(least.begin(), least.begin() + static_cast<ptrdiff_t>(count - 1), least.end());
  return least[count - 1];
}

Candidates::Candidates(absl::Span<const Candidate> candidates) {
  const auto own = std::make_shared<CandidateTable>();
  for (const Candidate& c : candidates) {
    own->rows.push_back(c);
    own->workers.push_back(c.worker);
    own->identities.push_back(c.identity);
    own->reported_at_s.push_back(-c.silence_s);
    matched_blocks_.push_back(c.matched_blocks);
    queue_s_.push_back(c.queue_s);
    service_s_.push_back(c.service_s);
  }
  own_ = own;
  table_ = own_.get();
  for (int i = 0; i < size(); ++i) {
    const Candidate& c = candidates[static_cast<size_t>(i)];
    if (c.fetch_s > 0) SetMove(i, c.fetch_s, c.fetch_saves_s, c.tier_blocks);
  }
}

void Candidates::Fill(const CandidateTable& table, int prompt_tokens,
                      absl::Span<const int> matched_blocks, double now_s) {
  const size_t count = table.rows.size();
  own_ = nullptr;
  table_ = &table;
  now_s_ = now_s;
  rows_.clear();
  moves_.clear();
  matched_blocks_.resize(count);
  queue_s_.resize(count);
  service_s_.resize(count);
  // Workers of one role mostly have numbers in a row.
  const std::vector<int>& workers = table.workers;
  const size_t first = count == 0 ? 0 : static_cast<size_t>(workers[0]);
  if (count > 0 && workers.back() - workers[0] + 1 == static_cast<int>(count) &&
      first + count <= matched_blocks.size()) {
    std::copy_n(matched_blocks.begin() + first, count, matched_blocks_.begin());
  } else {
    for (size_t i = 0; i < count; ++i) {
      const auto worker = static_cast<size_t>(workers[i]);
      matched_blocks_[i] = worker < matched_blocks.size() ? matched_blocks[worker] : 0;
    }
  }
  // Plain pointers: the checks of vectors and spans would keep the loops from being vectorized.
  const double* __restrict idle_at_s = table.idle_at_s.data();
  double* __restrict queue_s = queue_s_.data();
  for (size_t i = 0; i < count; ++i) {
    const double left_s = idle_at_s[i] - now_s;
    queue_s[i] = left_s > 0 ? left_s : 0;
  }
  const CandidateTable::PromptCost usual = table.usual;
  const int* __restrict matched = matched_blocks_.data();
  double* __restrict service_s = service_s_.data();
  for (size_t i = 0; i < count; ++i) service_s[i] = usual.Seconds(prompt_tokens, matched[i]);
  for (const auto& [i, cost] : table.unusual) {
    service_s[i] = cost.Seconds(prompt_tokens, matched[i]);
  }
}

void Candidates::Complete(int i, Candidate& c) const {
  c.matched_blocks = matched_blocks_[i];
  c.queue_s = queue_s_[i];
  c.service_s = service_s_[i];
  c.silence_s = silence_s(i);
  if (!moves()) return;
  c.fetch_s = moves_[i].fetch_s;
  c.fetch_saves_s = moves_[i].fetch_saves_s;
  c.tier_blocks = moves_[i].tier_blocks;
}

Candidate Candidates::operator[](int i) const {
  Candidate c = row(i);
  Complete(i, c);
  return c;
}

void Candidates::CopyTo(std::vector<Candidate>* all) const {
  all->clear();
  all->reserve(queue_s_.size());
  for (int i = 0; i < size(); ++i) Complete(i, all->emplace_back(row(i)));
}

int Candidates::Find(int worker) const {
  int begin = 0, end = size();
  while (begin < end) {
    const int middle = (begin + end) / 2;
    if (this->worker(middle) < worker) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin < size() && this->worker(begin) == worker ? begin : -1;
}

void Candidates::KeepOnly(const std::vector<int>& kept) {
  if (static_cast<int>(kept.size()) == size()) return;
  std::vector<int> rows;
  rows.reserve(kept.size());
  size_t to = 0;
  for (const int from : kept) {
    rows.push_back(static_cast<int>(RowOf(from)));
    matched_blocks_[to] = matched_blocks_[from];
    queue_s_[to] = queue_s_[from];
    service_s_[to] = service_s_[from];
    if (moves()) moves_[to] = moves_[from];
    ++to;
  }
  rows_.swap(rows);
  matched_blocks_.resize(to);
  queue_s_.resize(to);
  service_s_.resize(to);
  if (moves()) moves_.resize(to);
}

void Candidates::SetMove(int i, double fetch_s, double fetch_saves_s, int tier_blocks) {
  moves_.resize(queue_s_.size());
  moves_[i] = {fetch_s, fetch_saves_s, tier_blocks};
}

}  // namespace baton::router
