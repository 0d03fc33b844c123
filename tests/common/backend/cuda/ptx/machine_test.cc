// The interpreter of PTX is right about a right kernel, and each of its mistakes is found: a
// barrier or a fence left out, a read-only load of what is written, an address that is none.
#include "tests/common/backend/cuda/ptx/machine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace baton::backend::cuda::ptx {
namespace {

constexpr int kThreads = 64, kBlocks = 5;
constexpr uint64_t kSeeds = 60;

// Each thread adds its number and that of a thread of the other warp, from shared memory; the block
// that counts last adds the results of all blocks.
constexpr char kLastBlock[] = R"(
.version 9.0
.target sm_75
.address_size 64

.entry LastBlock(
	.param .align 8 .b8 LastBlock_param_0[32]
)
.maxntid 64, 1, 1
{
	.reg .pred 	%p<5>;
	.reg .b32 	%r<24>;
	.reg .b64 	%rd<16>;
	.shared .align 4 .b8 exchange[256];
	.shared .align 4 .b8 total[4];

	ld.param.u64 	%rd1, [LastBlock_param_0];
	ld.param.u64 	%rd2, [LastBlock_param_0+8];
	ld.param.u64 	%rd3, [LastBlock_param_0+16];
	ld.param.u64 	%rd4, [LastBlock_param_0+24];
	mov.u32 	%r1, %tid.x;
	mov.u32 	%r2, %ctaid.x;
	mov.u32 	%r3, %ntid.x;
	mov.u32 	%r4, %nctaid.x;
	setp.lt.u32 	%p4, %r1, 7;
	mad.lo.s32 	%r5, %r2, %r3, %r1;
	mul.wide.u32 	%rd5, %r5, 4;
	add.s64 	%rd6, %rd1, %rd5;
	ld.global.nc.L1::no_allocate.L2::128B.u32 	%r6, [%rd6+0];
	shl.b32 	%r7, %r1, 2;
	mov.u32 	%r8, exchange;
	add.s32 	%r9, %r8, %r7;
	st.shared.u32 	[%r9+0], %r6;
	bar.sync 	0; // of the exchange
	xor.b32 	%r10, %r7, 128;
	add.s32 	%r11, %r8, %r10;
	ld.shared.u32 	%r12, [%r11];
	add.s32 	%r13, %r6, %r12;
	add.s64 	%rd7, %rd2, %rd5;
	st.global.u32 	[%rd7], %r13;
	membar.gl; // of the writer
	bar.sync 	0; // before the count
	setp.ne.s32 	%p1, %r1, 0;
	@%p1 bra 	$L_counted;
	atom.global.add.u32 	%r14, [%rd3], 1;
	membar.gl; // of the reader
	st.shared.u32 	[total], %r14;
$L_counted:
	bar.sync 	0; // after the count
	ld.shared.u32 	%r15, [total];
	add.s32 	%r16, %r15, 1;
	setp.ne.s32 	%p2, %r16, %r4;
	@%p2 bra 	$L_end;
	mov.u32 	%r17, 0;
	mov.u32 	%r18, 0;
$L_sum:
	mad.lo.s32 	%r19, %r18, %r3, %r1;
	mul.wide.u32 	%rd8, %r19, 4;
	add.s64 	%rd9, %rd2, %rd8;
	ld.global.u32 	%r20, [%rd9];
	add.s32 	%r17, %r17, %r20;
	add.s32 	%r18, %r18, 1;
	setp.lt.u32 	%p3, %r18, %r4;
	@%p3 bra 	$L_sum;
	mul.wide.u32 	%rd10, %r1, 4;
	add.s64 	%rd11, %rd4, %rd10;
	st.global.u32 	[%rd11], %r17;
$L_end:
	ret;
}
)";

std::vector<uint32_t> RunLastBlock(const std::string& ptx, uint64_t seed) {
  Program program;
  program.Add(ptx);
  Machine machine(program, {});
  alignas(16) uint32_t in[kBlocks * kThreads], partials[kBlocks * kThreads], counter[4] = {};
  std::iota(std::begin(in), std::end(in), 1);
  std::vector<uint32_t> out(kThreads);
  const void* const arguments[] = {in, partials, counter, out.data()};
  machine.Run(*program.Find("LastBlock"), {{kBlocks, 1, 1}, kThreads, 0}, seed, arguments,
              sizeof(arguments));
  return out;
}

