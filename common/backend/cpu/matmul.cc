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
// Less work than this costs less than waking a thread.
constexpr int64_t kElementsPerTask = 16 << 10;

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The last of the items whose first task is not behind `task`.
template <class Item>
const Item& ItemOf(const std::vector<Item>& items, int task) {
  const auto behind =
      std::upper_bound(items.begin(), items.end(), task,
                       [](int wanted, const Item& item) { return wanted < item.first_task; });
  return *(behind - 1);
}

}  // namespace

bool MatMulRunner::Input::SameAs(const Input& other) const {
  return form == other.form && x.data == other.x.data && x.rows == other.x.rows &&
         x.cols == other.x.cols && x.row_stride == other.x.row_stride &&
         padded_in == other.padded_in && order.data() == other.order.data();
}

void MatMulRunner::Run(absl::Span<const MatMulProduct> products) {
  Plan(products);
  if (parts_.empty()) return;
  CutParts();
  PrepareInputs();
  const Part& last = parts_.back();
  const int tasks = last.first_task + static_cast<int>(last.panel_tasks * last.row_tasks);
  pool_.Run(tasks, [&](int task, int thread) {
    const Part& part = ItemOf(parts_, task);
    Multiply(part, task - part.first_task);
  });
}

void MatMulRunner::Plan(absl::Span<const MatMulProduct> products) {
  inputs_.clear();
  parts_.clear();
  for (const MatMulProduct& product : products) {
    if (product.x.rows == 0) continue;
    if (product.weights->form() != CpuMatrix::Form::kStacked) {
      AddPart(product.x, static_cast<const PanelMatrix&>(*product.weights), product.bias,
              product.out);
      continue;
    }
    Tensor columns = product.out;
    const float* bias = product.bias;
    for (const auto& part : static_cast<const StackedMatrix&>(*product.weights).parts()) {
      columns.cols = part->out_features();
      AddPart(product.x, *part, bias, columns);
      columns.data = static_cast<float*>(columns.data) + part->out_features();
      if (bias != nullptr) bias += part->out_features();
    }
  }
}

void MatMulRunner::AddPart(const Tensor& x, const PanelMatrix& weights, const float* bias,
                           const Tensor& out) {
  Input input;
  input.x = x;
  if (weights.form() == CpuMatrix::Form::kQuantized) {
    input.form = Input::Form::kRounded;
    input.order = static_cast<const QuantizedPanels&>(weights).order();
  } else {
    const auto& packed = static_cast<const PackedWeights&>(weights);
    const bool bf16 = packed.compute() == DType::kBF16;
    if (bf16 && kernels_.pack_rows != nullptr && x.rows >= kPackRowsFrom) {
      input.form = Input::Form::kPacked;
    } else if (bf16 && packed.padded_in() != x.cols) {
      input.form = Input::Form::kPadded;
    }
    if (input.form != Input::Form::kAsItIs) input.padded_in = packed.padded_in();
  }
  // Experts of one row, and the parts of a matrix, share their x.
  if (inputs_.empty() || !inputs_.back().SameAs(input)) inputs_.push_back(input);
  parts_.push_back({.weights = &weights, .bias = bias, .out = out, .input = inputs_.size() - 1});
}

// Tasks of the same size, give or take a panel, and a multiple of the threads in number where there
// is one product.
void MatMulRunner::CutParts() {
  const int64_t threads = CeilDivide(pool_.thread_count(), static_cast<int64_t>(parts_.size()));
  int first_task = 0;
  for (Part& part : parts_) {
    const int64_t rows = inputs_[part.input].x.rows, panels = part.weights->panel_count();
    part.panel_tasks = part.row_tasks = 1;
    part.rows_per_task = rows;
    if (pool_.thread_count() > 1) {
      const int64_t by_bytes = CeilDivide(panels * part.weights->panel_bytes(), kTaskBytes);
      part.panel_tasks = std::min(panels, CeilDivide(by_bytes, threads) * threads);
      if (part.panel_tasks < threads && rows >= 2 * kRowsATask) {
        const int64_t cuts = std::min(CeilDivide(threads, part.panel_tasks), rows / kRowsATask);
        part.rows_per_task = CeilDivide(CeilDivide(rows, cuts), kSquareRows) * kSquareRows;
        part.row_tasks = CeilDivide(rows, part.rows_per_task);
      }
    }
    part.first_task = first_task;
    first_task += static_cast<int>(part.panel_tasks * part.row_tasks);
  }
}

void MatMulRunner::PrepareInputs() {
  int64_t elements = 0, blocks = 0, work = 0;
  int tasks = 0;
  for (Input& input : inputs_) {
    input.first_task = tasks;
    if (input.form == Input::Form::kAsItIs) continue;
    const int64_t rows = input.x.rows;
    input.rows_per_task = std::max<int64_t>(1, kElementsPerTask / input.x.cols);
    if (input.form == Input::Form::kRounded) {
      input.offset = blocks;
      blocks += rows * CeilDivide(input.x.cols, kQuantizedBlock);
    } else {
      input.offset = elements;
      const bool packed = input.form == Input::Form::kPacked;
      if (packed) input.rows_per_task = kSquareRows;
      elements += (packed ? CeilDivide(rows, kSquareRows) * kSquareRows : rows) * input.padded_in;
    }
    input.task_count = static_cast<int>(CeilDivide(rows, input.rows_per_task));
    tasks += input.task_count;
    work += rows * input.x.cols;
  }
  if (tasks == 0) return;
  rounded_.resize(std::max(rounded_.size(), static_cast<size_t>(blocks)));
  constexpr int64_t kAlignment = 32;  // of elements: a cache line
  if (static_cast<int64_t>(scratch_.size()) < elements + kAlignment) {
    scratch_.resize(static_cast<size_t>(elements + kAlignment));
    const auto address = reinterpret_cast<uintptr_t>(scratch_.data());
    aligned_scratch_ = scratch_.data() + (64 - address % 64) % 64 / sizeof(uint16_t);
  }
  const auto prepare = [&](int task, int thread) {
    const Input& input = ItemOf(inputs_, task);
    Prepare(input, task - input.first_task);
  };
  if (work > kElementsPerTask) return pool_.Run(tasks, prepare);
  for (int task = 0; task < tasks; ++task) prepare(task, 0);
}

