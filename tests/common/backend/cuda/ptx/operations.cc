#include "tests/common/backend/cuda/ptx/operations.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <type_traits>

#include "tests/common/backend/cuda/ptx/machine.h"

namespace baton::backend::cuda::ptx {
namespace {

using Operations = std::map<std::string, Operation>;

// ---- Shapes of instructions
// ----------------------------------------------------------------------

// Calls f(lane) for the lanes of mask. Registers are whole or the same: lanes do not touch each
// other.
template <class F>
void ForLanes(uint32_t mask, F f) {
  if (mask == kAllLanes) {
#pragma GCC ivdep
    for (int lane = 0; lane < kWarpLanes; ++lane) f(lane);
    return;
  }
  for (; mask != 0; mask &= mask - 1) f(std::countr_zero(mask));
}

template <class To, class A, class F>
void Unary(WarpState& warp, const Instruction& i, uint32_t mask) {
  To* to = warp.At<To>(i.to[0]);
  const A* a = warp.At<A>(i.from[0]);
  ForLanes(mask, [&](int lane) { to[lane] = static_cast<To>(F{}(a[lane])); });
}
template <class To, class A, class B, class F>
void Binary(WarpState& warp, const Instruction& i, uint32_t mask) {
  To* to = warp.At<To>(i.to[0]);
  const A* a = warp.At<A>(i.from[0]);
  const B* b = warp.At<B>(i.from[1]);
  ForLanes(mask, [&](int lane) { to[lane] = static_cast<To>(F{}(a[lane], b[lane])); });
}
template <class To, class A, class B, class C, class F>
void Ternary(WarpState& warp, const Instruction& i, uint32_t mask) {
  To* to = warp.At<To>(i.to[0]);
  const A* a = warp.At<A>(i.from[0]);
  const B* b = warp.At<B>(i.from[1]);
  const C* c = warp.At<C>(i.from[2]);
  ForLanes(mask, [&](int lane) { to[lane] = static_cast<To>(F{}(a[lane], b[lane], c[lane])); });
}
template <class T, class F>
void Compare(WarpState& warp, const Instruction& i, uint32_t mask) {
  const T* a = warp.At<T>(i.from[0]);
  const T* b = warp.At<T>(i.from[1]);
  uint32_t bits = 0;
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    bits |= static_cast<uint32_t>(F{}(a[lane], b[lane])) << lane;
  }
  uint32_t& to = warp.Bits(i.to[0]);
  to = (to & ~mask) | (bits & mask);
}
template <class F>
void Logic(WarpState& warp, const Instruction& i, uint32_t mask) {
  const uint32_t bits = F{}(warp.Bits(i.from[0]), warp.Bits(i.from[1]));
  uint32_t& to = warp.Bits(i.to[0]);
  to = (to & ~mask) | (bits & mask);
}
template <class T>
void Select(WarpState& warp, const Instruction& i, uint32_t mask) {
  T* to = warp.At<T>(i.to[0]);
  const T* a = warp.At<T>(i.from[0]);
  const T* b = warp.At<T>(i.from[1]);
  const uint32_t which = warp.Bits(i.from[2]);
  ForLanes(mask, [&](int lane) { to[lane] = (which >> lane & 1) != 0 ? a[lane] : b[lane]; });
}
template <class Whole, class Part>
void Pack(WarpState& warp, const Instruction& i, uint32_t mask) {
  Whole* to = warp.At<Whole>(i.to[0]);
  const Part* low = warp.At<Part>(i.from[0]);
  const Part* high = warp.At<Part>(i.from[1]);
  ForLanes(mask, [&](int lane) {
    to[lane] = static_cast<Whole>(low[lane] | static_cast<Whole>(high[lane]) << (sizeof(Part) * 8));
  });
}
template <class Whole, class Part>
void Unpack(WarpState& warp, const Instruction& i, uint32_t mask) {
  Part* low = warp.At<Part>(i.to[0]);
  Part* high = warp.At<Part>(i.to[1]);
  const Whole* from = warp.At<Whole>(i.from[0]);
  ForLanes(mask, [&](int lane) {
    const Whole whole = from[lane];
    low[lane] = static_cast<Part>(whole);
    high[lane] = static_cast<Part>(whole >> (sizeof(Part) * 8));
  });
}

template <class To, class A, class F>
void Add1(Operations& all, const std::string& name, F) {
  all[name] = {&Unary<To, A, F>, {sizeof(To)}, {sizeof(A)}};
}
template <class To, class A, class B, class F>
void Add2(Operations& all, const std::string& name, F) {
  all[name] = {&Binary<To, A, B, F>, {sizeof(To)}, {sizeof(A), sizeof(B)}};
}
template <class T, class F>
void AddSame(Operations& all, const std::string& name, F f) {
  Add2<T, T, T>(all, name, f);
}
template <class To, class A, class B, class C, class F>
void Add3(Operations& all, const std::string& name, F) {
  all[name] = {&Ternary<To, A, B, C, F>, {sizeof(To)}, {sizeof(A), sizeof(B), sizeof(C)}};
}
template <class T, class F>
void AddCompare(Operations& all, const std::string& name, F) {
  all["setp." + name] = {&Compare<T, F>, {kPredicate}, {sizeof(T), sizeof(T)}};
}
template <class T>
void AddCompares(Operations& all, const std::string& type) {
  AddCompare<T>(all, "eq." + type, [](T a, T b) { return a == b; });
  AddCompare<T>(all, "ne." + type, [](T a, T b) { return a < b || a > b; });
  AddCompare<T>(all, "lt." + type, [](T a, T b) { return a < b; });
  AddCompare<T>(all, "le." + type, [](T a, T b) { return a <= b; });
  AddCompare<T>(all, "gt." + type, [](T a, T b) { return a > b; });
  AddCompare<T>(all, "ge." + type, [](T a, T b) { return a >= b; });
  if constexpr (std::is_floating_point_v<T>) {  // true of NaNs
    AddCompare<T>(all, "equ." + type, [](T a, T b) { return !(a < b || a > b); });
    AddCompare<T>(all, "neu." + type, [](T a, T b) { return !(a == b); });
    AddCompare<T>(all, "ltu." + type, [](T a, T b) { return !(a >= b); });
    AddCompare<T>(all, "leu." + type, [](T a, T b) { return !(a > b); });
    AddCompare<T>(all, "gtu." + type, [](T a, T b) { return !(a <= b); });
    AddCompare<T>(all, "geu." + type, [](T a, T b) { return !(a < b); });
  }
}

// ---- Arithmetic
// ----------------------------------------------------------------------------------

// Beyond the size, shifts give zeros or signs.
template <class T>
T ShiftLeft(T a, uint32_t by) {
  return by >= sizeof(T) * 8 ? T{0} : static_cast<T>(a << by);
}
template <class T>
T ShiftRight(T a, uint32_t by) {
  constexpr uint32_t kBits = sizeof(T) * 8;
  if (by >= kBits) return a < T{0} ? static_cast<T>(-1) : T{0};
  return static_cast<T>(a >> by);
}
template <class T>
T InsertBits(T a, T b, uint32_t position, uint32_t length) {
  position &= 0xff;
  length &= 0xff;
  const T field =
      length >= sizeof(T) * 8 ? static_cast<T>(~T{0}) : static_cast<T>((T{1} << length) - 1);
  const T mask = ShiftLeft(field, position);
  return static_cast<T>((b & ~mask) | (ShiftLeft(a, position) & mask));
}
uint32_t PermuteBytes(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t choice = selector >> (4 * i) & 0xf;
    auto byte = static_cast<uint32_t>(bytes >> (8 * (choice & 7)) & 0xff);
    if ((choice & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;
    result |= byte << (8 * i);
  }
  return result;
}
// The other operand if one is a NaN.
template <class T>
T Lesser(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return std::fmin(a, b);
  return b < a ? b : a;
}
template <class T>
T Larger(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return std::fmax(a, b);
  return a < b ? b : a;
}
template <class T>
T LargerOrNan(T a, T b) {
  return std::isnan(a) || std::isnan(b) ? std::numeric_limits<T>::quiet_NaN() : std::fmax(a, b);
}
float FlushedExp2(float a) {
  if (std::fpclassify(a) == FP_SUBNORMAL) a = 0;
  const float result = std::exp2(a);
  return std::fpclassify(result) == FP_SUBNORMAL ? 0 : result;
}
// Towards zero; a NaN is 0, and what is too large the largest.
template <class To>
To Truncated(double a) {
  if (std::isnan(a)) return 0;
  const double whole = std::trunc(a);
  if (whole <= static_cast<double>(std::numeric_limits<To>::min())) {
    return std::numeric_limits<To>::min();
  }
  if (whole >= static_cast<double>(std::numeric_limits<To>::max())) {
    return std::numeric_limits<To>::max();
  }
  return static_cast<To>(whole);
}

template <class T>
void AddIntegers(Operations& all, const std::string& bits) {
  using Signed = std::make_signed_t<T>;
  for (const std::string& type : {"s" + bits, "u" + bits}) {
    AddSame<T>(all, "add." + type, [](T a, T b) { return a + b; });
    AddSame<T>(all, "sub." + type, [](T a, T b) { return a - b; });
    AddSame<T>(all, "mul.lo." + type, [](T a, T b) { return static_cast<T>(uint64_t{a} * b); });
    Add3<T, T, T, T>(all, "mad.lo." + type,
                     [](T a, T b, T c) { return static_cast<T>(uint64_t{a} * b + c); });
  }
  AddSame<T>(all, "and.b" + bits, [](T a, T b) { return a & b; });
  AddSame<T>(all, "or.b" + bits, [](T a, T b) { return a | b; });
  AddSame<T>(all, "xor.b" + bits, [](T a, T b) { return a ^ b; });
  Add1<T, T>(all, "not.b" + bits, [](T a) { return ~a; });
  Add1<T, T>(all, "neg.s" + bits, [](T a) { return static_cast<T>(T{0} - a); });
  AddSame<T>(all, "min.u" + bits, [](T a, T b) { return Lesser(a, b); });
  AddSame<T>(all, "max.u" + bits, [](T a, T b) { return Larger(a, b); });
  AddSame<Signed>(all, "min.s" + bits, [](Signed a, Signed b) { return Lesser(a, b); });
  AddSame<Signed>(all, "max.s" + bits, [](Signed a, Signed b) { return Larger(a, b); });
  // Of a division by zero nothing is promised; all bits set is what chips give.
  AddSame<T>(all, "div.u" + bits,
             [](T a, T b) { return b == 0 ? static_cast<T>(~T{0}) : static_cast<T>(a / b); });
  AddSame<T>(all, "rem.u" + bits, [](T a, T b) { return b == 0 ? a : static_cast<T>(a % b); });
  AddSame<Signed>(all, "div.s" + bits, [](Signed a, Signed b) {
    return b == 0    ? Signed{-1}
           : b == -1 ? static_cast<Signed>(T{0} - static_cast<T>(a))
                     : static_cast<Signed>(a / b);
  });
  AddSame<Signed>(all, "rem.s" + bits, [](Signed a, Signed b) {
    return b == 0 ? a : b == -1 ? Signed{0} : static_cast<Signed>(a % b);
  });
  Add2<T, T, uint32_t>(all, "shl.b" + bits, [](T a, uint32_t b) { return ShiftLeft(a, b); });
  Add2<T, T, uint32_t>(all, "shr.u" + bits, [](T a, uint32_t b) { return ShiftRight(a, b); });
  Add2<Signed, Signed, uint32_t>(all, "shr.s" + bits,
                                 [](Signed a, uint32_t b) { return ShiftRight(a, b); });
  AddCompares<T>(all, "u" + bits);
  AddCompares<T>(all, "b" + bits);
  AddCompares<Signed>(all, "s" + bits);
  for (const char* type : {"b", "u", "s"}) {
    all["selp." + (type + bits)] = {&Select<T>, {sizeof(T)}, {sizeof(T), sizeof(T), kPredicate}};
    Add1<T, T>(all, "mov." + (type + bits), [](T a) { return a; });
  }
}

template <class T, class Bits>
void AddFloats(Operations& all, const std::string& type) {
  AddSame<T>(all, "add.rn." + type, [](T a, T b) { return a + b; });
  AddSame<T>(all, "sub.rn." + type, [](T a, T b) { return a - b; });
  AddSame<T>(all, "mul.rn." + type, [](T a, T b) { return a * b; });
  AddSame<T>(all, "div.rn." + type, [](T a, T b) { return a / b; });
  Add3<T, T, T, T>(all, "fma.rn." + type, [](T a, T b, T c) { return std::fma(a, b, c); });
  AddSame<T>(all, "min." + type, [](T a, T b) { return Lesser(a, b); });
  AddSame<T>(all, "max." + type, [](T a, T b) { return Larger(a, b); });
  AddSame<T>(all, "max.NaN." + type, [](T a, T b) { return LargerOrNan(a, b); });
  Add1<T, T>(all, "sqrt.rn." + type, [](T a) { return std::sqrt(a); });
  Add1<T, T>(all, "neg." + type, [](T a) { return -a; });
  Add1<T, T>(all, "abs." + type, [](T a) { return std::fabs(a); });
  AddCompares<T>(all, type);
  all["selp." + type] = {&Select<Bits>, {sizeof(T)}, {sizeof(T), sizeof(T), kPredicate}};
  Add1<Bits, Bits>(all, "mov." + type, [](Bits a) { return a; });  // signalling NaNs stay
}

template <class To, class A>
void AddConversion(Operations& all, const std::string& to, const std::string& from) {
  Add1<To, A>(all, "cvt." + to + "." + from, [](A a) { return static_cast<To>(a); });
}
template <class A>
void AddConversionsFrom(Operations& all, const std::string& from) {
  AddConversion<uint16_t, A>(all, "u16", from);
  AddConversion<int16_t, A>(all, "s16", from);
  AddConversion<uint32_t, A>(all, "u32", from);
  AddConversion<int32_t, A>(all, "s32", from);
  AddConversion<uint64_t, A>(all, "u64", from);
  AddConversion<int64_t, A>(all, "s64", from);
  Add1<float, A>(all, "cvt.rn.f32." + from, [](A a) { return static_cast<float>(a); });
  Add1<double, A>(all, "cvt.rn.f64." + from, [](A a) { return static_cast<double>(a); });
}

void AddConversions(Operations& all) {
  AddConversionsFrom<uint16_t>(all, "u16");
  AddConversionsFrom<int16_t>(all, "s16");
  AddConversionsFrom<uint32_t>(all, "u32");
  AddConversionsFrom<int32_t>(all, "s32");
  AddConversionsFrom<uint64_t>(all, "u64");
  AddConversionsFrom<int64_t>(all, "s64");
  Add1<double, float>(all, "cvt.f64.f32", [](float a) { return static_cast<double>(a); });
  Add1<float, double>(all, "cvt.rn.f32.f64", [](double a) { return static_cast<float>(a); });
  Add1<float, uint16_t>(all, "cvt.f32.f16", [](uint16_t a) { return emulated::HalfToF32(a); });
  Add1<uint16_t, float>(all, "cvt.rn.f16.f32", [](float a) { return emulated::HalfFromF32(a); });
  Add1<uint16_t, float>(all, "cvt.rn.bf16.f32",
                        [](float a) { return emulated::BFloat16FromF32(a); });
  Add1<int32_t, double>(all, "cvt.rzi.s32.f64", [](double a) { return Truncated<int32_t>(a); });
  Add1<uint64_t, double>(all, "cvt.rzi.u64.f64", [](double a) { return Truncated<uint64_t>(a); });
  Add1<int32_t, float>(all, "cvt.rni.s32.f32", [](float a) {
    return Truncated<int32_t>(std::nearbyint(static_cast<double>(a)));
  });
}

// ---- The warp together
// ---------------------------------------------------------------------------

// shfl.sync.MODE.b32 d, a, b, c, members: c is what `clamp and segment mask` whole warps give.
template <bool kXor>
void ShuffleLanes(WarpState& warp, const Instruction& i, uint32_t) {
  uint32_t values[kWarpLanes];
  std::memcpy(values, warp.At<uint32_t>(i.from[0]), sizeof(values));
  const uint32_t* lanes = warp.At<uint32_t>(i.from[1]);
  const uint32_t* clamps = warp.At<uint32_t>(i.from[2]);
  const uint32_t* members = warp.At<uint32_t>(i.from[3]);
  uint32_t* to = warp.At<uint32_t>(i.to[0]);
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    if (members[lane] != kAllLanes || (clamps[lane] & 0x1f1f) != 0x1f) {
      warp.machine->Fail(warp, lane, "shuffles among less than a whole warp");
    }
    const uint32_t from =
        kXor ? static_cast<uint32_t>(lane) ^ (lanes[lane] & 31) : lanes[lane] & 31;
    to[lane] = values[from];
  }
}

// A tensor core's sum of n <= 16 products and a sum before; MachineOptions says how.
float SumProducts(const float* a, const float* b, int n, float before, int at_once) {
  if (at_once == 0) {
    double sum = 0;
    for (int k = 0; k < n; ++k) sum += static_cast<double>(a[k]) * static_cast<double>(b[k]);
    return static_cast<float>(static_cast<double>(before) + sum);
  }
  double sum = static_cast<double>(before);
  for (int start = 0; start < n; start += at_once) {
    double products[17];
    const int count = std::min(at_once, n - start);
    double largest = std::fabs(sum);
    for (int k = 0; k < count; ++k) {
      products[k] = static_cast<double>(a[start + k]) * static_cast<double>(b[start + k]);
      largest = std::max(largest, std::fabs(products[k]));
    }
    products[count] = sum;
    sum = 0;
    if (!std::isfinite(largest) || largest != largest || largest == 0) {
      for (int k = 0; k <= count; ++k) sum += products[k];
      continue;
    }
    // Units of the largest's last place of 24; a carry takes the sum's last places once more.
    const int exponent = std::ilogb(largest) - 23;
    double total = 0;
    for (int k = 0; k <= count; ++k) total += std::trunc(std::ldexp(products[k], -exponent));
    int carried = 0;
    while (std::fabs(total) >= 0x1p24) {
      total = std::trunc(total / 2);
      ++carried;
    }
    sum = std::ldexp(total, exponent + carried);
  }
  return static_cast<float>(sum);
}

// As PTX's fragments hold them: a is rows x k, b k x 8, d and c rows x 8.
template <int kK, bool kBfloat>
void Multiply(WarpState& warp, const Instruction& i, uint32_t) {
  float a[16][kK], b[8][kK], d[4][kWarpLanes];
  const auto unpack = [](uint32_t pair, float* to) {
    if (kBfloat) {
      to[0] = std::bit_cast<float>(pair << 16);
      to[1] = std::bit_cast<float>(pair & 0xffff0000u);
    } else {
      to[0] = emulated::HalfToF32(static_cast<uint16_t>(pair));
      to[1] = emulated::HalfToF32(static_cast<uint16_t>(pair >> 16));
    }
  };
  constexpr int kHalves = kK / 8;  // operands: 2 of a and one of b for each, then c
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    const int group = lane / 4, pair = lane % 4 * 2;
    for (int half = 0; half < kHalves; ++half) {
      const auto h = static_cast<size_t>(half);
      unpack(warp.At<uint32_t>(i.from[h * 2])[lane], &a[group][half * 8 + pair]);
      unpack(warp.At<uint32_t>(i.from[h * 2 + 1])[lane], &a[group + 8][half * 8 + pair]);
      unpack(warp.At<uint32_t>(i.from[kHalves * 2 + h])[lane], &b[group][half * 8 + pair]);
    }
  }
  const int at_once = warp.machine->options().truncated_sum;
  for (size_t r = 0; r < 4; ++r) {
    const float* c = warp.At<float>(i.from[kHalves * 3 + r]);
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      const int row = lane / 4 + static_cast<int>(r) / 2 * 8;
      const int column = lane % 4 * 2 + static_cast<int>(r) % 2;
      d[r][lane] = SumProducts(a[row], b[column], kK, c[lane], at_once);
    }
  }
  for (size_t r = 0; r < 4; ++r) std::memcpy(warp.At<float>(i.to[r]), d[r], sizeof(d[r]));
}

