#include "decode_worker/model_drafter.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/types/span.h"

namespace baton::decode_worker {
namespace {

// What the tokens of an answer have to save, as a multiple of what computing its prompt takes: the
// length of the answer is a guess.
constexpr double kCatchUpMargin = 1.25;
// The share of the time that drafts take which do not pay.
constexpr double kProbeShare = 0.01;
// So many steps return hidden states where drafts paid: a head that lacks those of one step begins
// its KV anew, and whether drafts pay may change with every step.
constexpr int kStepsWithStates = 16;

bool IsReady(int missing) { return missing <= DraftModel::kMostMissing; }

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
      const double rate = step.tokens() / step.seconds();
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
      // The next drafts cost as much and are less likely. (The first may compute what is lacking.)
      if (depth > 0 && step.tokens() < rate * step.seconds()) break;
    }
    if (count == lines.size()) break;
  }
  return best;
}

std::vector<Draft> ModelDrafter::Propose(const std::vector<Wish>& wishes, int room,
                                         int catch_up_tokens, const StepPrice& price) {
  model_.OnStepPlanned();
  states_for_steps_ = std::max(0, states_for_steps_ - 1);
  std::vector<Draft> drafts(wishes.size());
  if (wishes.empty() || room <= 0) return drafts;
  std::vector<Line> all = LinesFor(wishes);
  if (all.size() > most_lines_) all.resize(most_lines_);
  std::vector<Line> ready, lagging;
  for (const Line& line : all) (IsReady(line.missing) ? ready : lagging).push_back(line);
  const Outlook outlook = Best(ready, price);
  if (outlook.lines > 0) {
    ready.resize(outlook.lines);
    Extend(ready, room, price);
  }
  const int tokens = CatchUpBudget(catch_up_tokens, price);
  for (Line& line : all) line.missing = 1;  // as it will be
  if (kind_ == DraftModel::Kind::kMtpHead) {
    if (Best(all, price).lines > 0) states_for_steps_ = kStepsWithStates;
  } else if (!lagging.empty()) {
    CatchUp(lagging, Best(all, price), tokens, price);
  }
  if (outlook.lines == 0) {
    probe_seconds_ += kProbeShare * price.seconds();
    if (probe_seconds_ >= ProbeSeconds(ready, lagging, tokens, price)) {
      Probe(ready, lagging, tokens, price);
    }
  }
  for (Line& line : ready) {
    Record& record = records_.at(line.drafting.sequence->id);
    record.behind = line.drafting.sequence->tokens.size();
    record.drafts = line.drafting.drafts;
    record.cells = std::move(line.cells);
    drafts[line.wish] = {std::move(line.drafting.drafts), std::move(line.likelihoods)};
  }
  return drafts;
}

bool ModelDrafter::WouldPropose(const std::vector<Wish>& wishes, int catch_up_tokens,
                                const StepPrice& price) {
  if (wishes.empty()) return false;
  std::vector<Line> all = LinesFor(wishes);
  std::vector<Line> ready, lagging;
  for (Line& line : all) {
    if (line.missing != DraftModel::kNoStates) ++line.missing;  // the one that is being drawn
    (IsReady(line.missing) ? ready : lagging).push_back(line);
  }
  if (states_for_steps_ > 0 || Best(ready, price).lines > 0) return true;
  // Steps that are launched ahead give no hidden states, and the draft model no time to catch up.
  const int tokens = CatchUpBudget(catch_up_tokens, price);
  for (Line& line : all) line.missing = 1;
  const Outlook outlook = Best(all, price);
  if (outlook.lines > 0 && kind_ == DraftModel::Kind::kMtpHead) return true;
  const bool catches_up = std::any_of(lagging.begin(), lagging.end(), [&](const Line& line) {
    return PaysToCatchUp(line, outlook, tokens, price);
  });
  if (catches_up && !no_room_) return true;
  // Propose, which a step launched ahead does not ask, adds what this step gives, and counts it.
  const double saved = probe_seconds_ + kProbeShare * price.seconds();
  if (saved >= ProbeSeconds(ready, lagging, tokens, price)) return true;
  probe_seconds_ = saved;
  model_.OnStepPlanned();
  return false;
}

