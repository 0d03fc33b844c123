// Attributes, items and slices: the second half of operators.h.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/chat/methods.h"
#include "common/chat/operators.h"
#include "common/chat/printing.h"
#include "common/chat/text.h"
#include "common/json/json.h"

namespace baton::chat {
namespace {

Value NoAttribute(Runtime& runtime, const Value& value, absl::string_view name) {
  return runtime.MakeUndefined(absl::StrCat("'", value.type_name(), " object' has no attribute '",
                                            json::Printable(name), "'"));
}

// The item at an index; kMissing beyond the ends and for what has no index.
absl::StatusOr<Value> ItemAt(Runtime& runtime, const Value& value, int64_t index) {
  if (!value.is_string() && !value.IsSequence(Flavor::kList) && !value.IsSequence(Flavor::kTuple) &&
      !value.IsSequence(Flavor::kRange)) {
    return Value();
  }
  BATON_ASSIGN_OR_RETURN(const int64_t length, LengthOf(runtime, value));
  if (index < 0) index += length;
  if (index < 0 || index >= length) return Value();
  if (!value.is_string()) return value.sequence().items[index];
  const std::string& text = value.text();
  size_t at = index;
  if (!value.string().ascii) {
    BATON_RETURN_IF_ERROR(runtime.StepForBytes(text.size()));
    at = ByteOfCodePoint(text, index);
  }
  size_t end = at;
  NextCodePoint(text, &end);
  return runtime.MakePart(value, absl::string_view(text).substr(at, end - at));
}

absl::StatusOr<int64_t> SliceBound(const Value& bound, int64_t if_none) {
  if (bound.is_missing() || bound.is_none()) return if_none;
  if (bound.is_integral()) return bound.integer();
  return Failure("slice indices must be integers or None");
}

struct SliceRange {
  int64_t start;
  int64_t step;
  int64_t count;
};

// As Python's slice.indices.
absl::StatusOr<SliceRange> RangeOfSlice(int64_t length, const Value& start, const Value& stop,
                                        const Value& step) {
  SliceRange range;
  BATON_ASSIGN_OR_RETURN(range.step, SliceBound(step, 1));
  if (range.step == 0) return Failure("slice step cannot be zero");
  const bool backward = range.step < 0;
  range.step = std::clamp<int64_t>(range.step, -length - 1, length + 1);
  const int64_t lowest = backward ? -1 : 0;
  const int64_t highest = backward ? length - 1 : length;
  const auto fit = [&](int64_t bound) {
    if (bound < 0) return std::max(bound + length, lowest);
    return std::min(bound, highest);
  };
  BATON_ASSIGN_OR_RETURN(const int64_t first, SliceBound(start, backward ? length : 0));
  range.start = fit(first);
  int64_t end = backward ? -1 : length;
  if (!stop.is_missing() && !stop.is_none()) {
    BATON_ASSIGN_OR_RETURN(const int64_t bound, SliceBound(stop, 0));
    end = fit(bound);
  }
  const int64_t distance = backward ? range.start - end : end - range.start;
  const int64_t stride = backward ? -range.step : range.step;
  range.count = distance <= 0 ? 0 : (distance + stride - 1) / stride;
  return range;
}

absl::StatusOr<Value> SliceOfText(Runtime& runtime, const Value& value, const SliceRange& range) {
  const std::string& text = value.text();
  BATON_RETURN_IF_ERROR(runtime.StepForBytes(text.size()));
  BATON_RETURN_IF_ERROR(runtime.CheckRoom(text.size() * (range.step == 1 ? 1 : sizeof(size_t))));
  if (range.count == 0) return runtime.MakePart(value, "");
  if (range.step == 1) {
    const bool ascii = value.string().ascii;
    const size_t begin = ascii ? range.start : ByteOfCodePoint(text, range.start);
    const absl::string_view rest = absl::string_view(text).substr(begin);
    const size_t size = ascii ? range.count : ByteOfCodePoint(rest, range.count);
    return runtime.MakePart(value, rest.substr(0, size));
  }
  std::vector<size_t> starts;  // of each code point, and the end
  for (size_t at = 0; at < text.size(); NextCodePoint(text, &at)) starts.push_back(at);
  starts.push_back(text.size());
  TracedText result;
  for (int64_t i = 0, at = range.start; i < range.count; ++i, at += range.step) {
    result.AppendPart(value.traced(),
                      absl::string_view(text).substr(starts[at], starts[at + 1] - starts[at]));
  }
  return runtime.MakeString(std::move(result), value.is_markup());
}

}  // namespace

absl::StatusOr<Value> GetAttribute(Runtime& runtime, const Value& value, absl::string_view name) {
  BATON_RETURN_IF_ERROR(CheckDefined(value));
  if (value.is_object()) {
    BATON_ASSIGN_OR_RETURN(Value attribute, value.object().Attribute(runtime, name));
    if (!attribute.is_missing()) return attribute;
  } else {
    BATON_ASSIGN_OR_RETURN(Value method, BindMethod(runtime, value, name));
    if (!method.is_missing()) return method;
  }
  if (value.is_dict()) {
    if (const Value* found = value.dict().Find(name)) return *found;
  }
  return NoAttribute(runtime, value, name);
}

absl::StatusOr<Value> GetItem(Runtime& runtime, const Value& value, const Value& key) {
  BATON_RETURN_IF_ERROR(CheckDefined(value));
  if (value.is_dict() && IsHashable(key)) {
    if (!key.is_string()) BATON_RETURN_IF_ERROR(runtime.Step(value.dict().entries.size()));
    if (const Value* found = value.dict().Find(key)) return *found;
  }
  if (key.is_integral()) {
    BATON_ASSIGN_OR_RETURN(Value item, ItemAt(runtime, value, key.integer()));
    if (!item.is_missing()) return item;
  }
  if (key.is_string()) {
    if (value.is_dict()) {
      BATON_ASSIGN_OR_RETURN(Value method, BindMethod(runtime, value, key.text()));
      return method.is_missing() ? NoAttribute(runtime, value, key.text()) : method;
    }
    return GetAttribute(runtime, value, key.text());
  }
  BATON_ASSIGN_OR_RETURN(const TracedText text, ReprOf(runtime, key));
  return runtime.MakeUndefined(
      absl::StrCat(value.type_name(), " object has no element ", json::Printable(text.text)));
}

absl::StatusOr<Value> GetSlice(Runtime& runtime, const Value& value, const Value& start,
                               const Value& stop, const Value& step) {
  BATON_RETURN_IF_ERROR(CheckDefined(value));
  const bool is_list = value.IsSequence(Flavor::kList) || value.IsSequence(Flavor::kTuple) ||
                       value.IsSequence(Flavor::kRange);
  if (!value.is_string() && !is_list) {
    return runtime.MakeUndefined(absl::StrCat("'", value.type_name(), "' has no slices"));
  }
  BATON_ASSIGN_OR_RETURN(const int64_t length, LengthOf(runtime, value));
  BATON_ASSIGN_OR_RETURN(const SliceRange range, RangeOfSlice(length, start, stop, step));
  if (value.is_string()) return SliceOfText(runtime, value, range);
  BATON_RETURN_IF_ERROR(runtime.CheckRoom(range.count * sizeof(Value)));
  std::vector<Value> items;
  items.reserve(range.count);
  for (int64_t i = 0, at = range.start; i < range.count; ++i, at += range.step) {
    items.push_back(value.sequence().items[at]);
  }
  return runtime.MakeSequence(value.sequence().flavor, std::move(items));
}

}  // namespace baton::chat
