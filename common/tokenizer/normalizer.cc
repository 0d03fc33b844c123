#include "common/tokenizer/normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/edits.h>
#include <unicode/normalizer2.h>
#include <unicode/uniset.h>

#include <array>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/tokenizer/unicode.h"

namespace baton::tokenizer {
namespace {

// The four forms, with the characters of Unicode 9 alone: Hugging Face `tokenizers` has the tables
// of that version, and leaves as they are characters that were not assigned then.
class UnicodeForms {
 public:
  static const UnicodeForms& Get() {
    static const UnicodeForms& forms = *new UnicodeForms;
    return forms;
  }

  const icu::Normalizer2& Of(UnicodeForm form) const { return *forms_[static_cast<int>(form)]; }

 private:
  UnicodeForms() {
    UErrorCode error = U_ZERO_ERROR;
    assigned_.applyPattern(icu::UnicodeString("[:age=9.0:]"), error).freeze();
    for (const UnicodeForm form :
         {UnicodeForm::kNfc, UnicodeForm::kNfd, UnicodeForm::kNfkc, UnicodeForm::kNfkd}) {
      const icu::Normalizer2* all = InstanceOf(form, &error);
      // ICU carries its data in its library: failing means a broken installation.
      BATON_CHECK(U_SUCCESS(error)) << u_errorName(error);
      forms_[static_cast<int>(form)] = std::make_unique<icu::FilteredNormalizer2>(*all, assigned_);
    }
  }

  static const icu::Normalizer2* InstanceOf(UnicodeForm form, UErrorCode* error) {
    switch (form) {
      case UnicodeForm::kNfc:
        return icu::Normalizer2::getNFCInstance(*error);
      case UnicodeForm::kNfd:
        return icu::Normalizer2::getNFDInstance(*error);
      case UnicodeForm::kNfkc:
        return icu::Normalizer2::getNFKCInstance(*error);
      case UnicodeForm::kNfkd:
        return icu::Normalizer2::getNFKDInstance(*error);
    }
    return nullptr;
  }

  icu::UnicodeSet assigned_;  // the normalizers point to it
  std::array<std::unique_ptr<icu::FilteredNormalizer2>, 4> forms_;
};

absl::Status UnicodeFailed(UErrorCode error) {
  return absl::InternalError(absl::StrCat("Unicode normalisation failed: ", u_errorName(error)));
}

void Keep(std::string text, Piece* piece, Scratch* scratch) {
  scratch->push_back(std::move(text));
  piece->text = scratch->back();
}

// Follows parts of a text through a step, which names what it keeps and what it changes, in order.
class SplitFollower {
 public:
  explicit SplitFollower(ByteRanges* split) : split_(split) {}

  bool active() const { return split_ != nullptr && !split_->empty(); }
  void Keep(size_t bytes) {
    if (active()) AppendRangesOfPart(*split_, from_, from_ + bytes, to_, &moved_);
    from_ += bytes;
    to_ += bytes;
  }
  // `bytes` become `new_bytes`; either may be 0.
  void Change(size_t bytes, size_t new_bytes) {
    if (active() && Overlaps(*split_, from_, from_ + bytes)) {
      AppendRange(to_, to_ + new_bytes, &moved_);
    }
    from_ += bytes;
    to_ += new_bytes;
  }
  void Finish() {
    if (active()) *split_ = std::move(moved_);
  }

 private:
  ByteRanges* const split_;
  ByteRanges moved_;
  size_t from_ = 0;
  size_t to_ = 0;
};

struct NormalizeStep {
  Piece* piece;
  Scratch* scratch;
  ByteRanges* split;

