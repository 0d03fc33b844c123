#include "common/grammar/literal_arguments.h"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/grammar/structural_tag.h"
#include "common/grammar/value_patterns.h"

namespace baton::grammar {
namespace {

using json::Scalar;
using json::Value;
using ToolCalls = v1::StructuredOutput::ToolCalls;

constexpr absl::string_view kGemmaQuote = "<|\"|>";

// What a string has between quotes of Python: JSON's escapes, and that of the quote. Line breaks
// and tabs also stand for themselves, as chat templates write them. An escape \u is a whole
// character, so none of them is half of a pair of surrogates.
constexpr absl::string_view kEscapes =
    R"((["'\\bfnrt]|u([0-9A-CE-Fa-ce-f][0-9A-Fa-f]{3}|[Dd][0-7][0-9A-Fa-f]{2})))";

// A text in which kGemmaQuote does not occur. After a '<', each turn of the first group leads back
// to a '<', each branch of the second one away from it.
constexpr absl::string_view kNoGemmaQuote =
    R"(([^<]|<(<|\|<|\|"<|\|"\|<)*([^<\|]|\|[^"<]|\|"[^<\|]|\|"\|[^<>])))"
    R"(*(<(<|\|<|\|"<|\|"\|<)*(\|"\||\|"|\|){0,1}){0,1})";

// A name that no schema gives.
constexpr absl::string_view kAnyName = "[A-Z_a-z][\\-.0-9A-Z_a-z]*";

// How a style writes what is no string or number.
struct Words {
  absl::string_view separator, after_key, yes, no;
};
constexpr Words kPython = {", ", ": ", "True", "False"};
constexpr Words kGemma = {",", ":", "true", "false"};

// Returns EBNF of a text with private texts (tool_call_grammar.h), which no literal can spell.
std::string EbnfOfReplaced(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '\xff');
  std::vector<std::string> ebnf;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i % 2 != 0) ebnf.push_back(absl::StrCat("Token(", parts[i], ")"));
    if (i % 2 == 0 && !parts[i].empty()) ebnf.push_back(EbnfString(parts[i]));
  }
  return absl::StrJoin(ebnf, " ");
}

bool IsObject(const Value& value) { return value.kind == Value::Kind::kObject; }

bool HasAny(absl::string_view text, absl::string_view characters) {
  return text.find_first_of(characters) != absl::string_view::npos;
}

// A name that readers of calls take without quotes.
bool IsBareName(absl::string_view name) {
  return !name.empty() && !HasAny(name, "<>{}()=:,\"'\\") &&
         absl::c_none_of(name, [](char c) { return static_cast<unsigned char>(c) <= ' '; });
}

class LiteralGrammar {
 public:
  LiteralGrammar(const Value& root, bool python, absl::string_view field, absl::string_view quote)
      : root_(root),
        python_(python),
        words_(python ? kPython : kGemma),
        field_(field),
        quote_(EbnfOfReplaced(quote)) {}

  absl::StatusOr<std::string> Run() {
    BATON_ASSIGN_OR_RETURN(const std::string members, Members(root_, "#", /*is_call=*/true));
    // Definitions are written once each, whatever refers to them.
    while (!waiting_.empty()) {
      const auto [uri, name] = waiting_.back();
      waiting_.pop_back();
      defined_ = &direct_[uri];
      BATON_ASSIGN_OR_RETURN(const std::string value, ValueOf(*Target(uri), json::Printable(uri)));
      defined_ = nullptr;
      absl::StrAppend(&rules_, name, " ::= ", value, "\n");
    }
    BATON_RETURN_IF_ERROR(CheckReferences());
    return GrammarOf(members, rules_);
  }

 private:
  absl::Status Unsupported(absl::string_view place, absl::string_view what) const {
    return InvalidField("SCHEMA_UNSUPPORTED", field_,
                        absl::StrCat(place, ": not supported: ", what));
  }

