#include "common/grammar/bare_values.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"
#include "common/grammar/regex_characters.h"
#include "common/grammar/schema_keywords.h"
#include "common/grammar/structural_tag.h"
#include "common/grammar/value_patterns.h"
#include "common/json/schema_types.h"

namespace baton::grammar {
namespace {

using json::Value;

// A small schema may lead to very many levels and branches by anyOf and references.
constexpr int kMaxLevels = 16, kMaxSchemas = 1024;
// What a schema, or a listed value, costs beside its text: about the format around it.
constexpr size_t kBytesOfOne = 64;
constexpr uint32_t kNumbers = json::kIntegerType | json::kNumberType;
constexpr uint32_t kComposites = json::kArrayType | json::kObjectType;
constexpr absl::string_view kSpaceCharacters = " \t\n\v\f\r";
constexpr absl::string_view kBeginNumbers = "-0123456789";
constexpr absl::string_view kBeginBooleans = "tfTF";

bool HasMembers(const Value& value) { return value.kind == Value::Kind::kObject; }

absl::Status NotSupported(absl::string_view what) { return absl::InvalidArgumentError(what); }

// True if the reader of a value of these types takes the text for a string.
bool IsReadAsText(absl::string_view text, uint32_t types) {
  if (types == json::kStringType) return true;
  const absl::string_view trimmed = absl::StripAsciiWhitespace(text);
  const auto parsed = json::Parse(trimmed, "a value");
  if (parsed.ok() && (json::SchemaTypeOf(*parsed) & types) != 0) return false;
  const bool is_boolean = trimmed == "True" || trimmed == "False";
  if (is_boolean && (types & json::kBooleanType) != 0) return false;
  return trimmed != "None" || (types & json::kNullType) == 0;
}

std::string PatternFormat(absl::string_view pattern) { return GrammarOf(EbnfRegex(pattern)); }

class BareFormats {
 public:
  BareFormats(const BareSchema& root, const BareEnd& end, size_t* bytes_left)
      : root_(root), end_(end), bytes_left_(*bytes_left) {}

  absl::StatusOr<std::string> Run(const BareSchema& schema) {
    types_ = json::TypesOf(*schema.normal, *root_.normal);
    BATON_RETURN_IF_ERROR(Collect(schema, 0));
    const bool plain_texts =
        absl::c_all_of(texts_, [](const BareSchema& text) { return SaysTypesOnly(*text.normal); });
    if (any_ || (plain_texts && !texts_.empty() && words_.empty() && listed_texts_.empty() &&
                 IsFull(json::kAnyType & ~json::kStringType))) {
      return BareText(end_);
    }
    if ((types_ & kComposites) != 0) {
      return NotSupported("an array or an object beside a string of which more is said than types");
    }
    if (!IsFull(kNumbers)) absl::StrAppend(&not_first_, kBeginNumbers);
    if (!IsFull(json::kBooleanType)) absl::StrAppend(&not_first_, kBeginBooleans);
    for (const BareSchema& text : texts_) {
      BATON_ASSIGN_OR_RETURN(std::string format, TextFormat(text));
      BATON_RETURN_IF_ERROR(Take(format.size()));
      formats_.push_back(std::move(format));
    }
    for (const std::string& text : listed_texts_) {
      if (absl::StrContains(text, end_.text)) {
        return NotSupported(absl::StrCat("a value with ", end_.text));
      }
      if (!IsReadAsText(text, types_)) {
        return NotSupported(absl::StrCat("the string ", json::Quoted(text),
                                         " beside a type as which it would be read"));
      }
      formats_.push_back(text.empty() ? Nothing() : Constant(text));
    }
    formats_.insert(formats_.end(), words_.begin(), words_.end());
    return formats_.size() == 1 ? formats_[0] : AnyOf(formats_);
  }

 private:
  // True if of each of these types that a value may have, all values are valid.
  bool IsFull(uint32_t types) const { return (types_ & types & ~full_) == 0; }

  absl::Status Take(size_t bytes) {
    if (bytes > bytes_left_) return absl::ResourceExhaustedError("too large");
    bytes_left_ -= bytes;
    return absl::OkStatus();
  }

  // --- What a schema allows.

