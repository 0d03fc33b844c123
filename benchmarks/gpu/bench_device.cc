#include "benchmarks/gpu/bench_device.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "benchmarks/gpu/random_numbers.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace baton::gpu_bench {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kPinnedBytes = size_t{8} << 20;
constexpr size_t kMostPlugBytes = size_t{256} << 20;
constexpr int kMostPlugs = 64;
// Fewer than a stream's queue holds: beyond that, enqueueing waits for the device.
constexpr int kMostLaunches = 256;
constexpr int kTrialLaunches = 3;
// A cache this many times over is flushed by what comes in between.
constexpr double kCachesBetween = 4;
constexpr int kMostTurns = 256;
constexpr size_t kDryCacheBytes = size_t{64} << 20;

}  // namespace

BenchDevice::BenchDevice(OpenedDevice opened, const Grid& grid, Mode mode)
    : runtime_(std::move(opened.runtime)),
      products_(std::move(opened.products)),
      stream_(runtime_->MakeStream()),
      round_seconds_(grid.round_seconds),
      rounds_(grid.rounds),
      mode_(mode),
      l2_bytes_(mode == Mode::kDry ? kDryCacheBytes : runtime_->properties().l2_bytes) {}

absl::StatusOr<std::unique_ptr<BenchDevice>> BenchDevice::Open(const Grid& grid, Mode mode) {
  BATON_ASSIGN_OR_RETURN(OpenedDevice opened, OpenDevice());
  std::unique_ptr<BenchDevice> device(new BenchDevice(std::move(opened), grid, mode));
  BATON_RETURN_IF_ERROR(device->Initialize(grid));
  return device;
}

absl::Status BenchDevice::Initialize(const Grid& grid) {
  slab_bytes_ = grid.slab_bytes / kAlignment * kAlignment;
  if (mode_ == Mode::kDry) {
    slab_ = reinterpret_cast<std::byte*>(kAlignment);  // counted from, and never read
    return absl::OkStatus();
  }
  BATON_ASSIGN_OR_RETURN(void* const slab, runtime_->AllocateDevice(slab_bytes_));
  slab_ = static_cast<std::byte*>(slab);
  plug_bytes_ = std::min(kMostPlugBytes, slab_bytes_);
  BATON_ASSIGN_OR_RETURN(void* const plug, runtime_->AllocateDevice(plug_bytes_));
  plug_ = static_cast<std::byte*>(plug);
  BATON_ASSIGN_OR_RETURN(void* const pinned, runtime_->AllocatePinned(kPinnedBytes));
  pinned_ = static_cast<std::byte*>(pinned);
  if (products_ != nullptr) {
    BATON_ASSIGN_OR_RETURN(void* const workspace,
                           runtime_->AllocateDevice(products_->WorkspaceBytes()));
    products_->SetWorkspace(workspace);
  }
  const std::vector<uint16_t> numbers = RandomHalves(kPinnedBytes / 2, dtype());
  std::memcpy(pinned_, numbers.data(), kPinnedBytes);
  for (size_t at = 0; at < slab_bytes_; at += kPinnedBytes) {
    runtime_->CopyToDevice(slab_ + at, pinned_, std::min(kPinnedBytes, slab_bytes_ - at), stream_);
  }
  runtime_->Synchronize(stream_);
  runtime_->Zero(plug_, plug_bytes_, stream_);
  const auto begin = runtime_->MarkTime(stream_);
  runtime_->Zero(plug_, plug_bytes_, stream_);
  plug_seconds_ = runtime_->MarkTime(stream_)->SecondsSince(*begin);
  return absl::OkStatus();
}

backend::DType BenchDevice::dtype() const {
  return properties().kernel_capability >= 80 ? backend::DType::kBF16 : backend::DType::kF16;
}

std::byte* BenchDevice::Take(size_t size_bytes) {
  const size_t whole = (size_bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (whole > slab_bytes_ - taken_) return nullptr;
  std::byte* const memory = slab_ + taken_;
  taken_ += whole;
  return memory;
}

void BenchDevice::Copy(void* device, const void* host, size_t size_bytes) {
  if (mode_ == Mode::kDry) return;
  for (size_t at = 0; at < size_bytes; at += kPinnedBytes) {
    const size_t part = std::min(kPinnedBytes, size_bytes - at);
    runtime_->Synchronize(stream_);
    std::memcpy(pinned_, static_cast<const std::byte*>(host) + at, part);
    runtime_->CopyToDevice(static_cast<std::byte*>(device) + at, pinned_, part, stream_);
  }
  runtime_->Synchronize(stream_);
}

void BenchDevice::Zero(void* device, size_t size_bytes) {
  if (mode_ != Mode::kDry) runtime_->Zero(device, size_bytes, stream_);
}

std::byte* BenchDevice::Pinned(size_t size_bytes) {
  // Any address will do where nothing is launched.
  if (mode_ == Mode::kDry) return reinterpret_cast<std::byte*>(size_t{256});
  if (size_bytes > pinned_operand_bytes_) {
    const absl::StatusOr<void*> pinned = runtime_->AllocatePinned(size_bytes);
    if (!pinned.ok()) return nullptr;
    pinned_operands_ = static_cast<std::byte*>(*pinned);
    pinned_operand_bytes_ = size_bytes;
    std::memset(pinned_operands_, 0x2a, size_bytes);
  }
  return pinned_operands_;
}

int BenchDevice::Turns(double operand_bytes) const {
  const double wanted =
      std::ceil(kCachesBetween * static_cast<double>(l2_bytes_) / operand_bytes) + 1;
  const double room = static_cast<double>(slab_bytes_) / 2 / operand_bytes;
  return static_cast<int>(std::clamp(std::min(wanted, room), 1.0, double{kMostTurns}));
}

// Work that takes so long, for launches to gather behind: what is timed then is the device, not how
// fast the host launches.
void BenchDevice::HoldBack(double seconds) {
  const double plugs = std::ceil(seconds / std::max(plug_seconds_, 1e-6));
  for (int i = 0; i < std::clamp(static_cast<int>(plugs), 1, kMostPlugs); ++i) {
    runtime_->Zero(plug_, plug_bytes_, stream_);
  }
}

double BenchDevice::Seconds(const std::function<void(int turn)>& launch) {
  if (mode_ == Mode::kDry) return 0;
  int turn = 0;
  launch(turn++);  // what is made at the first launch
  runtime_->Synchronize(stream_);
  if (mode_ == Mode::kOnce) return 0;
  const auto host_begin = Clock::now();
  const auto trial_begin = runtime_->MarkTime(stream_);
  for (int i = 0; i < kTrialLaunches; ++i) launch(turn++);
  const auto trial_end = runtime_->MarkTime(stream_);
  const double host_seconds = SecondsSince(host_begin) / kTrialLaunches;
  const double trial = trial_end->SecondsSince(*trial_begin) / kTrialLaunches;
  const int launches = static_cast<int>(
      std::clamp(round_seconds_ / std::max(trial, 1e-9), 1.0, double{kMostLaunches}));
  std::vector<double> rounds;
  for (int round = 0; round < rounds_; ++round) {
    HoldBack(1.5 * launches * host_seconds);
    const auto begin = runtime_->MarkTime(stream_);
    for (int i = 0; i < launches; ++i) launch(turn++);
    const auto end = runtime_->MarkTime(stream_);
    rounds.push_back(end->SecondsSince(*begin) / launches);
  }
  std::sort(rounds.begin(), rounds.end());
  return rounds[rounds.size() / 2];
}

}  // namespace baton::gpu_bench
