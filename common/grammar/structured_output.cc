#include "common/grammar/structured_output.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/named_thread.h"
#include "common/base/status_macros.h"
#include "common/grammar/frames.h"

namespace baton::grammar {
namespace {

constexpr size_t kRememberedFailures = 64;

absl::Status ProcessLost(absl::StatusCode code, absl::string_view what) {
  return MakeError(code, "GRAMMAR_PROCESS_LOST", what);
}

absl::Status Draining() {
  return MakeError(absl::StatusCode::kUnavailable, "DRAINING", "this worker is shutting down");
}

absl::Status TooComplex(absl::string_view why) {
  return InvalidField("SCHEMA_TOO_COMPLEX", "structured_output", why);
}

absl::Status TooMuchComputing(absl::string_view what, absl::Duration limit) {
  return TooComplex(
      absl::StrCat(what, " takes more than ", absl::FormatDuration(limit), " of the processor"));
}

// True if the process gave no answer, so another must take its place.
bool IsLost(const absl::Status& status) { return !status.ok() && ErrorReason(status).empty(); }

bool AllowsNone(const StructuredOutput::Mask& mask) {
  return std::all_of(mask.begin(), mask.end(), [](uint32_t word) { return word == 0; });
}

}  // namespace

StructuredOutput::StructuredOutput(StructuredOutputOptions options) : options_(std::move(options)) {
  thread_ = NamedThread("grammar", [this] { Run(); });
}

StructuredOutput::~StructuredOutput() {
  Stop();
  thread_.join();
}

void StructuredOutput::Stop() {
  absl::MutexLock lock(&mutex_);
  stopping_ = true;
  if (compiler_ != nullptr) compiler_->Kill();
}

void StructuredOutput::Compile(uint64_t id, GrammarSpec spec,
                               absl::AnyInvocable<void(Compiled)> done) {
  bool stopping = false;
  {
    absl::MutexLock lock(&mutex_);
    stopping = stopping_;
    if (!stopping && static_cast<int>(jobs_.size()) < options_.max_queued) {
      jobs_.push_back({id, std::move(spec), std::move(done)});
      return;
    }
  }
  if (stopping) return done(Draining());
  done(WithRetryAfter(
      MakeError(absl::StatusCode::kResourceExhausted, "GRAMMAR_QUEUE_FULL",
                absl::StrCat(options_.max_queued, " grammars already wait to be compiled")),
      absl::Seconds(1)));
}

void StructuredOutput::Cancel(uint64_t id) {
  std::optional<Job> job;
  {
    absl::MutexLock lock(&mutex_);
    const auto found =
        std::find_if(jobs_.begin(), jobs_.end(), [id](const Job& job) { return job.id == id; });
    if (found == jobs_.end()) return;
    job.emplace(std::move(*found));
    jobs_.erase(found);
  }
  job->done(absl::CancelledError("cancelled while its grammar waited to be compiled"));
}

void StructuredOutput::Run() {
  const auto wake = [this]()
                        ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || !jobs_.empty(); };
  for (;;) {
    std::optional<Job> job;
    bool stopping = false;
    {
      absl::MutexLock lock(&mutex_, absl::Condition(&wake));
      stopping = stopping_;
      if (jobs_.empty()) return;  // stopping
      job.emplace(std::move(jobs_.front()));
      jobs_.pop_front();
    }
    job->done(stopping ? Draining() : CompileNow(job->spec));
  }
}

StructuredOutput::Compiled StructuredOutput::CompileNow(const GrammarSpec& spec) {
  if (const auto found = cache_.find(spec); found != cache_.end()) {
    recency_.splice(recency_.begin(), recency_, found->second.recency);
    const std::shared_ptr<const CompiledGrammar> grammar = found->second.grammar;
    BATON_RETURN_IF_ERROR(LoadForMasks(*grammar));
    return grammar;
  }
  if (std::find(too_complex_.begin(), too_complex_.end(), spec) != too_complex_.end()) {
    return TooComplex("it took too long, or too much memory, to compile before");
  }
  absl::StatusOr<std::string> serialized = RunCompiler(spec);
  if (!serialized.ok()) return serialized.status();
  if (!MakeRoom(serialized->size())) {
    return WithRetryAfter(MakeError(absl::StatusCode::kResourceExhausted, "GRAMMAR_CACHE_FULL",
                                    absl::StrCat("the compiled grammars of running requests take ",
                                                 cached_bytes_, " of ", options_.cache_bytes,
                                                 " bytes; this one has ", serialized->size())),
                          absl::Seconds(1));
  }
  auto grammar = std::make_shared<CompiledGrammar>();
  grammar->id = ++last_id_;
  grammar->serialized = *std::move(serialized);
  BATON_RETURN_IF_ERROR(LoadForMasks(*grammar));
  cached_bytes_ += static_cast<int64_t>(grammar->serialized.size());
  recency_.push_front(spec);
  cache_[spec] = {grammar, recency_.begin()};
  return grammar;
}

