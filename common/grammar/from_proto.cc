#include "common/grammar/from_proto.h"

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/grammar/tool_call_grammar.h"

namespace baton::grammar {

namespace {

GrammarSpec KindFromProto(const v1::StructuredOutput& structured_output) {
  using Kind = GrammarSpec::Kind;
  switch (structured_output.kind_case()) {
    case v1::StructuredOutput::kJsonObject:
      return {Kind::kJsonObject};
    case v1::StructuredOutput::kJsonSchema:
      return {Kind::kJsonSchema, {structured_output.json_schema()}};
    case v1::StructuredOutput::kRegex:
      return {Kind::kRegex, {structured_output.regex()}};
    case v1::StructuredOutput::kToolCalls:
      return {Kind::kToolCalls, ToolCallTexts(structured_output.tool_calls())};
    default: {
      const auto& texts = structured_output.choices().texts();
      return {Kind::kChoices, {texts.begin(), texts.end()}};
    }
  }
}

}  // namespace

GrammarSpec FromProto(const v1::StructuredOutput& structured_output) {
  GrammarSpec spec = KindFromProto(structured_output);
  if (structured_output.has_reasoning()) {
    spec.reasoning = {structured_output.reasoning().begin(), structured_output.reasoning().end()};
  }
  spec.any_whitespace = structured_output.any_whitespace();
  return spec;
}

absl::Status CheckBeside(bool beams, bool ignores_eos, bool min_tokens) {
  const struct {
    bool given;
    const char* field;
    const char* why;
  } excluded[] = {
      {beams, "beam_width", "beam search is not constrained"},
      {ignores_eos, "stop.ignore_eos", "the answer ends where the grammar ends"},
      {min_tokens, "stop.min_tokens", "the answer ends where the grammar ends"},
  };
  for (const auto& [given, field, why] : excluded) {
    if (given) {
      return InvalidField("NOT_WITH_STRUCTURED_OUTPUT", field,
                          absl::StrCat("given together with structured_output: ", why));
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::grammar
