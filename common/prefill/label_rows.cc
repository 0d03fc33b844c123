#include "common/prefill/label_rows.h"

#include "common/base/check.h"

namespace baton::prefill {
namespace {

// One label after one prompt.
struct LabelRow {
  LabelledJob* owner = nullptr;
  size_t label = 0;
  kv::BlockLease blocks;
};

// Blocks from the prompt's partial last one on, or from behind its last one.
int BlocksOfLabel(int prompt_tokens, size_t label_tokens, int block_tokens) {
  if (label_tokens < 2) return 0;
  const int end = prompt_tokens + static_cast<int>(label_tokens) - 1;
  return (end + block_tokens - 1) / block_tokens - prompt_tokens / block_tokens;
}

void Run(engine::Engine& engine, const std::vector<LabelRow>& rows) {
  engine::Batch batch;
  for (const LabelRow& row : rows) {
    const absl::Span<const int32_t> label = row.owner->job->scoring->labels[row.label];
    engine::BatchEntry entry;
    entry.tokens = label.first(label.size() - 1);
    entry.context = row.owner->job->size();
    engine::SetBlocks(row.blocks, &entry, engine.kv_layout().block_tokens);
    entry.prompt_logprobs = 0;
    entry.targets = label.subspan(1);
    batch.entries.push_back(entry);
  }
  std::vector<engine::StepResult> results = engine.Step(batch);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!results[i].prompt_logprobs.ok()) {
      rows[i].owner->status = results[i].prompt_logprobs.status();
      continue;
    }
    std::vector<float>& logprobs = rows[i].owner->job->scoring->logprobs[rows[i].label];
    for (const model::SampledToken& token : *results[i].prompt_logprobs) {
      logprobs.push_back(token.logprob);
    }
  }
}

}  // namespace

int LabelBlocks(const PrefillJob& job, int block_tokens) {
  int blocks = 0;
  for (const std::vector<int32_t>& label : job.scoring->labels) {
    blocks += BlocksOfLabel(job.size(), label.size(), block_tokens);
  }
  return blocks;
}

int LabelTokens(const PrefillJob& job) {
  int tokens = 0;
  for (const auto& label : job.scoring->labels) tokens += static_cast<int>(label.size()) - 1;
  return tokens;
}

int ComputeLabelRows(engine::Engine& engine, std::vector<LabelledJob>& jobs) {
  const int block_tokens = engine.kv_layout().block_tokens;
  std::vector<LabelRow> rows;
  std::vector<int32_t> sources, targets;
  for (LabelledJob& labelled : jobs) {
    if (!labelled.status.ok()) continue;
    const PrefillJob& job = *labelled.job;
    const int whole = job.size() / block_tokens;
    const kv::BlockLease& of_labels = job.scoring->label_blocks;
    int own = 0;
    for (size_t i = 0; i < job.scoring->labels.size(); ++i) {
      const int count = BlocksOfLabel(job.size(), job.scoring->labels[i].size(), block_tokens);
      if (count == 0) continue;
      LabelRow& row = rows.emplace_back();
      row.owner = &labelled;
      row.label = i;
      row.blocks = job.blocks.Share(0, whole, kv::BlockUse::kActive);
      row.blocks.Append(of_labels.Share(own, own + count, kv::BlockUse::kActive));
      if (job.size() % block_tokens != 0) {
        const std::vector<int32_t> from = job.blocks.PagesOf(whole), to = of_labels.PagesOf(own);
        sources.insert(sources.end(), from.begin(), from.end());
        targets.insert(targets.end(), to.begin(), to.end());
      }
      own += count;
    }
    BATON_CHECK_EQ(own, of_labels.size());
  }
  if (!sources.empty()) engine.CopyPages(sources, targets);
  std::vector<LabelRow> step;
  int step_rows = 0, computed = 0;
  const auto run = [&] {
    if (step.empty()) return;
    Run(engine, step);
    computed += step_rows;
    step.clear();
    step_rows = 0;
  };
  for (LabelRow& row : rows) {
    const int more = static_cast<int>(row.owner->job->scoring->labels[row.label].size()) - 1;
    // The service refuses labels that would not fit in a step.
    BATON_CHECK_LE(more, engine.max_num_batched_tokens());
    if (static_cast<int>(step.size()) == engine.max_num_seqs() ||
        step_rows + more > engine.max_num_batched_tokens()) {
      run();
    }
    step_rows += more;
    step.push_back(std::move(row));
  }
  run();
  return computed;
}

}  // namespace baton::prefill