  absl::Status operator()(UnicodeForm form) const {
    if (IsAscii(piece->text)) return absl::OkStatus();  // which all four forms leave alone
    const icu::Normalizer2& normalizer = UnicodeForms::Get().Of(form);
    UErrorCode error = U_ZERO_ERROR;
    const icu::StringPiece text(piece->text.data(), static_cast<int32_t>(piece->text.size()));
    if (normalizer.isNormalizedUTF8(text, error) && U_SUCCESS(error)) return absl::OkStatus();
    std::string result;
    icu::StringByteSink<std::string> sink(&result);
    icu::Edits edits;
    SplitFollower follower(split);
    normalizer.normalizeUTF8(0, text, sink, follower.active() ? &edits : nullptr, error);
    if (U_FAILURE(error)) return UnicodeFailed(error);
    for (icu::Edits::Iterator edit = edits.getCoarseIterator(); edit.next(error);) {
      if (edit.hasChange()) {
        follower.Change(edit.oldLength(), edit.newLength());
      } else {
        follower.Keep(edit.oldLength());
      }
    }
    if (U_FAILURE(error)) return UnicodeFailed(error);
    follower.Finish();
    Keep(std::move(result), piece, scratch);
    return absl::OkStatus();
  }

  absl::Status operator()(const Lowercase&) const {
    std::string result;
    result.reserve(piece->text.size());
    absl::string_view rest = piece->text;
    SplitFollower follower(split);
    while (!rest.empty()) {
      const size_t before = result.size();
      AppendLowercase(FirstChar(rest), &result);
      follower.Change(Utf8CharBytes(rest[0]), result.size() - before);
      rest.remove_prefix(Utf8CharBytes(rest[0]));
    }
    follower.Finish();
    Keep(std::move(result), piece, scratch);
    return absl::OkStatus();
  }

  absl::Status operator()(const Prepend& prepend) const {
    if (piece->text.empty()) return absl::OkStatus();
    SplitFollower follower(split);
    follower.Change(0, prepend.text.size());
    follower.Keep(piece->text.size());
    follower.Finish();
    Keep(absl::StrCat(prepend.text, piece->text), piece, scratch);
    return absl::OkStatus();
  }

  absl::Status operator()(const Replace& replace) const {
    const absl::string_view text = piece->text;
    std::string result;
    size_t kept_to = 0;
    bool any = false;
    SplitFollower follower(split);
    BATON_RETURN_IF_ERROR(replace.pattern.ForEachMatch(text, [&](size_t begin, size_t end) {
      if (begin == 0 && end > 0 && replace.content.empty()) piece->at_start = false;
      absl::StrAppend(&result, text.substr(kept_to, begin - kept_to), replace.content);
      follower.Keep(begin - kept_to);
      follower.Change(end - begin, replace.content.size());
      kept_to = end;
      any = true;
    }));
    if (!any) return absl::OkStatus();
    absl::StrAppend(&result, text.substr(kept_to));
    follower.Keep(text.size() - kept_to);
    follower.Finish();
    Keep(std::move(result), piece, scratch);
    return absl::OkStatus();
  }

  absl::Status operator()(const StripWhitespace& strip) const {
    absl::string_view& text = piece->text;
    const size_t whole = text.size();
    while (strip.left && !text.empty() && IsWhitespace(FirstChar(text))) {
      text.remove_prefix(Utf8CharBytes(text[0]));
      piece->at_start = false;
    }
    SplitFollower follower(split);
    follower.Change(whole - text.size(), 0);
    while (strip.right && !text.empty()) {
      const absl::string_view last = LastCharBytes(text);
      if (!IsWhitespace(FirstChar(last))) break;
      text.remove_suffix(last.size());
    }
    follower.Keep(text.size());
    follower.Finish();
    return absl::OkStatus();
  }
};

}  // namespace

absl::Status Normalize(const std::vector<Normalizer>& normalizers, Piece* piece, Scratch* scratch,
                       ByteRanges* split) {
  for (const Normalizer& normalizer : normalizers) {
    BATON_RETURN_IF_ERROR(std::visit(NormalizeStep{piece, scratch, split}, normalizer));
  }
  return absl::OkStatus();
}

}  // namespace baton::tokenizer