std::vector<uint32_t> RightResult() {
  std::vector<uint32_t> out(kThreads);
  for (uint32_t thread = 0; thread < kThreads; ++thread) {
    for (uint32_t block = 0; block < kBlocks; ++block) {
      out[thread] += 2 * (block * kThreads + 1) + thread + (thread ^ 32);
    }
  }
  return out;
}

TEST(PtxMachineTest, ARightKernelIsRightInEveryOrder) {
  for (uint64_t seed = 0; seed <= kSeeds; ++seed) {
    ASSERT_EQ(RunLastBlock(kLastBlock, seed), RightResult()) << "seed " << seed;
  }
}

struct Mistake {
  const char *name, *was, *is, *message;
};

void PrintTo(const Mistake& mistake, std::ostream* out) { *out << mistake.name; }

class PtxMistakeDeathTest : public ::testing::TestWithParam<Mistake> {};

TEST_P(PtxMistakeDeathTest, IsFound) {
  const std::string right = kLastBlock;
  const std::string wrong = absl::StrReplaceAll(right, {{GetParam().was, GetParam().is}});
  ASSERT_NE(wrong, right);
  EXPECT_DEATH(
      {
        for (uint64_t seed = 1; seed <= kSeeds; ++seed) RunLastBlock(wrong, seed);
      },
      GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    All, PtxMistakeDeathTest,
    ::testing::Values(
        Mistake{"NoBarrierInTheExchange", "bar.sync \t0; // of the exchange", "",
                "in shared memory (reads what thread [0-9]+ of block 0 wrote|"
                "writes what .* read), with nothing between"},
        Mistake{"NoFenceOfTheWriter", "membar.gl; // of the writer", "",
                "in global memory reads what thread [0-9]+ of block [0-9]+ wrote, with nothing"},
        Mistake{"FenceBeforeTheWrite", "st.global.u32 \t[%rd7], %r13;\n\tmembar.gl;",
                "membar.gl;\n\tst.global.u32 \t[%rd7], %r13;",
                "in global memory reads what thread [0-9]+ of block [0-9]+ wrote, with nothing"},
        Mistake{"CountedBeforeAllHaveWritten", "bar.sync \t0; // before the count", "",
                "in global memory reads what thread [0-9]+ of block [0-9]+ wrote, with nothing"},
        Mistake{"NoFenceOfTheReader", "membar.gl; // of the reader", "",
                "in global memory reads what thread [0-9]+ of block [0-9]+ wrote, with nothing"},
        Mistake{"NoBarrierAfterTheCount", "bar.sync \t0; // after the count", "",
                "in shared memory (reads what thread 0 of block 0 wrote|"
                "writes what .* read), with nothing between"},
        Mistake{"ReadOnlyLoadOfWhatIsWritten", "ld.global.u32 \t%r20", "ld.global.nc.u32 \t%r20",
                "in global memory reads by ld.global.nc what the kernel writes"},
        Mistake{"OneThreadWritesForAll", "add.s64 \t%rd7, %rd2, %rd5;", "mov.u64 \t%rd7, %rd2;",
                "in global memory writes what thread [0-9]+ of block [0-9]+ wrote, with nothing"},
        Mistake{"OddAddress", "[%rd6+0]", "[%rd6+2]", "accesses 4 bytes at "},
        Mistake{"BeyondSharedMemory", "[%r9+0]", "[%r9+272]",
                "accesses 4 bytes of shared memory at [0-9]+ of 272"},
        Mistake{"BarrierOfSomeLanes", "bar.sync \t0; // of the exchange", "@%p4 bar.sync \t0;",
                "comes to a meeting under a condition"},
        Mistake{"BarrierInABranch", "@%p1 bra \t$L_counted;",
                "@%p1 bra \t$L_counted;\n\tbar.sync \t0;", "the kernel hangs"},
        Mistake{"Trap", "@%p2 bra \t$L_end;", "@%p2 bra \t$L_end;\n\ttrap;", "traps"},
        Mistake{"UnknownInstruction", "xor.b32", "bfind.u32", "an instruction that is not known"}),
    [](const auto& info) { return std::string(info.param.name); });

// Copies 16 bytes to shared memory and back, asynchronously.
constexpr char kStaged[] = R"(
.version 9.0
.target sm_80
.address_size 64

.entry Staged(
	.param .align 8 .b8 Staged_param_0[16]
)
.maxntid 32, 1, 1
{
	.reg .b32 	%r<12>;
	.reg .b64 	%rd<8>;
	.shared .align 16 .b8 stage[512];

	ld.param.u64 	%rd1, [Staged_param_0];
	ld.param.u64 	%rd2, [Staged_param_0+8];
	mov.u32 	%r1, %tid.x;
	shl.b32 	%r2, %r1, 4;
	mov.u32 	%r3, stage;
	add.s32 	%r4, %r3, %r2;
	mul.wide.u32 	%rd3, %r2, 1;
	add.s64 	%rd4, %rd1, %rd3;
	mov.u32 	%r9, 16;
	cp.async.cg.shared.global 	[%r4], [%rd4], 16, %r9;
	cp.async.commit_group;
	cp.async.wait_group 	0;
	ld.shared.v4.u32 	{%r5, %r6, %r7, %r8}, [%r4];
	add.s64 	%rd5, %rd2, %rd3;
	st.global.v4.u32 	[%rd5], {%r5, %r6, %r7, %r8};
	ret;
}
)";

