#include "common/base/error.h"

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace baton {
namespace {

constexpr char kReasonUrl[] = "baton/reason";
constexpr char kFieldUrl[] = "baton/field";
constexpr char kRetryAfterMsUrl[] = "baton/retry_after_ms";
constexpr char kRequestIdUrl[] = "baton/request_id";

std::string PayloadOr(const absl::Status& status, absl::string_view url) {
  auto payload = status.GetPayload(url);
  return payload ? std::string(*payload) : std::string();
}

}  // namespace

absl::Status MakeError(absl::StatusCode code, absl::string_view reason, absl::string_view message) {
  absl::Status status(code, message);
  status.SetPayload(kReasonUrl, absl::Cord(reason));
  return status;
}

absl::Status InvalidField(absl::string_view reason, absl::string_view field,
                          absl::string_view message) {
  absl::Status status =
      MakeError(absl::StatusCode::kInvalidArgument, reason, absl::StrCat(field, ": ", message));
  status.SetPayload(kFieldUrl, absl::Cord(field));
  return status;
}

absl::Status WithRetryAfter(absl::Status status, absl::Duration retry_after) {
  status.SetPayload(kRetryAfterMsUrl,
                    absl::Cord(absl::StrCat(absl::ToInt64Milliseconds(retry_after))));
  return status;
}

absl::Status WithRequestId(absl::Status status, absl::string_view request_id) {
  if (!request_id.empty()) status.SetPayload(kRequestIdUrl, absl::Cord(request_id));  // OK: none
  return status;
}

absl::Status WithDetails(absl::Status status, absl::string_view reason, absl::string_view field,
                         std::optional<absl::Duration> retry_after) {
  if (!reason.empty()) status.SetPayload(kReasonUrl, absl::Cord(reason));
  if (!field.empty()) status.SetPayload(kFieldUrl, absl::Cord(field));
  if (retry_after) status = WithRetryAfter(std::move(status), *retry_after);
  return status;
}

std::string ErrorReason(const absl::Status& status) { return PayloadOr(status, kReasonUrl); }
std::string ErrorField(const absl::Status& status) { return PayloadOr(status, kFieldUrl); }

std::string ErrorRequestId(const absl::Status& status) { return PayloadOr(status, kRequestIdUrl); }

std::optional<absl::Duration> ErrorRetryAfter(const absl::Status& status) {
  int64_t ms;
  if (!absl::SimpleAtoi(PayloadOr(status, kRetryAfterMsUrl), &ms)) return std::nullopt;
  return absl::Milliseconds(ms);
}

absl::Status Annotate(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(), absl::StrCat(context, ": ", status.message()));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    annotated.SetPayload(url, payload);
  });
  return annotated;
}

}  // namespace baton
