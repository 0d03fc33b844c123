// Structured output: what a client asks for, and the messages between a worker and baton-grammar.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/utf8.h"
#include "common/grammar/frames.h"
#include "common/grammar/grammar_process.h"
#include "common/grammar/normal_regex.h"
#include "common/grammar/schema_check.h"
#include "common/grammar/tool_call_grammar.h"
#include "common/json/json.h"
#include "tests/fuzz/fuzz_target.h"

namespace baton::fuzz {
namespace {

// The first byte is the kind; bytes 0xff separate the texts.
void FuzzGrammarSpec(absl::string_view data) {
  if (data.empty()) return;
  grammar::GrammarSpec spec;
  spec.kind = static_cast<grammar::GrammarSpec::Kind>(static_cast<unsigned char>(data[0]) % 5);
  spec.texts = absl::StrSplit(data.substr(1), '\xff');
  if (spec.kind == grammar::GrammarSpec::Kind::kJsonObject) spec.texts.clear();
  const absl::Status status = grammar::CheckSpec(spec);
  if (!status.ok()) {
    BATON_CHECK(absl::IsInvalidArgument(status)) << status;
    BATON_CHECK(!ErrorReason(status).empty() && !ErrorField(status).empty()) << status;
    return;
  }
  for (const std::string& text : spec.texts) BATON_CHECK(IsUtf8(text));
  if (spec.kind == grammar::GrammarSpec::Kind::kToolCalls) {
    const auto made = grammar::MakeToolCallGrammar(spec.texts, {{"<t>", 3}, {"<t>>", 5}, {"", 7}},
                                                   /*max_whitespace=*/16);
    if (!made.ok()) {  // a trigger that ends within a special token
      BATON_CHECK(ErrorField(made.status()) == "structured_output.tool_calls.trigger");
      return;
    }
    for (const int32_t id : made->special_tokens) BATON_CHECK(id == 3 || id == 5);
    // But for the private texts, it is JSON.
    const std::string tag = absl::StrReplaceAll(made->structural_tag, {{"\xff", "?"}});
    BATON_CHECK(nlohmann::json::accept(tag)) << tag;
    return;
  }
  if (spec.kind != grammar::GrammarSpec::Kind::kJsonSchema) return;
  BATON_CHECK(spec.texts.size() == 1 && json::Parse(spec.texts[0], "schema").ok());
  const absl::StatusOr<std::string> normal = grammar::NormalSchema(spec.texts[0]);
  BATON_CHECK(normal.ok() && json::Parse(*normal, "schema").ok()) << normal.status();
}

// The first byte is the use.
void FuzzGrammarRegex(absl::string_view data) {
  if (data.empty()) return;
  const auto use = data[0] % 2 == 0 ? grammar::RegexUse::kAnswer : grammar::RegexUse::kJsonString;
  const absl::string_view regex = data.substr(1);
  const absl::StatusOr<std::string> normal = grammar::NormalRegex(regex, use, "regex");
  if (!normal.ok()) {
    BATON_CHECK(absl::IsInvalidArgument(normal.status()) && ErrorField(normal.status()) == "regex")
        << normal.status();
    return;
  }
  BATON_CHECK(regex.size() <= grammar::kMaxRegexBytes && IsUtf8(regex) && IsUtf8(*normal));
  // The normal form is an expression of the same rules, but that ranges may end with surrogates.
  if (normal->empty() || normal->size() > grammar::kMaxRegexBytes) return;
  if (absl::StrContains(*normal, "\\ud800") || absl::StrContains(*normal, "\\udfff")) return;
  const absl::Status again =
      grammar::NormalRegex(*normal, grammar::RegexUse::kAnswer, "regex").status();
  BATON_CHECK(again.ok()) << regex << " becomes " << *normal << ": " << again;
}

// The first byte is the number of reads, and the next ones are their kinds; the frame follows.
void FuzzGrammarFrames(absl::string_view data) {
  if (data.empty()) return;
  const size_t reads = std::min<size_t>(static_cast<unsigned char>(data[0]) % 16, data.size() - 1);
  const absl::string_view kinds = data.substr(1, reads);
  const absl::string_view frame = data.substr(1 + reads);
  grammar::FrameReader reader(frame);
  size_t bytes = 0;
  for (const char kind : kinds) {
    const bool ok_before = reader.ok();
    size_t got = 0;
    switch (static_cast<unsigned char>(kind) % 4) {
      case 0:
        got = reader.Number() != 0 ? 8 : 0;
        break;
      case 1: {
        const absl::string_view text = reader.Text();
        BATON_CHECK(text.empty() || (text.begin() >= frame.begin() && text.end() <= frame.end()));
        got = text.size();
        break;
      }
      case 2:
        got = reader.Ids().size() * 4;
        break;
      default:
        got = reader.Words().size() * 4;
    }
    bytes += got;
    BATON_CHECK(ok_before || (got == 0 && !reader.ok()));
  }
  BATON_CHECK(bytes <= frame.size());
  grammar::FrameReader reply(frame);
  const absl::Status status = grammar::ReadStatus(reply);
  BATON_CHECK(status.ok() || absl::IsUnavailable(status) || !ErrorReason(status).empty());
}

}  // namespace

std::vector<FuzzTarget> GrammarTargets() {
  using std::string_literals::operator""s;
  const std::string schema =
      R"({"type": "object", "properties": {"a": {"type": ["string", "null"], "maxLength": 5},
      "b": {"$ref": "#/$defs/d"}, "c": {"oneOf": [{"const": 1}, {"enum": ["x"]}]},
      "e": {"type": "string", "pattern": "^[a-z]{1,4}$"}, "f": {"type": "string", "format": "date"}},
      "required": ["a"], "additionalProperties": false,
      "$defs": {"d": {"type": "array", "items": {"type": "integer", "minimum": -5}, "maxItems": 3}}})";
  grammar::FrameWriter frame;
  frame.Number(7).Text("text").Ids({1, -2}).Words({3});
  grammar::FrameWriter reply;
  grammar::WriteStatus(MakeError(absl::StatusCode::kInvalidArgument, "SCHEMA_INVALID", "m"), reply);
  return {
      {"grammar_spec",
       FuzzGrammarSpec,
       {absl::StrCat("\x01", schema), "\x03yes\xffno\xffn\"o",
        absl::StrCat("\x04rs\xff<t>\xff<t>>\n\xff: \xff\xff, \xff]\xff\xff"
                     "1\xff\xff"
                     "0\xff"
                     "f\xff",
                     schema),
        absl::StrCat("\x04\xff\xff{\"n\": \"\xff\": \xff}\xff; \xff\xff\xff"
                     "0\xff\xff"
                     "2\xff{\xff<|x|>\xff"
                     "f\xff\xffg\xff",
                     schema),
        absl::StrCat("\x04r\xff\xff<t>f=\xff>\xff</f>\xff\n\xff\xff\xff"
                     "2\xff\xff"
                     "0\xff"
                     "f\xff",
                     R"({"type": "object", "properties": {"a": {"type": "string"},
                        "b": {"enum": ["x", "y"]}, "c": {"type": "integer"}}, "required": ["a"]})"),
        "\x04s\xff<t>\xff<c>\xff:\xff\xff\xff</t>\xff<t>\xff"
        "1\xff\xff"
        "1\xff<c>\xff"
        "f\xff"}},
      {"grammar_regex",
       FuzzGrammarRegex,
       {absl::StrCat("\x00"s, R"(^(?:ab|c.)?d{2}e{1,}[^\]\-a-z\d]\x41\u00e9+?$)"),
        absl::StrCat("\x01", R"([a-z]{1,40}(_[0-9]+)*)")}},
      {"grammar_frames",
       FuzzGrammarFrames,
       {absl::StrCat("\x04\x00\x01\x02\x03"s, frame.bytes()),
        absl::StrCat("\x02\x01\x01"s, reply.bytes())}},
  };
}

}  // namespace baton::fuzz