// ---- Memory
// --------------------------------------------------------------------------------------

void StartCopies(WarpState& warp, const Instruction& i, uint32_t mask) {
  ForLanes(mask, [&](int lane) {
    const uint32_t bytes = warp.At<uint32_t>(i.from[2])[lane];
    if (bytes != 0 && bytes != 16) warp.machine->Fail(warp, lane, "copies part of 16 bytes");
    warp.machine->StartCopy(
        warp, lane,
        {warp.At<uint32_t>(i.from[0])[lane], warp.At<uint64_t>(i.from[1])[lane], bytes == 16});
  });
}
void CommitCopies(WarpState& warp, const Instruction&, uint32_t mask) {
  ForLanes(mask, [&](int lane) {
    warp.copies[lane].push_back(std::move(warp.open_copies[lane]));
    warp.open_copies[lane].clear();
  });
}
void AwaitCopies(WarpState& warp, const Instruction& i, uint32_t mask) {
  ForLanes(mask,
           [&](int lane) { warp.machine->AwaitCopies(warp, lane, static_cast<size_t>(i.offset)); });
}
void Fence(WarpState& warp, const Instruction&, uint32_t mask) { warp.machine->Fence(warp, mask); }

// The bytes at an address in a space.
struct GlobalSpace {
  using Address = uint64_t;
  static std::byte* At(WarpState& warp, int lane, uint64_t address, int bytes, Access access,
                       const std::byte* value = nullptr) {
    return warp.machine->Global(warp, lane, address, bytes, access, value);
  }
};
struct SharedSpace {
  using Address = uint32_t;
  static std::byte* At(WarpState& warp, int lane, uint32_t address, int bytes, Access access,
                       const std::byte* value = nullptr) {
    return warp.machine->Shared(warp, lane, address, bytes, access, value);
  }
};
struct ParameterSpace {
  using Address = uint64_t;
  static const std::byte* At(WarpState& warp, int, uint64_t address, int bytes, Access) {
    return warp.machine->Parameter(warp, address, bytes);
  }
};

// ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16: lane 8 i + r names row r of matrix i.
void LoadMatrices(WarpState& warp, const Instruction& i, uint32_t) {
  uint16_t rows[kWarpLanes][8];
  const uint32_t* addresses = warp.At<uint32_t>(i.from[0]);
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    const auto address = addresses[lane] + static_cast<uint32_t>(i.offset);
    const std::byte* row = SharedSpace::At(warp, lane, address, sizeof(rows[0]), Access::kRead);
    std::memcpy(rows[lane], row, sizeof(rows[0]));
  }
  for (size_t matrix = 0; matrix < 4; ++matrix) {
    uint32_t* to = warp.At<uint32_t>(i.to[matrix]);
    for (size_t lane = 0; lane < kWarpLanes; ++lane) {
      const size_t row = matrix * 8 + lane % 4 * 2, column = lane / 4;
      to[lane] = rows[row][column] | static_cast<uint32_t>(rows[row + 1][column]) << 16;
    }
  }
}

template <class Space, Access kAccess, class Memory, class Register>
void Load(WarpState& warp, const Instruction& i, uint32_t mask) {
  const auto* addresses = warp.At<typename Space::Address>(i.from[0]);
  constexpr auto kBytes = static_cast<int>(sizeof(Memory));
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    const int lane = std::countr_zero(left);
    const auto address = static_cast<typename Space::Address>(
        addresses[lane] + static_cast<typename Space::Address>(i.offset));
    const auto* from = Space::At(warp, lane, address, kBytes * i.vector, kAccess);
    for (size_t e = 0; e < i.vector; ++e) {
      Memory value;
      std::memcpy(&value, from + e * sizeof(Memory), sizeof(Memory));
      warp.At<Register>(i.to[e])[lane] = static_cast<Register>(value);  // zeros or signs above
    }
  }
}
template <class Space, class Memory, class Register>
void Store(WarpState& warp, const Instruction& i, uint32_t mask) {
  const auto* addresses = warp.At<typename Space::Address>(i.from[0]);
  constexpr auto kBytes = static_cast<int>(sizeof(Memory));
  const int first = warp.machine->first_lane();
  for (int n = 0; n < kWarpLanes; ++n) {
    const int lane = (first + n) % kWarpLanes;
    if ((mask >> lane & 1) == 0) continue;
    const auto address = static_cast<typename Space::Address>(
        addresses[lane] + static_cast<typename Space::Address>(i.offset));
    Memory values[4] = {};
    for (size_t e = 0; e < 4; ++e) {
      if (e < i.vector) values[e] = static_cast<Memory>(warp.At<Register>(i.from[e + 1])[lane]);
    }
    std::memcpy(Space::At(warp, lane, address, kBytes * i.vector, Access::kWrite,
                          reinterpret_cast<const std::byte*>(values)),
                values, i.vector * sizeof(Memory));
  }
}
template <class Space, class T, class F>
void Change(WarpState& warp, const Instruction& i, uint32_t mask) {
  const auto* addresses = warp.At<typename Space::Address>(i.from[0]);
  const int first = warp.machine->first_lane();
  for (int n = 0; n < kWarpLanes; ++n) {
    const int lane = (first + n) % kWarpLanes;
    if ((mask >> lane & 1) == 0) continue;
    const auto address = static_cast<typename Space::Address>(
        addresses[lane] + static_cast<typename Space::Address>(i.offset));
    std::byte* at = Space::At(warp, lane, address, sizeof(T), Access::kAtomic);
    T before;
    std::memcpy(&before, at, sizeof(T));
    const T after = F{}(before, warp.At<T>(i.from[1])[lane]);
    std::memcpy(at, &after, sizeof(T));
    warp.At<T>(i.to[0])[lane] = before;
  }
}

