// Packs weight matrices in the layout of a device's products.
#ifndef BATON_COMMON_BACKEND_MATRIX_PACKER_H_
#define BATON_COMMON_BACKEND_MATRIX_PACKER_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/backend/tensor.h"

namespace baton::backend {

// A weight matrix W [out_features, in_features] in the layout of the device's matrix products.
class PackedMatrix {
 public:
  virtual ~PackedMatrix() = default;
  int64_t out_features() const { return out_features_; }
  int64_t in_features() const { return in_features_; }
  virtual int64_t size_bytes() const = 0;  // of the memory that it is packed in

 protected:
  PackedMatrix(int64_t out_features, int64_t in_features)
      : out_features_(out_features), in_features_(in_features) {}
  int64_t out_features_;
  int64_t in_features_;
};

// RESOURCE_EXHAUSTED, naming the size, if the memory does not have that much. Thread: as Backend.
class MatrixPacker {
 public:
  virtual ~MatrixPacker() = default;
  // Several matrices with one in_features, stacked by rows into one (q, k and v; gate and up).
  virtual absl::StatusOr<std::unique_ptr<PackedMatrix>> Pack(
      absl::Span<const HostMatrix> stacked) = 0;
  // The same for weights of few bits, all of the same bits, group size and scale type.
  // UNIMPLEMENTED (UNSUPPORTED_MODEL) if the device has no product for them.
  virtual absl::StatusOr<std::unique_ptr<PackedMatrix>> PackQuantized(
      absl::Span<const QuantizedHostMatrix> stacked) = 0;
  // The same for matrices of several forms, of which super-blocks keep their values. REQUIRES:
  // packs_any().
  virtual bool packs_any() const { return false; }
  virtual absl::StatusOr<std::unique_ptr<PackedMatrix>> PackAny(
      absl::Span<const AnyHostMatrix> stacked) {
    return absl::UnimplementedError("this device has no product with super-blocks");
  }
};

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_MATRIX_PACKER_H_
