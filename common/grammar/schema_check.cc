#include "common/grammar/schema_check.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/grammar/normal_regex.h"
#include "common/grammar/reasoning_phase.h"
#include "common/grammar/schema_keywords.h"
#include "common/grammar/tool_call_grammar.h"
#include "common/json/json.h"

namespace baton::grammar {
namespace {

using json::Scalar;
using json::Value;

constexpr absl::string_view kField = "structured_output.json_schema";
constexpr int64_t kMaxLength = 4096;  // of strings and arrays: each step is a part of the grammar
constexpr int64_t kMaxWhole = int64_t{1} << 53;

const std::string* Text(const Value& value) {
  const bool is_text =
      value.kind == Value::Kind::kScalar && value.scalar.kind == Scalar::Kind::kString;
  return is_text ? &value.scalar.text : nullptr;
}

absl::string_view TypeOf(const Value& value) {
  if (value.kind == Value::Kind::kArray) return "array";
  if (value.kind == Value::Kind::kObject) return "object";
  switch (value.scalar.kind) {
    case Scalar::Kind::kNull:
      return "null";
    case Scalar::Kind::kBool:
      return "boolean";
    case Scalar::Kind::kInteger:
      return "integer";
    case Scalar::Kind::kReal:
      return "number";
    case Scalar::Kind::kString:
      return "string";
  }
  return "";
}

bool Overlap(const std::set<std::string>& a, const std::set<std::string>& b) {
  for (const std::string& type : a) {
    if (b.contains(type) || (type == "number" && b.contains("integer")) ||
        (type == "integer" && b.contains("number"))) {
      return true;
    }
  }
  return false;
}

class SchemaWalk {
 public:
  SchemaWalk(const Value& root, absl::string_view field) : root_(root), field_(field) {}

  absl::Status Schema(const Value& schema, const std::string& place, size_t depth) {
    if (depth > kMaxSchemaDepth) {
      return InvalidField("SCHEMA_TOO_COMPLEX", field_,
                          absl::StrCat("it nests deeper than ", kMaxSchemaDepth));
    }
    if (schema.kind == Value::Kind::kScalar && schema.scalar.kind == Scalar::Kind::kBool) {
      return schema.scalar.boolean ? absl::OkStatus()
                                   : Unsupported(place, "false, which allows no value");
    }
    if (schema.kind != Value::Kind::kObject) return Invalid(place, "an object or true expected");
    for (const char* const name : {"$defs", "definitions"}) {
      BATON_RETURN_IF_ERROR(Definitions(schema, name, place, depth));
    }
    // XGrammar heeds one of these, and no other keyword beside it.
    for (const char* const name : {"$ref", "const", "enum", "anyOf", "oneOf"}) {
      if (const Value* form = schema.Find(name)) return Form(schema, name, *form, place, depth);
    }
    return Typed(schema, place, depth);
  }

  // The normal form of each schema of strings that has a pattern or a length.
  const std::map<const Value*, std::string>& patterns() const { return patterns_; }

 private:
  absl::Status Invalid(absl::string_view place, absl::string_view what) const {
    return InvalidField("SCHEMA_INVALID", field_, absl::StrCat(place, ": ", what));
  }
  absl::Status Unsupported(absl::string_view place, absl::string_view what) const {
    return InvalidField("SCHEMA_UNSUPPORTED", field_,
                        absl::StrCat(place, ": not supported: ", what));
  }

  absl::Status Definitions(const Value& schema, absl::string_view name, const std::string& place,
                           size_t depth) {
    const Value* const definitions = schema.Find(name);
    if (definitions == nullptr) return absl::OkStatus();
    if (definitions->kind != Value::Kind::kObject) {
      return Invalid(absl::StrCat(place, "/", name), "an object expected");
    }
    for (size_t i = 0; i < definitions->items.size(); ++i) {
      BATON_RETURN_IF_ERROR(Schema(
          definitions->items[i],
          absl::StrCat(place, "/", name, "/", json::Printable(definitions->keys[i])), depth + 2));
    }
    return absl::OkStatus();
  }

