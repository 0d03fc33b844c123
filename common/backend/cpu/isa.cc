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

// Whether the first register of leaf 7, subleaf 1, has the bit.
bool HasBit(unsigned bit) {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & (1u << bit)) != 0;
}

bool HasF16C() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & (1u << 29)) != 0;
}

bool HasAvx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasF16C();
}

bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool CpuHas(Isa isa) {
  constexpr unsigned kAvxVnniBit = 4, kAvx512BF16Bit = 5;
  switch (isa) {
    case Isa::kPortable:
      return true;
    case Isa::kAvx2:
      return HasAvx2();
    case Isa::kAvxVnni:
      return HasAvx2() && HasBit(kAvxVnniBit);
    case Isa::kAvx512:
      return HasAvx512();
    case Isa::kAvx512Vnni:
      return HasAvx512() && __builtin_cpu_supports("avx512vnni");
    case Isa::kAvx512BF16:
      return CpuHas(Isa::kAvx512Vnni) && HasBit(kAvx512BF16Bit);
    case Isa::kAmx:
      return CpuHas(Isa::kAvx512BF16) && HasAmx();
  }
  return false;
}
#else
bool CpuHas(Isa isa) { return isa == Isa::kPortable; }
#endif

// A compiler may not know what the CPU does.
bool IsUsable(Isa isa) { return KernelsOf(isa).name != nullptr && CpuHas(isa); }

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
    case Isa::kAvxVnni:
      return kAvxVnniKernels;
    case Isa::kAvx2:
      return kAvx2Kernels;
    case Isa::kPortable:
      break;
  }
  return kPortableKernels;
}

Isa BestIsa() {
  static const Isa best = [] {
#if defined(__x86_64__)
    __builtin_cpu_init();
#endif
    Isa isa = Isa::kAmx;
    while (!IsUsable(isa)) isa = static_cast<Isa>(static_cast<int>(isa) - 1);
    return isa;
  }();
  return best;
}

std::vector<const Kernels*> UsableKernels() {
  std::vector<const Kernels*> usable;
  for (int isa = 0; isa <= static_cast<int>(BestIsa()); ++isa) {
    if (IsUsable(static_cast<Isa>(isa))) usable.push_back(&KernelsOf(static_cast<Isa>(isa)));
  }
  return usable;
}

}  // namespace baton::backend
