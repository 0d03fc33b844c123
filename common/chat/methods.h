// The methods of str, dict, list and tuple that templates call. The sandbox of `transformers`
// refuses methods that change a list or dict, and so does Baton.
#ifndef BATON_COMMON_CHAT_METHODS_H_
#define BATON_COMMON_CHAT_METHODS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/chat/runtime.h"
#include "common/chat/value.h"

namespace baton::chat {

// The method `name` of the value, ready to call: kMissing if it has none, undefined if the sandbox
// refuses it.
absl::StatusOr<Value> BindMethod(Runtime& runtime, const Value& value, absl::string_view name);

// The text of an argument. Failure if it is no string.
absl::StatusOr<absl::string_view> TextArgument(const Value& value, absl::string_view what);
// The integer of an argument, `if_absent` if the caller left it out.
absl::StatusOr<int64_t> IntArgument(const Value& value, absl::string_view what, int64_t if_absent);

// Makes a list of parts of `whole`, each as Runtime::MakePart does.
absl::StatusOr<Value> MakeParts(Runtime& runtime, const Value& whole,
                                const std::vector<absl::string_view>& parts);
// The first `max` places of `from` replaced by `to`; all of them if negative.
absl::StatusOr<Value> ReplaceIn(Runtime& runtime, const Value& text, absl::string_view from,
                                const TracedText& to, int64_t max);
// separator.join(items). Failure for an item that is no string.
absl::StatusOr<Value> JoinTexts(Runtime& runtime, const Value& separator,
                                const std::vector<Value>& items);

}  // namespace baton::chat

#endif  // BATON_COMMON_CHAT_METHODS_H_