  // The name of a rule of this body; of the same one, if a rule has it.
  std::string Rule(const std::string& body) {
    std::string& name = names_[body];
    if (name.empty()) {
      name = NewName();
      absl::StrAppend(&rules_, name, " ::= ", body, "\n");
    }
    return name;
  }
  std::string NewName() { return absl::StrCat("r", names_count_++); }

  std::string OneOf(const std::vector<std::string>& values) {
    return values.size() == 1 ? values[0] : Rule(absl::StrJoin(values, " | "));
  }

  // --- Values.

  absl::StatusOr<std::string> ValueOf(const Value& schema, const std::string& place) {
    if (!IsObject(schema)) return Any();
    if (const Value* uri = schema.Find("$ref")) return Reference(uri->scalar.text);
    if (const Value* constant = schema.Find("const")) return Listed({constant, 1}, place);
    if (const Value* listed = schema.Find("enum")) return Listed(listed->items, place);
    for (const char* const name : {"anyOf", "oneOf"}) {
      const Value* const branches = schema.Find(name);
      if (branches == nullptr) continue;
      std::vector<std::string> values;
      for (size_t i = 0; i < branches->items.size(); ++i) {
        BATON_ASSIGN_OR_RETURN(values.emplace_back(),
                               ValueOf(branches->items[i], absl::StrCat(place, "/", name, "/", i)));
      }
      return OneOf(values);
    }
    const Value* const type = schema.Find("type");
    if (type == nullptr) {
      return schema.Find("properties") == nullptr ? Any() : Object(schema, place);
    }
    std::vector<std::string> values;
    for (const Value& one :
         type->kind == Value::Kind::kArray ? type->items : absl::MakeConstSpan(type, 1)) {
      BATON_ASSIGN_OR_RETURN(values.emplace_back(), OfType(one.scalar.text, schema, place));
    }
    return OneOf(values);
  }

  absl::StatusOr<std::string> OfType(absl::string_view type, const Value& schema,
                                     const std::string& place) {
    if (type == "object") return Object(schema, place);
    if (type == "array") return Array(schema, place);
    if (type == "boolean") return Boolean();
    if (type == "null") return Null();
    if (type == "number") return Number();
    if (type == "integer") return Integer(schema, place);
    if (const Value* pattern = schema.Find("pattern")) return Quoted(pattern->scalar.text);
    if (const Value* format = schema.Find("format")) {
      return Quoted(FormatPattern(format->scalar.text));
    }
    return String();
  }

  std::string Any() {
    if (any_.empty()) {
      any_ = NewName();
      const std::string items = Rule(absl::StrCat("(", any_, Repeated(any_), "){0,1}"));
      const std::string member =
          Rule(absl::StrCat(AnyKey(), " ", EbnfString(words_.after_key), " ", any_));
      absl::StrAppend(&rules_, any_, " ::= ", String(), " | ", Number(), " | ", Boolean(), " | ",
                      Null(), " | \"[\" ", items, " \"]\" | \"{\" (", member, Repeated(member),
                      "){0,1} \"}\"\n");
    }
    return any_;
  }

  std::string Boolean() {
    return Rule(absl::StrCat(EbnfString(words_.yes), " | ", EbnfString(words_.no)));
  }
  // Gemma's chat template writes None, as Python prints it, where JSON has null.
  std::string Null() { return Rule(python_ ? "\"None\"" : "\"null\" | \"None\""); }
  std::string Number() { return Rule(EbnfRegex(NumberPattern())); }

  // Any number of further values.
  std::string Repeated(absl::string_view value, absl::string_view count = "*") {
    return absl::StrCat(" (", EbnfString(words_.separator), " ", value, ")", count);
  }

  absl::StatusOr<std::string> Integer(const Value& schema, const std::string& place) {
    const std::optional<std::string> pattern = IntegerPattern(schema);
    if (!pattern) return Unsupported(place, "bounds that no integer is within");
    return Rule(EbnfRegex(*pattern));
  }

  // --- Strings.

