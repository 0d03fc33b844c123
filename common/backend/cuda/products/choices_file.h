// The file that product_choices.h is kept in between starts. Several workers may read and write it
// at once: a reader finds one writer's file or another's, whole.
#ifndef BATON_COMMON_BACKEND_CUDA_PRODUCTS_CHOICES_FILE_H_
#define BATON_COMMON_BACKEND_CUDA_PRODUCTS_CHOICES_FILE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/backend/cuda/products/product_choices.h"

namespace baton::backend::cuda {

// None if there is no such file. DATA_LOSS if it is not what WriteChoices writes, or is no file, or
// larger than kMaxChoicesBytes; UNAVAILABLE, with the system's word, if it cannot be read. Waits
// for nothing but the disk.
absl::StatusOr<std::vector<DeviceChoices>> ReadChoices(const std::string& path);

// Makes the folders that are missing. UNAVAILABLE, with the system's word; then `path` is as it
// was.
absl::Status WriteChoices(const std::string& path, absl::Span<const DeviceChoices> devices);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_PRODUCTS_CHOICES_FILE_H_
