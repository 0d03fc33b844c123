// simt.h for NVIDIA GPUs: thin wrappers over CUDA's intrinsics and a few lines of PTX.
// PTX ISA 8.x: mma fragments "Matrix Fragments for mma.m16n8k8 / m16n8k16 with .f16 / .bf16".
#ifndef BATON_COMMON_BACKEND_CUDA_SIMT_NVIDIA_H_
#define BATON_COMMON_BACKEND_CUDA_SIMT_NVIDIA_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

#define BATON_KERNEL(threads) __global__ void __launch_bounds__(threads)
// The same, with registers for so many blocks on a multiprocessor.
#define BATON_KERNEL_RESIDENT(threads, blocks) __global__ void __launch_bounds__(threads, blocks)
#define BATON_DEVICE __device__ __forceinline__
#define BATON_HOST_DEVICE __host__ __device__ __forceinline__
#define BATON_UNROLL _Pragma("unroll")
#define BATON_NO_UNROLL _Pragma("unroll 1")
// A table of constants in device memory.
#define BATON_DEVICE_TABLE static __device__ const

namespace baton::backend::cuda {

BATON_DEVICE int ThreadIndex() { return static_cast<int>(threadIdx.x); }
// The same, asked for here: what is made from it is made here, too, and takes no registers
// throughout a loop around it.
BATON_DEVICE int ThreadIndexHere() {
  int index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}
BATON_DEVICE int BlockThreads() { return static_cast<int>(blockDim.x); }
BATON_DEVICE GridSize BlockIndex() { return {blockIdx.x, blockIdx.y, blockIdx.z}; }
BATON_DEVICE GridSize Grid() { return {gridDim.x, gridDim.y, gridDim.z}; }

// Dynamic shared memory of the block.
BATON_DEVICE std::byte* SharedMemory() {
  extern __shared__ __align__(16) unsigned char baton_shared_memory[];
  return reinterpret_cast<std::byte*>(baton_shared_memory);
}

BATON_DEVICE void SyncThreads() { __syncthreads(); }
BATON_DEVICE void SyncWarp() { __syncwarp(); }
BATON_DEVICE void ThreadFence() { __threadfence(); }
// From sm_90 on a kernel begins before the kernel before it in the stream has ended, and lets the
// next one do so (programmatic dependent launch). This is the first statement of each kernel: until
// it returns, a kernel may only prefetch what no kernel writes.
BATON_DEVICE void AwaitPrevious() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Asks for the line of 128 bytes at this address to be brought to L2; also before AwaitPrevious,
// which is what it is for: elsewhere a load does better.
BATON_DEVICE void PrefetchL2([[maybe_unused]] const void* global) {
#if __CUDA_ARCH__ >= 900
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
#endif
}
template <class T>
BATON_DEVICE T ShuffleXor(T value, int lane_mask) {
  return __shfl_xor_sync(0xffffffffu, value, lane_mask);
}
template <class T>
BATON_DEVICE T Shuffle(T value, int lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}

// A zero that the compiler does not know, from sm_80 on. Registers of A that are or'ed with it are
// made once for all products that they are in: m16n8k16 takes four consecutive ones, and ptxas
// would copy them for each product. (A grid's z is less than 65,536.)
BATON_DEVICE uint32_t HiddenZero() {
#if __CUDA_ARCH__ >= 800
  return gridDim.z >> 16;
#else
  return 0;
#endif
}

// The value or'ed with a HiddenZero(), in a register that is made once and here: elsewhere the
// compiler makes it again for each use.
BATON_DEVICE uint32_t Pinned(uint32_t value, uint32_t hidden_zero) {
#if __CUDA_ARCH__ >= 800
  uint32_t result;
  asm volatile("or.b32 %0, %1, %2;" : "=r"(result) : "r"(value), "r"(hidden_zero));
  return result;
#else
  return value;
#endif
}
// Runs body, and the compiler moves none of its instructions in front of it or behind it: of a long
// run of products and loads ptxas puts all products that it can first, so that the loads of all
// warps come together and the products wait for them, for longer than a branch takes that is always
// taken.
template <class Body>
BATON_DEVICE void Fenced(const Body& body) {
  unsigned depth;  // below 65,536, which ptxas does not know; volatile: asked for each time
  asm volatile("mov.u32 %0, %%nctaid.z;" : "=r"(depth));
  if (depth >> 16 == 0) body();
}

template <class T>
BATON_DEVICE T AtomicAdd(T* address, T value) {
  return atomicAdd(address, value);
}
BATON_DEVICE uint64_t AtomicAdd(uint64_t* address, uint64_t value) {
  return atomicAdd(reinterpret_cast<unsigned long long*>(address),
                   static_cast<unsigned long long>(value));
}
BATON_DEVICE void AtomicMax(uint64_t* address, uint64_t value) {
  atomicMax(reinterpret_cast<unsigned long long*>(address), static_cast<unsigned long long>(value));
}
BATON_DEVICE void AtomicMin(uint64_t* address, uint64_t value) {
  atomicMin(reinterpret_cast<unsigned long long*>(address), static_cast<unsigned long long>(value));
}

BATON_DEVICE float Add(float a, float b) { return __fadd_rn(a, b); }
BATON_DEVICE float Mul(float a, float b) { return __fmul_rn(a, b); }
BATON_DEVICE float Fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
BATON_DEVICE float Divide(float a, float b) { return __fdiv_rn(a, b); }
BATON_DEVICE float SquareRoot(float a) { return __fsqrt_rn(a); }
BATON_DEVICE float Exp2(float a) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(a));
  return result;
}
BATON_DEVICE uint32_t FloatBits(float a) { return __float_as_uint(a); }
BATON_DEVICE float BitsFloat(uint32_t a) { return __uint_as_float(a); }
// The compiler moves nothing that is loaded from there to before this.
template <class T>
BATON_DEVICE void KeepBehind(const T*& address) {
  asm volatile("" : "+l"(address));
}
// (a & b) | c in one instruction, of which the compiler makes two if b and c are constants.
BATON_DEVICE uint32_t AndOr(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
}
// Bytes of a (0 to 3) and b (4 to 7), by the nibbles of `selector`, which are below 8.
BATON_DEVICE uint32_t PermuteBytes(uint32_t a, uint32_t b, uint32_t selector) {
  return __byte_perm(a, b, selector);
}
// The greater one; a NaN if b is one, and from sm_80 on (one instruction there) if a is one.
BATON_DEVICE float GreatestOrNan(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
#else
  return b <= a ? a : b;
#endif
}
BATON_DEVICE int LeadingZeros(uint64_t a) { return __clzll(static_cast<long long>(a)); }
BATON_DEVICE uint64_t MulHigh(uint64_t a, uint64_t b) { return __umul64hi(a, b); }

