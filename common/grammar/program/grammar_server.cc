#include "common/grammar/program/grammar_server.h"

#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/grammar/grammar_process.h"
#include "common/grammar/normal_regex.h"
#include "common/grammar/schema_check.h"
#include "common/tokenizer/tokenizer.h"

namespace baton::grammar {
namespace {

absl::Status Refused(absl::string_view reason, absl::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason, message);
}

// XGrammar's message without "[time] file:line: ".
std::string WithoutPlace(absl::string_view message) {
  const size_t file = message.find(".cc:");
  const size_t end = file == absl::string_view::npos ? file : message.find(": ", file);
  if (absl::StartsWith(message, "[") && end != absl::string_view::npos) {
    message.remove_prefix(end + 2);
  }
  return std::string(absl::StripAsciiWhitespace(message));
}

// For masks behind drafts, in time of the processor: the step waits for them.
constexpr absl::Duration kDraftsCpuTime = absl::Milliseconds(10);
// And of the last one of them, which ends the process.
constexpr uint64_t kDraftMaskMs = 100;

// Returns the processor time that this thread has used.
absl::Duration CpuTime() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return absl::DurationFromTimespec(time);
}

// Exceptions are XGrammar's way to refuse a grammar.
template <class Function>
auto Guarded(Function&& function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return Refused("SCHEMA_TOO_COMPLEX", "it takes more memory than a grammar may");
  } catch (const std::exception& error) {
    return Refused("SCHEMA_INVALID", WithoutPlace(error.what()));
  }
}

// Returns an EBNF grammar whose only texts are the choices. Escapes have eight digits: XGrammar
// reads all hexadecimal digits that follow \x.
std::string ChoicesGrammar(const std::vector<std::string>& choices) {
  std::string grammar = "root ::= ";
  for (size_t i = 0; i < choices.size(); ++i) {
    absl::StrAppend(&grammar, i > 0 ? " | " : "", "\"");
    for (const char character : choices[i]) {
      const bool escaped = character == '"' || character == '\\';
      if (escaped || static_cast<unsigned char>(character) < 0x20 || character == 0x7f) {
        absl::StrAppendFormat(&grammar, "\\U%08x", static_cast<unsigned char>(character));
      } else {
        grammar.push_back(character);
      }
    }
    grammar.push_back('"');
  }
  return grammar + "\n";
}

std::optional<int> MaxWhitespace(const GrammarSpec& spec) {
  return spec.any_whitespace ? std::nullopt : std::make_optional(kMaxWhitespace);
}

absl::StatusOr<xgrammar::Grammar> ToolCallsGrammar(const GrammarSpec& spec,
                                                   absl::Span<const SpecialToken> special_tokens,
                                                   std::vector<int32_t>* used) {
  BATON_ASSIGN_OR_RETURN(ToolCallGrammar grammar,
                         MakeToolCallGrammar(spec.texts, special_tokens, MaxWhitespace(spec)));
  *used = std::move(grammar.special_tokens);
  auto made = xgrammar::Grammar::FromStructuralTag(grammar.structural_tag);
  if (auto* const made_grammar = std::get_if<xgrammar::Grammar>(&made)) return *made_grammar;
  return Refused("SCHEMA_INVALID",
                 std::visit([](const auto& error) { return WithoutPlace(error.what()); },
                            std::get<xgrammar::StructuralTagError>(made)));
}

// `used`: the special tokens that the grammar names.
absl::StatusOr<xgrammar::Grammar> ToGrammar(const GrammarSpec& spec,
                                            absl::Span<const SpecialToken> special_tokens,
                                            std::vector<int32_t>* used) {
  const auto json = [&spec](const std::string& schema, bool strict) {
    return xgrammar::Grammar::FromJSONSchema(schema, /*any_whitespace=*/true, std::nullopt,
                                             std::nullopt, strict, MaxWhitespace(spec));
  };
  BATON_RETURN_IF_ERROR(CheckSpec(spec));
  switch (spec.kind) {
    case GrammarSpec::Kind::kJsonObject:
      return json(R"({"type": "object"})", /*strict=*/false);
    case GrammarSpec::Kind::kJsonSchema: {
      BATON_ASSIGN_OR_RETURN(const std::string schema, NormalSchema(spec.texts[0]));
      return json(schema, /*strict=*/true);
    }
    case GrammarSpec::Kind::kRegex: {
      BATON_ASSIGN_OR_RETURN(const std::string regex, NormalRegex(spec.texts[0], RegexUse::kAnswer,
                                                                  "structured_output.regex"));
      return xgrammar::Grammar::FromRegex(regex);
    }
    case GrammarSpec::Kind::kChoices:
      return xgrammar::Grammar::FromEBNF(ChoicesGrammar(spec.texts));
    case GrammarSpec::Kind::kToolCalls:
      return ToolCallsGrammar(spec, special_tokens, used);
  }
  return Refused("MALFORMED_REQUEST", "no such kind of grammar");
}

}  // namespace

