#include "common/grammar/bare_arguments.h"

#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/grammar/bare_values.h"
#include "common/grammar/grammar.h"
#include "common/grammar/literal_arguments.h"
#include "common/grammar/schema_check.h"
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

// A property has its own copy of what it refers to, be it of definitions or of the format of their
// values: all properties together could take a million times the schema's size.
constexpr size_t kMaxValueBytes = size_t{1} << 20;

class BareArguments {
 public:
  BareArguments(ArgumentStyle style, absl::string_view field, std::optional<int> max_whitespace,
                absl::FunctionRef<std::string(absl::string_view)> replaced, bool constrains_text)
      : marks_(MarksOf(style)),
        field_(field),
        constrains_text_(constrains_text),
        max_whitespace_(max_whitespace),
        before_key_(replaced(marks_.before_key)),
        before_value_(replaced(marks_.before_value)),
        after_value_(replaced(marks_.after_value)),
        end_(replaced(marks_.end)) {}

  // `given`: the schema that `schema` is the normal form of.
  absl::StatusOr<std::string> Object(const Value& schema, const Value& given) {
    const Value* const properties = schema.Find("properties");
    const Value* const additional = schema.Find("additionalProperties");
    if (properties == nullptr || properties->items.empty()) {
      const bool is_any = additional != nullptr &&
                          additional->scalar.kind == json::Scalar::Kind::kBool &&
                          additional->scalar.boolean;
      if (is_any) return Star(Sequence({Constant(before_key_), kAnyKey, AnyValue()}));
      if (additional == nullptr || !IsObject(*additional)) return Nothing();
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
      BATON_ASSIGN_OR_RETURN(
          const std::string value,
          ValueOf(key, {&properties->items[i], &given.Find("properties")->items[i]},
                  {&schema, &given}));
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

  static bool IsObject(const Value& value) { return value.kind == Value::Kind::kObject; }

  absl::Status Unsupported(absl::string_view name, absl::string_view what) const {
    return InvalidField("SCHEMA_UNSUPPORTED", field_,
                        absl::StrCat("#/properties/", name, ": not supported: ", what));
  }

  absl::Status TooLarge() const {
    return InvalidField("SCHEMA_TOO_COMPLEX", field_,
                        absl::StrCat("more than ", kMaxValueBytes,
                                     " bytes with what each property refers to, in this model's "
                                     "calls"));
  }

  std::string AnyValue() const { return Tag(before_value_, BareText(End()), after_value_); }
  BareEnd End() const { return {marks_.end, end_}; }

  absl::StatusOr<std::string> ValueOf(const std::string& key, const BareSchema& both,
                                      const BareSchema& roots) {
    const Value& schema = *both.normal;
    const Value& root = *roots.normal;
    const uint32_t types = json::TypesOf(schema, root);
    const bool is_number = (types & ~(json::kIntegerType | json::kNumberType)) == 0;
    if ((types & json::kStringType) == 0 && !is_number) {
      if (!Refers(schema, "")) return JsonOfSchema(json::ToText(schema), max_whitespace_);
      Value own = schema;
      for (const char* const name : {"$defs", "definitions"}) {
        if (const Value* definitions = root.Find(name)) SetMember(name, *definitions, &own);
      }
      if (Refers(own, "#")) {
        return Unsupported(json::Printable(key), "a reference to #, in this model's calls");
      }
      const std::string text = json::ToText(own);
      if (text.size() > bytes_left_) return TooLarge();
      bytes_left_ -= text.size();
      return JsonOfSchema(text, max_whitespace_);
    }
    if (!constrains_text_ && !is_number && !IsOfFirstLevel(schema, types)) {
      return Unsupported(
          json::Printable(key),
          "a string of which more is said than its type, which not all workers know");
    }
    const auto values = BareValues(both, roots, End(), &bytes_left_);
    if (values.ok()) return *values;
    if (absl::IsResourceExhausted(values.status())) return TooLarge();
    return Unsupported(json::Printable(key),
                       absl::StrCat(values.status().message(), ", in this model's calls"));
  }

  // True if workers without a grammar level know the schema of a value that may be a string.
  static bool IsOfFirstLevel(const Value& schema, uint32_t types) {
    if (!IsObject(schema)) return true;
    const bool is_listed = schema.Find("enum") != nullptr || schema.Find("const") != nullptr;
    if (is_listed && types == json::kStringType) return true;
    const Value* const branches = schema.Find("anyOf");
    return branches == nullptr ? SaysTypesOnly(schema)
                               : absl::c_all_of(branches->items, SaysTypesOnly);
  }

  const Marks marks_;
  const absl::string_view field_;
  const bool constrains_text_;
  const std::optional<int> max_whitespace_;
  const std::string before_key_, before_value_, after_value_, end_;
  size_t bytes_left_ = kMaxValueBytes;
};

}  // namespace

bool IsJson(ArgumentStyle style) {
  return style == ToolCalls::ARGUMENT_STYLE_UNSPECIFIED || style == ToolCalls::ARGUMENT_STYLE_JSON;
}

absl::StatusOr<std::string> Arguments(
    const std::string& parameters, ArgumentStyle style, absl::string_view field,
    std::optional<int> max_whitespace,
    absl::FunctionRef<std::string(absl::string_view text)> replaced, bool constrains_text) {
  BATON_ASSIGN_OR_RETURN(const std::string normal, NormalParameters(parameters, field));
  if (IsJson(style)) return JsonOfSchema(normal, max_whitespace);
  BATON_ASSIGN_OR_RETURN(const Value schema, json::Parse(normal, "schema", kMaxSchemaValues));
  if (IsLiteral(style)) return LiteralArguments(schema, style, field, replaced);
  const std::string& given_text = parameters.empty() ? normal : parameters;
  BATON_ASSIGN_OR_RETURN(const Value given, json::Parse(given_text, "schema", kMaxSchemaValues));
  return BareArguments(style, field, max_whitespace, replaced, constrains_text)
      .Object(schema, given);
}

absl::Status CheckArguments(const std::string& parameters, ArgumentStyle style,
                            absl::string_view field, bool constrains_text) {
  return Arguments(
             parameters, style, field, kMaxWhitespace,
             [](absl::string_view text) { return std::string(text); }, constrains_text)
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