std::vector<uint32_t> RunStaged(const std::string& ptx) {
  Program program;
  program.Add(ptx);
  Machine machine(program, {});
  alignas(16) uint32_t in[128], out[128];
  std::iota(std::begin(in), std::end(in), 1);
  const void* const arguments[] = {in, out};
  machine.Run(*program.Find("Staged"), {{1, 1, 1}, 32, 0}, 1, arguments, sizeof(arguments));
  return {std::begin(out), std::end(out)};
}

TEST(PtxMachineTest, ACopyIsThereAfterItsWaitAndNotBefore) {
  std::vector<uint32_t> in(128);
  std::iota(in.begin(), in.end(), 1);
  EXPECT_EQ(RunStaged(kStaged), in);
  const std::string waits = "cp.async.wait_group \t0;";
  const std::string late = absl::StrReplaceAll(
      kStaged, {{waits, ""}, {"\tret;", absl::StrCat("\t", waits, "\n\tret;")}});
  EXPECT_EQ(RunStaged(late), std::vector<uint32_t>(128, 0xffffffffu));
}

TEST(PtxMachineDeathTest, CopiesThatAreNotWaitedForAreFound) {
  EXPECT_DEATH(RunStaged(absl::StrReplaceAll(kStaged, {{"wait_group \t0", "wait_group \t1"}})),
               "ends without waiting for its copies");
}

// 1 + 16 x 2^-27: 16 products that each vanish beside the sum, and together do not.
constexpr char kSum[] = R"(
.version 9.0
.target sm_80
.address_size 64

.entry Sum(
	.param .align 8 .b8 Sum_param_0[8]
)
.maxntid 32, 1, 1
{
	.reg .b32 	%r<8>;
	.reg .f32 	%f<8>;
	.reg .b64 	%rd<4>;

	ld.param.u64 	%rd1, [Sum_param_0];
	mov.u32 	%r1, 67109888;
	mov.u32 	%r2, 134219776;
	mov.f32 	%f1, 0f3F800000;
	mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f2, %f3, %f4, %f5}, {%r1, %r1, %r1, %r1}, {%r2, %r2}, {%f1, %f1, %f1, %f1};
	st.global.f32 	[%rd1], %f2;
	ret;
}
)";

TEST(PtxMachineTest, SumsAreExactOrCutOffAsTensorCoresDo) {
  // 0x0400 = 2^-14, 0x0800 = 2^-13, in both halves.
  static_assert(67109888 == 0x04000400 && 134219776 == 0x08000800);
  for (const int truncated : {0, 4, 8, 16}) {
    Program program;
    program.Add(kSum);
    Machine machine(program, {.truncated_sum = truncated});
    alignas(16) float out[4] = {};
    const void* const arguments[] = {out};
    machine.Run(*program.Find("Sum"), {{1, 1, 1}, 32, 0}, 1, arguments, sizeof(arguments));
    EXPECT_EQ(out[0], truncated == 0 ? 1 + 0x1p-23f : 1.0f) << truncated;
  }
}

