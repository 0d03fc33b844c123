// The file of product_choices.h, which survives restarts. Several workers may read and write it at
// once: a reader sees the complete file of one writer.
#ifndef BATON_COMMON_BACKEND_CUDA_PRODUCTS_CHOICES_FILE_H_
#define BATON_COMMON_BACKEND_CUDA_PRODUCTS_CHOICES_FILE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/backend/cuda/products/product_choices.h"

namespace baton::backend::cuda {

// Empty if there is no such file. DATA_LOSS if it is not a file of WriteChoices or larger than
// kMaxChoicesBytes; UNAVAILABLE, with the system's message, if it cannot be read.
absl::StatusOr<std::vector<DeviceChoices>> ReadChoices(const std::string& path);

// Creates missing folders. UNAVAILABLE, with the system's message; then `path` is unchanged.
absl::Status WriteChoices(const std::string& path, absl::Span<const DeviceChoices> devices);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_PRODUCTS_CHOICES_FILE_H_
