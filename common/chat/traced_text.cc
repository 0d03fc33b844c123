#include "common/chat/traced_text.h"

#include "absl/strings/str_cat.h"

namespace baton::chat {

TracedText::TracedText(std::string all, Origin origin) : text(std::move(all)) {
  if (origin == Origin::kRequest) AppendRange(0, text.size(), &from_request);
}

void TracedText::Append(absl::string_view added, Origin origin) {
  const size_t begin = text.size();
  absl::StrAppend(&text, added);
  if (origin == Origin::kRequest) AppendRange(begin, text.size(), &from_request);
}

void TracedText::Append(const TracedText& added) { AppendPart(added, added.text); }

void TracedText::AppendPart(const TracedText& whole, absl::string_view part) {
  if (part.empty()) return;
  const size_t begin = part.data() - whole.text.data();
  AppendRangesOfPart(whole.from_request, begin, begin + part.size(), text.size(), &from_request);
  absl::StrAppend(&text, part);
}

void TracedText::ForEachRun(
    absl::FunctionRef<void(absl::string_view run, Origin origin)> visit) const {
  const absl::string_view all = text;
  size_t done = 0;
  for (const ByteRange& range : from_request) {
    if (range.begin > done) visit(all.substr(done, range.begin - done), Origin::kTemplate);
    visit(all.substr(range.begin, range.end - range.begin), Origin::kRequest);
    done = range.end;
  }
  if (done < all.size()) visit(all.substr(done), Origin::kTemplate);
}

TracedText Converted(const TracedText& text,
                     absl::FunctionRef<std::string(absl::string_view)> convert) {
  TracedText result;
  int runs = 0;
  text.ForEachRun([&](absl::string_view run, Origin origin) {
    result.Append(convert(run), origin);
    ++runs;
  });
  if (runs < 2) return result;
  std::string whole = convert(text.text);
  if (whole == result.text) return result;
  return TracedText(std::move(whole), Origin::kRequest);
}

TracedText PartOf(const TracedText& whole, absl::string_view part) {
  TracedText result;
  result.AppendPart(whole, part);
  return result;
}

}  // namespace baton::chat