void MatMulRunner::Prepare(const Input& input, int task) {
  const Tensor& x = input.x;
  const int64_t first = task * input.rows_per_task;
  const int64_t end = std::min(x.rows, first + input.rows_per_task);
  const auto element = static_cast<Element>(x.dtype);
  const auto row_at = [&](int64_t row) {
    return static_cast<const std::byte*>(x.data) +
           row * x.row_stride * static_cast<int64_t>(SizeOf(x.dtype));
  };
  if (input.form == Input::Form::kPacked) {
    kernels_.pack_rows(reinterpret_cast<const uint16_t*>(row_at(first)), x.row_stride, end - first,
                       x.cols, input.padded_in,
                       aligned_scratch_ + input.offset + first * input.padded_in);
    return;
  }
  if (input.form == Input::Form::kPadded) {
    for (int64_t row = first; row < end; ++row) {
      const auto* from = reinterpret_cast<const uint16_t*>(row_at(row));
      uint16_t* to = aligned_scratch_ + input.offset + row * input.padded_in;
      std::fill(std::copy_n(from, x.cols, to), to + input.padded_in, 0);
    }
    return;
  }
  const int64_t blocks = CeilDivide(x.cols, kQuantizedBlock);
  std::vector<float> values(input.order.size()), ordered(input.order.size());
  for (int64_t row = first; row < end; ++row) {
    ActivationBlock* blocks_of_row = rounded_.data() + input.offset + row * blocks;
    if (input.order.empty()) {
      kernels_.round_activations(row_at(row), element, x.cols, blocks_of_row);
      continue;
    }
    kernels_.to_f32(row_at(row), element, x.cols, values.data());
    for (size_t i = 0; i < ordered.size(); ++i) {
      ordered[i] = values[static_cast<size_t>(input.order[i])];
    }
    kernels_.round_activations(ordered.data(), Element::kF32, x.cols, blocks_of_row);
  }
}

// slice: the one that begins at the task's first panel and row, but for its extent, bias and out.
template <class Slice>
void MatMulRunner::MultiplySlice(const Part& part, int task, Slice slice, int64_t first_row,
                                 void (*multiply)(const Slice&)) {
  const int64_t panels = part.weights->panel_count(), panel_task = task / part.row_tasks;
  const int64_t first_column = panel_task * panels / part.panel_tasks * kPanelColumns;
  const int64_t end_column = (panel_task + 1) * panels / part.panel_tasks * kPanelColumns;
  slice.rows = std::min(part.rows_per_task, inputs_[part.input].x.rows - first_row);
  slice.columns = std::min(end_column, part.weights->out_features()) - first_column;
  slice.bias = part.bias == nullptr ? nullptr : part.bias + first_column;
  slice.out = static_cast<float*>(part.out.data) + first_row * part.out.row_stride + first_column;
  slice.out_stride = part.out.row_stride;
  multiply(slice);
}

void MatMulRunner::Multiply(const Part& part, int task) {
  const Input& input = inputs_[part.input];
  const int64_t first_panel =
      task / part.row_tasks * part.weights->panel_count() / part.panel_tasks;
  const int64_t first_row = task % part.row_tasks * part.rows_per_task;
  if (part.weights->form() == CpuMatrix::Form::kQuantized) {
    QuantizedSlice slice =
        static_cast<const QuantizedPanels&>(*part.weights).SliceFrom(first_panel);
    slice.x = rounded_.data() + input.offset + first_row * slice.blocks;
    return MultiplySlice(part, task, slice, first_row, kernels_.matmul_quantized);
  }
  const auto& weights = static_cast<const PackedWeights&>(*part.weights);
  MatMulSlice slice;
  if (input.form == Input::Form::kAsItIs) {
    slice.x = static_cast<const std::byte*>(input.x.data) +
              first_row * input.x.row_stride * static_cast<int64_t>(SizeOf(weights.compute()));
    slice.x_stride = input.x.row_stride;
  } else {
    slice.x = aligned_scratch_ + input.offset + first_row * input.padded_in;
    slice.x_stride = input.form == Input::Form::kPacked ? 0 : input.padded_in;
  }
  slice.in = weights.padded_in();
  slice.panels = weights.panel(first_panel);
  slice.element = static_cast<Element>(weights.stored());
  const bool bf16 = weights.compute() == DType::kBF16;
  MultiplySlice(part, task, slice, first_row, bf16 ? kernels_.matmul_bf16 : kernels_.matmul_f32);
}

}  // namespace baton::backend