  absl::Status OnlyBeside(const Value& schema, absl::string_view form, const std::string& place) {
    for (const std::string& key : schema.keys) {
      const bool type = key == "type" && (form == "enum" || form == "const");
      if (key != form && !type && !Annotations().contains(key)) {
        return Unsupported(place, absl::StrCat(json::Quoted(key), " beside ", form));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Form(const Value& schema, const std::string& name, const Value& form,
                    const std::string& place, size_t depth) {
    BATON_RETURN_IF_ERROR(OnlyBeside(schema, name, place));
    const std::string at = absl::StrCat(place, "/", name);
    if (name == "$ref") return Reference(form, at);
    if (name == "const") return Listed(schema, {&form, 1}, place);
    if (form.kind != Value::Kind::kArray || form.items.empty()) {
      return Invalid(at, "an array of at least one item expected");
    }
    if (name == "enum") {
      if (form.items.size() > kMaxEnumValues) {
        return InvalidField("SCHEMA_TOO_COMPLEX", field_,
                            absl::StrCat(at, ": ", form.items.size(), " values given, at most ",
                                         kMaxEnumValues, " expected"));
      }
      return Listed(schema, form.items, place);
    }
    for (size_t i = 0; i < form.items.size(); ++i) {
      BATON_RETURN_IF_ERROR(Schema(form.items[i], absl::StrCat(at, "/", i), depth + 2));
    }
    return name == "oneOf" ? Disjoint(form.items, at) : absl::OkStatus();
  }

  absl::Status Reference(const Value& form, const std::string& place) {
    const std::string* const uri = Text(form);
    if (uri == nullptr || (*uri != "#" && !absl::StartsWith(*uri, "#/"))) {
      return Unsupported(place, "a reference other than # and #/...");
    }
    const Value* target = &root_;
    const std::vector<std::string> steps = absl::StrSplit(*uri, '/');
    for (size_t i = 1; i < steps.size() && target != nullptr; ++i) {
      if (absl::StrContains(steps[i], "~") || absl::StrContains(steps[i], "%")) {
        return Unsupported(place, "an escaped name in a reference");
      }
      target = target->Find(steps[i]);
    }
    if (target == nullptr) return Invalid(place, "the reference leads nowhere");
    // What is not in a place that the walk visits would not be checked.
    const bool visited =
        *uri == "#" || (steps.size() == 3 && (steps[1] == "$defs" || steps[1] == "definitions"));
    return visited ? absl::OkStatus()
                   : Unsupported(place,
                                 "a reference other than to #, #/$defs/NAME and "
                                 "#/definitions/NAME");
  }

  // Values that are listed must be of the type given, which XGrammar ignores beside them.
  absl::Status Listed(const Value& schema, absl::Span<const Value> values,
                      const std::string& place) {
    const Value* const type = schema.Find("type");
    if (type == nullptr) return absl::OkStatus();
    std::set<std::string> types;
    BATON_RETURN_IF_ERROR(Types(*type, place, types));
    for (const Value& value : values) {
      if (!Overlap(types, {std::string(TypeOf(value))})) {
        return Invalid(place, absl::StrCat("a value of type ", TypeOf(value),
                                           ", which is not the type given"));
      }
    }
    return absl::OkStatus();
  }

  // No value may fit two branches of a oneOf: XGrammar would take it as anyOf. So either all
  // branches list values, or all have a type.
  absl::Status Disjoint(const std::vector<Value>& branches, const std::string& place) {
    const absl::Status overlap =
        Unsupported(place, "branches that are not told apart by their type, const or enum");
    std::set<std::string> values, types;
    for (const Value& branch : branches) {
      const Value* const constant = branch.Find("const");
      const Value* const listed = branch.Find("enum");
      const Value* const type = branch.Find("type");
      if (constant != nullptr || listed != nullptr) {
        for (const Value& value :
             constant != nullptr ? absl::Span<const Value>(constant, 1) : listed->items) {
          // 1 and 1.0 are one value.
          const bool plain = value.kind == Value::Kind::kScalar && TypeOf(value) != "number";
          if (!plain || !values.insert(json::CanonicalText(value)).second) return overlap;
        }
      } else if (type != nullptr) {
        std::set<std::string> own;
        BATON_RETURN_IF_ERROR(Types(*type, place, own));
        if (Overlap(types, own)) return overlap;
        types.merge(own);
      } else {
        return overlap;
      }
    }
    return values.empty() || types.empty() ? absl::OkStatus() : overlap;
  }

  absl::Status Types(const Value& type, const std::string& place, std::set<std::string>& types) {
    const absl::Span<const Value> all =
        type.kind == Value::Kind::kArray ? type.items : absl::Span<const Value>(&type, 1);
    for (const Value& one : all) {
      const std::string* const name = Text(one);
      if (name == nullptr || !KeywordsOfTypes().contains(*name)) {
        return Invalid(absl::StrCat(place, "/type"), "no type of JSON Schema");
      }
      types.insert(*name);
    }
    return types.empty() ? Invalid(absl::StrCat(place, "/type"), "no type given")
                         : absl::OkStatus();
  }

  absl::Status Typed(const Value& schema, const std::string& place, size_t depth) {
    std::set<std::string> types;
    if (const Value* type = schema.Find("type")) {
      BATON_RETURN_IF_ERROR(Types(*type, place, types));
    } else if (schema.Find("properties") != nullptr) {
      types.insert("object");
    }
    for (const std::string& key : schema.keys) {
      if (key == "type" || Annotations().contains(key)) continue;
      bool known = false, of_type = false;
      for (const auto& [type, keywords] : KeywordsOfTypes()) {
        known |= keywords.contains(key);
        of_type |= keywords.contains(key) && types.contains(std::string(type));
      }
      if (!known) return Unsupported(place, absl::StrCat("the keyword ", json::Quoted(key)));
      if (!of_type) {
        return Unsupported(place, absl::StrCat(json::Quoted(key), " without the type it is for"));
      }
    }
    if (types.contains("object")) BATON_RETURN_IF_ERROR(Object(schema, place, depth));
    if (types.contains("array")) BATON_RETURN_IF_ERROR(Array(schema, place, depth));
    if (types.contains("string")) BATON_RETURN_IF_ERROR(String(schema, place));
    return Numbers(schema, place);
  }

  absl::Status Object(const Value& schema, const std::string& place, size_t depth) {
    const Value* const properties = schema.Find("properties");
    const Value* const additional = schema.Find("additionalProperties");
    const Value* const required = schema.Find("required");
    if (properties != nullptr && properties->kind != Value::Kind::kObject) {
      return Invalid(absl::StrCat(place, "/properties"), "an object expected");
    }
    const bool named = properties != nullptr && !properties->items.empty();
    for (size_t i = 0; named && i < properties->items.size(); ++i) {
      BATON_RETURN_IF_ERROR(Schema(
          properties->items[i],
          absl::StrCat(place, "/properties/", json::Printable(properties->keys[i])), depth + 2));
    }
    if (additional != nullptr) {
      const bool is_bool = TypeOf(*additional) == "boolean";
      // A name could come twice, first as the schema says and then as any other.
      if (named && !(is_bool && !additional->scalar.boolean)) {
        return Unsupported(place, "additionalProperties beside properties, other than false");
      }
      if (!is_bool) {
        BATON_RETURN_IF_ERROR(
            Schema(*additional, absl::StrCat(place, "/additionalProperties"), depth + 1));
      }
    }
    if (required == nullptr) return absl::OkStatus();
    if (required->kind != Value::Kind::kArray) {
      return Invalid(absl::StrCat(place, "/required"), "an array expected");
    }
    for (const Value& name : required->items) {
      const std::string* const text = Text(name);
      if (text == nullptr) return Invalid(absl::StrCat(place, "/required"), "names expected");
      if (!named || properties->Find(*text) == nullptr) {
        return Unsupported(
            place, absl::StrCat("required ", json::Quoted(*text), ", which properties lacks"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Array(const Value& schema, const std::string& place, size_t depth) {
    if (const Value* items = schema.Find("items")) {
      BATON_RETURN_IF_ERROR(Schema(*items, absl::StrCat(place, "/items"), depth + 1));
    }
    BATON_ASSIGN_OR_RETURN(const Bounds counts, Lengths(schema, "minItems", "maxItems", place));
    if (const Value* prefix = schema.Find("prefixItems")) {
      if (prefix->kind != Value::Kind::kArray) {
        return Invalid(absl::StrCat(place, "/prefixItems"), "an array expected");
      }
      for (size_t i = 0; i < prefix->items.size(); ++i) {
        BATON_RETURN_IF_ERROR(
            Schema(prefix->items[i], absl::StrCat(place, "/prefixItems/", i), depth + 2));
      }
      if (counts.most && *counts.most < static_cast<int64_t>(prefix->items.size())) {
        return Unsupported(place, "\"maxItems\" below the number of \"prefixItems\"");
      }
    }
    return absl::OkStatus();
  }

  absl::Status String(const Value& schema, const std::string& place) {
    BATON_ASSIGN_OR_RETURN(const Bounds lengths, Lengths(schema, "minLength", "maxLength", place));
    const Value* const pattern = schema.Find("pattern");
    const Value* const format = schema.Find("format");
    const bool length = schema.Find("minLength") != nullptr || schema.Find("maxLength") != nullptr;
    if ((pattern != nullptr) + (format != nullptr) + length > 1) {
      return Unsupported(place, "more than one of pattern, format and a length");
    }
    if (pattern != nullptr) {
      const std::string at = absl::StrCat(place, "/pattern");
      const std::string* const text = Text(*pattern);
      if (text == nullptr) return Invalid(at, "a string expected");
      BATON_ASSIGN_OR_RETURN(patterns_[&schema],
                             NormalRegex(*text, RegexUse::kJsonString, field_, at));
    }
    if (format != nullptr) {
      const std::string* const text = Text(*format);
      if (text == nullptr || !Formats().contains(*text)) {
        return Unsupported(place,
                           absl::StrCat("the format ", text == nullptr ? "" : json::Quoted(*text)));
      }
    }
    // XGrammar's strings of bounded length have control characters, which no JSON string has.
    if (lengths.least > 0 || lengths.most) {
      patterns_[&schema] =
          lengths.most == 0
              ? ""
              : absl::StrCat(NormalClass(EscapedInJson().Complement()), "{", lengths.least, ",",
                             lengths.most ? absl::StrCat(*lengths.most) : "", "}");
    }
    return absl::OkStatus();
  }

  struct Bounds {
    int64_t least = 0;
    std::optional<int64_t> most;
  };

  absl::StatusOr<Bounds> Lengths(const Value& schema, absl::string_view least,
                                 absl::string_view most, const std::string& place) {
    Bounds bounds;
    BATON_ASSIGN_OR_RETURN(bounds.most, Length(schema, most, place));
    BATON_ASSIGN_OR_RETURN(const std::optional<int64_t> given, Length(schema, least, place));
    bounds.least = given.value_or(0);
    if (bounds.most && *bounds.most < bounds.least) {
      return Invalid(absl::StrCat(place, "/", most),
                     absl::StrCat(*bounds.most, " given, at least ", least, " expected"));
    }
    return bounds;
  }

  absl::StatusOr<std::optional<int64_t>> Length(const Value& schema, absl::string_view key,
                                                const std::string& place) {
    const Value* const value = schema.Find(key);
    if (value == nullptr) return std::nullopt;
    if (TypeOf(*value) != "integer" || value->scalar.integer < 0) {
      return Invalid(absl::StrCat(place, "/", key), "a whole number of 0 or more expected");
    }
    if (value->scalar.integer <= kMaxLength) return value->scalar.integer;
    return InvalidField("SCHEMA_TOO_COMPLEX", field_,
                        absl::StrCat(place, "/", key, ": ", value->scalar.integer,
                                     " given, at most ", kMaxLength, " expected"));
  }

  absl::Status Numbers(const Value& schema, const std::string& place) {
    for (const char* const key : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}) {
      const Value* const value = schema.Find(key);
      if (value == nullptr) continue;
      const std::string at = absl::StrCat(place, "/", key);
      if (TypeOf(*value) != "integer") return Unsupported(at, "a bound that is no whole number");
      if (value->scalar.integer < -kMaxWhole || value->scalar.integer > kMaxWhole) {
        return Unsupported(at, "a bound beyond 2^53");
      }
      const Value* const type = schema.Find("type");
      std::set<std::string> types;
      if (type != nullptr) BATON_RETURN_IF_ERROR(Types(*type, place, types));
      if (types.contains("number"))
        return Unsupported(at, "bounds of a number; of an integer they are");
    }
    return absl::OkStatus();
  }

  const Value& root_;
  const absl::string_view field_;
  std::map<const Value*, std::string> patterns_;
};

void PutPatterns(const std::map<const Value*, std::string>& patterns, Value& schema) {
  for (Value& item : schema.items) PutPatterns(patterns, item);
  const auto found = patterns.find(&schema);
  if (found == patterns.end()) return;
  Value with_pattern;
  with_pattern.kind = Value::Kind::kObject;
  for (size_t i = 0; i < schema.keys.size(); ++i) {
    const std::string& key = schema.keys[i];
    if (key == "pattern" || key == "minLength" || key == "maxLength") continue;
    with_pattern.keys.push_back(key);
    with_pattern.items.push_back(std::move(schema.items[i]));
  }
  with_pattern.keys.push_back("pattern");
  with_pattern.items.emplace_back().scalar = {.kind = Scalar::Kind::kString, .text = found->second};
  schema = std::move(with_pattern);
}

absl::StatusOr<Value> CheckedSchema(const std::string& text, absl::string_view field) {
  if (text.size() > kMaxSchemaBytes) {
    return InvalidField("SCHEMA_TOO_COMPLEX", field,
                        absl::StrCat("a schema of ", text.size(), " bytes given, at most ",
                                     kMaxSchemaBytes, " expected"));
  }
  absl::StatusOr<Value> schema = json::Parse(text, "schema", kMaxSchemaValues);
  if (!schema.ok()) return InvalidField("SCHEMA_INVALID", field, schema.status().message());
  SchemaWalk walk(*schema, field);
  BATON_RETURN_IF_ERROR(walk.Schema(*schema, "#", 1));
  PutPatterns(walk.patterns(), *schema);
  return schema;
}

absl::Status CheckChoices(const std::vector<std::string>& choices) {
  constexpr absl::string_view kChoices = "structured_output.choices";
  if (choices.empty() || choices.size() > kMaxChoiceCount) {
    return InvalidField(
        choices.empty() ? "SCHEMA_INVALID" : "SCHEMA_TOO_COMPLEX", kChoices,
        absl::StrCat(choices.size(), " given, 1 to ", kMaxChoiceCount, " expected"));
  }
  for (size_t i = 0; i < choices.size(); ++i) {
    const std::string field = absl::StrCat(kChoices, "[", i, "]");
    if (choices[i].empty() || !IsUtf8(choices[i])) {
      return InvalidField("SCHEMA_INVALID", field, "a text in UTF-8, not empty, expected");
    }
    if (choices[i].size() > kMaxChoiceBytes) {
      return InvalidField("SCHEMA_TOO_COMPLEX", field,
                          absl::StrCat("a text of ", choices[i].size(), " bytes given, at most ",
                                       kMaxChoiceBytes, " expected"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSpec(const GrammarSpec& spec) {
  if (spec.reasoning) BATON_RETURN_IF_ERROR(CheckReasoning(*spec.reasoning));
  const bool one = spec.texts.size() == 1;
  switch (spec.kind) {
    case GrammarSpec::Kind::kJsonObject:
      return absl::OkStatus();
    case GrammarSpec::Kind::kJsonSchema:
      return one ? CheckedSchema(spec.texts[0], kField).status()
                 : InvalidField("SCHEMA_INVALID", kField, "one schema expected");
    case GrammarSpec::Kind::kRegex:
      return one ? NormalRegex(spec.texts[0], RegexUse::kAnswer, "structured_output.regex").status()
                 : InvalidField("SCHEMA_INVALID", "structured_output.regex",
                                "one regular expression expected");
    case GrammarSpec::Kind::kChoices:
      return CheckChoices(spec.texts);
    case GrammarSpec::Kind::kToolCalls:
      return CheckToolCalls(spec.texts);
  }
  return InvalidField("SCHEMA_INVALID", "structured_output", "no such kind");
}

absl::StatusOr<std::string> NormalSchema(const std::string& schema, absl::string_view field) {
  BATON_ASSIGN_OR_RETURN(const Value checked, CheckedSchema(schema, field));
  return json::ToText(checked);
}

}  // namespace baton::grammar
