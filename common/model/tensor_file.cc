#include "common/model/tensor_file.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"

namespace baton::model {

uint64_t StoredRow(const TensorEntry& entry, uint64_t row) {
  if (entry.interleaved_heads == 0) return row;
  const uint64_t head_rows = entry.shape[0] / static_cast<uint64_t>(entry.interleaved_heads);
  const uint64_t half = head_rows / 2, in_head = row % head_rows;
  return row - in_head + in_head % half * 2 + in_head / half;
}

std::string ShapeText(absl::Span<const uint64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::string_view TensorFile::Bytes(const TensorEntry& entry) const {
  BATON_CHECK_LE(entry.end, file_->bytes().size() - data_offset_);
  return file_->bytes().substr(data_offset_ + entry.begin, entry.end - entry.begin);
}

}  // namespace baton::model
