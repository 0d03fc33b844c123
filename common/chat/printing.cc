#include "common/chat/printing.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/chat/text.h"

namespace baton::chat {
namespace {

class ReprPrinter {
 public:
  explicit ReprPrinter(Runtime& runtime) : runtime_(runtime) {}

  absl::Status Append(const Value& value) {
    BATON_RETURN_IF_ERROR(runtime_.Step());
    BATON_RETURN_IF_ERROR(runtime_.CheckRoom(text.size() + text.trace_bytes()));
    switch (value.kind()) {
      case Kind::kMissing:
      case Kind::kUndefined:
        text.Append("Undefined");
        return absl::OkStatus();
      case Kind::kNone:
        text.Append("None");
        return absl::OkStatus();
      case Kind::kBool:
        text.Append(value.boolean() ? "True" : "False");
        return absl::OkStatus();
      case Kind::kInt:
      case Kind::kFloat:
        text.Append(NumberText(value));
        return absl::OkStatus();
      case Kind::kString:
        return AppendString(value);
      case Kind::kSequence:
        return AppendSequence(value.sequence());
      case Kind::kDict:
        return AppendDict(value.dict());
      case Kind::kObject:
        text.Append(absl::StrCat("<", value.object().type_name(), ">"));
        return absl::OkStatus();
    }
    return absl::OkStatus();
  }

  TracedText text;

 private:
  absl::Status AppendString(const Value& value) {
    BATON_RETURN_IF_ERROR(runtime_.StepForBytes(value.text().size()));
    const std::string quoted = QuotedLikePython(value.text());
    BATON_RETURN_IF_ERROR(runtime_.CheckRoom(text.size() + quoted.size()));
    if (value.is_markup()) text.Append("Markup(");
    text.Append(quoted, value.traced().origin());
    if (value.is_markup()) text.Append(")");
    return absl::OkStatus();
  }

  absl::Status AppendItems(const SequenceRep& sequence, absl::string_view open,
                           absl::string_view close) {
    text.Append(open);
    for (size_t i = 0; i < sequence.items.size(); ++i) {
      if (i > 0) text.Append(", ");
      BATON_RETURN_IF_ERROR(Append(sequence.items[i]));
    }
    text.Append(close);
    return absl::OkStatus();
  }

  absl::Status AppendSequence(const SequenceRep& sequence) {
    switch (sequence.flavor) {
      case Flavor::kList:
        return AppendItems(sequence, "[", "]");
      case Flavor::kTuple:
        return AppendItems(sequence, "(", sequence.items.size() == 1 ? ",)" : ")");
      case Flavor::kKeysView:
        return AppendItems(sequence, "dict_keys([", "])");
      case Flavor::kValuesView:
        return AppendItems(sequence, "dict_values([", "])");
      case Flavor::kItemsView:
        return AppendItems(sequence, "dict_items([", "])");
      case Flavor::kRange:
        AppendRange(sequence.items);
        return absl::OkStatus();
      case Flavor::kGenerator:
        text.Append("<generator object>");
        return absl::OkStatus();
    }
    return absl::OkStatus();
  }

  void AppendRange(const std::vector<Value>& items) {
    const int64_t first = items.empty() ? 0 : items[0].integer();
    const int64_t step = items.size() > 1 ? items[1].integer() - first : 1;
    const int64_t end = items.empty() ? 0 : items.back().integer() + step;
    text.Append(absl::StrCat("range(", first, ", ", end));
    if (step != 1) text.Append(absl::StrCat(", ", step));
    text.Append(")");
  }

  absl::Status AppendDict(const DictRep& dict) {
    text.Append("{");
    for (size_t i = 0; i < dict.entries.size(); ++i) {
      if (i > 0) text.Append(", ");
      BATON_RETURN_IF_ERROR(Append(dict.entries[i].first));
      text.Append(": ");
      BATON_RETURN_IF_ERROR(Append(dict.entries[i].second));
    }
    text.Append("}");
    return absl::OkStatus();
  }

  Runtime& runtime_;
};

class JsonPrinter {
 public:
  JsonPrinter(Runtime& runtime, const JsonStyle& style) : runtime_(runtime), style_(style) {}

  absl::Status Append(const Value& value, int level) {
    BATON_RETURN_IF_ERROR(
        runtime_.StepForBytes(style_.item_separator.size() + style_.key_separator.size()));
    BATON_RETURN_IF_ERROR(runtime_.CheckRoom(text.size() + text.trace_bytes()));
    switch (value.kind()) {
      case Kind::kNone:
        text.Append("null");
        return absl::OkStatus();
      case Kind::kBool:
      case Kind::kInt:
      case Kind::kFloat:
        text.Append(ScalarText(value));
        return absl::OkStatus();
      case Kind::kString:
        return AppendString(value.traced());
      case Kind::kDict:
        return AppendDict(value.dict(), level);
      case Kind::kSequence:
        if (value.IsSequence(Flavor::kList) || value.IsSequence(Flavor::kTuple)) {
          return AppendList(value.sequence().items, level);
        }
        break;
      default:
        break;
    }
    return Failure(absl::StrCat("Object of type ", value.type_name(), " is not JSON serializable"));
  }

  TracedText text;

 private:
  static std::string ScalarText(const Value& value) {
    if (value.is_bool()) return value.boolean() ? "true" : "false";
    if (value.is_float() && std::isnan(value.number())) return "NaN";
    if (value.is_float() && std::isinf(value.number())) {
      return value.number() > 0 ? "Infinity" : "-Infinity";
    }
    return NumberText(value);
  }

