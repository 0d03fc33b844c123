#include "common/backend/cuda/matrices/expert_group.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/backend/cpu/convert.h"
#include "common/backend/cuda/matrices/device_weights.h"
#include "common/backend/cuda/matrices/quantized_matrix.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"

namespace baton::backend::cuda {
namespace {

static_assert(sizeof(ExpertMatrix) == kExpertTableEntryBytes);
static_assert(sizeof(ExpertSource) == kExpertSourceBytes);

absl::Status UnsupportedExperts(absl::string_view found, absl::string_view expected) {
  return MakeError(absl::StatusCode::kUnimplemented, "UNSUPPORTED_MODEL",
                   absl::StrCat("--device cuda: experts: found ", found, ", expected ", expected));
}

// What a table's matrices must have in common.
struct Form {
  QuantizedView view = {};
  int bits = 16;

  static Form Of(const PackedMatrix& matrix) {
    Form form;
    if (const auto* quantized = dynamic_cast<const CudaQuantizedMatrix*>(&matrix)) {
      form = {quantized->view(), quantized->bits()};
      form.view.values = form.view.groups = nullptr;
    }
    form.view.n = static_cast<int>(matrix.out_features());
    form.view.k = static_cast<int>(matrix.in_features());
    return form;
  }
  bool Equals(const Form& other) const {
    const QuantizedView &a = view, &b = other.view;
    return bits == other.bits && a.n == b.n && a.k == b.k && a.group_count == b.group_count &&
           a.steps_a_group_log2 == b.steps_a_group_log2 && a.bf16_scales == b.bf16_scales &&
           a.paired_scales == b.paired_scales;
  }
};

// A matrix as its device memory has it, and as the host's has it, from which it is copied.
struct Stored {
  const std::byte* data = nullptr;  // the whole matrix
  int64_t size_bytes = 0;
  int64_t groups_offset = 0;  // 0: it has no groups
  bool on_host = false;

