// The workers that one decision may choose among: by row as people think of them, and by column
// for passes over a thousand.
#ifndef BATON_ROUTER_ROUTING_CANDIDATES_H_
#define BATON_ROUTER_ROUTING_CANDIDATES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/numeric/bits.h"
#include "absl/types/span.h"
#include "router/fleet/worker.h"
#include "router/routing/linear_cost.h"
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace baton::router {

// One ready worker as the router knows it now: its last report, plus this router's dispatches
// since.
struct Candidate {
  int worker = 0;          // its number in the Roster
  int matched_blocks = 0;  // of the prompt, from its start, cached there or on its way there
  int running = 0;
  int queued = 0;  // `sent` included
  int sent = 0;    // by this router, and in no report yet
  // Decode workers: of running and queued, those whose KV another worker computes or sends.
  int receiving = 0;
  int64_t queued_tokens = 0;
  int free_blocks = 0;  // can be below 0: dispatched for more than there is
  int total_blocks = 0;
  // By the estimated cost of prefill there; see cost_estimates.h.
  double queue_s = 0;       // Q: until the prompts before this one are computed
  double service_s = 0;     // T: to compute what is not cached of this one
  bool cost_known = false;  // some worker has reported its cost: queue_s and service_s hold
  // Not 0: some of that is fetched from another worker or loaded from the worker's KV tiers, which
  // takes so long, beside the queue, and spares fetch_saves_s of service_s.
  double fetch_s = 0;
  double fetch_saves_s = 0;
  int tier_blocks = 0;  // of the prompt, that are loaded from tiers
  // Until computing the prompt begins there.
  double wait_s() const { return std::max(queue_s, fetch_s); }
  double computing_s() const { return service_s - fetch_saves_s; }
  // Decode workers.
  bool lends = false;                    // computes prompts that other workers answer, too
  LinearCost step = kDefaultDecodeCost;  // as estimated
  int64_t context_tokens = 0;  // of the sequences that have blocks, and of those just sent there
  int max_sequences = 0;       // places in the batch; 0: unknown
  double silence_s = 0;        // since its last report
  uint64_t identity = 0;       // the same in all routers
  int64_t last_sent = 0;       // grows with each request that this router sends to any worker
};

// What many decisions have in common of the workers that may be chosen together, in order of their
// numbers. The columns have what a pass over all reads, apart from the rows: a row is three cache
// lines.
struct CandidateTable {
  std::vector<Candidate> rows;  // without what depends on the prompt and the time
  std::vector<int> workers;
  std::vector<uint64_t> identities;
  std::vector<double> idle_at_s;  // when the work known of will be done
  std::vector<double> reported_at_s;

  // What prompts cost: on most workers (`usual`), and by row, in order, on those that are not like
  // them (`unusual`). Few of a thousand workers of one kind stand out (cost_estimates.h).
  struct PromptCost {
    LinearCost cost;
    int block_tokens = 16;
    friend bool operator==(const PromptCost&, const PromptCost&) = default;
    double Seconds(int prompt_tokens, int matched_blocks) const;
  };
  PromptCost usual;
  std::vector<std::pair<int, PromptCost>> unusual;

  template <class Visit>
  void ForEachColumn(Visit visit) {
    visit(rows), visit(workers), visit(identities), visit(idle_at_s), visit(reported_at_s);
  }
};

// Infinity of none.
double Least(absl::Span<const double> values);

// A cost for each of many, and where the low ones are. A decision asks for those below some bound,
// mostly a few: it looks at blocks whose least cost is below it.
class CostColumn {
 public:
  static constexpr size_t kBlock = 16;

  // To be set by index, and then Seal()ed; what the last decision left is in it.
  absl::Span<double> Resize(size_t count);
  void Seal();

  size_t size() const { return count_; }
  absl::Span<const double> all() const { return absl::MakeConstSpan(costs_).first(count_); }
  double operator[](size_t i) const { return costs_[i]; }
  double least() const { return least_; }
  // At least kCount costs are at most this, and not many more; infinity if there are fewer blocks.
  template <size_t kCount>
  double BoundOf() const;
  // Calls visit(i) for each cost of at most `bound`, in order of i, until it returns false.
  template <class Visit>
  void ForEachUpTo(double bound, Visit visit) const {
    const size_t blocks = costs_.size() / kBlock;
    for (size_t first = 0; first < blocks; first += kBlock) {
      uint32_t low = UpTo(&least_of_block_[first], blocks - first, bound);
      for (; low != 0; low &= low - 1) {
        const size_t block = (first + static_cast<size_t>(absl::countr_zero(low))) * kBlock;
        uint32_t costs = UpTo(&costs_[block], count_ - block, bound);
        for (; costs != 0; costs &= costs - 1) {
          if (!visit(block + static_cast<size_t>(absl::countr_zero(costs)))) return;
        }
      }
    }
  }

 private:
  // A bit for each of the first `count` of kBlock values. Bits, not branches: which costs are low
  // cannot be guessed.
  static uint32_t UpTo(const double* values, size_t count, double bound);

  size_t count_ = 0;
  // Both: whole blocks, filled up with infinity.
  std::vector<double> costs_;
  std::vector<double> least_of_block_;
  double least_ = 0;  // infinity of none
};

inline uint32_t CostColumn::UpTo(const double* values, size_t count, double bound) {
  uint32_t low = 0;
#if defined(__SSE2__)
  const __m128d bounds = _mm_set1_pd(bound);
  for (size_t i = 0; i < kBlock; i += 2) {
    const __m128d two = _mm_cmple_pd(_mm_loadu_pd(values + i), bounds);
    low |= static_cast<uint32_t>(_mm_movemask_pd(two)) << i;
  }
#else
  for (size_t i = 0; i < kBlock; ++i) low |= (values[i] <= bound ? 1u : 0u) << i;
#endif
  return count < kBlock ? low & ((1u << count) - 1) : low;
}

// The blocks are in kCount groups. Each group's least cost is at most the highest of these.
template <size_t kCount>
double CostColumn::BoundOf() const {
  static_assert(kBlock % kCount == 0);
  double least[kCount];
  std::fill(least, least + kCount, std::numeric_limits<double>::infinity());
  for (size_t i = 0; i < least_of_block_.size(); i += kCount) {
    for (size_t group = 0; group < kCount; ++group) {
      least[group] = std::min(least[group], least_of_block_[i + group]);
    }
  }
  return *std::max_element(least, least + kCount);
}

// A choice of the rows of a table, with what depends on the prompt and the time: a value of one
// decision. The table must outlive it and its copies, and not change meanwhile. Unsynchronized.
class Candidates {
 public:
  Candidates() = default;
  // Those of a table of their own, as they are.
  Candidates(absl::Span<const Candidate> candidates);  // NOLINT: as a span is made of a vector
  Candidates(std::initializer_list<Candidate> candidates)
      : Candidates(absl::MakeConstSpan(candidates.begin(), candidates.size())) {}
  Candidates(const std::vector<Candidate>& candidates)  // NOLINT
      : Candidates(absl::MakeConstSpan(candidates)) {}

  // All rows, for a prompt of so many tokens; `matched_blocks` by worker, 0 beyond its end.
  void Fill(const CandidateTable& table, int prompt_tokens, absl::Span<const int> matched_blocks,
            double now_s);

  int size() const { return static_cast<int>(queue_s_.size()); }
  bool empty() const { return queue_s_.empty(); }
  Candidate operator[](int i) const;
  // All of them, in place of what is in *all.
  void CopyTo(std::vector<Candidate>* all) const;

  // What there is of each by worker, in the order of the candidates; 0 beyond its end. A part of
  // `by_worker`, or in *gathered.
  template <class T>
  absl::Span<const T> Gather(absl::Span<const T> by_worker, std::vector<T>* gathered) const;

  int worker(int i) const { return table_->workers[RowOf(i)]; }
  uint64_t identity(int i) const { return table_->identities[RowOf(i)]; }
  double silence_s(int i) const { return now_s_ - table_->reported_at_s[RowOf(i)]; }
  // The rest, in which the columns below and silence_s are not set.
  const Candidate& row(int i) const { return table_->rows[RowOf(i)]; }
  absl::Span<const int> matched_blocks() const { return matched_blocks_; }
  absl::Span<const double> queue_s() const { return queue_s_; }
  absl::Span<const double> service_s() const { return service_s_; }
  // Whether some have fetch_s.
  bool moves() const { return !moves_.empty(); }
  double wait_s(int i) const {
    return moves() ? std::max(queue_s_[i], moves_[i].fetch_s) : queue_s_[i];
  }
  double fetch_saves_s(int i) const { return moves() ? moves_[i].fetch_saves_s : 0; }
  double computing_s(int i) const { return service_s_[i] - fetch_saves_s(i); }
  // -1 if that worker is none of them.
  int Find(int worker) const;

  // Keeps those with keep(i).
  template <class Keep>
  void KeepIf(Keep keep) {
    std::vector<int> kept;
    for (int i = 0; i < size(); ++i) {
      if (keep(i)) kept.push_back(i);
    }
    KeepOnly(kept);
  }
  // The same if there are any such.
  template <class Keep>
  void Prefer(Keep keep) {
    for (int i = 0; i < size(); ++i) {
      if (keep(i)) return KeepIf(keep);
    }
  }
  // See Candidate.
  void SetMove(int i, double fetch_s, double fetch_saves_s, int tier_blocks);

 private:
  struct Move {
    double fetch_s = 0;
    double fetch_saves_s = 0;
    int tier_blocks = 0;
  };

  size_t RowOf(int i) const { return static_cast<size_t>(rows_.empty() ? i : rows_[i]); }
  void KeepOnly(const std::vector<int>& kept);
  void Complete(int i, Candidate& c) const;

  std::shared_ptr<const CandidateTable> own_;  // shared by copies
  const CandidateTable* table_ = nullptr;
  double now_s_ = 0;
  std::vector<int> rows_;  // empty: all
  std::vector<int> matched_blocks_;
  std::vector<double> queue_s_, service_s_;
  std::vector<Move> moves_;  // empty: none
};

}  // namespace baton::router

#endif  // BATON_ROUTER_ROUTING_CANDIDATES_H_
