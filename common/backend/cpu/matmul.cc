#include "common/backend/cpu/matmul.h"

#include <algorithm>

#include "common/base/check.h"

namespace baton::backend {
namespace {

// Enough weights for the start of a stream not to count, few enough that a thread which lost its
// core to another process does not hold up the rest for long.
constexpr int64_t kTaskBytes = 512 << 10;
// Rows below which cutting by rows would only read the weights twice.
constexpr int64_t kRowsATask = 64;

// Tasks of the same size, give or take a panel, and a multiple of the threads in number.
struct Cut {
  int64_t panels;
  int64_t panel_tasks;
  int64_t rows_per_task;
  int64_t row_tasks;

  int64_t first_panel(int64_t panel_task) const { return panel_task * panels / panel_tasks; }
};

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

Cut CutFor(const PanelMatrix& weights, int64_t rows, int threads) {
  const int64_t panels = weights.panel_count();
  Cut cut = {panels, 1, rows, 1};
  if (threads == 1) return cut;
  const int64_t by_bytes = CeilDivide(panels * weights.panel_bytes(), kTaskBytes);
  cut.panel_tasks = std::min(panels, CeilDivide(by_bytes, threads) * threads);
  if (cut.panel_tasks < threads && rows >= 2 * kRowsATask) {
    const int64_t parts = std::min(CeilDivide(threads, cut.panel_tasks), rows / kRowsATask);
    cut.rows_per_task = CeilDivide(CeilDivide(rows, parts), kSquareRows) * kSquareRows;
    cut.row_tasks = CeilDivide(rows, cut.rows_per_task);
  }
  return cut;
}

// Runs `multiply` on slices of the product, on all threads. from(panel, row): the slice that begins
// there, but for its extent, bias and out.
template <class From, class Slice>
void MultiplySlices(ThreadPool& pool, const PanelMatrix& weights, int64_t rows, const float* bias,
                    const Tensor& out, From from, void (*multiply)(const Slice&)) {
  const Cut cut = CutFor(weights, rows, pool.thread_count());
  pool.Run(static_cast<int>(cut.panel_tasks * cut.row_tasks), [&](int task, int thread) {
    const int64_t first_panel = cut.first_panel(task / cut.row_tasks);
    const int64_t end_panel = cut.first_panel(task / cut.row_tasks + 1);
    const int64_t first_row = task % cut.row_tasks * cut.rows_per_task;
    const int64_t first_column = first_panel * kPanelColumns;
    Slice slice = from(first_panel, first_row);
    slice.rows = std::min(cut.rows_per_task, rows - first_row);
    slice.columns = std::min(end_panel * kPanelColumns, weights.out_features()) - first_column;
    slice.bias = bias == nullptr ? nullptr : bias + first_column;
    slice.out = static_cast<float*>(out.data) + first_row * out.row_stride + first_column;
    slice.out_stride = out.row_stride;
    multiply(slice);
  });
}

}  // namespace

uint16_t* MatMulRunner::Scratch(int64_t elements) {
  constexpr int64_t kAlignment = 32;  // of elements: a cache line
  if (static_cast<int64_t>(scratch_.size()) < elements + kAlignment) {
    scratch_.resize(elements + kAlignment);
  }
  const auto address = reinterpret_cast<uintptr_t>(scratch_.data());
  return scratch_.data() + (64 - address % 64) % 64 / sizeof(uint16_t);
}

const uint16_t* MatMulRunner::PadRows(const Tensor& x, int64_t padded_in) {
  uint16_t* padded = Scratch(x.rows * padded_in);
  for (int64_t r = 0; r < x.rows; ++r) {
    const uint16_t* row = static_cast<const uint16_t*>(x.data) + r * x.row_stride;
    std::fill(std::copy_n(row, x.cols, padded + r * padded_in), padded + (r + 1) * padded_in, 0);
  }
  return padded;
}

const uint16_t* MatMulRunner::PackRows(const Tensor& x, int64_t padded_in) {
  const int64_t squares = CeilDivide(x.rows, kSquareRows);
  uint16_t* packed = Scratch(squares * kSquareRows * padded_in);
  pool_.Run(static_cast<int>(squares), [&](int square, int thread) {
    const int64_t row = int64_t{square} * kSquareRows;
    kernels_.pack_rows(static_cast<const uint16_t*>(x.data) + row * x.row_stride, x.row_stride,
                       std::min<int64_t>(kSquareRows, x.rows - row), x.cols, padded_in,
                       packed + row * padded_in);
  });
  return packed;
}

const ActivationBlock* MatMulRunner::RoundRows(const Tensor& x, absl::Span<const int32_t> order) {
  const int64_t blocks = CeilDivide(x.cols, kQuantizedBlock);
  rounded_.resize(std::max(rounded_.size(), static_cast<size_t>(x.rows * blocks)));
  const int64_t size = static_cast<int64_t>(SizeOf(x.dtype));
  // Less work than this costs less than waking a thread.
  constexpr int64_t kElementsPerTask = 16 << 10;
  const int64_t rows_per_task = std::max<int64_t>(1, kElementsPerTask / x.cols);
  pool_.Run(static_cast<int>(CeilDivide(x.rows, rows_per_task)), [&](int task, int thread) {
    std::vector<float> ordered(order.size());
    const int64_t end = std::min(x.rows, (task + 1) * rows_per_task);
    for (int64_t r = task * rows_per_task; r < end; ++r) {
      const auto* row = static_cast<const std::byte*>(x.data) + r * x.row_stride * size;
      ActivationBlock* blocks_of_row = rounded_.data() + r * blocks;
      const auto element = static_cast<Element>(x.dtype);
      if (order.empty()) {
        kernels_.round_activations(row, element, x.cols, blocks_of_row);
        continue;
      }
      std::vector<float> values(order.size());
      kernels_.to_f32(row, element, x.cols, values.data());
      for (size_t i = 0; i < order.size(); ++i) ordered[i] = values[static_cast<size_t>(order[i])];
      kernels_.round_activations(ordered.data(), Element::kF32, x.cols, blocks_of_row);
    }
  });
  return rounded_.data();
}

void MatMulRunner::Run(const Tensor& x, const CpuMatrix& weights, const float* bias,
                       const Tensor& out) {
  if (x.rows == 0) return;
  switch (weights.form()) {
    case CpuMatrix::Form::kFloat:
      return RunPacked(x, static_cast<const PackedWeights&>(weights), bias, out);
    case CpuMatrix::Form::kQuantized: {
      const auto& panels = static_cast<const QuantizedPanels&>(weights);
      return RunQuantized(x.rows, RoundRows(x, panels.order()), panels, bias, out);
    }
    case CpuMatrix::Form::kStacked:
      return RunStacked(x, static_cast<const StackedMatrix&>(weights), bias, out);
  }
}

void MatMulRunner::RunStacked(const Tensor& x, const StackedMatrix& weights, const float* bias,
                              const Tensor& out) {
  const ActivationBlock* rounded = nullptr;
  Tensor columns = out;
  for (const auto& part : weights.parts()) {
    columns.cols = part->out_features();
    if (part->form() == CpuMatrix::Form::kFloat) {
      RunPacked(x, static_cast<const PackedWeights&>(*part), bias, columns);
    } else {
      if (rounded == nullptr) rounded = RoundRows(x, {});
      RunQuantized(x.rows, rounded, static_cast<const QuantizedPanels&>(*part), bias, columns);
    }
    columns.data = static_cast<float*>(columns.data) + part->out_features();
    if (bias != nullptr) bias += part->out_features();
  }
}

void MatMulRunner::RunQuantized(int64_t rows, const ActivationBlock* rounded,
                                const QuantizedPanels& weights, const float* bias,
                                const Tensor& out) {
  const auto from = [&](int64_t panel, int64_t row) {
    QuantizedSlice slice = weights.SliceFrom(panel);
    slice.x = rounded + row * slice.blocks;
    return slice;
  };
  MultiplySlices(pool_, weights, rows, bias, out, from, kernels_.matmul_quantized);
}

void MatMulRunner::RunPacked(const Tensor& x, const PackedWeights& weights, const float* bias,
                             const Tensor& out) {
  const bool bf16 = weights.compute() == DType::kBF16;
  const bool packed = bf16 && kernels_.pack_rows != nullptr && x.rows >= kPackRowsFrom;
  const std::byte* x_data = static_cast<const std::byte*>(x.data);
  int64_t x_row = x.row_stride;
  if (packed || (bf16 && weights.padded_in() != x.cols)) {
    x_row = weights.padded_in();
    x_data = reinterpret_cast<const std::byte*>(packed ? PackRows(x, x_row) : PadRows(x, x_row));
  }
  const auto from = [&](int64_t panel, int64_t row) {
    MatMulSlice slice;
    slice.x = x_data + row * x_row * static_cast<int64_t>(SizeOf(weights.compute()));
    slice.x_stride = packed ? 0 : x_row;
    slice.in = weights.padded_in();
    slice.panels = weights.panel(panel);
    slice.element = static_cast<Element>(weights.stored());
    return slice;
  };
  MultiplySlices(pool_, weights, x.rows, bias, out, from,
                 bf16 ? kernels_.matmul_bf16 : kernels_.matmul_f32);
}

}  // namespace baton::backend