int ModelDrafter::CatchUpBudget(int catch_up_tokens, const StepPrice& price) const {
  const double token = model_.CatchUpSeconds(1, 0, 1, price.times());
  const double more = model_.CatchUpSeconds(1 + catch_up_tokens, 0, 1, price.times()) - token;
  const int most = model_.max_num_batched_tokens();
  // This is not a number if nothing may be computed beside the step and nothing is measured.
  const double fits = (price.seconds() - token) / more * catch_up_tokens;
  return fits > catch_up_tokens ? static_cast<int>(std::min<double>(fits, most))
                                : std::clamp(catch_up_tokens, 1, most);
}

bool ModelDrafter::PaysToCatchUp(const Line& line, const Outlook& outlook, int tokens,
                                 const StepPrice& price) const {
  if (outlook.lines == 0) return false;
  // What a token of an answer takes less, as a share of the worker.
  const double saved = price.seconds() / price.tokens() - outlook.seconds / outlook.tokens;
  const Sequence& sequence = *line.drafting.sequence;
  const double generated = sequence.generated_tokens();
  const double left = std::min<double>(sequence.call->max_tokens - generated,
                                       std::max(answer_tokens_ - generated, answer_tokens_ / 4));
  const double context = static_cast<double>(sequence.tokens.size()) - line.missing;
  const int steps = (line.missing + tokens - 1) / tokens;
  return left * saved >
         kCatchUpMargin * model_.CatchUpSeconds(line.missing, context, steps, price.times());
}

void ModelDrafter::CatchUp(const std::vector<Line>& lagging, const Outlook& outlook, int tokens,
                           const StepPrice& price) {
  std::vector<const Sequence*> worth;
  for (const Line& line : lagging) {
    if (PaysToCatchUp(line, outlook, tokens, price)) worth.push_back(line.drafting.sequence);
  }
  if (!worth.empty()) no_room_ = model_.CatchUp(worth, tokens) == 0;
}

double ModelDrafter::ProbeSeconds(const std::vector<Line>& ready, const std::vector<Line>& lagging,
                                  int tokens, const StepPrice& price) const {
  const StepTimes& times = price.times();
  const auto draft_seconds = [&](const Line& line, int missing) {
    return times.DraftedExtraSeconds() + model_.StepSeconds(missing, line.chunk->begin, times) +
           price.RowSeconds(*line.chunk, line.next);
  };
  if (!ready.empty()) {
    const Line& line = ready[probes_ % ready.size()];
    return draft_seconds(line, line.missing);
  }
  if (lagging.empty()) return std::numeric_limits<double>::infinity();
  const Line& line = lagging.front();
  // The price includes the first draft, which is made once the states or the whole text are there.
  if (kind_ == DraftModel::Kind::kMtpHead) return draft_seconds(line, 1);
  const double catching_up =
      model_.CatchUpSeconds(std::min(line.missing, tokens), line.chunk->begin, 1, times);
  return line.missing <= tokens ? catching_up + draft_seconds(line, 1) : catching_up;
}

void ModelDrafter::Probe(std::vector<Line>& ready, const std::vector<Line>& lagging, int tokens,
                         const StepPrice& price) {
  if (ready.empty() && kind_ == DraftModel::Kind::kMtpHead) {
    // The states cost next to nothing; what is tried with them is paid for when they are there.
    states_for_steps_ = std::max(states_for_steps_, 1);
    return;
  }
  probe_seconds_ = 0;
  if (ready.empty()) {
    // Until the next probe it might lag again: it drafts now.
    const Sequence& sequence = *lagging.front().drafting.sequence;
    model_.CatchUp({&sequence}, tokens);
    if (!IsReady(model_.Missing(sequence))) return;
    ready.push_back(lagging.front());
  }
  ExtendOnce({&ready[probes_++ % ready.size()]});
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
  std::vector<DraftModel::Drafting*> drafting;
  for (Line* const line : lines) drafting.push_back(&line->drafting);
  model_.Extend(drafting);
  for (Line* const line : lines) {
    DraftModel::Drafting& made = line->drafting;
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
