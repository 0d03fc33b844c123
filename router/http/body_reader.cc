#include "router/http/body_reader.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "router/http/json_readers.h"
#include "router/http/openai_request.h"

namespace baton::router {
namespace {

constexpr absl::string_view kMessages = "messages";
constexpr char kPromptExpected[] = "a string or an array of token ids";

absl::Status UnknownField(json::Path path) {
  const std::string name = json::PathText(path);
  return InvalidField("UNKNOWN_FIELD", name, absl::StrCat("unknown field ", json::Quoted(name)));
}

absl::Status TooManyValues(json::Path path) {
  return OutOfRange(
      json::PathText(path.subspan(0, 1)),
      absl::StrCat("more than ", kMaxBodyValues, " JSON values in the body"),
      absl::StrCat("at most ", kMaxBodyValues, " expected, the token ids of prompts aside"));
}

absl::Status NotAnObject() {
  return MakeError(absl::StatusCode::kInvalidArgument, "MALFORMED_JSON",
                   "the request's body is no JSON object");
}

}  // namespace

std::string BodyReader::PromptName(json::Path path) const {
  if (path.size() < 2 || prompt_is_ids_) return std::string(field_.name);
  return absl::StrCat(field_.name, "[", path[1].index, "]");
}

absl::Status BodyReader::Keep(absl::Status status) {
  if (!status.ok()) status_ = status;
  return status;
}

absl::Status BodyReader::CheckName(json::Path path, bool is_null, bool* keep) {
  const bool of_message =
      path.size() == 3 && path[0].key == kMessages && path[1].in_array && !path[2].in_array;
  *keep = path.size() == 1 ? is_field_(path[0].key) : !of_message || IsMessageField(path[2].key);
  if (*keep) return absl::OkStatus();
  return is_null ? absl::OkStatus() : UnknownField(path);
}

absl::Status BodyReader::OnScalar(json::Path path, json::Scalar&& scalar) {
  if (path.empty()) return Keep(NotAnObject());
  bool keep = true;
  BATON_RETURN_IF_ERROR(Keep(CheckName(path, scalar.kind == Scalar::Kind::kNull, &keep)));
  if (!keep) return absl::OkStatus();
  if (IsPrompt(path)) return Keep(ReadPromptScalar(path, std::move(scalar)));
  if (document_.OnScalar(path, std::move(scalar)).ok()) return absl::OkStatus();
  return Keep(TooManyValues(path));
}

absl::Status BodyReader::OnBegin(json::Path path, bool is_array) {
  if (path.empty() && is_array) return Keep(NotAnObject());
  bool keep = true;
  BATON_RETURN_IF_ERROR(Keep(CheckName(path, /*is_null=*/false, &keep)));
  if (IsPrompt(path)) return Keep(BeginPrompt(path, is_array));
  if (document_.OnBegin(path, is_array).ok()) return absl::OkStatus();
  return Keep(TooManyValues(path));
}

absl::Status BodyReader::OnEnd(json::Path path) {
  if (!IsPrompt(path)) return document_.OnEnd(path);
  // Neither the array of prompts nor one of ids may be empty.
  const bool none = path.size() == 1 ? prompts_.empty() : prompts_.back().token_ids().ids().empty();
  return none ? Keep(WrongType(PromptName(path), kPromptExpected)) : absl::OkStatus();
}

absl::Status BodyReader::AddPrompt(v1::GenerateRequest** prompt) {
  if (prompts_.size() >= field_.most) {
    return OutOfRange(field_.name, absl::StrCat("more than ", field_.most, " prompts"),
                      absl::StrCat("at most ", field_.most, " expected"));
  }
  *prompt = &prompts_.emplace_back();
  return absl::OkStatus();
}

absl::Status BodyReader::ReadPromptScalar(json::Path path, json::Scalar&& scalar) {
  const bool is_text = scalar.kind == Scalar::Kind::kString;
  if (path.size() == 1 && scalar.kind == Scalar::Kind::kNull) return absl::OkStatus();
  v1::GenerateRequest* prompt = nullptr;
  if (path.size() <= 2 && is_text && !prompt_is_ids_) {
    BATON_RETURN_IF_ERROR(AddPrompt(&prompt));
    prompt->set_text(std::move(scalar.text));
    return absl::OkStatus();
  }
  // The first element shows whether the array is one prompt of ids or a list of prompts.
  if (path.size() == 2 && prompts_.empty() && IsNumber(scalar)) {
    prompt_is_ids_ = true;
    BATON_RETURN_IF_ERROR(AddPrompt(&prompt));
  }
  const std::string name = PromptName(path);
  if (path.size() < 3 && !prompt_is_ids_) return WrongType(name, kPromptExpected);
  BATON_ASSIGN_OR_RETURN(const int32_t id, Int32(name, scalar));
  prompts_.back().mutable_token_ids()->add_ids(id);
  return absl::OkStatus();
}

absl::Status BodyReader::BeginPrompt(json::Path path, bool is_array) {
  if (path.size() == 2 && prompt_is_ids_) return WrongType(field_.name, "a whole number");
  if (!is_array || path.size() > 2) {
    return WrongType(PromptName(path), kPromptExpected);
  }
  v1::GenerateRequest* prompt = nullptr;
  return path.size() == 1 ? absl::OkStatus() : AddPrompt(&prompt);
}

}  // namespace baton::router
