#include "router/http/openai_embeddings.h"

#include <bit>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/request_limits.h"
#include "common/base/status_macros.h"
#include "common/json/json.h"
#include "router/http/body_reader.h"
#include "router/http/json_readers.h"
#include "router/options.h"

namespace baton::router {
namespace {

constexpr absl::string_view kInput = "input";
// `user` is as in OpenAiRequest; the last two are Baton's.
constexpr absl::string_view kFields[] = {
    "model", "input", "encoding_format", "dimensions", "user", "add_special_tokens", "cache_salt"};
// A float has so many bytes as text at most: a sign, nine digits, a point, an exponent.
constexpr size_t kFloatBytes = 16;

absl::Status ReadEncoding(const Value& value, EmbeddingsBody& body) {
  BATON_ASSIGN_OR_RETURN(const std::string format, Text("encoding_format", value));
  body.base64 = format == "base64";
  if (body.base64 || format == "float") return absl::OkStatus();
  return Unsupported("encoding_format", "only float and base64 are supported");
}

absl::Status ReadField(const std::string& name, const Value& value, EmbeddingsBody& body) {
  v1::EmbedRequest& request = body.request;
  if (name == "model") {
    BATON_ASSIGN_OR_RETURN(*request.mutable_model(), Text(name, value));
  } else if (name == "encoding_format") {
    return ReadEncoding(value, body);
  } else if (name == "dimensions") {
    BATON_ASSIGN_OR_RETURN(const int32_t dimensions, Int32(name, value));
    if (dimensions < 1) return OutOfRange(name, absl::StrCat(dimensions), "1 or more expected");
    request.set_dimensions(dimensions);
  } else if (name == "user") {
    BATON_ASSIGN_OR_RETURN(*request.mutable_tenant(), Text(name, value));
  } else if (name == "add_special_tokens") {
    BATON_ASSIGN_OR_RETURN(const bool add, Bool(name, value));
    request.set_add_special_tokens(add);
  } else if (name == "cache_salt") {
    BATON_ASSIGN_OR_RETURN(*request.mutable_cache_salt(), Text(name, value));
  }
  return absl::OkStatus();
}

// The shortest text that reads as the same float.
void AppendFloat(float value, std::string* out) {
  char text[kFloatBytes + 1];
  const std::to_chars_result end = std::to_chars(std::begin(text), std::end(text), value);
  out->append(text, end.ptr);
}

std::string BytesOf(const std::vector<float>& values) {
  std::string bytes;
  bytes.reserve(4 * values.size());
  for (const float value : values) {
    const auto bits = std::bit_cast<uint32_t>(value);
    for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(bits >> shift & 0xff);
  }
  return bytes;
}

}  // namespace

absl::StatusOr<EmbeddingsBody> ParseEmbeddings(absl::string_view text) {
  const auto is_field = [](absl::string_view name) { return absl::c_linear_search(kFields, name); };
  BodyReader reader(is_field, {kInput, kMaxEmbedInputs});
  const absl::Status read = json::Visit(text, "the request's body", reader);
  BATON_RETURN_IF_ERROR(reader.status());
  if (!read.ok()) {
    return MakeError(absl::StatusCode::kInvalidArgument, "MALFORMED_JSON", read.message());
  }
  EmbeddingsBody body;
  for (v1::GenerateRequest& prompt : reader.TakePrompts()) {
    v1::EmbedInput& input = *body.request.add_inputs();
    if (prompt.has_token_ids()) {
      input.mutable_token_ids()->Swap(prompt.mutable_token_ids());
    } else {
      input.set_text(std::move(*prompt.mutable_text()));
    }
  }
  if (body.request.inputs().empty()) return InvalidField("MISSING_FIELD", kInput, "required");
  const Value document = reader.TakeDocument();
  for (size_t i = 0; i < document.keys.size(); ++i) {
    if (document.items[i].is_null()) continue;
    BATON_RETURN_IF_ERROR(ReadField(document.keys[i], document.items[i], body));
  }
  return body;
}

int64_t EmbeddingsBytes(int64_t elements, bool base64) {
  return elements * static_cast<int64_t>(base64 ? 6 : kFloatBytes + 1);
}

EmbeddingsExchange::EmbeddingsExchange(RouterParts& parts, const Caller& caller,
                                       std::shared_ptr<HttpResponder> responder,
                                       HttpHeaders headers, bool base64)
    : ItemExchange(parts, caller, std::move(responder), std::move(headers), kInput.data(),
                   /*embeds=*/true),
      model_(parts.options.served_model_name),
      base64_(base64) {}

void EmbeddingsExchange::Result(ItemResult item) {
  absl::StrAppend(&data_, data_.empty() ? "" : ",", R"({"object":"embedding","index":)",
                  item.score.id(), R"(,"embedding":)");
  if (base64_) {
    absl::StrAppend(&data_, "\"", absl::Base64Escape(BytesOf(item.embedding)), "\"}");
    return;
  }
  char separator = '[';
  for (const float value : item.embedding) {
    data_ += std::exchange(separator, ',');
    AppendFloat(value, &data_);
  }
  data_ += "]}";
}

void EmbeddingsExchange::Finish(const v1::ScoreUsage& usage) {
  Respond(absl::StrCat(R"({"object":"list","data":[)", data_, R"(],"model":)",
                       nlohmann::json(model_).dump(), R"(,"usage":{"prompt_tokens":)",
                       usage.prompt_tokens(), R"(,"total_tokens":)", usage.prompt_tokens(), "}}"));
}

}  // namespace baton::router
