#include "common/model/tensor_file.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"

namespace baton::model {

std::string ShapeText(absl::Span<const uint64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::string_view TensorFile::Bytes(const TensorEntry& entry) const {
  BATON_CHECK_LE(entry.end, file_->bytes().size() - data_offset_);
  return file_->bytes().substr(data_offset_ + entry.begin, entry.end - entry.begin);
}

}  // namespace baton::model
