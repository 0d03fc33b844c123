#include "common/grammar/bare_arguments.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/grammar/grammar.h"
#include "common/grammar/literal_arguments.h"
#include "common/grammar/schema_check.h"
#include "common/grammar/schema_keywords.h"
#include "common/grammar/structural_tag.h"
#include "common/json/json.h"
#include "common/json/schema_types.h"

namespace baton::grammar {
namespace {

using json::Value;
using ToolCalls = v1::StructuredOutput::ToolCalls;

constexpr absl::string_view kAnyObject = R"({"type":"object","additionalProperties":true})";

// What stands around a key and its value.
struct Marks {
  absl::string_view before_key;
  absl::string_view before_value;
  absl::string_view after_value;
  absl::string_view end;  // the part of after_value that no value has
};

Marks MarksOf(ArgumentStyle style) {
  if (style == ToolCalls::ARGUMENT_STYLE_QWEN_XML) {
    return {"<parameter=", ">\n", "\n</parameter>\n", "</parameter>"};
  }
  if (style == ToolCalls::ARGUMENT_STYLE_GLM_XML) {
    return {"<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n", "</arg_value>"};
  }
  return {"<arg_key>", "</arg_key><arg_value>", "</arg_value>", "</arg_value>"};
}

bool IsPlainKey(absl::string_view key) {
  return !key.empty() && absl::c_none_of(key, [](char c) {
    return c == '<' || c == '>' || static_cast<unsigned char>(c) <= ' ';
  });
}

// True if the schema says the type of a value and nothing else of it, or nothing at all.
bool IsPlain(const Value& schema) {
  return absl::c_all_of(schema.keys, [](const std::string& key) {
    return key == "type" || Annotations().contains(key);
  });
}

// True if the schema, or one within it, has a reference, to `target` unless that is empty.
bool Refers(const Value& schema, absl::string_view target) {
  for (size_t i = 0; i < schema.items.size(); ++i) {
    const bool is_reference = i < schema.keys.size() && schema.keys[i] == "$ref";
    if (is_reference && (target.empty() || schema.items[i].scalar.text == target)) return true;
    if (Refers(schema.items[i], target)) return true;
  }
  return false;
}

void SetMember(absl::string_view name, const Value& value, Value* object) {
  const auto found = absl::c_find(object->keys, name);
  if (found == object->keys.end()) {
    json::AddMember(name, value, object);
  } else {
    object->items[static_cast<size_t>(found - object->keys.begin())] = value;
  }
}

// Each property that refers to definitions has a copy of them.
constexpr size_t kMaxCopiedBytes = size_t{1} << 20;

class BareArguments {
 public:
  BareArguments(ArgumentStyle style, absl::string_view field, std::optional<int> max_whitespace,
                absl::FunctionRef<std::string(absl::string_view)> replaced)
      : marks_(MarksOf(style)),
        field_(field),
        max_whitespace_(max_whitespace),
        before_key_(replaced(marks_.before_key)),
        before_value_(replaced(marks_.before_value)),
        after_value_(replaced(marks_.after_value)),
        end_(replaced(marks_.end)) {}

  absl::StatusOr<std::string> Object(const Value& schema) {
    const Value* const properties = schema.Find("properties");
    const Value* const additional = schema.Find("additionalProperties");
    if (properties == nullptr || properties->items.empty()) {
      const bool is_any = additional != nullptr &&
                          additional->scalar.kind == json::Scalar::Kind::kBool &&
                          additional->scalar.boolean;
      if (is_any) return Star(Sequence({Constant(before_key_), kAnyKey, AnyValue()}));
      if (additional == nullptr || !IsObject(*additional)) return std::string(kNothing);
      return Unsupported("additionalProperties", "a schema of them, in this model's calls");
    }
    const Value* const required = schema.Find("required");
    std::vector<std::string> parts;
    for (size_t i = 0; i < properties->items.size(); ++i) {
      const std::string& key = properties->keys[i];
      if (!IsPlainKey(key)) {
        return Unsupported(json::Printable(key),
                           "a name with white space, '<' or '>', in this model's calls");
      }
      BATON_ASSIGN_OR_RETURN(const std::string value, ValueOf(key, properties->items[i], schema));
      const std::string part =
          Tag(absl::StrCat(before_key_, key, before_value_), value, after_value_);
      const bool is_required =
          required != nullptr && absl::c_any_of(required->items, [&](const Value& name) {
            return name.scalar.text == key;
          });
      parts.push_back(is_required ? part : Optional(part));
    }
    return Sequence(parts);
  }

 private:
  static constexpr char kAnyKey[] =
      R"({"type":"grammar","grammar":"root ::= [a-zA-Z0-9_.-] [a-zA-Z0-9_.-]*\n"})";
  static constexpr absl::string_view kNothing = R"({"type":"grammar","grammar":"root ::= \"\"\n"})";

  static bool IsObject(const Value& value) { return value.kind == Value::Kind::kObject; }

  absl::Status Unsupported(absl::string_view name, absl::string_view what) const {
    return InvalidField("SCHEMA_UNSUPPORTED", field_,
                        absl::StrCat("#/properties/", name, ": not supported: ", what));
  }

