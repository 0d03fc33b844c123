#include "common/backend/cpu/isa.h"

#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace baton::backend {
namespace {

#if defined(__x86_64__)
bool HasAmx() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  // BF16, TILE, INT8.
  constexpr unsigned kAmx = 1u << 22 | 1u << 24 | 1u << 25;
  if ((edx & kAmx) != kAmx) return false;
  // Linux gives the 8 KiB of tile registers only to a process that asks.
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool HasAvx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool HasVnni() { return __builtin_cpu_supports("avx512vnni"); }

bool HasAvx512BF16() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & (1u << 5)) != 0;
}

bool HasF16C() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & (1u << 29)) != 0;
}

Isa IsaOfCpu() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !HasF16C()) {
    return Isa::kPortable;
  }
  if (!HasAvx512()) return Isa::kAvx2;
  if (!HasVnni()) return Isa::kAvx512;
  if (!HasAvx512BF16()) return Isa::kAvx512Vnni;
  return HasAmx() ? Isa::kAmx : Isa::kAvx512BF16;
}
#else
Isa IsaOfCpu() { return Isa::kPortable; }
#endif

}  // namespace

const Kernels& KernelsOf(Isa isa) {
  switch (isa) {
    case Isa::kAmx:
      return kAmxKernels;
    case Isa::kAvx512BF16:
      return kAvx512BF16Kernels;
    case Isa::kAvx512Vnni:
      return kAvx512VnniKernels;
    case Isa::kAvx512:
      return kAvx512Kernels;
    case Isa::kAvx2:
      return kAvx2Kernels;
    case Isa::kPortable:
      break;
  }
  return kPortableKernels;
}

Isa BestIsa() {
  static const Isa best = [] {
    Isa isa = IsaOfCpu();
    // A compiler may not know what the CPU does.
    while (isa != Isa::kPortable && KernelsOf(isa).name == nullptr) {
      isa = static_cast<Isa>(static_cast<int>(isa) - 1);
    }
    return isa;
  }();
  return best;
}

std::vector<const Kernels*> UsableKernels() {
  std::vector<const Kernels*> usable;
  for (int isa = 0; isa <= static_cast<int>(BestIsa()); ++isa) {
    const Kernels& kernels = KernelsOf(static_cast<Isa>(isa));
    if (kernels.name != nullptr) usable.push_back(&kernels);
  }
  return usable;
}

}  // namespace baton::backend