  static void AppendEscaped(char32_t c, std::string* quoted) {
    if (c < 0x10000) {
      absl::StrAppendFormat(quoted, "\\u%04x", static_cast<unsigned>(c));
      return;
    }
    const unsigned rest = static_cast<unsigned>(c) - 0x10000;
    absl::StrAppendFormat(quoted, "\\u%04x\\u%04x", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
  }

  absl::Status AppendString(const TracedText& traced) {
    BATON_RETURN_IF_ERROR(runtime_.StepForBytes(traced.size()));
    BATON_RETURN_IF_ERROR(runtime_.CheckRoom(text.size() + 6 * traced.size()));
    text.Append("\"");
    traced.ForEachRun([&](absl::string_view run, Origin origin) { AppendRun(run, origin); });
    text.Append("\"");
    return absl::OkStatus();
  }

  void AppendRun(absl::string_view string, Origin origin) {
    std::string quoted;
    for (size_t at = 0; at < string.size();) {
      const size_t start = at;
      const char32_t c = NextCodePoint(string, &at);
      static constexpr absl::string_view kEscaped = "\"\\\n\r\t\b\f";
      static constexpr absl::string_view kLetters = "\"\\nrtbf";
      const size_t found = c < 0x80 ? kEscaped.find(static_cast<char>(c)) : absl::string_view::npos;
      if (found != absl::string_view::npos) {
        quoted += '\\';
        quoted += kLetters[found];
      } else if (c < 0x20 || (c >= 0x7F && style_.ensure_ascii && c != 0x7F)) {
        AppendEscaped(c, &quoted);
      } else {
        absl::StrAppend(&quoted, string.substr(start, at - start));
      }
    }
    text.Append(quoted, origin);
  }

  absl::Status AppendBreak(int level) {
    if (!style_.indent) return absl::OkStatus();
    const size_t bytes = style_.indent->size() * level + 1;
    BATON_RETURN_IF_ERROR(runtime_.StepForBytes(bytes));
    BATON_RETURN_IF_ERROR(runtime_.CheckRoom(text.size() + bytes));
    text.Append("\n");
    for (int i = 0; i < level; ++i) text.Append(*style_.indent);
    return absl::OkStatus();
  }

  absl::Status AppendList(const std::vector<Value>& items, int level) {
    text.Append("[");
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) text.Append(style_.item_separator);
      BATON_RETURN_IF_ERROR(AppendBreak(level + 1));
      BATON_RETURN_IF_ERROR(Append(items[i], level + 1));
    }
    if (!items.empty()) BATON_RETURN_IF_ERROR(AppendBreak(level));
    text.Append("]");
    return absl::OkStatus();
  }

  absl::Status AppendDict(const DictRep& dict, int level) {
    std::vector<const std::pair<Value, Value>*> entries;
    entries.reserve(dict.entries.size());
    bool all_strings = true;
    for (const auto& entry : dict.entries) {
      entries.push_back(&entry);
      all_strings = all_strings && entry.first.is_string();
    }
    if (style_.sort_keys) {
      if (!all_strings) return Failure("tojson sorts only keys that are strings");
      // UTF-8 and code points have the same order.
      std::sort(entries.begin(), entries.end(),
                [](const auto* a, const auto* b) { return a->first.text() < b->first.text(); });
    }
    text.Append("{");
    for (size_t i = 0; i < entries.size(); ++i) {
      const Value& key = entries[i]->first;
      if (i > 0) text.Append(style_.item_separator);
      BATON_RETURN_IF_ERROR(AppendBreak(level + 1));
      if (key.is_none() || key.is_number()) {
        text.Append(absl::StrCat("\"", key.is_none() ? "null" : ScalarText(key), "\""));
      } else if (key.is_string()) {
        BATON_RETURN_IF_ERROR(AppendString(key.traced()));
      } else {
        return Failure(
            absl::StrCat("keys must be str, int, float, bool or None, not ", key.type_name()));
      }
      text.Append(style_.key_separator);
      BATON_RETURN_IF_ERROR(Append(entries[i]->second, level + 1));
    }
    if (!entries.empty()) BATON_RETURN_IF_ERROR(AppendBreak(level));
    text.Append("}");
    return absl::OkStatus();
  }

  Runtime& runtime_;
  const JsonStyle& style_;
};

}  // namespace

std::string NumberText(const Value& value) {
  if (const std::string* digits = value.digits()) return *digits;
  return value.is_float() ? FloatText(value.number()) : absl::StrCat(value.integer());
}

TracedText Escaped(const Value& value) {
  if (value.is_markup()) return value.traced();
  return Converted(value.traced(), EscapeHtml);
}

absl::StatusOr<TracedText> ReprOf(Runtime& runtime, const Value& value) {
  ReprPrinter printer(runtime);
  BATON_RETURN_IF_ERROR(printer.Append(value));
  return std::move(printer.text);
}

absl::StatusOr<TracedText> StrOf(Runtime& runtime, const Value& value) {
  if (value.is_undefined() || value.is_missing()) return TracedText();
  if (!value.is_string()) return ReprOf(runtime, value);
  BATON_RETURN_IF_ERROR(runtime.StepForBytes(value.text().size()));
  BATON_RETURN_IF_ERROR(runtime.CheckRoom(value.text().size()));
  return value.traced();
}

absl::StatusOr<TracedText> JsonOf(Runtime& runtime, const Value& value, const JsonStyle& style) {
  JsonPrinter printer(runtime, style);
  BATON_RETURN_IF_ERROR(printer.Append(value, 0));
  return std::move(printer.text);
}

}  // namespace baton::chat