  std::string AnyText() const {
    std::vector<std::string> excluded = {end_};
    // Spelled in other tokens, it would end the value all the same to who reads the text.
    if (end_ != marks_.end) excluded.emplace_back(marks_.end);
    return absl::StrCat(R"({"type":"any_text","excludes":)", JsonStrings(excluded), "}");
  }
  std::string AnyValue() const { return Tag(before_value_, AnyText(), after_value_); }

  absl::StatusOr<std::string> ValueOf(const std::string& key, const Value& schema,
                                      const Value& root) {
    const uint32_t types = json::TypesOf(schema, root);
    if ((types & json::kStringType) == 0) {
      if (!Refers(schema, "")) return JsonOfSchema(json::ToText(schema), max_whitespace_);
      Value own = schema;
      for (const char* const name : {"$defs", "definitions"}) {
        if (const Value* definitions = root.Find(name)) SetMember(name, *definitions, &own);
      }
      if (Refers(own, "#")) {
        return Unsupported(json::Printable(key), "a reference to #, in this model's calls");
      }
      const std::string text = json::ToText(own);
      copied_bytes_ += text.size();
      if (copied_bytes_ > kMaxCopiedBytes) {
        return InvalidField("SCHEMA_TOO_COMPLEX", field_,
                            absl::StrCat("more than ", kMaxCopiedBytes,
                                         " bytes with the definitions that each property needs"));
      }
      return JsonOfSchema(text, max_whitespace_);
    }
    const Value* const listed = schema.Find("enum");
    const Value* const constant = schema.Find("const");
    if (types == json::kStringType && (listed != nullptr || constant != nullptr)) {
      return OneOf(key, listed != nullptr ? absl::MakeConstSpan(listed->items)
                                          : absl::MakeConstSpan(constant, 1));
    }
    const Value* const branches = schema.Find("anyOf");
    const bool plain = branches == nullptr ? !IsObject(schema) || IsPlain(schema)
                                           : absl::c_all_of(branches->items, IsPlain);
    // Read back, a text that is a value of another type that may stand here is that value.
    if (plain && schema.Find("oneOf") == nullptr) return AnyText();
    return Unsupported(json::Printable(key),
                       "a string that has a pattern, a format or a length, or another type beside "
                       "it that says more than its name, in this model's calls");
  }

  absl::StatusOr<std::string> OneOf(const std::string& key, absl::Span<const Value> values) const {
    std::vector<std::string> texts;
    for (const Value& value : values) {
      if (absl::StrContains(value.scalar.text, marks_.end)) {
        return Unsupported(json::Printable(key),
                           absl::StrCat("a value with ", marks_.end, ", in this model's calls"));
      }
      texts.push_back(value.scalar.text.empty() ? std::string(kNothing)
                                                : Constant(value.scalar.text));
    }
    return AnyOf(texts);
  }

  const Marks marks_;
  const absl::string_view field_;
  const std::optional<int> max_whitespace_;
  const std::string before_key_, before_value_, after_value_, end_;
  size_t copied_bytes_ = 0;
};

}  // namespace

bool IsJson(ArgumentStyle style) {
  return style == ToolCalls::ARGUMENT_STYLE_UNSPECIFIED || style == ToolCalls::ARGUMENT_STYLE_JSON;
}

absl::StatusOr<std::string> Arguments(
    const std::string& parameters, ArgumentStyle style, absl::string_view field,
    std::optional<int> max_whitespace,
    absl::FunctionRef<std::string(absl::string_view text)> replaced) {
  BATON_ASSIGN_OR_RETURN(const std::string normal, NormalParameters(parameters, field));
  if (IsJson(style)) return JsonOfSchema(normal, max_whitespace);
  BATON_ASSIGN_OR_RETURN(const Value schema, json::Parse(normal, "schema", kMaxSchemaValues));
  if (IsLiteral(style)) return LiteralArguments(schema, style, field, replaced);
  return BareArguments(style, field, max_whitespace, replaced).Object(schema);
}

absl::Status CheckArguments(const std::string& parameters, ArgumentStyle style,
                            absl::string_view field) {
  return Arguments(parameters, style, field, kMaxWhitespace,
                   [](absl::string_view text) { return std::string(text); })
      .status();
}

absl::StatusOr<std::string> NormalParameters(const std::string& parameters,
                                             absl::string_view field) {
  if (parameters.empty()) return std::string(kAnyObject);
  BATON_ASSIGN_OR_RETURN(std::string normal, NormalSchema(parameters, field));
  BATON_ASSIGN_OR_RETURN(const json::Value schema, json::Parse(normal, "schema", kMaxSchemaValues));
  const json::Value* const type = schema.Find("type");
  const bool is_object =
      type == nullptr ? schema.Find("properties") != nullptr
                      : type->kind == json::Value::Kind::kScalar && type->scalar.text == "object";
  if (is_object) return normal;
  return InvalidField("SCHEMA_UNSUPPORTED", field,
                      "#: not supported: arguments whose type is not \"object\"");
}

}  // namespace baton::grammar
