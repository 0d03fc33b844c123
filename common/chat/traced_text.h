// Text whose origin is known byte by byte: it comes from the template, or from the request. What a
// template makes of the request's text (a part of it, its upper case, its JSON) is the request's,
// too. Where a function does not know from which bytes it made one, and any of them were the
// request's, all of its result is: template text then loses its special tokens, and request text
// never gains any.
#ifndef BATON_COMMON_CHAT_TRACED_TEXT_H_
#define BATON_COMMON_CHAT_TRACED_TEXT_H_

#include <cstddef>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "common/base/byte_range.h"

namespace baton::chat {

enum class Origin : bool { kTemplate, kRequest };

struct TracedText {
  TracedText() = default;
  explicit TracedText(std::string all, Origin origin = Origin::kTemplate);

  // The origin of a result in which a function mixes the bytes: the request if any of them is the
  // request's.
  Origin origin() const { return from_request.empty() ? Origin::kTemplate : Origin::kRequest; }
  size_t size() const { return text.size(); }
  // Memory that the trace takes beside the text.
  size_t trace_bytes() const { return from_request.size() * sizeof(ByteRange); }

  void Append(absl::string_view added, Origin origin = Origin::kTemplate);
  void Append(const TracedText& added);
  // REQUIRES: `part` points into the text of `whole`, or is empty.
  void AppendPart(const TracedText& whole, absl::string_view part);

  // Visits the parts of one origin, in order; none is empty.
  void ForEachRun(absl::FunctionRef<void(absl::string_view run, Origin origin)> visit) const;

  std::string text;
  ByteRanges from_request;
};

// REQUIRES: as for AppendPart.
TracedText PartOf(const TracedText& whole, absl::string_view part);

// What `convert` makes of the text: each part has the origin of what it was made of. If `convert`
// makes something else of the whole than of its parts (a Greek sigma is another letter at the end
// of a word), all of the result is the request's if any byte of the text was.
TracedText Converted(const TracedText& text,
                     absl::FunctionRef<std::string(absl::string_view)> convert);

}  // namespace baton::chat

#endif  // BATON_COMMON_CHAT_TRACED_TEXT_H_