absl::StatusOr<std::string> StructuredOutput::RunCompiler(const GrammarSpec& spec) {
  FrameWriter request;
  request.Number(static_cast<uint64_t>(Request::kCompile))
      .Number(static_cast<uint64_t>(spec.kind))
      .Number(spec.any_whitespace ? 1 : 0)
      .Number(spec.reasoning ? 1 : 0);
  if (spec.reasoning) request.Text(spec.reasoning->begin).Text(spec.reasoning->end);
  request.Number(spec.texts.size());
  for (const std::string& text : spec.texts) request.Text(text);
  absl::Status last_loss;
  for (int attempt = 0; attempt < 2; ++attempt) {
    BATON_ASSIGN_OR_RETURN(const std::shared_ptr<GrammarProcess> process, Compiler());
    absl::StatusOr<std::string> serialized =
        process->Control(request.bytes(), options_.compile_limit);
    if (!IsLost(serialized.status())) return serialized;
    last_loss = serialized.status();
    BATON_LOG(Warning) << "grammar compiler: " << last_loss.ToString();
    {
      absl::MutexLock lock(&mutex_);
      compiler_ = nullptr;
      if (stopping_) return Draining();
    }
    if (process->EndedAtCpuLimit()) {
      RememberFailure(spec);
      return TooMuchComputing("compiling it", options_.process.compile_cpu_limit);
    }
  }
  // The first process may have ended before it got the grammar. One that did not answer says
  // nothing about the grammar: it has computed for less than compile_cpu_limit.
  if (absl::IsDeadlineExceeded(last_loss)) {
    return ProcessLost(absl::StatusCode::kUnavailable, last_loss.message());
  }
  RememberFailure(spec);
  return TooComplex("the compiler does not survive it");
}

absl::StatusOr<std::shared_ptr<GrammarProcess>> StructuredOutput::Compiler() {
  {
    absl::MutexLock lock(&mutex_);
    if (compiler_ != nullptr) return compiler_;
  }
  BATON_ASSIGN_OR_RETURN(std::shared_ptr<GrammarProcess> started, StartProcess());
  absl::MutexLock lock(&mutex_);
  if (stopping_) return Draining();
  compiler_ = std::move(started);
  return compiler_;
}

absl::StatusOr<std::shared_ptr<GrammarProcess>> StructuredOutput::StartProcess() const {
  absl::StatusOr<std::shared_ptr<GrammarProcess>> started = GrammarProcess::Start(options_.process);
  if (!IsLost(started.status())) return started;
  return ProcessLost(absl::StatusCode::kUnavailable, started.status().message());
}

void StructuredOutput::RememberFailure(const GrammarSpec& spec) {
  too_complex_.push_front(spec);
  if (too_complex_.size() > kRememberedFailures) too_complex_.pop_back();
}

bool StructuredOutput::MakeRoom(size_t bytes) {
  const int64_t needed = static_cast<int64_t>(bytes);
  for (auto at = recency_.end();
       at != recency_.begin() && cached_bytes_ + needed > options_.cache_bytes;) {
    --at;
    const auto found = cache_.find(*at);
    if (found->second.grammar.use_count() > 1) continue;
    const CompiledGrammar& grammar = *found->second.grammar;
    cached_bytes_ -= static_cast<int64_t>(grammar.serialized.size());
    std::shared_ptr<GrammarProcess> masker;
    {
      absl::MutexLock lock(&mutex_);
      masker = masker_;
    }
    if (masker != nullptr) masker->Unload(grammar.id, options_.compile_limit);
    cache_.erase(found);
    at = recency_.erase(at);
  }
  return cached_bytes_ + needed <= options_.cache_bytes;
}

absl::StatusOr<std::shared_ptr<GrammarProcess>> StructuredOutput::MaskProcess(
    const GrammarProcess* lost) {
  absl::MutexLock starting(&start_mutex_);
  {
    absl::MutexLock lock(&mutex_);
    if (masker_ != nullptr && masker_.get() != lost) return masker_;
  }
  BATON_ASSIGN_OR_RETURN(std::shared_ptr<GrammarProcess> started, StartProcess());
  absl::MutexLock lock(&mutex_);
  masker_ = std::move(started);
  return masker_;
}

absl::Status StructuredOutput::LoadForMasks(const CompiledGrammar& grammar) {
  absl::Status status;
  std::shared_ptr<GrammarProcess> lost;
  for (int attempt = 0; attempt < 2; ++attempt) {
    BATON_ASSIGN_OR_RETURN(std::shared_ptr<GrammarProcess> process, MaskProcess(lost.get()));
    status = process->Load(grammar.id, grammar.serialized, options_.compile_limit);
    if (!IsLost(status)) return status;
    lost = std::move(process);
  }
  return ProcessLost(absl::StatusCode::kUnavailable, status.message());
}

