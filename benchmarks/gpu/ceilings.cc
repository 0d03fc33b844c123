#include "benchmarks/gpu/ceilings.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "benchmarks/gpu/read_kernel.h"
#include "benchmarks/gpu/row.h"
#include "common/base/check.h"

namespace baton::gpu_bench {
namespace {

constexpr int kReadBlocksAMultiprocessor = 8;

Row Begin(const BenchDevice& device, const char* what) {
  const backend::cuda::DeviceProperties& properties = device.properties();
  return std::move(Row("ceilings", what)
                       .Text("device", properties.name)
                       .Number("compute_capability", properties.compute_capability)
                       .Number("multiprocessors", properties.multiprocessors)
                       .Number("l2_bytes", static_cast<double>(properties.l2_bytes)));
}

void MeasureCopies(BenchDevice& device, int64_t bytes) {
  device.Reset();
  const auto size = static_cast<size_t>(bytes);
  std::byte* const from = device.Take(size);
  std::byte* const to = device.Take(size);
  uint32_t* const word = device.Take<uint32_t>(1);
  BATON_CHECK(from != nullptr && to != nullptr && word != nullptr)
      << "twice " << bytes << " bytes do not fit the device";
  const double copy =
      device.Seconds([&](int) { device.runtime().CopyOnDevice(to, from, size, device.stream()); });
  Begin(device, "copy").Took(copy, WorkOf(backend::cuda::CopyFloor(bytes))).Print();
  const int blocks = kReadBlocksAMultiprocessor * device.properties().multiprocessors;
  const double read =
      device.Seconds([&](int) { LaunchRead(from, bytes, word, blocks, device.stream()); });
  Begin(device, "read").Took(read, {static_cast<double>(bytes), 0}).Print();
  const double write =
      device.Seconds([&](int) { device.runtime().Zero(to, size, device.stream()); });
  Begin(device, "write").Took(write, {static_cast<double>(bytes), 0}).Print();
}

void MeasureProduct(BenchDevice& device, int side, backend::DType dtype) {
  device.Reset();
  const int64_t elements = int64_t{side} * side;
  const backend::cuda::MatMulLaunch launch = {.x = device.Take<uint16_t>(elements),
                                              .x_stride = side,
                                              .w = device.Take<uint16_t>(elements),
                                              .bias = nullptr,
                                              .out = device.Take<float>(elements),
                                              .out_stride = side,
                                              .rows = side,
                                              .n = side,
                                              .k = side};
  BATON_CHECK(launch.out != nullptr) << "no memory for a product of " << side;
  if (device.products() != nullptr) {
    device.products()->Tune({{launch, side}}, dtype, device.stream());
  }
  const double seconds = device.Seconds([&](int) {
    if (device.products() == nullptr ||
        !device.products()->MatMul(launch, dtype, device.stream())) {
      LaunchMatMul(launch, dtype, device.stream());
    }
  });
  Begin(device, "product")
      .Text("dtype", Name(dtype))
      .Number("engine", dtype == device.dtype() ? 1 : 0)
      .Text("by", device.products() == nullptr ? "our kernels" : "cuBLASLt")
      .Number("side", side)
      .Took(seconds, WorkOf(backend::cuda::MatMulFloor(side, side, side, false),
                            backend::cuda::MatMulOperations(side, side, side)))
      .Print();
}

void MeasureHost(BenchDevice& device, int64_t bytes) {
  device.Reset();
  const auto size = static_cast<size_t>(bytes);
  std::byte* const memory = device.Take(size);
  const absl::StatusOr<void*> pinned = device.runtime().AllocatePinned(size);
  if (memory == nullptr || !pinned.ok()) {
    Begin(device, "host").Text("skipped", "no pinned memory").Print();
    return;
  }
  const Work work = {static_cast<double>(bytes), 0};
  const double to = device.Seconds(
      [&](int) { device.runtime().CopyToDevice(memory, *pinned, size, device.stream()); });
  Begin(device, "to_device").Took(to, work).Print();
  const double from = device.Seconds(
      [&](int) { device.runtime().CopyToHost(*pinned, memory, size, device.stream()); });
  Begin(device, "to_host").Took(from, work).Print();
}

}  // namespace

void MeasureCeilings(BenchDevice& device, const Grid& grid) {
  MeasureCopies(device, grid.copy_bytes);
  for (const backend::DType dtype : {backend::DType::kF16, backend::DType::kBF16}) {
    if (dtype == backend::DType::kBF16 && device.dtype() != backend::DType::kBF16) continue;
    MeasureProduct(device, grid.matrix_side, dtype);
  }
  MeasureHost(device, grid.copy_bytes / 4);
}

}  // namespace baton::gpu_bench
