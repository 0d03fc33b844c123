#include "router/routing/candidates.h"

#include <cstring>
#include <limits>

#include "router/routing/wide_loops.h"

namespace baton::router {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

inline double CandidateTable::PromptCost::Seconds(int prompt_tokens, int matched_blocks) const {
  const double most_cached = prompt_tokens - 1.0;  // the last token is always computed
  const double matched = matched_blocks * static_cast<double>(block_tokens);
  const double cached = matched < most_cached ? matched : most_cached;
  return cost.Prefill(prompt_tokens - cached, cached);
}

// Plain pointers: the checks of vectors and spans would keep the loops from being vectorized.
BATON_WIDE_LOOPS static void SetTimes(const double* __restrict idle_at_s, double now_s,
                                      const CandidateTable::PromptCost& cost, int prompt_tokens,
                                      const int* __restrict matched, size_t count,
                                      double* __restrict queue_s, double* __restrict service_s) {
  for (size_t i = 0; i < count; ++i) {
    const double left_s = idle_at_s[i] - now_s;
    queue_s[i] = left_s > 0 ? left_s : 0;
  }
  const CandidateTable::PromptCost usual = cost;
  for (size_t i = 0; i < count; ++i) service_s[i] = usual.Seconds(prompt_tokens, matched[i]);
}

// Left to itself, the compiler compares four blocks at a time, and moves their costs about for
// longer than it compares them.
using TwoCosts = double __attribute__((vector_size(2 * sizeof(double))));
static TwoCosts LeastInTwo(const double* block) {
  TwoCosts least, next;
  std::memcpy(&least, block, sizeof(least));
  for (size_t i = 2; i < CostColumn::kBlock; i += 2) {
    std::memcpy(&next, block + i, sizeof(next));
    least = next < least ? next : least;
  }
  return least;
}

static void SetLeastOfBlocks(const double* costs, absl::Span<double> least_of) {
  for (double& least_of_block : least_of) {
    const TwoCosts least = LeastInTwo(costs);
    least_of_block = std::min(least[0], least[1]);
    costs += CostColumn::kBlock;
  }
}

BATON_WIDE_LOOPS double Least(absl::Span<const double> values) {
  constexpr size_t kLanes = 8;  // of their own, they do not wait for each other
  double least[kLanes];
  std::fill(least, least + kLanes, kInfinity);
  const size_t whole = values.size() / kLanes * kLanes;
  const double* value = values.data();
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      least[lane] = value[i + lane] < least[lane] ? value[i + lane] : least[lane];
    }
  }
  for (size_t i = whole; i < values.size(); ++i) least[0] = std::min(least[0], value[i]);
  return *std::min_element(least, least + kLanes);
}

// In a whole number of blocks, the last one filled up with infinity.
static void ResizeInBlocks(size_t count, std::vector<double>* values) {
  values->resize((count + CostColumn::kBlock - 1) / CostColumn::kBlock * CostColumn::kBlock);
  std::fill(values->begin() + static_cast<ptrdiff_t>(count), values->end(), kInfinity);
}

absl::Span<double> CostColumn::Resize(size_t count) {
  count_ = count;
  ResizeInBlocks(count, &costs_);
  return absl::MakeSpan(costs_).first(count);
}

void CostColumn::Seal() {
  const size_t blocks = costs_.size() / kBlock;
  ResizeInBlocks(blocks, &least_of_block_);
  SetLeastOfBlocks(costs_.data(), absl::MakeSpan(least_of_block_).first(blocks));
  least_ = Least(least_of_block_);
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

template <class T>
absl::Span<const T> Candidates::Gather(absl::Span<const T> by_worker,
                                       std::vector<T>* gathered) const {
  const auto count = static_cast<size_t>(rows_.empty() ? table_->workers.size() : rows_.size());
  if (count == 0) return {};
  // Workers of one role mostly have numbers in a row.
  const auto first = static_cast<size_t>(worker(0));
  const bool in_a_row =
      rows_.empty() && table_->workers.back() - worker(0) + 1 == static_cast<int>(count);
  if (in_a_row && first + count <= by_worker.size()) return by_worker.subspan(first, count);
  gathered->resize(count);
  for (size_t i = 0; i < count; ++i) {
    const auto number = static_cast<size_t>(worker(static_cast<int>(i)));
    (*gathered)[i] = number < by_worker.size() ? by_worker[number] : 0;
  }
  return *gathered;
}
template absl::Span<const float> Candidates::Gather(absl::Span<const float>,
                                                    std::vector<float>*) const;

void Candidates::Fill(const CandidateTable& table, int prompt_tokens,
                      absl::Span<const int> matched_blocks, double now_s) {
  const size_t count = table.rows.size();
  own_ = nullptr;
  table_ = &table;
  now_s_ = now_s;
  rows_.clear();
  moves_.clear();
  const absl::Span<const int> matched = Gather(matched_blocks, &matched_blocks_);
  if (matched.data() != matched_blocks_.data()) {
    matched_blocks_.assign(matched.begin(), matched.end());
  }
  queue_s_.resize(count);
  service_s_.resize(count);
  SetTimes(table.idle_at_s.data(), now_s, table.usual, prompt_tokens, matched_blocks_.data(), count,
           queue_s_.data(), service_s_.data());
  for (const auto& [i, cost] : table.unusual) {
    service_s_[i] = cost.Seconds(prompt_tokens, matched_blocks_[i]);
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