template <class Memory, class Register>
MemoryOperation LoadOf(const std::string& space, bool read_only) {
  constexpr auto kBytes = static_cast<int>(sizeof(Memory));
  if (space == "param") return {&Load<ParameterSpace, Access::kRead, Memory, Register>, kBytes};
  if (space == "shared") return {&Load<SharedSpace, Access::kRead, Memory, Register>, kBytes};
  if (space != "global") return {};
  return {read_only ? &Load<GlobalSpace, Access::kReadOnly, Memory, Register>
                    : &Load<GlobalSpace, Access::kRead, Memory, Register>,
          kBytes};
}
template <class Memory, class Register>
MemoryOperation StoreOf(const std::string& space) {
  constexpr auto kBytes = static_cast<int>(sizeof(Memory));
  if (space == "shared") return {&Store<SharedSpace, Memory, Register>, kBytes};
  if (space == "global") return {&Store<GlobalSpace, Memory, Register>, kBytes};
  return {};
}

Operations MakeOperations() {
  Operations all;
  AddIntegers<uint16_t>(all, "16");
  AddIntegers<uint32_t>(all, "32");
  AddIntegers<uint64_t>(all, "64");
  AddFloats<float, uint32_t>(all, "f32");
  AddFloats<double, uint64_t>(all, "f64");
  AddConversions(all);
  Add1<float, float>(all, "ex2.approx.ftz.f32", [](float a) { return FlushedExp2(a); });
  Add1<uint32_t, uint32_t>(all, "clz.b32", [](uint32_t a) { return std::countl_zero(a); });
  Add1<uint32_t, uint64_t>(all, "clz.b64", [](uint64_t a) { return std::countl_zero(a); });
  Add3<uint32_t, uint32_t, uint32_t, uint32_t>(
      all, "prmt.b32", [](uint32_t a, uint32_t b, uint32_t c) { return PermuteBytes(a, b, c); });
  Add1<uint64_t, uint64_t>(all, "cvta.to.global.u64", [](uint64_t a) { return a; });
  Add2<uint32_t, uint16_t, uint16_t>(all, "mul.wide.u16",
                                     [](uint16_t a, uint16_t b) { return uint32_t{a} * b; });
  Add2<uint64_t, uint32_t, uint32_t>(all, "mul.wide.u32",
                                     [](uint32_t a, uint32_t b) { return uint64_t{a} * b; });
  Add2<int64_t, int32_t, int32_t>(all, "mul.wide.s32",
                                  [](int32_t a, int32_t b) { return int64_t{a} * b; });
  all["lop3.b32"] = {[](WarpState& warp, const Instruction& i, uint32_t mask) {
                       const uint32_t table = warp.At<uint32_t>(i.from[3])[0];
                       for (int lane = 0; lane < kWarpLanes; ++lane) {
                         if ((mask >> lane & 1) == 0) continue;
                         const uint32_t a = warp.At<uint32_t>(i.from[0])[lane];
                         const uint32_t b = warp.At<uint32_t>(i.from[1])[lane];
                         const uint32_t c = warp.At<uint32_t>(i.from[2])[lane];
                         uint32_t result = 0;
                         for (uint32_t bits = 0; bits < 8; ++bits) {
                           if ((table >> bits & 1) == 0) continue;
                           result |=
                               (bits & 4 ? a : ~a) & (bits & 2 ? b : ~b) & (bits & 1 ? c : ~c);
                         }
                         warp.At<uint32_t>(i.to[0])[lane] = result;
                       }
                     },
                     {4},
                     {4, 4, 4, 4}};
  AddSame<uint32_t>(all, "mul.hi.u32", [](uint32_t a, uint32_t b) {
    return static_cast<uint32_t>(uint64_t{a} * b >> 32);
  });
  AddSame<int32_t>(all, "mul.hi.s32",
                   [](int32_t a, int32_t b) { return static_cast<int32_t>(int64_t{a} * b >> 32); });
  AddSame<uint64_t>(all, "mul.hi.u64", [](uint64_t a, uint64_t b) {
    return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
  });
  all["bfi.b32"] = {[](WarpState& warp, const Instruction& i, uint32_t mask) {
                      ForLanes(mask, [&](int lane) {
                        const auto at = [&](size_t n) {
                          return warp.At<uint32_t>(i.from[n])[lane];
                        };
                        warp.At<uint32_t>(i.to[0])[lane] = InsertBits(at(0), at(1), at(2), at(3));
                      });
                    },
                    {4},
                    {4, 4, 4, 4}};
  all["bfi.b64"] = {[](WarpState& warp, const Instruction& i, uint32_t mask) {
                      ForLanes(mask, [&](int lane) {
                        warp.At<uint64_t>(i.to[0])[lane] = InsertBits(
                            warp.At<uint64_t>(i.from[0])[lane], warp.At<uint64_t>(i.from[1])[lane],
                            warp.At<uint32_t>(i.from[2])[lane], warp.At<uint32_t>(i.from[3])[lane]);
                      });
                    },
                    {8},
                    {8, 8, 4, 4}};
  const auto logic = [&](const char* name, auto f) {
    all[name] = {&Logic<decltype(f)>, {kPredicate}, {kPredicate, kPredicate}};
  };
  logic("and.pred", [](uint32_t a, uint32_t b) { return a & b; });
  logic("or.pred", [](uint32_t a, uint32_t b) { return a | b; });
  logic("xor.pred", [](uint32_t a, uint32_t b) { return a ^ b; });
  const auto logic1 = [&](const char* name, Handler handler) {
    all[name] = {handler, {kPredicate}, {kPredicate}};
  };
  logic1("not.pred", [](WarpState& warp, const Instruction& i, uint32_t mask) {
    uint32_t& to = warp.Bits(i.to[0]);
    to = (to & ~mask) | (~warp.Bits(i.from[0]) & mask);
  });
  logic1("mov.pred", [](WarpState& warp, const Instruction& i, uint32_t mask) {
    uint32_t& to = warp.Bits(i.to[0]);
    to = (to & ~mask) | (warp.Bits(i.from[0]) & mask);
  });
  all["mov.b64.pack"] = {&Pack<uint64_t, uint32_t>, {8}, {4, 4}};
  all["mov.b32.pack"] = {&Pack<uint32_t, uint16_t>, {4}, {2, 2}};
  all["mov.b64.unpack"] = {&Unpack<uint64_t, uint32_t>, {4, 4}, {8}};
  all["mov.b32.unpack"] = {&Unpack<uint32_t, uint16_t>, {2, 2}, {4}};
  using Two = uint32_t;  // in the halves of a register
  AddSame<Two>(all, "mul.rn.f16x2", [](Two a, Two b) { return Half::Multiply2(a, b); });
  Add2<Two, float, float>(all, "cvt.rn.f16x2.f32",
                          [](float high, float low) { return Half::Pack(low, high); });
  Add2<Two, float, float>(all, "cvt.rn.bf16x2.f32",
                          [](float high, float low) { return BFloat16::Pack(low, high); });
  Add3<Two, Two, Two, Two>(all, "fma.rn.f16x2",
                           [](Two a, Two b, Two c) { return Half::Fma2(a, b, c); });
  Add3<Two, Two, Two, Two>(all, "fma.rn.bf16x2",
                           [](Two a, Two b, Two c) { return BFloat16::Fma2(a, b, c); });
  all["shfl.sync.bfly.b32"] = {&ShuffleLanes<true>, {4}, {4, 4, 4, 4}, Flow::kTogether};
  all["shfl.sync.idx.b32"] = {&ShuffleLanes<false>, {4}, {4, 4, 4, 4}, Flow::kTogether};
  const std::string row_col = ".row.col.f32.";
  const std::string mma = "mma.sync.aligned.";
  all[mma + "m16n8k8" + row_col + "f16.f16.f32"] = {
      &Multiply<8, false>, {4, 4, 4, 4}, std::vector<int>(7, 4), Flow::kTogether};
  all[mma + "m16n8k16" + row_col + "f16.f16.f32"] = {
      &Multiply<16, false>, {4, 4, 4, 4}, std::vector<int>(10, 4), Flow::kTogether};
  all[mma + "m16n8k16" + row_col + "bf16.bf16.f32"] = {
      &Multiply<16, true>, {4, 4, 4, 4}, std::vector<int>(10, 4), Flow::kTogether};
  all["ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"] = {
      &LoadMatrices, {4, 4, 4, 4}, {4}, Flow::kTogether};
  all["cp.async.cg.shared.global"] = {&StartCopies, {}, {}};
  all["cp.async.commit_group"] = {&CommitCopies, {}, {}};
  all["cp.async.wait_group"] = {&AwaitCopies, {}, {4}};
  all["membar.gl"] = {&Fence, {}, {}};
  // Launches follow one another.
  for (const char* name :
       {"griddepcontrol.wait", "griddepcontrol.launch_dependents", "prefetch.global.L2"}) {
    all[name] = {[](WarpState&, const Instruction&, uint32_t) {}, {}, {}};
  }
  return all;
}

}  // namespace