  static Stored Of(const PackedMatrix& matrix) {
    Stored stored = {.data = nullptr, .size_bytes = matrix.size_bytes()};
    if (const auto* quantized = dynamic_cast<const CudaQuantizedMatrix*>(&matrix)) {
      const QuantizedView& view = quantized->view();
      stored.data = static_cast<const std::byte*>(view.values);
      stored.groups_offset = reinterpret_cast<const std::byte*>(view.groups) - stored.data;
      stored.on_host = quantized->on_host();
    } else {
      const auto& plain = static_cast<const CudaMatrix&>(matrix);
      stored.data = static_cast<const std::byte*>(plain.data());
      stored.on_host = plain.on_host();
    }
    return stored;
  }
  // The matrix as kernels take it, if it starts at `start`.
  ExpertMatrix At(const std::byte* start, const float* bias) const {
    const auto* groups = reinterpret_cast<const uint32_t*>(start + groups_offset);
    return {start, groups_offset == 0 ? nullptr : groups, bias};
  }
};

// Matrices of one kind. place: where the first expert's is copied, the others' stride_bytes apart;
// null: they are on the device.
absl::StatusOr<CudaExpertGroup::Table> MakeTable(absl::Span<const PackedMatrix* const> matrices,
                                                 const Buffer* biases, const std::byte* place,
                                                 int64_t stride_bytes, Backend& backend,
                                                 HostStaging& staging) {
  const Form form = Form::Of(*matrices[0]);
  std::vector<ExpertMatrix> entries;
  const auto rows = static_cast<size_t>(matrices[0]->out_features());
  BATON_CHECK(biases == nullptr || biases->size_bytes() >= matrices.size() * rows * sizeof(float));
  const auto* bias = biases == nullptr ? nullptr : static_cast<const float*>(biases->data());
  for (const PackedMatrix* matrix : matrices) {
    if (!form.Equals(Form::Of(*matrix))) {
      return UnsupportedExperts("matrices of several forms", "one bit width and group size");
    }
    const auto* quantized = dynamic_cast<const CudaQuantizedMatrix*>(matrix);
    if (quantized != nullptr && quantized->order() != nullptr) {
      return UnsupportedExperts("columns in an order of their own (GPTQ with desc_act)",
                                "columns in their order");
    }
    const Stored stored = Stored::Of(*matrix);
    BATON_CHECK_EQ(stored.on_host, place != nullptr);
    entries.push_back(stored.At(place == nullptr ? stored.data : place, bias));
    if (place != nullptr) place += stride_bytes;
    if (bias != nullptr) bias += rows;
  }
  CudaExpertGroup::Table table;
  const size_t size_bytes = entries.size() * sizeof(ExpertMatrix);
  BATON_ASSIGN_OR_RETURN(table.memory, backend.Allocate(size_bytes));
  staging.CopyToDevice(table.memory->data(), entries.data(), size_bytes);
  table.operands.matrices = static_cast<const ExpertMatrix*>(table.memory->data());
  table.operands.w = form.view;
  table.operands.bits = form.bits;
  return table;
}

// REQUIRES: all are in the host's memory.
absl::StatusOr<CudaExpertGroup::Fetch> MakeFetch(absl::Span<const ExpertMatrices> experts,
                                                 const FetchedExperts& fetched, Backend& backend,
                                                 HostStaging& staging) {
  CudaExpertGroup::Fetch fetch;
  FetchExpertsLaunch& launch = fetch.launch;
  launch.to = fetched.memory;
  launch.gate_up_bytes = experts[0].gate_up->size_bytes();
  launch.down_bytes = experts[0].down->size_bytes();
  launch.down_offset = FetchedMatrixBytes(launch.gate_up_bytes);
  launch.stride_bytes = launch.down_offset + FetchedMatrixBytes(launch.down_bytes);
  launch.experts = static_cast<int>(experts.size());
  BATON_CHECK(launch.gate_up_bytes % 16 == 0 && launch.down_bytes % 16 == 0);
  if (launch.stride_bytes * launch.experts > fetched.size_bytes) {
    return UnsupportedExperts(
        absl::StrCat(launch.stride_bytes * launch.experts, " bytes of them in the host's memory"),
        absl::StrCat("at most ", fetched.size_bytes, ", as the model's configuration gives"));
  }
  std::vector<ExpertSource> sources;
  for (const ExpertMatrices& expert : experts) {
    sources.push_back({Stored::Of(*expert.gate_up).data, Stored::Of(*expert.down).data});
  }
  const size_t size_bytes = sources.size() * sizeof(ExpertSource);
  BATON_ASSIGN_OR_RETURN(fetch.memory, backend.Allocate(size_bytes));
  staging.CopyToDevice(fetch.memory->data(), sources.data(), size_bytes);
  launch.sources = static_cast<const ExpertSource*>(fetch.memory->data());
  return fetch;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PackedMatrix>> CudaRouter::Make(const HostMatrix& matrix,
                                                               Backend& backend,
                                                               HostStaging& staging) {
  if (matrix.cols % 8 != 0) {
    return UnsupportedExperts(absl::StrCat("a router of ", matrix.cols, " columns"),
                              "a multiple of 8");
  }
  const auto size_bytes = static_cast<size_t>(matrix.rows * matrix.cols) * sizeof(float);
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> memory, backend.Allocate(size_bytes));
  staging.FillDevice(memory->data(), size_bytes, [&](size_t offset, size_t size, void* to) {
    const size_t first = offset / sizeof(float);
    ConvertElements(static_cast<const std::byte*>(matrix.data) + first * SizeOf(matrix.dtype),
                    matrix.dtype, static_cast<int64_t>(size / sizeof(float)), DType::kF32, to);
  });
  return std::make_unique<CudaRouter>(std::move(memory), matrix.rows, matrix.cols);
}

absl::StatusOr<std::unique_ptr<ExpertGroup>> CudaExpertGroup::Make(
    std::vector<ExpertMatrices> experts, const ExpertBiases& biases, const FetchedExperts& fetched,
    Backend& backend, HostStaging& staging) {
  std::vector<const PackedMatrix*> gate_up, down;
  for (const ExpertMatrices& expert : experts) {
    gate_up.push_back(expert.gate_up);
    down.push_back(expert.down);
  }
  // A lane gates two columns, a tile has eight.
  if (down[0]->in_features() % 8 != 0) {
    return UnsupportedExperts(absl::StrCat(down[0]->in_features(), " columns of the gated product"),
                              "a multiple of 8");
  }
  Fetch fetch;
  const std::byte *gate_up_place = nullptr, *down_place = nullptr;
  if (Stored::Of(*gate_up[0]).on_host) {
    BATON_ASSIGN_OR_RETURN(fetch, MakeFetch(experts, fetched, backend, staging));
    gate_up_place = fetched.memory;
    down_place = fetched.memory + fetch.launch.down_offset;
  }
  BATON_ASSIGN_OR_RETURN(Table gate_up_table,
                         MakeTable(gate_up, biases.gate_up, gate_up_place,
                                   fetch.launch.stride_bytes, backend, staging));
  BATON_ASSIGN_OR_RETURN(Table down_table, MakeTable(down, biases.down, down_place,
                                                     fetch.launch.stride_bytes, backend, staging));
  return std::make_unique<CudaExpertGroup>(std::move(experts), biases, std::move(gate_up_table),
                                           std::move(down_table), std::move(fetch));
}

ExpertWorkspace ExpertWorkspace::In(void* memory, const StepLimits& limits) {
  if (limits.experts == 0) return {};
  std::vector<std::byte*> parts;
  auto* next = static_cast<std::byte*>(memory);
  for (const size_t part : PartBytes(limits)) {
    parts.push_back(next);
    next += part;
  }
  ExpertWorkspace workspace;
  workspace.counts = reinterpret_cast<unsigned*>(parts[0]);
  workspace.chosen = reinterpret_cast<int32_t*>(parts[1]);
  workspace.weights = reinterpret_cast<float*>(parts[2]);
  workspace.pairs = reinterpret_cast<int32_t*>(parts[3]);
  workspace.rows = reinterpret_cast<int32_t*>(parts[4]);
  workspace.tiles = reinterpret_cast<ExpertTile*>(parts[5]);
  workspace.fetched = {parts[6], limits.fetched_expert_bytes};
  return workspace;
}

}  // namespace baton::backend::cuda
