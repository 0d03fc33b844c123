#include "decode_worker/model_drafter.h"

#include <algorithm>
#include <utility>

#include "absl/types/span.h"

namespace baton::decode_worker {
namespace {

// What the tokens of an answer have to save, as a multiple of what computing its prompt takes: the
// length of the answer is a guess.
constexpr double kCatchUpMargin = 1.25;
// The share of the time that drafts take which do not pay.
constexpr double kProbeShare = 0.01;

}  // namespace

ModelDrafter::Record& ModelDrafter::Learn(const Sequence& sequence) {
  Record& record = records_[sequence.id];
  if (sequence.tokens.size() <= record.behind) return record;  // nothing is drawn behind them yet
  for (size_t i = 0; i < record.drafts.size() && record.behind + i < sequence.tokens.size(); ++i) {
    const bool drawn = sequence.tokens[record.behind + i] == record.drafts[i];
    const auto count = [&](int cell) {
      acceptance_.Record(cell, drawn);
      record.acceptance.Record(cell, drawn);
    };
    count(kAnyConfidence);
    if (record.cells[i] != kAnyConfidence) count(record.cells[i]);
    if (!drawn) break;
  }
  record.drafts.clear();
  record.cells.clear();
  return record;
}

std::vector<ModelDrafter::Line> ModelDrafter::LinesFor(const std::vector<Wish>& wishes) {
  std::vector<Line> lines;
  for (size_t i = 0; i < wishes.size(); ++i) {
    const Sequence& sequence = *wishes[i].chunk->sequence;
    if (!model_.Holds(sequence)) continue;
    const Record& record = Learn(sequence);
    Line& line = lines.emplace_back();
    line.wish = i;
    line.chunk = wishes[i].chunk;
    line.most = wishes[i].most;
    line.missing = model_.Missing(sequence);
    line.next = record.acceptance.Probability(kAnyConfidence, acceptance_);
    line.drafting.sequence = &sequence;
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [](const Line& a, const Line& b) { return a.next > b.next; });
  return lines;
}

ModelDrafter::Outlook ModelDrafter::Best(const std::vector<Line>& lines,
                                         const StepPrice& price) const {
  Outlook best = {.lines = 0, .tokens = price.tokens(), .seconds = price.seconds()};
  // Powers of two, and all: to try every number takes too long, and neighbours differ little.
  for (size_t count = 1; !lines.empty(); count = std::min(2 * count, lines.size())) {
    StepPrice step = price;
    step.AddSeconds(price.times().DraftedExtraSeconds());
    double rows = 0, context = 0;
    int longest = 0;
    for (size_t i = 0; i < count; ++i) {
      // Tokens that it lacks are computed with its first draft.
      rows += std::min(lines[i].missing, DraftModel::kMostMissing);
      context += lines[i].chunk->begin;
      longest = std::max(longest, lines[i].most);
    }
    std::vector<double> likelihoods(count, 1);
    for (int depth = 0; depth < longest; ++depth) {
      step.AddSeconds(model_.StepSeconds(rows, context, price.times()));
      rows = static_cast<double>(count);
      for (size_t i = 0; i < count; ++i) {
        if (depth >= lines[i].most) continue;
        likelihoods[i] *= lines[i].next;
        step.Add(*lines[i].chunk, likelihoods[i]);
      }
      if (step.tokens() * best.seconds > best.tokens * step.seconds() &&
          price.Pays(step.tokens() - price.tokens(), step.seconds() - price.seconds())) {
        best = {.lines = count, .tokens = step.tokens(), .seconds = step.seconds()};
      }
    }
    if (count == lines.size()) break;
  }
  return best;
}

std::vector<Draft> ModelDrafter::Propose(const std::vector<Wish>& wishes, int room,
                                         int catch_up_tokens, const StepPrice& price) {
  std::vector<Draft> drafts(wishes.size());
  if (wishes.empty() || room <= 0) return drafts;
  std::vector<Line> all = LinesFor(wishes);
  if (all.size() > most_lines_) all.resize(most_lines_);
  const auto is_ready = [](const Line& line) { return line.missing <= DraftModel::kMostMissing; };
  std::vector<Line> ready, lagging;
  for (const Line& line : all) (is_ready(line) ? ready : lagging).push_back(line);
  const Outlook outlook = Best(ready, price);
  if (outlook.lines > 0) {
    ready.resize(outlook.lines);
    Extend(ready, room, price);
  }
  for (Line& line : all) line.missing = 1;  // as it will be
  if (kind_ == DraftModel::Kind::kMtpHead) {
    wants_states_ = Best(all, price).lines > 0;
  } else if (!lagging.empty()) {
    CatchUp(lagging, Best(all, price), catch_up_tokens, price);
  }
  if (outlook.lines == 0) Probe(ready, lagging, catch_up_tokens, price);
  for (Line& line : ready) {
    Record& record = records_.at(line.drafting.sequence->id);
    record.behind = line.drafting.sequence->tokens.size();
    record.drafts = line.drafting.drafts;
    record.cells = std::move(line.cells);
    drafts[line.wish] = {std::move(line.drafting.drafts), std::move(line.likelihoods)};
  }
  return drafts;
}

bool ModelDrafter::WouldPropose(const std::vector<Wish>& wishes, const StepPrice& price) {
  const std::vector<Line> all = LinesFor(wishes);
  std::vector<Line> ready = all;
  for (Line& line : ready) line.missing = 1;
  const Outlook outlook = Best(ready, price);
  if (outlook.lines == 0) return false;
  // Steps that are launched ahead give no hidden states, and the draft model no time to catch up.
  return kind_ == DraftModel::Kind::kMtpHead ||
         std::any_of(all.begin(), all.end(), [&](const Line& line) {
           return line.missing <= DraftModel::kMostMissing ||
                  (!no_room_ && PaysToCatchUp(line, outlook, price));
         });
}

bool ModelDrafter::PaysToCatchUp(const Line& line, const Outlook& outlook,
                                 const StepPrice& price) const {
  if (outlook.lines == 0) return false;
  // What a token of an answer takes less, as a share of the worker.
  const double saved = price.seconds() / price.tokens() - outlook.seconds / outlook.tokens;
  const Sequence& sequence = *line.drafting.sequence;
  const double generated = sequence.generated_tokens();
  const double left = std::min<double>(sequence.call->max_tokens - generated,
                                       std::max(answer_tokens_ - generated, answer_tokens_ / 4));
  const double context = static_cast<double>(sequence.tokens.size()) - line.missing;
  return left * saved >
         kCatchUpMargin * model_.CatchUpSeconds(line.missing, context, price.times());
}

void ModelDrafter::CatchUp(const std::vector<Line>& lagging, const Outlook& outlook, int tokens,
                           const StepPrice& price) {
  std::vector<const Sequence*> worth;
  for (const Line& line : lagging) {
    if (PaysToCatchUp(line, outlook, price)) worth.push_back(line.drafting.sequence);
  }
  if (!worth.empty()) no_room_ = model_.CatchUp(worth, tokens) == 0;
}

void ModelDrafter::Probe(std::vector<Line>& ready, const std::vector<Line>& lagging,
                         int catch_up_tokens, const StepPrice& price) {
  probe_seconds_ += kProbeShare * price.seconds();
  ++probes_;
  if (!ready.empty()) {
    Line& line = ready[probes_ % ready.size()];
    const double cost = model_.StepSeconds(line.missing, line.chunk->begin, price.times());
    if (probe_seconds_ < cost) return;
    probe_seconds_ = 0;
    ExtendOnce({&line});
    return;
  }
  if (lagging.empty()) return;
  const Line& line = lagging.front();
  if (kind_ == DraftModel::Kind::kMtpHead) {
    wants_states_ |= probe_seconds_ >= model_.StepSeconds(1, line.chunk->begin, price.times());
    return;
  }
  const int tokens = std::min(line.missing, catch_up_tokens);
  if (probe_seconds_ < model_.CatchUpSeconds(tokens, line.chunk->begin, price.times())) return;
  probe_seconds_ = 0;
  model_.CatchUp({line.drafting.sequence}, tokens);
}

void ModelDrafter::Extend(std::vector<Line>& lines, int room, const StepPrice& price) {
  double spent = price.times().DraftedExtraSeconds();
  for (;;) {
    // The step is priced with the drafts that are there, and what is known of them now.
    StepPrice step = price;
    step.AddSeconds(spent);
    std::vector<Line*> next;
    double context = 0, rows = 0;
    for (Line& line : lines) {
      for (const float likelihood : line.likelihoods) step.Add(*line.chunk, likelihood);
      if (line.drafting.ended || static_cast<int>(line.likelihoods.size()) >= line.most) continue;
      next.push_back(&line);
    }
    std::sort(next.begin(), next.end(), [](const Line* a, const Line* b) {
      return a->likelihood() * a->next > b->likelihood() * b->next;
    });
    if (static_cast<int>(next.size()) > room) next.resize(static_cast<size_t>(room));
    double tokens = 0, seconds = 0;
    size_t count = 0;
    for (; count < next.size(); ++count) {
      const Line& line = *next[count];
      const double likelihood = line.likelihood() * line.next;
      const double row = step.RowSeconds(*line.chunk, likelihood);
      if (!step.Pays(likelihood, row)) break;
      tokens += likelihood;
      seconds += row;
      rows += line.likelihoods.empty() ? line.missing : 1;
      context += line.chunk->begin;
    }
    next.resize(count);
    if (next.empty()) return;
    const double drafting = model_.StepSeconds(rows, context, price.times());
    if (!step.Pays(tokens, seconds + drafting)) return;
    spent += drafting;
    room -= static_cast<int>(count);
    ExtendOnce(next);
  }
}

void ModelDrafter::ExtendOnce(const std::vector<Line*>& lines) {
  std::vector<DraftModel::Line*> drafting;
  for (Line* const line : lines) drafting.push_back(&line->drafting);
  model_.Extend(drafting);
  for (Line* const line : lines) {
    DraftModel::Line& made = line->drafting;
    if (made.drafts.size() == line->likelihoods.size()) continue;  // it has ended
    const Sequence& sequence = *made.sequence;
    if (sequence.call->stop_token_set.contains(made.drafts.back())) {
      // The token that ends an answer is never computed.
      made.drafts.pop_back();
      made.ended = true;
      continue;
    }
    const int cell =
        made.confidences.empty() ? kAnyConfidence : ConfidenceCell(made.confidences.back());
    const float drawn = records_.at(sequence.id).acceptance.Probability(cell, acceptance_);
    line->cells.push_back(cell);
    line->likelihoods.push_back(static_cast<float>(line->likelihood()) * drawn);
  }
}

void ModelDrafter::Ended(const Sequence& sequence) {
  no_room_ = false;
  if (records_.contains(sequence.id)) {
    Learn(sequence);
    records_.erase(sequence.id);
    constexpr double kWeight = 0.05;
    answer_tokens_ += kWeight * (sequence.generated_tokens() - answer_tokens_);
  }
  model_.Ended(sequence);
}

}  // namespace baton::decode_worker