// 16 bytes that no thread writes while the kernel runs, through the read-only path.
BATON_DEVICE Vec16 Load16(const void* global) {
  Vec16 v;
  asm("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(v.x[0]), "=r"(v.x[1]), "=r"(v.x[2]), "=r"(v.x[3])
      : "l"(global));
  return v;
}
BATON_DEVICE Vec8 Load8(const void* global) {
  Vec8 v;
  asm("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(v.x[0]), "=r"(v.x[1]) : "l"(global));
  return v;
}
BATON_DEVICE uint32_t Load4(const void* global) {
  uint32_t v;
  asm("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(global));
  return v;
}
// The same for what the launch loads once: not kept in L1, where other loads find room, and the
// rest of 128 bytes comes to L2.
BATON_DEVICE Vec16 Load16Once(const void* global) {
  Vec16 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x[0]), "=r"(v.x[1]), "=r"(v.x[2]), "=r"(v.x[3])
               : "l"(global));
  return v;
}
// Load16, or zeros: a predicated instruction, no branch, so that several are under way at once.
BATON_DEVICE Vec16 Load16If(bool valid, const void* global) {
  Vec16 v;
  asm volatile(
      "{\n\t"
      ".reg .pred p;\n\t"
      "setp.ne.s32 p, %5, 0;\n\t"
      "mov.u32 %0, 0;\n\t"
      "mov.u32 %1, 0;\n\t"
      "mov.u32 %2, 0;\n\t"
      "mov.u32 %3, 0;\n\t"
      "@p ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];\n\t"
      "}"
      : "=&r"(v.x[0]), "=&r"(v.x[1]), "=&r"(v.x[2]), "=&r"(v.x[3])
      : "l"(global), "r"(static_cast<int>(valid)));
  return v;
}
// The same for eight bytes, and for four: those may be loaded once for several uses.
BATON_DEVICE Vec8 Load8If(bool valid, const void* global) {
  Vec8 v;
  asm volatile(
      "{\n\t"
      ".reg .pred p;\n\t"
      "setp.ne.s32 p, %3, 0;\n\t"
      "mov.u32 %0, 0;\n\t"
      "mov.u32 %1, 0;\n\t"
      "@p ld.global.nc.v2.u32 {%0, %1}, [%2];\n\t"
      "}"
      : "=&r"(v.x[0]), "=&r"(v.x[1])
      : "l"(global), "r"(static_cast<int>(valid)));
  return v;
}
// The same of what another kernel has just written, perhaps while this one was there already.
BATON_DEVICE Vec8 LoadFresh8If(bool valid, const void* global) {
  Vec8 v;
  asm volatile(
      "{\n\t"
      ".reg .pred p;\n\t"
      "setp.ne.s32 p, %3, 0;\n\t"
      "mov.u32 %0, 0;\n\t"
      "mov.u32 %1, 0;\n\t"
      "@p ld.global.cg.v2.u32 {%0, %1}, [%2];\n\t"
      "}"
      : "=&r"(v.x[0]), "=&r"(v.x[1])
      : "l"(global), "r"(static_cast<int>(valid)));
  return v;
}
BATON_DEVICE uint32_t Load4If(bool valid, const void* global) {
  uint32_t v;
  asm("{\n\t"
      ".reg .pred p;\n\t"
      "setp.ne.s32 p, %2, 0;\n\t"
      "mov.u32 %0, 0;\n\t"
      "@p ld.global.nc.u32 %0, [%1];\n\t"
      "}"
      : "=&r"(v)
      : "l"(global), "r"(static_cast<int>(valid)));
  return v;
}
// Load16Once and a load of four bytes, but `to` is left as it is where not `valid`: no instruction
// more than the load.
BATON_DEVICE void Load16Into(bool valid, const void* global, Vec16& to) {
  asm volatile(
      "{\n\t"
      ".reg .pred p;\n\t"
      "setp.ne.s32 p, %5, 0;\n\t"
      "@p ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];\n\t"
      "}"
      : "+r"(to.x[0]), "+r"(to.x[1]), "+r"(to.x[2]), "+r"(to.x[3])
      : "l"(global), "r"(static_cast<int>(valid)));
}
BATON_DEVICE void Load4Into(bool valid, const void* global, uint32_t& to) {
  asm volatile(
      "{\n\t"
      ".reg .pred p;\n\t"
      "setp.ne.s32 p, %2, 0;\n\t"
      "@p ld.global.nc.u32 %0, [%1];\n\t"
      "}"
      : "+r"(to)
      : "l"(global), "r"(static_cast<int>(valid)));
}
// Reads, from L2, what another block of this kernel wrote before a ThreadFence, or what this thread
// is going to write.
BATON_DEVICE float LoadFresh(const float* global) { return __ldcg(global); }
BATON_DEVICE Vec16 LoadFresh16(const void* global) {
  const uint4 v = __ldcg(static_cast<const uint4*>(global));
  return {{v.x, v.y, v.z, v.w}};
}
// Any global memory; the emulation counts it, as all of these.
template <class T>
BATON_DEVICE const T& LoadGlobal(const T* global) {
  return *global;
}
template <class T>
BATON_DEVICE void StoreGlobal(T* global, T value) {
  *global = value;
}
BATON_DEVICE void Store16(void* to, const Vec16& value) {
  *static_cast<uint4*>(to) = make_uint4(value.x[0], value.x[1], value.x[2], value.x[3]);
}
// Loads from shared memory.
BATON_DEVICE Vec16 LoadShared16(const void* shared) {
  const uint4 v = *static_cast<const uint4*>(shared);
  return {{v.x, v.y, v.z, v.w}};
}
// Four matrices of 8 x 8 elements of 16 bits, transposed: the address that lane 8 i + r gives is of
// row r of matrix i. Register i holds the lane's two elements of matrix i: rows 2 member and
// 2 member + 1 of column `group` (index_maps.h), as second operands of products.
BATON_DEVICE Vec16 LoadTransposed(const void* shared) {
  Vec16 v;
  const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x[0]), "=r"(v.x[1]), "=r"(v.x[2]), "=r"(v.x[3])
               : "r"(from)
               : "memory");
  return v;
}
// Several times 16 bytes from global to shared memory, zeros where not `valid` (then `global` is
// not read). Below sm_80 through registers, all at once, and there when it returns.
template <int kCount>
BATON_DEVICE void CopyAsync16(void* const (&shared)[kCount], const void* const (&global)[kCount],
                              const bool (&valid)[kCount]) {
#if __CUDA_ARCH__ >= 800
  BATON_UNROLL for (int i = 0; i < kCount; ++i) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared[i]));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global[i]),
                 "r"(valid[i] ? 16 : 0)
                 : "memory");
  }