absl::StatusOr<std::string> GrammarServer::Hello(FrameReader& request) {
  const std::string model_dir(request.Text());
  const size_t token_count = request.Number();
  const std::vector<int32_t> end_token_ids = request.Ids();
  compile_ms_ = request.Number();
  mask_ms_ = request.Number();
  if (!request.ok()) return Refused("MALFORMED_REQUEST", "hello");
  absl::StatusOr<std::unique_ptr<tokenizer::Tokenizer>> tokenizer =
      tokenizer::Tokenizer::Load(model_dir);
  if (!tokenizer.ok()) return Refused("BAD_TOKENIZER", tokenizer.status().message());
  BATON_ASSIGN_OR_RETURN(std::vector<std::string> bytes, (*tokenizer)->TokenBytes());
  bytes.resize(token_count);  // what no text is for, XGrammar never allows
  std::vector<std::string> texts = bytes;
  for (size_t i = 0; i < token_count; ++i) {
    const auto id = static_cast<int32_t>(i);
    const bool ends =
        std::find(end_token_ids.begin(), end_token_ids.end(), id) != end_token_ids.end();
    if (!(*tokenizer)->IsSpecial(id) || ends) continue;
    special_tokens_.push_back({(*tokenizer)->IdToToken(id).value_or(""), id});
    texts[i] = PrivateText(id);
  }
  reasoning_vocabulary_.texts = bytes;
  reasoning_vocabulary_.special.resize(token_count);
  for (const SpecialToken& token : special_tokens_) {
    reasoning_vocabulary_.texts[static_cast<size_t>(token.id)] = token.text;
    reasoning_vocabulary_.special[static_cast<size_t>(token.id)] = true;
  }
  for (const int32_t end : end_token_ids) {
    if (end >= 0 && static_cast<size_t>(end) < token_count) {
      reasoning_vocabulary_.texts[static_cast<size_t>(end)].clear();
    }
  }
  vocabulary_ = xgrammar::TokenizerInfo(texts, xgrammar::VocabType::RAW,
                                        static_cast<int>(token_count), end_token_ids);
  utf8_masks_.emplace(std::move(bytes));
  return "";
}

static std::optional<GrammarSpec::Reasoning> ReadReasoning(FrameReader& reader) {
  if (reader.Number() == 0) return std::nullopt;
  GrammarSpec::Reasoning reasoning;
  reasoning.begin = std::string(reader.Text());
  reasoning.end = std::string(reader.Text());
  return reasoning;
}

absl::StatusOr<std::string> GrammarServer::Compile(FrameReader& request, CpuLimit& limit) {
  GrammarSpec spec = {.kind = static_cast<GrammarSpec::Kind>(request.Number())};
  spec.any_whitespace = request.Number() != 0;
  spec.reasoning = ReadReasoning(request);
  spec.texts.resize(std::min<uint64_t>(request.Number(), kMaxSpecTexts));
  for (std::string& text : spec.texts) text = std::string(request.Text());
  if (!request.ok()) return Refused("MALFORMED_REQUEST", "compile");
  const CpuLimit::Scope scope(limit, compile_ms_);
  std::vector<int32_t> special_tokens;
  BATON_ASSIGN_OR_RETURN(const xgrammar::Grammar grammar,
                         ToGrammar(spec, special_tokens_, &special_tokens));
  // No cache: the worker keeps what is compiled. One thread: the other cores are the worker's.
  xgrammar::GrammarCompiler compiler(*vocabulary_, /*max_threads=*/1, /*cache_enabled=*/false);
  FrameWriter serialized_grammar;
  serialized_grammar.Ids(special_tokens)
      .Text(compiler.CompileGrammar(grammar).SerializeJSON())
      .Number(spec.reasoning ? 1 : 0);
  if (spec.reasoning) serialized_grammar.Text(spec.reasoning->begin).Text(spec.reasoning->end);
  std::string serialized = serialized_grammar.bytes();
  if (serialized.size() + 1024 > kMaxFrameBytes) {
    return Refused("SCHEMA_TOO_COMPLEX",
                   absl::StrCat("compiled, it has ", serialized.size(), " bytes"));
  }
  return serialized;
}

