#include "common/model/tokenizer_ids.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/json/json.h"

namespace baton::model {
namespace {

constexpr int64_t kMaxId = int64_t{1} << 30;

class IdReader : public json::Visitor {
 public:
  absl::Status OnScalar(json::Path path, json::Scalar&& scalar) override {
    if (!IsId(path)) return absl::OkStatus();
    if (scalar.kind != json::Scalar::Kind::kInteger || scalar.integer < 0 ||
        scalar.integer > kMaxId) {
      return absl::InvalidArgumentError(absl::StrCat(json::PathText(path), ": found ",
                                                     json::ScalarText(scalar).substr(0, 80),
                                                     ", expected a token id"));
    }
    highest_ = std::max(highest_, scalar.integer);
    return absl::OkStatus();
  }
  absl::Status OnBegin(json::Path path, bool is_array) override {
    const bool is_vocab = path.size() == 2 && path[0].key == "model" && path[1].key == "vocab";
    if (is_vocab && is_array) {
      return absl::UnimplementedError(
          "model.vocab: found a list, as a Unigram model has it, expected an object of token ids");
    }
    if (!IsId(path)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(json::PathText(path), ": found no number, expected a token id"));
  }
  int64_t highest() const { return highest_; }

 private:
  static bool IsId(json::Path path) {
    if (path.size() != 3) return false;
    if (path[0].key == "model") return path[1].key == "vocab" && !path[2].in_array;
    return path[0].key == "added_tokens" && path[1].in_array && path[2].key == "id";
  }
  int64_t highest_ = -1;
};

}  // namespace

absl::StatusOr<int> CountTokens(absl::string_view tokenizer_json, absl::string_view file) {
  IdReader reader;
  BATON_RETURN_IF_ERROR(json::Visit(tokenizer_json, file, reader));
  if (reader.highest() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": model.vocab: found no token, expected an object of token ids"));
  }
  return static_cast<int>(reader.highest() + 1);
}

}  // namespace baton::model