#else
  Vec16 held[kCount];
  BATON_UNROLL for (int i = 0; i < kCount; ++i) held[i] = Load16If(valid[i], global[i]);
  BATON_UNROLL for (int i = 0; i < kCount; ++i) Store16(shared[i], held[i]);
#endif
}
BATON_DEVICE void CopyAsync16(void* shared, const void* global, bool valid) {
  CopyAsync16<1>({shared}, {global}, {valid});
}
// Whether CopyAsync16 returns before the bytes are there.
BATON_DEVICE constexpr bool CopiesAreAsync() {
#if __CUDA_ARCH__ >= 800
  return true;
#else
  return false;
#endif
}
// The kernels that call it are launched on nothing older than sm_80.
BATON_DEVICE void NotBeforeSm80() {
#if __CUDA_ARCH__ < 800
  __trap();
#endif
}
BATON_DEVICE void CopyAsyncCommit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits until at most kPending of this thread's groups are under way.
template <int kPending>
BATON_DEVICE void CopyAsyncWait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

struct Half {
  static BATON_DEVICE float ToF32(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
  static BATON_DEVICE uint16_t FromF32(float value) {
    return __half_as_ushort(__float2half_rn(value));
  }
  static BATON_DEVICE uint32_t Pack(float low, float high) {
    return static_cast<uint32_t>(FromF32(low)) | static_cast<uint32_t>(FromF32(high)) << 16;
  }
  // The same by one conversion, where a half is used by itself, too: of Pack the compiler then
  // makes two conversions and a permutation.
  static BATON_DEVICE uint32_t PackAtOnce(float low, float high) {
#if __CUDA_ARCH__ >= 800
    uint32_t result;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
    return result;
#else
    return Pack(low, high);
#endif
  }
  // a b + c for both halves, each rounded once, subnormals kept.
  static BATON_DEVICE uint32_t Fma2(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t result;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
    return result;
  }
  static BATON_DEVICE uint32_t Multiply2(uint32_t a, uint32_t b) {
    uint32_t result;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
  }
  static BATON_DEVICE void Mma8(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(b));
  }
  static BATON_DEVICE void Mma16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    Mma8(d, a[0], a[1], b0);
    Mma8(d, a[2], a[3], b1);
#endif
  }
};

