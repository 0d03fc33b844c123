#include "common/tokenizer/pre_tokenizer.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/unicode.h"

namespace baton::tokenizer {
namespace {

// What ByteLevel splits by when use_regex is set (gpt-2/src/encoder.py).
constexpr char kGpt2Pattern[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

const Matcher& Gpt2Matcher() {
  static const Matcher& matcher = *[] {
    absl::StatusOr<Matcher> compiled = Matcher::Regex(kGpt2Pattern);
    BATON_CHECK(compiled.ok()) << compiled.status().ToString();
    return new Matcher(*std::move(compiled));
  }();
  return matcher;
}

// Cuts a text into pieces at matches that come in order and without overlap; the text between two
// matches is the other kind of range. The rules of merging are those of SplitDelimiterBehavior in
// Hugging Face `tokenizers`.
class Splitter {
 public:
  Splitter(Piece piece, SplitBehavior behavior, bool invert, std::vector<Piece>* out)
      : piece_(piece), behavior_(behavior), invert_(invert), out_(out) {}

  void Match(size_t begin, size_t end) {
    if (begin > covered_) Range(covered_, begin, invert_);
    Range(begin, end, !invert_);
    covered_ = end;
  }

  void Finish() {
    if (covered_ < piece_.text.size()) Range(covered_, piece_.text.size(), invert_);
    if (open_) Emit();
  }

 private:
  // Takes the ranges of either kind, which together cover the text.
  void Range(size_t begin, size_t end, bool is_match) {
    if (behavior_ == SplitBehavior::kRemoved && is_match) {
      // leaves nothing
    } else if (open_ && JoinsPrevious(is_match)) {
      open_end_ = end;
    } else {
      if (open_) Emit();
      open_ = true;
      open_begin_ = begin;
      open_end_ = end;
    }
    previous_is_match_ = is_match;
  }

  bool JoinsPrevious(bool is_match) const {
    switch (behavior_) {
      case SplitBehavior::kIsolated:
      case SplitBehavior::kRemoved:
        return false;
      case SplitBehavior::kContiguous:
        return is_match == previous_is_match_;
      case SplitBehavior::kMergedWithPrevious:
        return is_match && !previous_is_match_;
      case SplitBehavior::kMergedWithNext:
        return !is_match && previous_is_match_;
    }
    return false;
  }

  void Emit() {
    open_ = false;
    if (open_begin_ == open_end_) return;
    out_->push_back({piece_.text.substr(open_begin_, open_end_ - open_begin_),
                     piece_.at_start && open_begin_ == 0});
  }

  const Piece piece_;
  const SplitBehavior behavior_;
  const bool invert_;
  std::vector<Piece>* const out_;
  size_t covered_ = 0;
  bool previous_is_match_ = false;
  bool open_ = false;  // [open_begin_, open_end_) waits for what may still join it
  size_t open_begin_ = 0;
  size_t open_end_ = 0;
};

absl::Status SplitBy(const Matcher& pattern, SplitBehavior behavior, bool invert, Piece piece,
                     std::vector<Piece>* out) {
  Splitter splitter(piece, behavior, invert, out);
  BATON_RETURN_IF_ERROR(pattern.ForEachMatch(
      piece.text, [&](size_t begin, size_t end) { splitter.Match(begin, end); }));
  splitter.Finish();
  return absl::OkStatus();
}

struct SplitStep {
  Piece piece;
  Scratch* scratch;
  std::vector<Piece>* out;

  absl::Status operator()(const Split& split) const {
    return SplitBy(split.pattern, split.behavior, split.invert, piece, out);
  }

  absl::Status operator()(const SplitAtClass& split) const {
    Splitter splitter(piece, split.behavior, /*invert=*/false, out);
    for (size_t i = 0; i < piece.text.size();) {
      const size_t end = i + Utf8CharBytes(piece.text[i]);
      if (split.contains(FirstChar(piece.text.substr(i)))) splitter.Match(i, end);
      i = end;
    }
    splitter.Finish();
    return absl::OkStatus();
  }

  absl::Status operator()(const SplitWords&) const {
    enum class Kind { kSpace, kWord, kOther };
    Kind kind = Kind::kSpace;
    size_t begin = 0;
    const auto emit = [&](size_t end) {
      if (kind == Kind::kSpace || begin == end) return;
      out->push_back({piece.text.substr(begin, end - begin), piece.at_start && begin == 0});
    };
    for (size_t i = 0; i < piece.text.size(); i += Utf8CharBytes(piece.text[i])) {
      const char32_t c = FirstChar(piece.text.substr(i));
      const Kind next = IsWordChar(c) ? Kind::kWord : IsWhitespace(c) ? Kind::kSpace : Kind::kOther;
      if (next == kind) continue;
      emit(i);
      kind = next;
      begin = i;
    }
    emit(piece.text.size());
    return absl::OkStatus();
  }

  absl::Status operator()(const ByteLevelSplit& split) const {
    Piece text = piece;
    if (split.add_prefix_space && !absl::StartsWith(text.text, " ")) {
      text.text = Keep(absl::StrCat(" ", text.text));
    }
    const size_t first = out->size();
    if (split.use_regex) {
      BATON_RETURN_IF_ERROR(
          SplitBy(Gpt2Matcher(), SplitBehavior::kIsolated, /*invert=*/false, text, out));
    } else {
      out->push_back(text);
    }
    for (size_t i = first; split.name_bytes && i < out->size(); ++i) {
      (*out)[i].text = Keep(BytesToNames((*out)[i].text));
    }
    return absl::OkStatus();
  }

  absl::Status operator()(const MetaspaceSplit& split) const {
    std::string text = absl::StrReplaceAll(piece.text, {{" ", split.replacement}});
    const bool prepend = split.prepend_scheme == PrependScheme::kAlways ||
                         (split.prepend_scheme == PrependScheme::kFirst && piece.at_start);
    if (prepend && !absl::StartsWith(text, split.replacement)) text.insert(0, split.replacement);
    const Piece replaced{Keep(std::move(text)), piece.at_start};
    if (!split.split) {
      out->push_back(replaced);
      return absl::OkStatus();
    }
    Splitter splitter(replaced, SplitBehavior::kMergedWithNext, /*invert=*/false, out);
    const size_t bytes = split.replacement.size();
    for (size_t i = replaced.text.find(split.replacement); i != absl::string_view::npos;
         i = replaced.text.find(split.replacement, i + bytes)) {
      splitter.Match(i, i + bytes);
    }
    splitter.Finish();
    return absl::OkStatus();
  }

  absl::string_view Keep(std::string text) const {
    scratch->push_back(std::move(text));
    return scratch->back();
  }
};

}  // namespace

absl::Status PreTokenize(const std::vector<PreTokenizer>& pre_tokenizers, Piece piece,
                         Scratch* scratch, std::vector<Piece>* words) {
  words->clear();
  words->push_back(piece);
  std::vector<Piece> next;
  for (const PreTokenizer& pre_tokenizer : pre_tokenizers) {
    const auto* byte_level = std::get_if<ByteLevelSplit>(&pre_tokenizer);
    const bool changes_nothing = byte_level != nullptr && !byte_level->add_prefix_space &&
                                 !byte_level->use_regex && !byte_level->name_bytes;
    if (changes_nothing) continue;
    next.clear();
    for (const Piece& word : *words) {
      BATON_RETURN_IF_ERROR(std::visit(SplitStep{word, scratch, &next}, pre_tokenizer));
    }
    words->swap(next);
  }
  return absl::OkStatus();
}

}  // namespace baton::tokenizer
