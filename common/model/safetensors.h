// One .safetensors file: mapped, and validated as strictly as the format allows.
// Layout: u64 little-endian N, N bytes of JSON, then the tensors' bytes without gaps.
#ifndef BATON_COMMON_MODEL_SAFETENSORS_H_
#define BATON_COMMON_MODEL_SAFETENSORS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/model/tensor_file.h"

namespace baton::model {

// NOT_FOUND, or INVALID_ARGUMENT with the file and the tensor. Accepts a file only if the header is
// within it and at most 100 MB, no key occurs twice, every dtype is known, every span is
// shape × dtype (checked for overflow), and the spans cover the rest of the file from its first
// byte to its last, without gap or overlap.
absl::StatusOr<std::unique_ptr<TensorFile>> OpenSafetensors(const std::string& path);

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_SAFETENSORS_H_