std::shared_ptr<ReasoningPhase> GrammarServer::PhaseOf(GrammarSpec::Reasoning reasoning) {
  const std::pair texts(reasoning.begin, reasoning.end);
  if (const auto found = phases_.find(texts); found != phases_.end()) {
    if (std::shared_ptr<ReasoningPhase> phase = found->second.lock()) return phase;
  }
  std::erase_if(phases_, [](const auto& entry) { return entry.second.expired(); });
  auto phase = std::make_shared<ReasoningPhase>(std::move(reasoning), reasoning_vocabulary_);
  phases_[texts] = phase;
  return phase;
}

absl::StatusOr<std::string> GrammarServer::Load(FrameReader& request) {
  const uint64_t id = request.Number();
  FrameReader serialized(request.Text());
  std::vector<int32_t> special_tokens = serialized.Ids();
  const std::string compiled(serialized.Text());
  std::optional<GrammarSpec::Reasoning> reasoning = ReadReasoning(serialized);
  if (!request.ok() || !serialized.ok()) return Refused("MALFORMED_REQUEST", "load");
  auto loaded = xgrammar::CompiledGrammar::DeserializeJSON(compiled, *vocabulary_);
  if (!std::holds_alternative<xgrammar::CompiledGrammar>(loaded)) {
    return Refused("SCHEMA_INVALID", "a compiled grammar that cannot be loaded");
  }
  Grammar grammar = {std::get<xgrammar::CompiledGrammar>(std::move(loaded)),
                     std::move(special_tokens), /*reasoning=*/nullptr};
  if (reasoning) BATON_RETURN_IF_ERROR(CheckReasoning(*reasoning));
  absl::MutexLock lock(&mutex_);
  if (reasoning) grammar.reasoning = PhaseOf(*std::move(reasoning));
  grammars_.insert_or_assign(id, std::move(grammar));
  return "";
}

absl::StatusOr<std::string> GrammarServer::Handle(FrameReader& request, CpuLimit& limit) {
  const auto kind = static_cast<Request>(request.Number());
  if (kind == Request::kHello) return Hello(request);
  if (!vocabulary_) return Refused("MALFORMED_REQUEST", "no hello");
  if (kind == Request::kCompile) return Compile(request, limit);
  if (kind == Request::kLoad) return Load(request);
  const uint64_t id = request.Number();
  // Freed after the lock, for which the thread of masks may wait: this one has a low priority.
  decltype(grammars_)::node_type unloaded;
  absl::MutexLock lock(&mutex_);
  unloaded = grammars_.extract(id);
  return "";
}

void GrammarServer::ServeControl(int socket) {
  CpuLimit limit;
  for (;;) {
    const absl::StatusOr<std::string> frame = ReceiveFrame(socket, absl::InfiniteDuration());
    if (!frame.ok()) return;
    FrameReader request(*frame);
    const absl::StatusOr<std::string> result =
        Guarded([&]() -> absl::StatusOr<std::string> { return Handle(request, limit); });
    FrameWriter reply;
    WriteStatus(result.status(), reply);
    if (result.ok()) reply.Text(*result);
    if (!SendFrame(socket, reply.bytes(), absl::InfiniteDuration()).ok()) return;
  }
}

