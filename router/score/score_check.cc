#include "router/score/score_check.h"

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/error.h"
#include "common/base/request_limits.h"
#include "common/base/status_macros.h"
#include "router/request/request_check.h"

namespace baton::router {

v1::GenerateRequest NamesOf(const v1::ScoreRequest& request) {
  v1::GenerateRequest names;
  names.set_model(request.model());
  names.set_request_id(request.request_id());
  names.set_tenant(request.tenant());
  names.set_priority(request.priority());
  names.set_cache_salt(request.cache_salt());
  return names;
}

absl::Status CheckScoreRequest(const v1::ScoreRequest& request, bool stream,
                               const Options& options) {
  BATON_RETURN_IF_ERROR(CheckModel(request.model(), options.served_model_name));
  BATON_RETURN_IF_ERROR(CheckNames(NamesOf(request)));
  BATON_RETURN_IF_ERROR(CheckText("prefix", request.prefix(), options.max_prompt_bytes));
  BATON_RETURN_IF_ERROR(stream ? CheckRange("settings.items", request.items_size(), 0, 0)
                               : CheckRange("items", request.items_size(), 1, kMaxScoreItems));
  BATON_RETURN_IF_ERROR(CheckRange("labels", request.labels_size(), 1, kMaxLabels));
  absl::flat_hash_set<absl::string_view> labels;
  for (const std::string& label : request.labels()) {
    if (label.empty()) return InvalidField("EMPTY_LABEL", "labels", "a label is empty");
    if (label.size() > kMaxLabelBytes) {
      return OutOfRange("labels", absl::StrCat("a label of ", label.size(), " bytes"),
                        absl::StrCat("at most ", kMaxLabelBytes, " expected"));
    }
    if (!labels.insert(label).second) {
      return InvalidField("DUPLICATE_LABEL", "labels",
                          absl::StrCat("\"", label, "\" is given twice"));
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::router