  absl::Status Collect(const BareSchema& schema, int level) {
    if (level > kMaxLevels || ++seen_ > kMaxSchemas) {
      return NotSupported("more than 16 levels or 1,024 schemas of one value");
    }
    BATON_RETURN_IF_ERROR(Take(kBytesOfOne));
    if (!HasMembers(*schema.normal)) {
      any_ = true;
      return absl::OkStatus();
    }
    if (const Value* uri = schema.normal->Find("$ref")) {
      return Collect(
          {Target(uri->scalar.text, *root_.normal), Target(uri->scalar.text, *root_.given)},
          level + 1);
    }
    if (const Value* constant = schema.normal->Find("const")) return AddListed({constant, 1});
    if (const Value* listed = schema.normal->Find("enum")) return AddListed(listed->items);
    for (const char* const name : {"anyOf", "oneOf"}) {
      const Value* const branches = schema.normal->Find(name);
      if (branches == nullptr) continue;
      const Value* const given = schema.given->Find(name);
      for (size_t i = 0; i < branches->items.size(); ++i) {
        BATON_RETURN_IF_ERROR(Collect({&branches->items[i], &given->items[i]}, level + 1));
      }
      return absl::OkStatus();
    }
    const Value* const type = schema.normal->Find("type");
    if (type == nullptr) {
      if (schema.normal->Find("properties") == nullptr) any_ = true;
      return absl::OkStatus();
    }
    for (const Value& one :
         type->kind == Value::Kind::kArray ? type->items : absl::MakeConstSpan(type, 1)) {
      BATON_RETURN_IF_ERROR(AddType(one.scalar.text, schema));
    }
    return absl::OkStatus();
  }

  // What a reference, which NormalSchema has checked, leads to.
  static const Value* Target(absl::string_view uri, const Value& root) {
    const size_t name = uri.find('/', 2);
    if (name == absl::string_view::npos) return &root;
    return root.Find(uri.substr(2, name - 2))->Find(uri.substr(name + 1));
  }

  absl::Status AddType(absl::string_view type, const BareSchema& schema) {
    if (type == "string") {
      texts_.push_back(schema);
      return absl::OkStatus();
    }
    if (type == "null") {
      full_ |= json::kNullType;
      formats_.push_back(Constant("null"));
    } else if (type == "boolean") {
      full_ |= json::kBooleanType;
      formats_.push_back(AnyOf({Constant("true"), Constant("false")}));
    } else if (type == "number") {
      full_ |= kNumbers;
      formats_.push_back(PatternFormat(NumberPattern()));
    } else if (type == "integer") {
      const std::optional<std::string> pattern = IntegerPattern(*schema.normal);
      if (!pattern) return NotSupported("bounds that no integer is within");
      formats_.push_back(PatternFormat(*pattern));
      if (*pattern == IntegerPattern(std::nullopt, std::nullopt)) full_ |= json::kIntegerType;
    } else if (SaysTypesOnly(*schema.normal)) {
      full_ |= type == "array" ? json::kArrayType : json::kObjectType;
    }
    return absl::OkStatus();
  }

  absl::Status AddListed(absl::Span<const Value> values) {
    for (const Value& value : values) {
      const uint32_t type = json::SchemaTypeOf(value);
      BATON_RETURN_IF_ERROR(Take(kBytesOfOne));
      if (type == json::kStringType) {
        BATON_RETURN_IF_ERROR(Take(value.scalar.text.size()));
        listed_texts_.push_back(value.scalar.text);
        continue;
      }
      if (type == json::kNullType) full_ |= type;
      words_.push_back(Constant(json::ToText(value)));
      BATON_RETURN_IF_ERROR(Take(words_.back().size()));
    }
    return absl::OkStatus();
  }

  // --- Strings.

  absl::StatusOr<std::string> TextFormat(const BareSchema& text) const {
    const auto length = [&](absl::string_view name) {
      const Value* const value = text.given->Find(name);
      return value == nullptr ? std::nullopt : std::optional(value->scalar.integer);
    };
    const std::optional<int64_t> most = length("maxLength");
    const int64_t least = length("minLength").value_or(0);
    const Value* const pattern = most || least > 0 ? nullptr : text.normal->Find("pattern");
    const Value* const format = text.normal->Find("format");
    if (pattern != nullptr || format != nullptr) {
      return Matching(pattern != nullptr ? pattern->scalar.text
                                         : FormatPattern(format->scalar.text));
    }
    std::string not_first = not_first_;
    // Read as JSON, a text between quotes is shorter.
    if (least > 0 && types_ != json::kStringType) not_first += '"';
    if (!not_first.empty()) absl::StrAppend(&not_first, kSpaceCharacters);
    return OfLength(least, most, not_first);
  }