absl::Status GrammarServer::FillMasks(FrameReader& item, CpuLimit& limit,
                                      std::vector<Mask>& masks) {
  const uint64_t session_id = item.Number();
  const uint64_t grammar_id = item.Number();
  const uint64_t known = item.Number();
  const std::vector<int32_t> further = item.Ids();
  const std::vector<int32_t> drafts = item.Ids();
  if (!item.ok()) return Refused("MALFORMED_REQUEST", "mask");
  const absl::Duration began = CpuTime();
  std::optional<CpuLimit::Scope> scope(std::in_place, limit,
                                       mask_ms_ * (1 + further.size() / kTokensPerLimit));
  if (known == 0) {
    sessions_.erase(session_id);
    absl::MutexLock lock(&mutex_);
    const auto grammar = grammars_.find(grammar_id);
    if (grammar == grammars_.end()) return Refused("MALFORMED_REQUEST", "no such grammar");
    Session session{.matcher = xgrammar::GrammarMatcher(grammar->second.compiled),
                    .special_tokens = grammar->second.special_tokens,
                    .reasoning = grammar->second.reasoning};
    if (session.reasoning != nullptr) session.place = session.reasoning->Start();
    // The prompt may have begun the reasoning.
    session.constrained = session.place.place != ReasoningPhase::State::Place::kReasoning;
    sessions_.emplace(session_id, std::move(session));
  }
  const auto found = sessions_.find(session_id);
  if (found == sessions_.end()) return Refused("MALFORMED_REQUEST", "no such session");
  Session& session = found->second;
  for (const int32_t token : further) {
    if (Accept(session, token)) continue;
    return Refused("GRAMMAR_MISMATCH", absl::StrCat("token ", token,
                                                    " of the answer so far does not follow the "
                                                    "request's grammar"));
  }
  masks.push_back(MaskOf(session));
  scope.reset();
  if (CpuTime() - began < kDraftsCpuTime) FillDraftMasks(session, drafts, limit, masks);
  return absl::OkStatus();
}

GrammarServer::Mask GrammarServer::MaskOf(Session& session) {
  Mask mask;
  if (session.constrained) {
    FillConstrainedMask(session, mask);
  } else {
    mask.assign((vocabulary_->GetVocabSize() + 31) / 32, 0);
  }
  if (session.place.place != ReasoningPhase::State::Place::kConstrained) {
    const std::vector<uint32_t>& free = session.reasoning->Mask(session.place);
    for (size_t i = 0; i < mask.size(); ++i) mask[i] |= free[i];
  }
  utf8_masks_->Apply(session.text_end, absl::MakeSpan(mask));
  return mask;
}

void GrammarServer::FillDraftMasks(Session& session, absl::Span<const int32_t> drafts,
                                   CpuLimit& limit, std::vector<Mask>& masks) {
  const absl::Duration began = CpuTime();
  const ReasoningPhase::State place = session.place;
  const bool constrained = session.constrained;
  const Utf8State text_end = session.text_end;
  const int matched = session.matched;
  // What fails behind a draft must not fail the answer: the worker asks another process, without
  // drafts.
  const auto guarded = [](auto&& function) {
    try {
      return function();
    } catch (const std::exception& error) {
      BATON_LOG(Error) << "behind a draft: " << error.what();
      std::_Exit(1);
    }
  };
  for (const int32_t draft : drafts) {
    const Mask& mask = masks.back();
    const auto word = static_cast<size_t>(draft) / 32;
    if (draft < 0 || word >= mask.size() || (mask[word] >> (draft % 32) & 1) == 0) break;
    // Where reasoning ends, the matcher begins anew, which cannot be undone.
    if (EndsReasoning(session, draft) || CpuTime() - began >= kDraftsCpuTime) break;
    const CpuLimit::Scope scope(limit, std::min(mask_ms_, kDraftMaskMs));
    const bool follows = guarded([&] {
      if (!Accept(session, draft)) return false;
      const bool ended = session.constrained && session.matcher.IsTerminated();
      masks.push_back(ended ? Mask(mask.size(), 0) : MaskOf(session));
      return !ended;
    });
    if (!follows) break;
  }
  guarded([&] {
    if (session.matched > matched) session.matcher.Rollback(session.matched - matched);
    return true;
  });
  session.place = place;
  session.constrained = constrained;
  session.text_end = text_end;
  session.matched = matched;
}

bool GrammarServer::EndsReasoning(const Session& session, int32_t token) const {
  using Place = ReasoningPhase::State::Place;
  if (session.place.place == Place::kConstrained) return false;
  const std::optional<ReasoningPhase::State> after = session.reasoning->After(session.place, token);
  return after && after->place == Place::kSpace;
}

