#include "router/http/reasoning_effort.h"

#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/error.h"
#include "router/http/json_readers.h"

namespace baton::router {

absl::Status ReadReasoningEffort(absl::string_view name, const json::Value& value,
                                 OpenAiRequest& request) {
  BATON_ASSIGN_OR_RETURN(request.reasoning_effort, Text(name, value));
  request.reasoning_effort_field = std::string(name);
  if (absl::c_linear_search(kReasoningEfforts, request.reasoning_effort)) return absl::OkStatus();
  return OutOfRange(name, json::Quoted(request.reasoning_effort),
                    absl::StrCat("one of ", absl::StrJoin(kReasoningEfforts, ", "), " expected"));
}

void ApplyReasoningEffort(const chat::ModelChat& chat, OpenAiRequest* request) {
  if (request->reasoning_effort.empty()) return;
  json::Value& variables = request->conversation.variables;
  const auto is_given = [&](absl::string_view name) { return variables.Find(name) != nullptr; };
  const bool has_switch = is_given("enable_thinking") || is_given("thinking");
  bool has_effect = false;
  const auto set = [&](absl::string_view name, bool given, json::Value value) {
    if (!chat.ReadsVariable(name)) return;
    has_effect = true;
    if (!given) json::AddMember(name, std::move(value), &variables);
  };
  set("reasoning_effort", is_given("reasoning_effort"), json::TextValue(request->reasoning_effort));
  for (const char* const name : {"enable_thinking", "thinking"}) {
    set(name, has_switch, json::BoolValue(request->reasoning_effort != "none"));
  }
  if (!has_effect) request->ignored.push_back(request->reasoning_effort_field);
}

}  // namespace baton::router
