// Reads the body of an OpenAI request value by value, so that the router keeps no more of it than
// the request has: a field that the API does not have ends the reading before its value is kept,
// and the ids of prompts, of which there may be a million, never become JSON values.
#ifndef BATON_ROUTER_HTTP_BODY_READER_H_
#define BATON_ROUTER_HTTP_BODY_READER_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "baton/v1/inference.pb.h"
#include "common/json/json.h"

namespace baton::router {

// Most JSON values of one body, without the token ids of its prompts.
inline constexpr size_t kMaxBodyValues = json::kMaxValues;

// The field with the prompts, of which there may be a million ids.
struct PromptField {
  absl::string_view name;  // must outlive the reader
  size_t most = 1;
};

// Serves one call of json::Visit, which returns the error of status(), if there is one.
class BodyReader final : public json::Visitor {
 public:
  // `is_field`: whether a body has a field of that name; must outlive this.
  explicit BodyReader(absl::FunctionRef<bool(absl::string_view)> is_field,
                      const PromptField& prompts)
      : is_field_(is_field), field_(prompts) {}

  absl::Status OnScalar(json::Path path, json::Scalar&& scalar) override;
  absl::Status OnBegin(json::Path path, bool is_array) override;
  absl::Status OnEnd(json::Path path) override;

  // INVALID_ARGUMENT with the field: UNKNOWN_FIELD, WRONG_TYPE, or OUT_OF_RANGE, as for more than
  // kMaxBodyValues values; MALFORMED_JSON if the body is no object.
  const absl::Status& status() const { return status_; }
  // The body without its prompts, and without the unknown fields of messages that are null.
  json::Value TakeDocument() { return document_.Take(); }
  size_t values() const { return document_.values(); }  // number of the document's values
  // The prompts, as messages with nothing else: one or a list of them, each a text or token ids.
  std::vector<v1::GenerateRequest> TakePrompts() { return std::move(prompts_); }

 private:
  // An error unless the value's name is one that a body or a message has. `keep`: false for a null
  // that counts as absent.
  absl::Status CheckName(json::Path path, bool is_null, bool* keep);
  absl::Status AddPrompt(v1::GenerateRequest** prompt);
  absl::Status ReadPromptScalar(json::Path path, json::Scalar&& scalar);
  absl::Status BeginPrompt(json::Path path, bool is_array);
  absl::Status Keep(absl::Status status);  // becomes status() if it is an error

  bool IsPrompt(json::Path path) const { return !path.empty() && path[0].key == field_.name; }
  // "prompt", or "prompt[2]" of a list.
  std::string PromptName(json::Path path) const;

  const absl::FunctionRef<bool(absl::string_view)> is_field_;
  const PromptField field_;
  json::TreeBuilder document_{kMaxBodyValues};
  std::vector<v1::GenerateRequest> prompts_;
  bool prompt_is_ids_ = false;  // the field is one array of token ids
  absl::Status status_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_BODY_READER_H_