bool GrammarServer::Accept(Session& session, int32_t token) const {
  using Place = ReasoningPhase::State::Place;
  if (token < 0 || token >= vocabulary_->GetVocabSize()) return false;
  const std::optional<ReasoningPhase::State> after =
      session.place.place == Place::kConstrained ? std::nullopt
                                                 : session.reasoning->After(session.place, token);
  const bool enters = after && after->place == Place::kReasoning;
  if (session.constrained && !enters) {
    session.constrained =
        MayCome(token, session.special_tokens) && session.matcher.AcceptToken(token);
    session.matched += session.constrained ? 1 : 0;
  }
  const bool is_space = after && after->place == Place::kSpace;
  if (is_space && session.place.place == Place::kSpace && session.constrained) {
    session.place = {};  // white space with which the constrained part begins
  } else if (after) {
    if (is_space) session.matcher.Reset();
    session.constrained = !enters && (is_space || session.constrained);
    session.place = *after;
  } else if (session.constrained) {
    session.place = {};
  } else {
    return false;
  }
  session.text_end = utf8_masks_->After(session.text_end, token);
  return session.text_end != Utf8State::kInvalid;
}

void GrammarServer::FillConstrainedMask(Session& session, std::vector<uint32_t>& mask) const {
  const int vocab_size = vocabulary_->GetVocabSize();
  std::vector<int32_t> bits(static_cast<size_t>(xgrammar::GetBitmaskSize(vocab_size)));
  int64_t shape[1] = {static_cast<int64_t>(bits.size())};
  DLTensor tensor = {};
  tensor.data = bits.data();
  tensor.device = {kDLCPU, 0};
  tensor.ndim = 1;
  tensor.dtype = xgrammar::GetBitmaskDLType();
  tensor.shape = shape;
  const bool is_masked = session.matcher.FillNextTokenBitmask(&tensor);
  mask.assign(bits.begin(), bits.end());
  if (!is_masked) mask.assign(bits.size(), ~uint32_t{0});
  MaskSpecialTokens(session.special_tokens, absl::MakeSpan(mask));
  if (vocab_size % 32 != 0) mask.back() &= (uint32_t{1} << (vocab_size % 32)) - 1;
}

bool GrammarServer::MayCome(int32_t token, const std::vector<int32_t>& allowed) const {
  const auto found =
      std::lower_bound(special_tokens_.begin(), special_tokens_.end(), token,
                       [](const SpecialToken& special, int32_t id) { return special.id < id; });
  const bool is_special = found != special_tokens_.end() && found->id == token;
  return !is_special || std::binary_search(allowed.begin(), allowed.end(), token);
}

// A text without constraint, as between calls, would match the private texts of all of them.
void GrammarServer::MaskSpecialTokens(const std::vector<int32_t>& allowed,
                                      absl::Span<uint32_t> mask) const {
  for (const SpecialToken& token : special_tokens_) {
    if (std::binary_search(allowed.begin(), allowed.end(), token.id)) continue;
    mask[static_cast<size_t>(token.id) / 32] &= ~(uint32_t{1} << (token.id % 32));
  }
}

void GrammarServer::ServeMasks(int socket) {
  CpuLimit limit;
  for (;;) {
    const absl::StatusOr<std::string> frame = ReceiveFrame(socket, absl::InfiniteDuration());
    if (!frame.ok()) return;
    FrameReader request(*frame);
    for (uint64_t closed = request.Number(); closed > 0 && request.ok(); --closed) {
      sessions_.erase(request.Number());
    }
    uint64_t items = request.Number();
    FrameReader item(request.Text());
    for (; items > 0 && request.ok(); --items) {
      std::vector<Mask> masks;
      const absl::Status status =
          Guarded([&]() -> absl::Status { return FillMasks(item, limit, masks); });
      FrameWriter reply;
      WriteStatus(status, reply);
      if (!status.ok()) masks.clear();
      reply.Number(masks.size());
      for (const Mask& mask : masks) reply.Words(mask);
      if (!SendFrame(socket, reply.bytes(), absl::InfiniteDuration()).ok()) return;
    }
  }
}

}  // namespace baton::grammar
