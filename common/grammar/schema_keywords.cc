#include "common/grammar/schema_keywords.h"

namespace baton::grammar {

const std::set<absl::string_view>& Annotations() {
  static const auto* const keywords = new std::set<absl::string_view>{
      "title",      "description", "default",   "examples", "$schema",    "$comment",
      "deprecated", "readOnly",    "writeOnly", "$defs",    "definitions"};
  return *keywords;
}

const std::map<absl::string_view, std::set<absl::string_view>>& KeywordsOfTypes() {
  static const auto* const keywords = new std::map<absl::string_view, std::set<absl::string_view>>{
      {"object", {"properties", "required", "additionalProperties"}},
      {"array", {"items", "prefixItems", "minItems", "maxItems"}},
      {"string", {"minLength", "maxLength", "pattern", "format"}},
      {"integer", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}},
      {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}},
      {"boolean", {}},
      {"null", {}}};
  return *keywords;
}

const std::set<absl::string_view>& Formats() {
  static const auto* const formats = new std::set<absl::string_view>{
      "date", "time", "date-time", "duration", "hostname", "ipv4", "ipv6", "uuid"};
  return *formats;
}

}  // namespace baton::grammar
