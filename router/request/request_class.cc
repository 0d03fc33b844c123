#include "router/request/request_class.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/request_limits.h"
#include "common/base/status_macros.h"
#include "common/json/json.h"
#include "router/options.h"
#include "router/request/router_parts.h"

namespace baton::router {
namespace {

constexpr int64_t kMostTokensOfClass = 1 << 30;
constexpr int64_t kMostSloMs = 86'400'000;
constexpr size_t kMaxClassValues = size_t{1} << 18;

absl::Status BadClasses(absl::string_view field, absl::string_view expected) {
  return MakeError(absl::StatusCode::kInvalidArgument, "BAD_CLASSES",
                   absl::StrCat(field, ": ", expected, " expected"));
}

const json::Scalar* ScalarOf(const json::Value& value, json::Scalar::Kind kind) {
  return value.kind == json::Value::Kind::kScalar && value.scalar.kind == kind ? &value.scalar
                                                                               : nullptr;
}

absl::StatusOr<int64_t> WholeNumber(absl::string_view field, const json::Value& value,
                                    int64_t most) {
  const json::Scalar* number = ScalarOf(value, json::Scalar::Kind::kInteger);
  if (number != nullptr && number->integer >= 1 && number->integer <= most) return number->integer;
  return BadClasses(field, absl::StrCat("a whole number from 1 to ", most));
}

absl::StatusOr<v1::Priority> PriorityNamed(absl::string_view field, const json::Value& value) {
  const json::Scalar* name = ScalarOf(value, json::Scalar::Kind::kString);
  if (name != nullptr && name->text == "low") return v1::PRIORITY_LOW;
  if (name != nullptr && name->text == "normal") return v1::PRIORITY_NORMAL;
  if (name != nullptr && name->text == "high") return v1::PRIORITY_HIGH;
  return BadClasses(field, "\"low\", \"normal\" or \"high\"");
}

absl::Status ReadTokens(absl::string_view field, const json::Value& value, int* tokens) {
  BATON_ASSIGN_OR_RETURN(const int64_t number, WholeNumber(field, value, kMostTokensOfClass));
  *tokens = static_cast<int>(number);
  return absl::OkStatus();
}

absl::Status ReadMilliseconds(absl::string_view field, const json::Value& value,
                              absl::Duration* duration) {
  BATON_ASSIGN_OR_RETURN(const int64_t number, WholeNumber(field, value, kMostSloMs));
  *duration = absl::Milliseconds(number);
  return absl::OkStatus();
}

absl::Status ReadClassField(absl::string_view field, absl::string_view name,
                            const json::Value& value, RequestClass* out) {
  if (name == "max_context_tokens") return ReadTokens(field, value, &out->max_context_tokens);
  if (name == "default_max_tokens") return ReadTokens(field, value, &out->default_max_tokens);
  if (name == "ttft_slo_ms") return ReadMilliseconds(field, value, &out->ttft_slo);
  if (name == "inter_token_slo_ms") return ReadMilliseconds(field, value, &out->inter_token_slo);
  if (name == "max_output_tokens") {
    const int of_flag = out->max_output_tokens;
    BATON_RETURN_IF_ERROR(ReadTokens(field, value, &out->max_output_tokens));
    if (of_flag > 0) out->max_output_tokens = std::min(out->max_output_tokens, of_flag);
    return absl::OkStatus();
  }
  if (name == "default_priority") {
    BATON_ASSIGN_OR_RETURN(out->default_priority, PriorityNamed(field, value));
    return absl::OkStatus();
  }
  if (name == "max_priority") {
    BATON_ASSIGN_OR_RETURN(out->max_priority, PriorityNamed(field, value));
    return absl::OkStatus();
  }
  if (name == "pool") {
    const json::Scalar* pool = ScalarOf(value, json::Scalar::Kind::kString);
    if (pool == nullptr) return BadClasses(field, "a string");
    const absl::Status fits = CheckPool(field, pool->text);
    if (!fits.ok()) {
      return MakeError(absl::StatusCode::kInvalidArgument, "BAD_CLASSES", fits.message());
    }
    out->pool = pool->text;
    return absl::OkStatus();
  }
  if (name == "spill") {
    const json::Scalar* spill = ScalarOf(value, json::Scalar::Kind::kBool);
    if (spill == nullptr) return BadClasses(field, "true or false");
    out->spill = spill->boolean;
    return absl::OkStatus();
  }
  return MakeError(absl::StatusCode::kInvalidArgument, "BAD_CLASSES",
                   absl::StrCat(field, ": unknown field"));
}

absl::StatusOr<RequestClass> ReadClass(absl::string_view field, const json::Value& value,
                                       const RequestClass& flags) {
  if (value.kind != json::Value::Kind::kObject) return BadClasses(field, "an object");
  RequestClass read = flags;
  for (size_t i = 0; i < value.keys.size(); ++i) {
    BATON_RETURN_IF_ERROR(ReadClassField(absl::StrCat(field, ".", json::Printable(value.keys[i])),
                                         value.keys[i], value.items[i], &read));
  }
  if (read.default_priority > read.max_priority) {
    return BadClasses(absl::StrCat(field, ".default_priority"), "at most max_priority");
  }
  return read;
}

using NamedClasses = absl::flat_hash_map<std::string, std::shared_ptr<const RequestClass>>;

absl::StatusOr<std::shared_ptr<const RequestClass>> ClassNamed(const std::string& field,
                                                               const json::Value& value,
                                                               const NamedClasses& classes) {
  const json::Scalar* name = ScalarOf(value, json::Scalar::Kind::kString);
  const auto found = name == nullptr ? classes.end() : classes.find(name->text);
  if (found == classes.end()) return BadClasses(field, "the name of one of `classes`");
  return found->second;
}

absl::StatusOr<ClassTable> ReadTable(const json::Value& document, const RequestClass& flags) {
  if (document.kind != json::Value::Kind::kObject) return BadClasses("the file", "a JSON object");
  for (const std::string& key : document.keys) {
    if (key != "classes" && key != "tenants" && key != "default") {
      return MakeError(absl::StatusCode::kInvalidArgument, "BAD_CLASSES",
                       absl::StrCat(json::Printable(key), ": unknown field"));
    }
  }
  NamedClasses classes;
  if (const json::Value* named = document.Find("classes"); named != nullptr) {
    if (named->kind != json::Value::Kind::kObject) return BadClasses("classes", "an object");
    if (named->keys.size() > kMaxClasses) {
      return BadClasses("classes", absl::StrCat("at most ", kMaxClasses));
    }
    for (size_t i = 0; i < named->keys.size(); ++i) {
      RequestClass read;
      BATON_ASSIGN_OR_RETURN(read,
                             ReadClass(absl::StrCat("classes.", json::Printable(named->keys[i])),
                                       named->items[i], flags));
      classes[named->keys[i]] = std::make_shared<const RequestClass>(std::move(read));
    }
  }
  ClassTable table;
  table.fallback = std::make_shared<const RequestClass>(flags);
  if (const json::Value* name = document.Find("default"); name != nullptr) {
    BATON_ASSIGN_OR_RETURN(table.fallback, ClassNamed("default", *name, classes));
  }
  const json::Value* tenants = document.Find("tenants");
  if (tenants == nullptr) return table;
  if (tenants->kind != json::Value::Kind::kObject) return BadClasses("tenants", "an object");
  for (size_t i = 0; i < tenants->keys.size(); ++i) {
    const std::string field = absl::StrCat("tenants.", json::Printable(tenants->keys[i]));
    if (!CheckTenant(tenants->keys[i]).ok()) return BadClasses(field, "the name of a tenant");
    BATON_ASSIGN_OR_RETURN(table.tenants[tenants->keys[i]],
                           ClassNamed(field, tenants->items[i], classes));
  }
  return table;
}

const char* PriorityText(v1::Priority priority) {
  return priority == v1::PRIORITY_LOW ? "low" : priority == v1::PRIORITY_HIGH ? "high" : "normal";
}

absl::Status CheckOutput(absl::string_view field, int asked, int most) {
  if (most <= 0 || asked <= most) return absl::OkStatus();
  return InvalidField("OUTPUT_LIMIT", field,
                      absl::StrCat(asked, " given, at most ", most,
                                   " accepted (--max-output-tokens, or the tenant's class)"));
}

}  // namespace

RequestClass ClassOfFlags(const Options& options) {
  RequestClass flags;
  flags.max_output_tokens = options.max_output_tokens;
  flags.default_max_tokens = options.default_max_tokens;
  flags.spill = options.pool_spill;
  return flags;
}

absl::StatusOr<ClassTable> ParseClasses(absl::string_view text, absl::string_view file,
                                        const RequestClass& flags) {
  const absl::StatusOr<json::Value> document = json::Parse(text, file, kMaxClassValues);
  if (!document.ok()) {
    return MakeError(absl::StatusCode::kInvalidArgument, "BAD_CLASSES",
                     document.status().message());
  }
  absl::StatusOr<ClassTable> table = ReadTable(*document, flags);
  if (!table.ok()) return Annotate(table.status(), file);
  return table;
}

absl::StatusOr<std::unique_ptr<RequestClasses>> RequestClasses::Load(const std::string& path,
                                                                     RequestClass flags,
                                                                     const Clock& clock) {
  std::unique_ptr<RequestClasses> classes(new RequestClasses(path, std::move(flags), clock));
  absl::MutexLock lock(&classes->mutex_);
  BATON_RETURN_IF_ERROR(classes->Read());
  return classes;
}

absl::Status RequestClasses::Read() {
  std::optional<std::string> text;
  BATON_ASSIGN_OR_RETURN(text, file_.Look());
  if (!text) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(table_, ParseClasses(*text, file_.path(), flags_));
  BATON_LOG(Info) << "classes of " << table_.tenants.size() << " tenants read from "
                  << file_.path();
  return absl::OkStatus();
}

std::shared_ptr<const RequestClass> RequestClasses::Of(absl::string_view tenant) {
  absl::MutexLock lock(&mutex_);
  if (const absl::Status read = Read(); !read.ok()) {
    BATON_LOG(Error) << "classes: " << read.message() << "; those of the last good file stay";
    if (on_bad_file_) on_bad_file_();
  }
  const auto found = table_.tenants.find(tenant);
  return found == table_.tenants.end() ? table_.fallback : found->second;
}

RequestClass ClassOf(const RouterParts& parts, absl::string_view tenant) {
  return parts.classes == nullptr ? ClassOfFlags(parts.options) : *parts.classes->Of(tenant);
}

absl::Status ApplyClass(const RequestClass& request_class, v1::GenerateRequest* request) {
  BATON_RETURN_IF_ERROR(CheckOutput("stop.max_tokens", request->stop().max_tokens(),
                                    request_class.max_output_tokens));
  BATON_RETURN_IF_ERROR(CheckOutput("stop.min_tokens", request->stop().min_tokens(),
                                    request_class.max_output_tokens));
  if (request->priority() == v1::PRIORITY_UNSPECIFIED) {
    const bool named = request_class.default_priority != v1::PRIORITY_UNSPECIFIED;
    request->set_priority(named ? request_class.default_priority
                          : request_class.max_priority < v1::PRIORITY_NORMAL
                              ? request_class.max_priority
                              : v1::PRIORITY_UNSPECIFIED);
  }
  if (request->priority() <= request_class.max_priority) return absl::OkStatus();
  return InvalidField(
      "PRIORITY_LIMIT", "priority",
      absl::StrCat(PriorityText(request->priority()), " given, at most ",
                   PriorityText(request_class.max_priority), " accepted by the tenant's class"));
}

std::string PoolFor(const RequestClass& request_class, const Options& options, int prompt_tokens) {
  const bool is_long =
      options.long_prompt_tokens > 0 && prompt_tokens >= options.long_prompt_tokens;
  return request_class.pool.empty() && is_long ? options.long_pool : request_class.pool;
}

}  // namespace baton::router