// Each lane writes its 16 bytes, and names those of the lane 16 further.
constexpr char kMatrices[] = R"(
.version 9.0
.target sm_75
.address_size 64

.extern .shared .align 16 .b8 memory[];

.entry Matrices(
	.param .align 8 .b8 Matrices_param_0[8]
)
.maxntid 32, 1, 1
{
	.reg .b32 	%r<16>;
	.reg .b64 	%rd<4>;

	ld.param.u64 	%rd1, [Matrices_param_0];
	mov.u32 	%r1, %tid.x;
	shl.b32 	%r2, %r1, 4;
	mov.u32 	%r3, memory;
	add.s32 	%r4, %r3, %r2;
	mul.lo.s32 	%r5, %r1, 16777472;
	add.s32 	%r5, %r5, 65536;
	add.s32 	%r6, %r5, 131074;
	add.s32 	%r7, %r6, 131074;
	add.s32 	%r8, %r7, 131074;
	st.shared.v4.u32 	[%r4], {%r5, %r6, %r7, %r8};
	bar.sync 	0;
	xor.b32 	%r9, %r2, 256;
	add.s32 	%r10, %r3, %r9;
	ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r11, %r12, %r13, %r14}, [%r10];
	mul.wide.u32 	%rd2, %r2, 1;
	add.s64 	%rd3, %rd1, %rd2;
	st.global.v4.u32 	[%rd3], {%r11, %r12, %r13, %r14};
	ret;
}
)";

TEST(PtxMachineTest, MatricesComeTransposed) {
  Program program;
  program.Add(kMatrices);
  Machine machine(program, {});
  alignas(16) uint16_t out[kWarpLanes][4][2] = {};
  const void* const arguments[] = {out};
  machine.Run(*program.Find("Matrices"), {{1, 1, 1}, 32, 512}, 1, arguments, sizeof(arguments));
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      for (int i = 0; i < 2; ++i) {
        // Row r of matrix m is what lane (8 m + r) xor 16 wrote: 256 times its number, plus 0, 1, 2
        // and so on.
        const int row = lane % 4 * 2 + i, column = lane / 4;
        EXPECT_EQ(out[lane][matrix][i], ((matrix * 8 + row) ^ 16) * 256 + column)
            << "lane " << lane << ", matrix " << matrix << ", row " << row;
      }
    }
  }
}

constexpr char kMaxima[] = R"(
.version 9.0
.target sm_80
.address_size 64

.entry Maxima(
	.param .align 8 .b8 Maxima_param_0[8]
)
.maxntid 32, 1, 1
{
	.reg .f32 	%f<8>;
	.reg .b64 	%rd<4>;

	ld.param.u64 	%rd1, [Maxima_param_0];
	mov.f32 	%f1, 0f3F800000;
	mov.f32 	%f2, 0f7FC00000;
	max.f32 	%f3, %f1, %f2;
	max.NaN.f32 	%f4, %f1, %f2;
	max.NaN.f32 	%f5, %f2, %f1;
	mov.f32 	%f6, 0f40000000;
	max.NaN.f32 	%f7, %f1, %f6;
	st.global.f32 	[%rd1], %f3;
	st.global.f32 	[%rd1+4], %f4;
	st.global.f32 	[%rd1+8], %f5;
	st.global.f32 	[%rd1+12], %f7;
	ret;
}
)";

TEST(PtxMachineTest, AMaximumPassesNansOnWhereItSays) {
  Program program;
  program.Add(kMaxima);
  Machine machine(program, {});
  alignas(16) float out[4] = {};
  const void* const arguments[] = {out};
  machine.Run(*program.Find("Maxima"), {{1, 1, 1}, 32, 0}, 1, arguments, sizeof(arguments));
  EXPECT_EQ(out[0], 1);
  EXPECT_TRUE(std::isnan(out[1]) && std::isnan(out[2]));
  EXPECT_EQ(out[3], 2);
}

}  // namespace
}  // namespace baton::backend::cuda::ptx