  std::string String() {
    if (!python_) return Rule(absl::StrCat(quote_, " ", EbnfRegex(kNoGemmaQuote), " ", quote_));
    const auto quoted = [](absl::string_view quote) {
      return EbnfRegex(absl::StrCat(quote, "([^\\u0000-\x08\x0b\x0c\x0e-\x1f", quote,
                                    "\\\\\\ud800-\\udfff]|\\\\", kEscapes, ")*", quote));
    };
    return Rule(absl::StrCat(quoted("\""), " | ", quoted("'")));
  }

  // A string that the pattern matches: it has no quote, and needs no escapes.
  std::string Quoted(absl::string_view pattern) {
    const std::string quote = python_ ? EbnfString("\"") : quote_;
    return Rule(absl::StrCat(quote, " ", EbnfRegex(pattern), " ", quote));
  }

  absl::StatusOr<std::string> Text(const std::string& text, const std::string& place) {
    if (python_) {
      const std::string json = json::ToText(json::TextValue(text));
      const std::string other = absl::StrReplaceAll(
          json.substr(1, json.size() - 2), {{"\\\\", "\\\\"}, {"\\\"", "\""}, {"'", "\\'"}});
      return absl::StrCat("(", EbnfString(json), " | ", EbnfString(absl::StrCat("'", other, "'")),
                          ")");
    }
    if (absl::StrContains(text, kGemmaQuote)) {
      return Unsupported(place, absl::StrCat("a string with ", kGemmaQuote,
                                             ", which ends it in this model's calls"));
    }
    return absl::StrCat(quote_, " ", EbnfString(text), " ", quote_);
  }

  // --- Listed values.

  absl::StatusOr<std::string> Listed(absl::Span<const Value> values, const std::string& place) {
    std::vector<std::string> literals;
    for (const Value& value : values) {
      BATON_ASSIGN_OR_RETURN(literals.emplace_back(), Literal(value, place));
    }
    return Rule(absl::StrJoin(literals, " | "));
  }

  absl::StatusOr<std::string> Literal(const Value& value, const std::string& place) {
    const bool is_list = value.kind == Value::Kind::kArray;
    if (is_list || IsObject(value)) {
      std::vector<std::string> items;
      for (size_t i = 0; i < value.items.size(); ++i) {
        BATON_ASSIGN_OR_RETURN(std::string item, Literal(value.items[i], place));
        if (!is_list) {
          BATON_ASSIGN_OR_RETURN(const std::string key, Key(value.keys[i], place));
          item = absl::StrCat(key, " ", EbnfString(words_.after_key), " ", item);
        }
        items.push_back(std::move(item));
      }
      return absl::StrCat(
          is_list ? "\"[\" " : "\"{\" ",
          absl::StrJoin(items, absl::StrCat(" ", EbnfString(words_.separator), " ")),
          is_list ? " \"]\"" : " \"}\"");
    }
    switch (value.scalar.kind) {
      case Scalar::Kind::kNull:
        return Null();
      case Scalar::Kind::kBool:
        return EbnfString(value.scalar.boolean ? words_.yes : words_.no);
      case Scalar::Kind::kString:
        return Text(value.scalar.text, place);
      case Scalar::Kind::kInteger:
      case Scalar::Kind::kReal:
        break;
    }
    return EbnfString(json::ToText(value));
  }

  // --- Objects and arrays.

  // Any name within an object.
  std::string AnyKey() {
    return python_ ? String() : Rule(absl::StrCat(EbnfRegex(kAnyName), " | ", String()));
  }

  // A name within an object.
  absl::StatusOr<std::string> Key(const std::string& name, const std::string& place) {
    if (!python_ && IsBareName(name)) return EbnfString(name);
    return Text(name, place);
  }

  absl::StatusOr<std::string> Object(const Value& schema, const std::string& place) {
    BATON_ASSIGN_OR_RETURN(const std::string members, Members(schema, place, /*is_call=*/false));
    return Rule(absl::StrCat("\"{\" ", members, " \"}\""));
  }