std::vector<absl::StatusOr<std::vector<StructuredOutput::Mask>>> StructuredOutput::Masks(
    absl::Span<const Item> items) {
  std::vector<std::optional<absl::StatusOr<std::vector<Mask>>>> results(items.size());
  std::vector<int> losses(items.size(), 0);
  std::shared_ptr<GrammarProcess> lost;
  for (bool with_drafts = true;; with_drafts = false) {
    absl::StatusOr<std::shared_ptr<GrammarProcess>> process = MaskProcess(lost.get());
    if (!process.ok()) {
      for (auto& result : results) {
        if (!result) {
          result = ProcessLost(absl::StatusCode::kInternal, process.status().message());
        }
      }
      break;
    }
    const std::optional<Loss> loss = AskForMasks(**process, items, with_drafts, results);
    if (!loss) break;
    BATON_LOG(Warning) << "grammar process: " << loss->status.ToString();
    // That may have been a draft's fault, which says nothing of the answer.
    if (Session& session = sessions_[items[loss->item].session];
        with_drafts && session.drafts && !items[loss->item].drafts.empty()) {
      session.drafts = false;
      lost = *std::move(process);
      continue;
    }
    // A process that ends, or does not answer, may have been killed or stopped from outside; one
    // that computes too long, or is lost again at the same mask, fails on this sequence's grammar.
    if ((*process)->EndedAtCpuLimit()) {
      results[loss->item] = TooMuchComputing("a mask of it", options_.process.mask_cpu_limit);
    } else if (++losses[loss->item] == 2) {
      results[loss->item] = ProcessLost(absl::StatusCode::kInternal, loss->status.message());
    }
    lost = *std::move(process);
  }
  std::vector<absl::StatusOr<std::vector<Mask>>> masks;
  for (auto& result : results) masks.push_back(*std::move(result));
  return masks;
}

std::optional<StructuredOutput::Loss> StructuredOutput::AskForMasks(
    GrammarProcess& process, absl::Span<const Item> items, bool with_drafts,
    std::vector<std::optional<absl::StatusOr<std::vector<Mask>>>>& results) {
  FrameWriter request, asked_items;
  std::vector<std::pair<size_t, absl::Duration>> asked;  // items, and how long to wait for each
  for (size_t i = 0; i < items.size(); ++i) {
    if (results[i]) continue;
    const CompiledGrammar& grammar = *items[i].grammar;
    const absl::Status loaded =
        process.Load(grammar.id, grammar.serialized, options_.compile_limit);
    if (IsLost(loaded)) return Loss{i, loaded};
    if (!loaded.ok()) {
      results[i] = loaded;
      continue;
    }
    Session& session = sessions_[items[i].session];
    if (session.process != process.number() || session.tokens > items[i].tokens.size()) {
      session.process = process.number();
      session.tokens = 0;
    }
    const absl::Span<const int32_t> further = items[i].tokens.subspan(session.tokens);
    asked_items.Number(items[i].session).Number(grammar.id).Number(session.tokens).Ids(further);
    const bool drafts = with_drafts && session.drafts;
    asked_items.Ids(drafts ? items[i].drafts : absl::Span<const int32_t>());
    session.tokens = items[i].tokens.size();
    asked.emplace_back(i, options_.mask_limit * (1 + further.size() / kTokensPerLimit));
  }
  if (asked.empty()) return std::nullopt;
  request.Number(closed_.size());
  for (const uint64_t session : closed_) request.Number(session);
  closed_.clear();
  request.Number(asked.size()).Text(asked_items.bytes());
  // The process reads the whole request before it answers.
  absl::Status sent = SendFrame(process.mask_fd(), request.bytes(), options_.mask_limit);
  if (!sent.ok()) return Loss{asked.front().first, std::move(sent)};
  for (const auto& [item, limit] : asked) {
    const absl::StatusOr<std::string> reply = ReceiveFrame(process.mask_fd(), limit);
    if (!reply.ok()) return Loss{item, reply.status()};
    FrameReader reader(*reply);
    absl::Status status = ReadStatus(reader);
    std::vector<Mask> masks(std::min<uint64_t>(reader.Number(), 1 + items[item].drafts.size()));
    for (Mask& mask : masks) mask = reader.Words();
    if (IsLost(status) || !reader.ok() || (status.ok() && masks.empty())) {
      return Loss{item, absl::UnavailableError("bad reply")};
    }
    if (status.ok() && AllowsNone(masks.front())) {
      status = MakeError(absl::StatusCode::kInvalidArgument, "NO_TOKEN_LEFT",
                         "no token can follow the answer so far by its grammar");
    }
    if (status.ok()) {
      results[item] = std::move(masks);
    } else {
      results[item] = status;
    }
  }
  return std::nullopt;
}

void StructuredOutput::Close(uint64_t session) {
  if (sessions_.erase(session) > 0) closed_.push_back(session);
}

pid_t StructuredOutput::compiling_pid() const {
  absl::MutexLock lock(&mutex_);
  return compiler_ == nullptr ? 0 : compiler_->pid();
}

pid_t StructuredOutput::mask_pid() const {
  absl::MutexLock lock(&mutex_);
  return masker_ == nullptr ? 0 : masker_->pid();
}

}  // namespace baton::grammar
