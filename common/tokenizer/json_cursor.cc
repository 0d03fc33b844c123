#include "common/tokenizer/json_cursor.h"

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"

namespace baton::tokenizer {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 64;
constexpr size_t kMaxShownBytes = 60;
constexpr size_t kMaxParserMessageBytes = 300;

const Json& Value(const void* value) { return *static_cast<const Json*>(value); }

absl::Status BadTokenizer(absl::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, "BAD_TOKENIZER", message);
}

// What comes from the file, in a form and length that a log line can hold.
std::string Shortened(absl::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return absl::Utf8SafeCHexEscape(text);
  return absl::StrCat(absl::CHexEscape(text.substr(0, max_bytes)), "...");
}

std::string Shown(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  if (!value.is_string()) return value.dump();
  const std::string& text = value.get_ref<const std::string&>();
  return absl::StrCat("\"", Shortened(text, kMaxShownBytes), "\"");
}

// Thrown through the parser, which has no other way to stop, and caught in Parse.
struct Refusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Watches the parser for what the finished value no longer shows.
class ParseGuard {
 public:
  bool operator()(int depth, Json::parse_event_t event, const Json& parsed) {
    if (depth > kMaxDepth) {
      throw Refusal(absl::StrCat("nested deeper than ", kMaxDepth, " levels"));
    }
    if (event == Json::parse_event_t::object_start) {
      keys_.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys_.pop_back();
    } else if (event == Json::parse_event_t::key) {
      if (!keys_.back().insert(parsed.get_ref<const std::string&>()).second) {
        throw Refusal(absl::StrCat("the key ", Shown(parsed), " stands twice in one object"));
      }
    }
    return true;
  }

 private:
  std::vector<absl::flat_hash_set<std::string>> keys_;  // of the objects that are open
};

}  // namespace

struct JsonDocument::Parsed {
  std::string origin;
  Json root;
};

JsonDocument::JsonDocument(std::unique_ptr<Parsed> parsed) : parsed_(std::move(parsed)) {}
JsonDocument::JsonDocument(JsonDocument&&) noexcept = default;
JsonDocument& JsonDocument::operator=(JsonDocument&&) noexcept = default;
JsonDocument::~JsonDocument() = default;

absl::StatusOr<JsonDocument> JsonDocument::Parse(absl::string_view text, absl::string_view origin) {
  auto parsed = std::make_unique<Parsed>();
  parsed->origin = std::string(origin);
  ParseGuard guard;
  try {
    parsed->root = Json::parse(text.begin(), text.end(), std::ref(guard));
  } catch (const Refusal& refusal) {
    return BadTokenizer(absl::StrCat(origin, ": ", refusal.what()));
  } catch (const std::exception& error) {  // the JSON library reports by exception
    return BadTokenizer(absl::StrCat(
        origin, ": not usable as JSON: ", Shortened(error.what(), kMaxParserMessageBytes)));
  }
  return JsonDocument(std::move(parsed));
}

JsonCursor JsonDocument::root() const {
  return JsonCursor(&parsed_->root, parsed_->origin, std::string());
}

bool JsonCursor::is_null() const { return Value(value_).is_null(); }
bool JsonCursor::is_string() const { return Value(value_).is_string(); }
bool JsonCursor::is_array() const { return Value(value_).is_array(); }

absl::StatusOr<JsonCursor> JsonCursor::Get(absl::string_view key) const {
  const Json& value = Value(value_);
  if (!value.is_object()) return Expected("an object");
  const auto member = value.find(std::string(key));
  if (member == value.end()) return Error(absl::StrCat("\"", key, "\" is missing"));
  return JsonCursor(&*member, origin_,
                    path_.empty() ? std::string(key) : absl::StrCat(path_, ".", key));
}

std::optional<JsonCursor> JsonCursor::Find(absl::string_view key) const {
  absl::StatusOr<JsonCursor> member = Get(key);
  if (!member.ok() || member->is_null()) return std::nullopt;
  return *std::move(member);
}

absl::Status JsonCursor::AllowOnly(std::initializer_list<absl::string_view> keys) const {
  return ForEachMember([&](absl::string_view key, const JsonCursor& member) {
    if (absl::c_linear_search(keys, key)) return absl::OkStatus();
    return member.Error(absl::StrCat("not an option that is understood here, expected ",
                                     absl::StrJoin(keys, ", ")));
  });
}

absl::StatusOr<std::string> JsonCursor::String() const {
  if (!is_string()) return Expected("a string");
  return Value(value_).get<std::string>();
}

absl::StatusOr<bool> JsonCursor::Bool() const {
  if (!Value(value_).is_boolean()) return Expected("true or false");
  return Value(value_).get<bool>();
}

absl::StatusOr<int64_t> JsonCursor::Integer(int64_t max) const {
  const Json& value = Value(value_);
  if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(max)) {
    return Expected(absl::StrCat("an integer of 0 to ", max));
  }
  return value.get<int64_t>();
}

absl::StatusOr<bool> JsonCursor::BoolOr(absl::string_view key, bool otherwise) const {
  const std::optional<JsonCursor> member = Find(key);
  if (!member) return otherwise;
  return member->Bool();
}

absl::Status JsonCursor::ForEachElement(
    absl::FunctionRef<absl::Status(const JsonCursor&)> visit) const {
  if (!is_array()) return Expected("an array");
  size_t index = 0;
  for (const Json& element : Value(value_)) {
    BATON_RETURN_IF_ERROR(
        visit(JsonCursor(&element, origin_, absl::StrCat(path_, "[", index++, "]"))));
  }
  return absl::OkStatus();
}

absl::Status JsonCursor::ForEachMember(
    absl::FunctionRef<absl::Status(absl::string_view key, const JsonCursor&)> visit) const {
  if (!Value(value_).is_object()) return Expected("an object");
  const std::string prefix = path_.empty() ? std::string() : absl::StrCat(path_, ".");
  for (const auto& [key, member] : Value(value_).items()) {
    BATON_RETURN_IF_ERROR(visit(
        key, JsonCursor(&member, origin_, absl::StrCat(prefix, Shortened(key, kMaxShownBytes)))));
  }
  return absl::OkStatus();
}

absl::Status JsonCursor::Error(absl::string_view message) const {
  return BadTokenizer(
      absl::StrCat(origin_, ": ", path_.empty() ? "the file" : path_, ": ", message));
}

absl::Status JsonCursor::Expected(absl::string_view expected) const {
  return Error(absl::StrCat("expected ", expected, ", found ", Shown(Value(value_))));
}

}  // namespace baton::tokenizer