  // No text of a pattern has a quote, so none is read as JSON's string.
  absl::StatusOr<std::string> Matching(absl::string_view pattern) const {
    const CharacterSet characters = CharactersOf(pattern);
    const auto has = [&](char c) {
      const auto code = static_cast<unsigned char>(c);
      return characters.Intersects({{code, code}});
    };
    if (absl::c_all_of(end_.text, has)) {
      return NotSupported(absl::StrCat("a pattern whose characters could spell ", end_.text));
    }
    if (absl::c_any_of(not_first_, has)) {
      return NotSupported("a pattern beside another type, of whose values it could be one");
    }
    return PatternFormat(pattern);
  }

  // A text of `least` characters or more and at most `most`, which begins with none of `not_first`.
  // So that the end mark is not spelled across what is counted, its first character is none of the
  // first `least`, but may be the last of them if neither it nor the mark's second one follows.
  // With a `most`, all characters are counted, and none of them is the mark's first one: XGrammar's
  // own bound of any text counts bytes, and could end the text within a character.
  std::string OfLength(int64_t least, std::optional<int64_t> most,
                       absl::string_view not_first) const {
    if (most == 0) return Nothing();
    const int64_t counted = std::max<int64_t>(least, 1);
    const std::string mark(1, end_.text[0]);
    const std::string first = EbnfClass(absl::StrCat(not_first, mark), /*negated=*/true);
    const std::string other = EbnfClass(mark, /*negated=*/true);
    const auto repeated = [&](int64_t low, int64_t high) {
      return high == 0 ? "" : absl::StrCat(" ", other, "{", low, ",", high, "}");
    };
    if (most) {
      const std::string text = GrammarOf(absl::StrCat(first, repeated(counted - 1, *most - 1)));
      return least > 0 ? text : AnyOf({text, Nothing()});
    }
    if (least == 0 && not_first.empty()) return BareText(end_);
    const auto characters = [&](int64_t count, absl::string_view last) {
      return GrammarOf(absl::StrCat(
          count == 0 ? "" : first,
          repeated(std::max<int64_t>(count - 1, 0), std::max<int64_t>(count - 1, 0)), " ", last));
    };
    std::vector<std::string> texts = {Sequence({characters(counted, ""), BareText(end_)})};
    if (counted > 1 || !absl::StrContains(not_first, mark)) {
      const std::string after = EbnfClass(end_.text.substr(0, 2), /*negated=*/true);
      const std::string ends = characters(counted - 1, EbnfString(mark));
      texts.push_back(ends);
      texts.push_back(Sequence({ends, GrammarOf(after), BareText(end_)}));
    }
    if (least == 0) texts.push_back(Nothing());
    return AnyOf(texts);
  }

  const BareSchema root_;
  const BareEnd end_;
  size_t& bytes_left_;
  uint32_t types_ = 0;  // that the reader knows
  uint32_t full_ = 0;   // those of which all values are valid
  bool any_ = false;    // every value is valid
  int seen_ = 0;        // schemas
  std::vector<BareSchema> texts_;
  std::vector<std::string> listed_texts_;
  std::vector<std::string> words_;  // formats of listed values that are no strings
  std::vector<std::string> formats_;
  std::string not_first_;  // what begins other values
};

}  // namespace

std::string BareText(const BareEnd& end) {
  std::vector<std::string> excluded = {std::string(end.in_tags)};
  // Spelled in other tokens, it would end the value all the same to who reads the text.
  if (end.in_tags != end.text) excluded.emplace_back(end.text);
  return AnyText(excluded);
}

bool SaysTypesOnly(const Value& schema) {
  return absl::c_all_of(schema.keys, [](const std::string& key) {
    return key == "type" || Annotations().contains(key);
  });
}

absl::StatusOr<std::string> BareValues(const BareSchema& schema, const BareSchema& root,
                                       const BareEnd& end, size_t* bytes_left) {
  return BareFormats(root, end, bytes_left).Run(schema);
}

}  // namespace baton::grammar