  // A value within an object or an array: a reference there leads to no endless loop.
  absl::StatusOr<std::string> Inner(const Value& schema, const std::string& place) {
    std::set<std::string>* const outside = std::exchange(defined_, nullptr);
    auto value = ValueOf(schema, place);
    defined_ = outside;
    return value;
  }

  // What stands between the braces of an object or, if `is_call`, the parentheses of a call.
  absl::StatusOr<std::string> Members(const Value& schema, const std::string& place, bool is_call) {
    const bool is_keyword = is_call && python_;
    const absl::string_view after_key = is_keyword ? "=" : words_.after_key;
    const Value* const properties = schema.Find("properties");
    if (properties == nullptr || properties->items.empty()) {
      const Value* const additional = schema.Find("additionalProperties");
      const bool is_closed =
          additional == nullptr || (!IsObject(*additional) && !additional->scalar.boolean);
      if (is_closed) return std::string("\"\"");
      BATON_ASSIGN_OR_RETURN(const std::string value,
                             Inner(*additional, absl::StrCat(place, "/additionalProperties")));
      const std::string key = is_call ? EbnfRegex(kAnyName) : AnyKey();
      const std::string member = Rule(absl::StrCat(key, " ", EbnfString(after_key), " ", value));
      return Rule(absl::StrCat("(", member, Repeated(member), "){0,1}"));
    }
    const Value* const required = schema.Find("required");
    // What may follow from a member on: where one has come before, and where none has.
    std::string after = "\"\"", first = "\"\"";
    for (size_t i = properties->items.size(); i-- > 0;) {
      const std::string& name = properties->keys[i];
      const std::string at = absl::StrCat(place, "/properties/", json::Printable(name));
      if (is_keyword && !IsBareName(name)) {
        return Unsupported(
            at, "a name with white space or one of <>{}()=:,\"'\\, in this model's calls");
      }
      BATON_ASSIGN_OR_RETURN(const std::string key, is_keyword ? EbnfString(name) : Key(name, at));
      BATON_ASSIGN_OR_RETURN(const std::string value, Inner(properties->items[i], at));
      const std::string member = Rule(absl::StrCat(key, " ", EbnfString(after_key), " ", value));
      const bool is_required =
          required != nullptr && absl::c_any_of(required->items, [&](const Value& other) {
            return other.scalar.text == name;
          });
      const std::string with = absl::StrCat(member, " ", after);
      first = Rule(is_required ? with : absl::StrCat(first, " | ", with));
      const std::string also = absl::StrCat(EbnfString(words_.separator), " ", with);
      after = Rule(is_required ? also : absl::StrCat(after, " | ", also));
    }
    return first;
  }

  absl::StatusOr<std::string> Array(const Value& schema, const std::string& place) {
    const auto count = [&](absl::string_view name) {
      const Value* const value = schema.Find(name);
      return value == nullptr ? std::nullopt : std::optional(value->scalar.integer);
    };
    const int64_t least = count("minItems").value_or(0);
    const std::optional<int64_t> most = count("maxItems");
    std::vector<std::string> parts;
    if (const Value* prefix = schema.Find("prefixItems")) {
      for (size_t i = 0; i < prefix->items.size(); ++i) {
        BATON_ASSIGN_OR_RETURN(parts.emplace_back(),
                               Inner(prefix->items[i], absl::StrCat(place, "/prefixItems/", i)));
      }
    }
    const auto fixed = static_cast<int64_t>(parts.size());
    const Value* const items = schema.Find("items");
    if (items == nullptr && least > fixed) {
      return Unsupported(place, "counts that no array of these items has");
    }
    const std::string listed =
        absl::StrJoin(parts, absl::StrCat(" ", EbnfString(words_.separator), " "));
    if (items == nullptr || most == fixed) return Rule(absl::StrCat("\"[\" ", listed, " \"]\""));
    BATON_ASSIGN_OR_RETURN(const std::string item, Inner(*items, absl::StrCat(place, "/items")));
    // The array has at least so many items beyond the fixed ones.
    const int64_t at_least = std::max<int64_t>(least - fixed, 0);
    const auto times = [&](int64_t fewer) {
      return absl::StrCat("{", std::max<int64_t>(at_least - fewer, 0), ",",
                          most ? absl::StrCat(*most - fixed - fewer) : "", "}");
    };
    if (fixed > 0) {
      return Rule(absl::StrCat("\"[\" ", listed, Repeated(item, times(0)), " \"]\""));
    }
    const std::string further = most == 1 ? "" : Repeated(item, times(1));
    return Rule(absl::StrCat("\"[\" (", item, further, at_least > 0 ? ")" : "){0,1}", " \"]\""));
  }