const Operation* FindOperation(const std::string& opcode) {
  static const Operations& all = *new Operations(MakeOperations());
  const auto found = all.find(opcode);
  return found == all.end() ? nullptr : &found->second;
}

MemoryOperation FindLoad(const std::string& space, bool read_only, const std::string& type,
                         int register_bytes) {
  const std::string key = type.substr(0, 1) == "s" ? type : "u" + type.substr(1);
  if (key == "u8" && register_bytes == 2) return LoadOf<uint8_t, uint16_t>(space, read_only);
  if (key == "u8" && register_bytes == 4) return LoadOf<uint8_t, uint32_t>(space, read_only);
  if (key == "s8" && register_bytes == 2) return LoadOf<int8_t, uint16_t>(space, read_only);
  if (key == "s8" && register_bytes == 4) return LoadOf<int8_t, uint32_t>(space, read_only);
  if (key == "u16" && register_bytes == 2) return LoadOf<uint16_t, uint16_t>(space, read_only);
  if (key == "s16" && register_bytes == 4) return LoadOf<int16_t, int32_t>(space, read_only);
  if (key == "u16" && register_bytes == 4) return LoadOf<uint16_t, uint32_t>(space, read_only);
  if ((key == "u32" || key == "s32") && register_bytes == 4) {
    return LoadOf<uint32_t, uint32_t>(space, read_only);
  }
  if (key == "u32" && register_bytes == 8) return LoadOf<uint32_t, uint64_t>(space, read_only);
  if (key == "s32" && register_bytes == 8) return LoadOf<int32_t, int64_t>(space, read_only);
  if ((key == "u64" || key == "s64") && register_bytes == 8) {
    return LoadOf<uint64_t, uint64_t>(space, read_only);
  }
  return {};
}

