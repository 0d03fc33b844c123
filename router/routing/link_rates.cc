#include "router/routing/link_rates.h"

#include <algorithm>
#include <cmath>

namespace baton::router {
namespace {

constexpr double kLinkStandsOut = 1.6;
constexpr double kLinkIsAlike = 1.3;
// Links that nothing is heard of fade all the while.
constexpr double kRebuildEvery_s = 1;
// Nothing is left of what was measured longer ago.
constexpr double kForgetAfter_s = 900;
// Outside these, a rate is an error: a modem, and more than any bus.
constexpr double kLeastRate = 1e3;
constexpr double kMostRate = 1e14;
constexpr size_t kMostPeerIdBytes = 256;

double LinkWeight(double age_s) {
  return std::exp2(-std::max(0.0, age_s - LinkRates::kHolds_s) / LinkRates::kFadesIn_s);
}

struct LinkMean {
  double sum = 0;
  int count = 0;
  void Add(double value) { sum += value, ++count; }
  double value() const { return sum / count; }
};

}  // namespace

void LinkRates::Grow(int worker_count) {
  if (worker_count <= static_cast<int>(workers_.size())) return;
  workers_.resize(worker_count);
  dirty_ = dirty_ || any_;
  // Rows have a place for each worker: there are none until the next Tick.
  any_ = false;
}

void LinkRates::Joins(int worker, const std::string& worker_id, uint64_t epoch) {
  Peer peer = {epoch, worker_id};
  Worker& w = workers_[worker];
  if (w.peer == peer && numbers_.contains(peer)) return;
  Leave(worker);
  numbers_[peer] = worker;
  w.peer = std::move(peer);
  dirty_ = true;
}

// A process may have got another number before its old one is forgotten.
void LinkRates::Leave(int worker) {
  const auto found = numbers_.find(workers_[worker].peer);
  if (found != numbers_.end() && found->second == worker) numbers_.erase(found);
}

void LinkRates::Forget(int worker) {
  Leave(worker);
  workers_[worker] = Worker();
  dirty_ = true;
}

void LinkRates::OnReport(int worker, const internal::v1::LoadReport& report, double now_s) {
  auto& links = workers_[worker].links;
  for (int i = 0; i < std::min(report.links_size(), kMostReported); ++i) {
    const internal::v1::LinkRate& told = report.links(i);
    const double rate = told.bytes_per_second();
    const bool sane = rate >= kLeastRate && rate <= kMostRate;  // no number is neither
    if (!sane || told.worker_id().empty() || told.worker_id().size() > kMostPeerIdBytes) continue;
    const double age_s = std::max(0.0, static_cast<double>(told.age_us()) * 1e-6);
    if (age_s >= kForgetAfter_s) continue;
    Link& link = links[{told.epoch(), told.worker_id()}];
    link.log_s = -std::log(rate);
    link.measured_at_s = now_s - age_s;
    dirty_ = true;
  }
  while (links.size() > kMostLinks) {
    links.erase(std::min_element(links.begin(), links.end(), [](const auto& a, const auto& b) {
      return a.second.measured_at_s < b.second.measured_at_s;
    }));
  }
}

void LinkRates::Tick(double now_s) {
  if (dirty_ || (any_ && now_s - built_at_s_ >= kRebuildEvery_s)) Rebuild(now_s);
}

bool LinkRates::MeanOf(double now_s, double* mean) const {
  double sum = 0, weights = 0;
  for (const Worker& w : workers_) {
    for (const auto& [peer, link] : w.links) {
      if (!numbers_.contains(peer)) continue;
      const double weight = LinkWeight(now_s - link.measured_at_s);
      sum += weight * link.log_s;
      weights += weight;
    }
  }
  if (weights > 0) *mean = sum / weights;
  return weights > 0;
}

void LinkRates::Rebuild(double now_s) {
  dirty_ = false;
  built_at_s_ = now_s;
  for (Worker& w : workers_) {
    absl::erase_if(w.links, [now_s](const auto& entry) {
      return now_s - entry.second.measured_at_s >= kForgetAfter_s;
    });
  }
  double mean = 0;
  any_ = MeanOf(now_s, &mean);
  if (!any_) return;
  const size_t width = workers_.size();
  row_of_.assign(width, 0);
  rows_.assign(width, 0);
  std::vector<LinkMean> of_prefill(width);
  std::vector<double> of_row = {mean};  // of the links in the row
  for (size_t d = 0; d < width; ++d) {
    LinkMean of_decode;
    const size_t row = rows_.size();
    for (auto& [peer, link] : workers_[d].links) {
      const auto number = numbers_.find(peer);
      if (number == numbers_.end()) continue;
      const double off = (link.log_s - mean) * LinkWeight(now_s - link.measured_at_s);
      link.stands_out = std::abs(off) > std::log(link.stands_out ? kLinkIsAlike : kLinkStandsOut);
      const double counts_as = link.stands_out ? mean + off : mean;
      of_decode.Add(counts_as);
      of_prefill[number->second].Add(counts_as);
      rows_.resize(row + width, 0);
      rows_[row + static_cast<size_t>(number->second)] = static_cast<float>(std::exp(counts_as));
    }
    if (of_decode.count == 0) continue;
    row_of_[d] = static_cast<int>(row / width);
    of_row.push_back(of_decode.value());
  }
  // How much slower than the mean the links of each prefill worker are.
  std::vector<float> slower(width, 1);
  for (size_t p = 0; p < width; ++p) {
    if (of_prefill[p].count == 0) continue;
    slower[p] = static_cast<float>(std::exp(of_prefill[p].value() - mean));
    rows_[p] = slower[p] * static_cast<float>(std::exp(mean));
  }
  for (size_t row = 1; row < of_row.size(); ++row) {
    const auto seconds = static_cast<float>(std::exp(of_row[row]));
    for (size_t p = 0; p < width; ++p) {
      float& s = rows_[row * width + p];
      if (s == 0) s = seconds * slower[p];
    }
  }
  least_.clear();
  for (auto row = rows_.begin(); row != rows_.end(); row += static_cast<int64_t>(width)) {
    least_.push_back(*std::min_element(row, row + static_cast<int64_t>(width)));
  }
}

}  // namespace baton::router