struct BFloat16 {
  static BATON_DEVICE float ToF32(uint16_t bits) {
    return __uint_as_float(static_cast<uint32_t>(bits) << 16);
  }
  static BATON_DEVICE uint16_t FromF32(float value) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
  }
  static BATON_DEVICE uint32_t Pack(float low, float high) {
    return static_cast<uint32_t>(FromF32(low)) | static_cast<uint32_t>(FromF32(high)) << 16;
  }
  static BATON_DEVICE uint32_t PackAtOnce(float low, float high) {
#if __CUDA_ARCH__ >= 800
    uint32_t result;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
    return result;
#else
    return Pack(low, high);
#endif
  }
  // It exists from sm_80 on, as Mma16; a kernel of bfloat16 is launched on nothing older.
  static BATON_DEVICE uint32_t Fma2(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t result = 0;
#if __CUDA_ARCH__ >= 800
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
#else
    __trap();
#endif
    return result;
  }
  static BATON_DEVICE void Mma16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    __trap();
#endif
  }
};

// The number of multiprocessors of the thread's device.
inline int Multiprocessors() {
  int device = 0, count = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return count;
}

// Whether a kernel was compiled for this architecture (90: sm_90) or a later one. What was compiled
// for an earlier one stays so where a driver has translated it for such a GPU.
inline bool CompiledFor(const void* kernel, int architecture) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess &&
         attributes.ptxVersion >= architecture;
}
// Whether the kernel's copies are asynchronous (the other CopiesAreAsync), for a launch that gives
// it more shared memory then. Asked at each launch: it depends on the thread's device.
template <class Args>
bool CopiesAreAsync(void (*kernel)(Args), Stream) {
  return CompiledFor(reinterpret_cast<const void*>(kernel), 80);
}

// args: a trivially copyable struct. A launch that fails is a broken invariant: sizes were checked
// when the backend was made.
template <class Args>
void Launch(void (*kernel)(Args), GridSize grid, int threads, size_t shared_bytes, Stream stream,
            const Args& args) {
  if (shared_bytes > kSharedBytesUnasked) {
    cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                         cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(shared_bytes));  // the launch says if that is too much
  }
  void* pointers[] = {const_cast<Args*>(&args)};  // is copied, not written
  // The kernel waits for the one before it.
  static const bool awaits = CompiledFor(reinterpret_cast<const void*>(kernel), 90);
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(grid.x, grid.y, grid.z);
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &early;
  config.numAttrs = awaits ? 1 : 0;
  // Its own error: the thread's last one may be of another call.
  const cudaError_t error =
      cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), pointers);
  if (error != cudaSuccess) {
    std::fprintf(stderr, "CUDA launch failed: %s\n", cudaGetErrorString(error));
    std::abort();
  }
}

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_SIMT_NVIDIA_H_