  // --- References.

  // What the URI of a reference, which NormalSchema has checked, leads to.
  const Value* Target(const std::string& uri) {
    if (targets_.empty()) {
      targets_["#"] = &root_;
      for (const char* const place : {"$defs", "definitions"}) {
        const Value* const definitions = root_.Find(place);
        for (size_t i = 0; definitions != nullptr && i < definitions->keys.size(); ++i) {
          targets_[absl::StrCat("#/", place, "/", definitions->keys[i])] = &definitions->items[i];
        }
      }
    }
    return targets_.at(uri);
  }

  std::string Reference(const std::string& uri) {
    if (defined_ != nullptr) defined_->insert(uri);
    std::string& name = references_[uri];
    if (name.empty()) {
      name = NewName();
      waiting_.emplace_back(uri, name);
    }
    return name;
  }

  // A definition that may be another one, which may be the first one, is no value. This is a search
  // in depth, along `path`.
  absl::Status CheckReferences() const {
    using Uris = std::set<std::string>;
    struct Visit {
      const std::string& uri;
      Uris::const_iterator next, end;
    };
    std::vector<Visit> path;
    std::map<absl::string_view, bool> is_on_path;  // of the definitions that have been reached
    const auto enter = [&](const std::string& uri, const Uris& uris) {
      const auto [reached, is_new] = is_on_path.try_emplace(uri, true);
      if (is_new) path.push_back({uri, uris.begin(), uris.end()});
      return is_new || !reached->second;
    };
    for (const auto& [first, uris] : direct_) {
      enter(first, uris);
      while (!path.empty()) {
        Visit& last = path.back();
        if (last.next == last.end) {
          is_on_path[last.uri] = false;
          path.pop_back();
          continue;
        }
        const std::string& uri = *last.next++;
        if (!enter(uri, direct_.at(uri))) {
          return Unsupported(json::Printable(uri), "a reference that leads back to itself");
        }
      }
    }
    return absl::OkStatus();
  }

  const Value& root_;
  const bool python_;
  const Words words_;
  const absl::string_view field_;
  const std::string quote_;  // Gemma's, as EBNF
  std::string rules_;
  std::map<std::string, std::string> names_;  // of rules, by their bodies
  int names_count_ = 0;
  std::string any_;                                // the rule of any value, once there is one
  std::map<std::string, const Value*> targets_;    // by URI, once one was looked for
  std::map<std::string, std::string> references_;  // names of rules, by URI
  std::vector<std::pair<std::string, std::string>> waiting_;  // URIs and names without a body yet
  std::map<std::string, std::set<std::string>> direct_;  // what a definition may itself be, by URI
  // The one of the definition that is written; null within its values.
  std::set<std::string>* defined_ = nullptr;
};

}  // namespace

bool IsLiteral(ToolCalls::ArgumentStyle style) {
  return style == ToolCalls::ARGUMENT_STYLE_PYTHON || style == ToolCalls::ARGUMENT_STYLE_GEMMA;
}

absl::StatusOr<std::string> LiteralArguments(
    const Value& schema, ToolCalls::ArgumentStyle style, absl::string_view field,
    absl::FunctionRef<std::string(absl::string_view)> replaced) {
  const bool python = style == ToolCalls::ARGUMENT_STYLE_PYTHON;
  return LiteralGrammar(schema, python, field, python ? "" : replaced(kGemmaQuote)).Run();
}

}  // namespace baton::grammar
