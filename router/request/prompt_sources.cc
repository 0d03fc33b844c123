#include "router/request/prompt_sources.h"

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/request_limits.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/incremental_detokenizer.h"
#include "router/request/request_check.h"

namespace baton::router {
namespace {

constexpr int kMaxSegments = 1024;

absl::Status BadSegments(int index, absl::string_view why) {
  return InvalidField("BAD_SEGMENTS", absl::StrCat("segments[", index, "].length"), why);
}

bool BeginsCharacter(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

// Adds tokens up to the `end`-th of the prompt.
void AddRun(v1::PromptSource source, int end, int* begin, std::vector<SourceRun>* runs) {
  runs->push_back({source, end - *begin});
  *begin = end;
}

// Where each token begins in the text that all tokens make, and that text's length at the end. All
// tokens that begin within one character have its position.
absl::StatusOr<std::vector<size_t>> TokenPositions(absl::Span<const int32_t> tokens,
                                                   const tokenizer::Tokenizer& tokenizer) {
  tokenizer::IncrementalDetokenizer text(tokenizer, /*skip_special_tokens=*/false);
  std::vector<size_t> positions = {0};
  positions.reserve(tokens.size() + 1);
  for (const int32_t token : tokens) {
    std::string added;
    BATON_ASSIGN_OR_RETURN(added, text.Append(absl::MakeConstSpan(&token, 1)));
    positions.push_back(positions.back() + added.size());
  }
  positions.back() += text.Flush().size();
  return positions;
}

}  // namespace

absl::Status CheckSegments(const v1::GenerateRequest& request) {
  if (request.segments().empty()) return absl::OkStatus();
  BATON_RETURN_IF_ERROR(CheckRange("segments", request.segments_size(), 1, kMaxSegments));
  if (request.has_messages()) {
    return InvalidField("NOT_WITH_MESSAGES", "segments",
                        "given for messages, from which the router makes the prompt");
  }
  const int64_t whole = request.has_text() ? static_cast<int64_t>(request.text().size())
                                           : request.token_ids().ids_size();
  int64_t end = 0;
  for (int i = 0; i < request.segments_size(); ++i) {
    const v1::PromptSegment& segment = request.segments(i);
    if (!v1::PromptSource_IsValid(segment.source())) {
      return OutOfRange(absl::StrCat("segments[", i, "].source"),
                        absl::StrCat(static_cast<int>(segment.source())),
                        "a value of baton.v1.PromptSource expected");
    }
    if (segment.length() < 0) return BadSegments(i, "below 0");
    end += segment.length();
    if (end > whole) return BadSegments(i, absl::StrCat("the prompt ends before, at ", whole));
    if (request.has_text() && end < whole && !BeginsCharacter(request.text()[end])) {
      return BadSegments(i, absl::StrCat("byte ", end, " of the text is within a character"));
    }
  }
  if (end == whole) return absl::OkStatus();
  return BadSegments(request.segments_size() - 1,
                     absl::StrCat("all segments are ", end, " long, and the prompt is ", whole));
}

absl::StatusOr<std::vector<SourceRun>> SourcesOf(const v1::GenerateRequest& request,
                                                 absl::Span<const int32_t> tokens,
                                                 const tokenizer::Tokenizer& tokenizer) {
  std::vector<SourceRun> runs;
  if (request.segments().empty()) return runs;
  const int count = static_cast<int>(tokens.size());
  int begin = 0;
  if (request.has_token_ids()) {
    for (const v1::PromptSegment& segment : request.segments()) {
      AddRun(segment.source(), begin + segment.length(), &begin, &runs);
    }
    return runs;
  }
  std::vector<int32_t> plain;
  BATON_ASSIGN_OR_RETURN(
      plain, tokenizer.Encode(request.text(), /*add_special_tokens=*/false,
                              SplitOfText(request.split_special_tokens(), request.text())));
  // Special tokens that the tokenizer has added stand around these.
  const auto found = std::search(tokens.begin(), tokens.end(), plain.begin(), plain.end());
  const int before = found == tokens.end() ? 0 : static_cast<int>(found - tokens.begin());
  std::vector<size_t> positions;
  BATON_ASSIGN_OR_RETURN(positions, TokenPositions(plain, tokenizer));
  const double scale =
      static_cast<double>(positions.back()) / static_cast<double>(request.text().size());
  const bool same = positions.back() == request.text().size();
  size_t bytes = 0;
  for (int i = 0; i < request.segments_size(); ++i) {
    bytes += static_cast<size_t>(request.segments(i).length());
    const size_t limit = same ? bytes : static_cast<size_t>(static_cast<double>(bytes) * scale);
    // The first token that begins at the segment's end or later.
    const auto next = std::lower_bound(positions.begin(), positions.end() - 1, limit);
    const int end = std::min(count, before + static_cast<int>(next - positions.begin()));
    const bool last = i + 1 == request.segments_size();
    AddRun(request.segments(i).source(), last ? count : limit == 0 ? begin : end, &begin, &runs);
  }
  return runs;
}

void DropTokens(int first, int count, std::vector<SourceRun>* runs) {
  for (SourceRun& run : *runs) {
    const int dropped = std::clamp(run.tokens - first, 0, count);
    first = std::max(0, first - run.tokens);
    run.tokens -= dropped;
    count -= dropped;
  }
}

void FillBySource(absl::Span<const SourceRun> runs, int cached, v1::Usage* usage) {
  std::map<v1::PromptSource, SourceRun> all;
  std::map<v1::PromptSource, int> found;
  for (const SourceRun& run : runs) {
    all[run.source].tokens += run.tokens;
    const int of_run = std::clamp(cached, 0, run.tokens);
    found[run.source] += of_run;
    cached -= of_run;
  }
  usage->clear_by_source();
  for (const auto& [source, run] : all) {
    v1::SourceUsage* entry = usage->add_by_source();
    entry->set_source(source);
    entry->set_tokens(run.tokens);
    entry->set_cached(found[source]);
  }
}

}  // namespace baton::router