MemoryOperation FindStore(const std::string& space, const std::string& type, int register_bytes) {
  const std::string bits = type.substr(1);
  if (bits == "8" && register_bytes == 2) return StoreOf<uint8_t, uint16_t>(space);
  if (bits == "8" && register_bytes == 4) return StoreOf<uint8_t, uint32_t>(space);
  if (bits == "16" && register_bytes == 2) return StoreOf<uint16_t, uint16_t>(space);
  if (bits == "16" && register_bytes == 4) return StoreOf<uint16_t, uint32_t>(space);
  if (bits == "32" && register_bytes == 8) return StoreOf<uint32_t, uint64_t>(space);
  if (bits == "32" && register_bytes == 4) return StoreOf<uint32_t, uint32_t>(space);
  if (bits == "64" && register_bytes == 8) return StoreOf<uint64_t, uint64_t>(space);
  return {};
}

MemoryOperation FindAtomic(const std::string& opcode) {
  const auto sum32 = [](uint32_t a, uint32_t b) { return a + b; };
  const auto sum64 = [](uint64_t a, uint64_t b) { return a + b; };
  const auto most = [](uint64_t a, uint64_t b) { return std::max(a, b); };
  const auto least = [](uint64_t a, uint64_t b) { return std::min(a, b); };
  if (opcode == "atom.global.add.u32") return {&Change<GlobalSpace, uint32_t, decltype(sum32)>, 4};
  if (opcode == "atom.shared.add.u32") return {&Change<SharedSpace, uint32_t, decltype(sum32)>, 4};
  if (opcode == "atom.global.add.u64") return {&Change<GlobalSpace, uint64_t, decltype(sum64)>, 8};
  if (opcode == "atom.global.max.u64") return {&Change<GlobalSpace, uint64_t, decltype(most)>, 8};
  if (opcode == "atom.global.min.u64") return {&Change<GlobalSpace, uint64_t, decltype(least)>, 8};
  return {};
}

}  // namespace baton::backend::cuda::ptx
