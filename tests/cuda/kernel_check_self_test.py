"""Shows that kernel_check.py reports each breach: on texts as a compiler writes them, and, where there
is one, on the kernels of planted.cu."""

import dataclasses
from pathlib import Path

import kernel_check
import kernel_rules
import machine_code
from kernel_rules import Budget, Report

BODY = """
	mov.u32 	%r1, %tid.x;
	@%p1 bra 	$L__BB0_2;
	ld.global.nc.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1];
	mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f1,%f2,%f3,%f4}, {%r1,%r2}, {%r3}, {%f1};
	fma.rn.f32 	%f5, %f1, %f2, %f3;
	ret;
"""
NEW_BODY = "\tprefetch.global.L2 [%rd1];\n\tgriddepcontrol.wait;" + BODY.replace("m16n8k8", "m16n8k16") + (
    "	cp.async.cg.shared.global [%r1], [%rd1], 16, %r2;\n	cp.async.wait_group 1;\n")
MARKS = frozenset({"mma", "nc", "async"})
ALL = {arch: 128 for arch in kernel_rules.ARCHITECTURES}
BUDGET = Budget(16384, 2, ALL, MARKS)
OLD = Report(registers=128, shared=0, threads=128, ptx=BODY, source="attention.cu")
NEW = dataclasses.replace(OLD, ptx=NEW_BODY)


def expect(found, *words):
    """Exactly one breach, that has all the words; none where there are no words."""
    found = list(found)
    if not words:
        assert not found, found
        return
    assert len(found) == 1, f"expected one breach with {words}, found {found}"
    for word in words:
        assert word in found[0], f"expected {word} in {found[0]}"


def breaches(report, arch=75, budget=BUDGET, name="AttentionKernel<Half, 64>"):
    return kernel_rules.kernel_breaches(name, arch, report, budget)


def with_line(report, line):
    return dataclasses.replace(report, ptx=report.ptx + f"\t{line}\n")


def test_parsing():
    log = ("ptxas info    : Compiling entry function '_Z1aP' for 'sm_75'\n"
           "ptxas info    : Function properties for _Z1aP\n"
           "    40 bytes stack frame, 12 bytes spill stores, 28 bytes spill loads\n"
           "ptxas info    : Used 255 registers, used 1 barriers, 40 bytes cumulative stack size, "
           "512 bytes smem, 472 bytes cmem[0]\n"
           "ptxas info    : Compiling entry function '_Z1bP' for 'sm_75'\n"
           "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
           "ptxas info    : Used 8 registers, 360 bytes cmem[0]\n")
    assert kernel_rules.parse_ptxas(log) == {
        "_Z1aP": Report(registers=255, spills=40, stack=40, shared=512),
        "_Z1bP": Report(registers=8)}
    ptx = (".entry _Z1aP(\n\t.param .u64 p\n)\n.maxntid 64, 2, 1\n{\n\tret;\n{ // nested\n}\n\n}\n"
           ".visible .entry _Z1bP(\n\t.param .u64 p\n)\n{\n\ttrap;\n\n}\n")
    kernels = kernel_rules.parse_ptx(ptx.replace("\n{ //", "\n\t{ //").replace("\n}\n\n}", "\n\t}\n\n}"))
    assert {name: threads for name, (threads, _) in kernels.items()} == {"_Z1aP": 128, "_Z1bP": 0}
    assert kernel_rules.instructions(kernels["_Z1bP"][1]) == ["trap"]
    assert kernel_rules.short_name(
        "void baton::backend::cuda::(anonymous namespace)::K<baton::backend::cuda::Half, 64, "
        "(baton::DType)1>(baton::backend::cuda::Args)") == "K<Half, 64, (DType)1>"
    assert kernel_rules.short_name("baton::K(baton::Args)") == "K"
    assert "@%p1" not in " ".join(kernel_rules.instructions(BODY))
    assert "bra" in kernel_rules.instructions(BODY)


def test_occupancy():
    assert kernel_rules.t4_blocks(255, 0, 128) == (2, "registers")
    assert kernel_rules.t4_blocks(168, 0, 128) == (3, "registers")
    assert kernel_rules.t4_blocks(128, 0, 128) == (4, "registers")
    assert kernel_rules.t4_blocks(64, 32768, 128) == (2, "shared memory")
    assert kernel_rules.t4_blocks(64, 32769, 128) == (1, "shared memory")
    assert kernel_rules.t4_blocks(32, 0, 1024) == (1, "threads")
    assert kernel_rules.t4_blocks(32, 0, 32) == (16, "blocks")
    assert kernel_rules.t4_blocks(32, 65537, 32)[0] == 0


def test_rules():
    expect(breaches(OLD))
    expect(breaches(NEW, arch=90))
    expect(breaches(dataclasses.replace(OLD, registers=129)), "129 registers, budget 128")
    expect(breaches(dataclasses.replace(OLD, spills=4, stack=8)), "4 bytes of spills")
    spilling = dataclasses.replace(BUDGET, marks=MARKS | {"spills"})
    expect(breaches(dataclasses.replace(NEW, spills=128, stack=128), 100, spilling))
    expect(breaches(dataclasses.replace(NEW, spills=132, stack=132), 120, spilling), "132 bytes of spills, expected 128")
    expect(breaches(dataclasses.replace(NEW, spills=4, stack=8), 90, spilling), "4 bytes of spills, expected none")
    expect(breaches(dataclasses.replace(NEW, spills=4, stack=8), 100), "4 bytes of spills, expected none")
    expect(breaches(dataclasses.replace(OLD, stack=8)), "8 bytes of stack")
    expect(breaches(dataclasses.replace(OLD, threads=0)), "launch bounds")
    expect(breaches(dataclasses.replace(OLD, shared=16385)), "holds 1 blocks", "shared memory")
    expect(breaches(dataclasses.replace(OLD, threads=512)), "holds 1 blocks", "registers")
    expect(breaches(OLD, budget=dataclasses.replace(BUDGET, marks=MARKS - {"mma"})), "mark mma")
    expect(breaches(with_line(OLD, "trap;")), "traps")
    trapless = dataclasses.replace(BUDGET, registers={**ALL, 75: None})
    expect(breaches(OLD, budget=trapless), "doesn't trap")
    expect(breaches(with_line(OLD, "trap;"), budget=trapless))
    shared_line = "st.shared.u32 [_ZN5baton19baton_shared_memoryE], %r1;"
    expect(breaches(with_line(OLD, shared_line), budget=dataclasses.replace(
        BUDGET, dynamic_shared=0)), "dynamic shared memory")

    # What must be there.
    expect(breaches(dataclasses.replace(OLD, ptx=BODY.replace("m16n8k8", "m8n8k4"))), "lacks mma")
    expect(breaches(dataclasses.replace(OLD, ptx=BODY.replace(".nc.v4", ".v4"))), "lacks ld")
    expect(breaches(dataclasses.replace(NEW, ptx=NEW_BODY.replace("async.cg", "async.ca")),
                    arch=80), "lacks cp")
    expect(breaches(dataclasses.replace(NEW, ptx=NEW_BODY.replace("wait_group", "wait_none")),
                    arch=80), "waits for no cp.async")

    expect(breaches(dataclasses.replace(NEW, ptx=NEW_BODY.replace("griddepcontrol.wait;", "")), arch=90),
           "lacks griddepcontrol.wait")
    expect(breaches(dataclasses.replace(NEW, ptx="\tst.global.u32 [%rd1], %r1;\n" + NEW_BODY), arch=90),
           "st.global.u32 before griddepcontrol.wait")

    # What must not.
    for arch, line, *words in (
            (75, "cp.async.cg.shared.global [%r1], [%rd1], 16;", "cp.async, which sm_75"),
            (75, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {};", "m16n8k16, which sm_75"),
            (75, "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {};", "bf16, which sm_75"),
            (90, "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {};", "takes m16n8k8"),
            (75, "mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {};", "accumulates in 16"),
            (75, "add.f32 %f1, %f2, %f3;", "add.f32 may be contracted"),
            (75, "@%p3 mul.ftz.f32 %f1, %f2, %f3;", "mul.ftz.f32 may be contracted"),
            (75, "mad.rn.f32 %f1, %f2, %f3, %f4;", "no Fma"),
            (75, "fma.rn.f16x2 %r1, %r2, %r3, %r4;", "16 bits"),
            (75, "mul.rn.f16x2 %r1, %r2, %r3;", "16 bits"),
            (75, "add.rn.bf16 %r1, %r2, %r3;", "16 bits"),
            (75, "div.full.f32 %f1, %f2, %f3;", "as the chip likes"),
            (75, "rcp.approx.ftz.f32 %f1, %f2;", "as the chip likes"),
            (75, "{add.f16 %rs1,%rs2,%rs3;", "16 bits"),
            (75, "{ mov.b32 %r1, %r2; add.f32 %f1, %f2, %f3; }", "may be contracted"),
            (75, "atom.shared.add.u64 %rd1, [%rd2], %rd3;", "compare-and-swap"),
            (90, "atom.relaxed.cta.shared::cta.add.u64 %rd1, [%rd2], %rd3;", "compare-and-swap"),
            (90, "atom.shared.cas.b64 %rd1, [%rd2], %rd3, %rd4;", "compare-and-swap"),
            (75, "atom.add.u64 %rd1, [%rd2], %rd3;", "compare-and-swap"),
            (75, "call.uni (retval0), sinf, (param0);", "calls a function"),
            (75, "add.rn.f64 %fd1, %fd2, %fd3;", "no double precision"),
            (75, "cvt.f64.f32 %fd1, %f1;", "no double precision")):
        expect(breaches(with_line(NEW if arch >= 80 else OLD, line), arch), *words)
    # Weights of few bits may be made in 16 bits, by two instructions that are both there.
    marked = dataclasses.replace(BUDGET, marks=MARKS | {"f16x2"})
    both = with_line(with_line(OLD, "fma.rn.f16x2 %r1, %r2, %r3, %r4;"), "mul.rn.f16x2 %r1, %r2, %r3;")
    expect(breaches(both, budget=marked))
    expect(breaches(with_line(OLD, "mul.rn.f16x2 %r1, %r2, %r3;"), budget=marked),
           "lacks fma.rn.f16x2")
    expect(breaches(with_line(both, "sub.rn.f16x2 %r1, %r2, %r3;"), budget=marked), "sub.rn.f16x2")
    for line in ("atom.shared.add.u32 %r1, [%r2], %r3;", "atom.global.add.u64 %rd1, [%rd2], %rd3;"):
        expect(breaches(with_line(OLD, line)))
    expect(breaches(with_line(dataclasses.replace(OLD, source="sampling.cu"),
                              "add.rn.f64 %fd1, %fd2, %fd3;")))


def test_lists():
    reports = {("AttentionKernel<Half, 64>", 75): OLD, ("AttentionKernel<Half, 64>", 90): NEW}
    budgets = {"AttentionKernel<Half, 64>": BUDGET}
    expect(kernel_rules.check(reports, budgets))
    expect(kernel_rules.check(reports, {}), "has no budget")
    expect(kernel_rules.check({}, budgets), "no such kernel")
    expect(kernel_check.list_breaches([Path("a.cu")], "kernels/a.cu"))
    expect(kernel_check.list_breaches([Path("a.cu")], ""), "not in")
    expect(kernel_check.list_breaches([], "kernels/a.cu"), "not on disk")
    text = kernel_rules.format_budgets(budgets, "# head\n")
    assert kernel_rules.parse_budgets(text) == budgets, text
    for wrong in (text + text, text.replace("nc", "nb"), text.replace("|", "/", 1)):
        try:
            kernel_rules.parse_budgets(wrong)
        except ValueError:
            continue
        assert False, f"expected a refusal of {wrong}"
    docs = kernel_check.docs_text(reports, budgets, {}, "13.0.88")
    expect(kernel_check.docs_breaches(f"a\n{docs}\nb", docs, "13.0.88"))
    expect(kernel_check.docs_breaches("", docs, "13.0.88"), "lacks the table")
    expect(kernel_check.docs_breaches(docs.replace("| 128 |", "| 96 |"), docs, "13.0.88"),
           "out of date")
    expect(kernel_check.docs_breaches(docs.replace("13.0.88", "13.1.0"), docs, "13.0.88"))
    # What is proposed for a kernel is kept by it.
    proposed = kernel_rules.proposal("AttentionKernel<Half, 64>", reports, BUDGET)
    expect(kernel_rules.check(reports, {"AttentionKernel<Half, 64>": proposed}))


CODE = """
.text.Loop:
        /*0000*/                   S2R R0, SR_TID.X ;
.L_x_0:
        /*0010*/                   LDG.E.128.CONSTANT.SYS R4, [R2] ;
        /*0020*/              @!P1 LDG.E.64.SYS R8, [R2+0x10] ;
        /*0030*/                   HMMA.16816.F32 R12, R16, R4, R12 ;
        /*0040*/                   FADD R0, R8, R12 ;
        /*0050*/               @P0 BRA `(.L_x_0) ;
        /*0060*/                   STG.E.SYS [R2], R0 ;
        /*0070*/                   MEMBAR.SC.GPU ;
        /*0080*/                   ATOMG.E.ADD.STRONG.GPU PT, R4, [R52], R7 ;
        /*0090*/                   MEMBAR.SC.GPU ;
        /*00a0*/                   LDG.E.STRONG.GPU R4, [R52] ;
        /*00b0*/                   EXIT ;
.L_x_1:
        /*00c0*/                   BRA `(.L_x_1) ;
"""


def code_facts(text, name="Loop"):
    return machine_code.facts_of(*machine_code.parse(text)[name])


def test_machine_code():
    facts = code_facts(CODE)
    assert facts == machine_code.Facts(instructions=5, products=2, loaded=24, in_flight=24, spills=0,
                                       flags=1), facts
    # Used at once, a load leaves nothing in flight beside the next.
    swapped = CODE.replace("R16, R4, R12", "R16, R8, R12")
    assert code_facts(swapped).in_flight == 24  # the first is never used, the second at once
    lines = CODE.splitlines(keepends=True)
    lines[5], lines[6] = lines[6], lines[5]
    assert code_facts("".join(lines)).in_flight == 16
    # A load for the next round is in flight over the branch.
    ring = CODE.replace("R4, [R2] ;", "R20, [R2] ;").replace("FADD R0, R8, R12", "IMAD.MOV.U32 R4, RZ, RZ, R20")
    assert code_facts(ring).in_flight == 24, code_facts(ring)
    # cp.async: until the wait for its group, one group behind.
    for kept, flying in ((0, 16), (1, 32)):
        copies = CODE.replace("LDG.E.128.CONSTANT.SYS R4, [R2]", "LDGSTS.E.BYPASS.128 [R9], [R2.64]")
        copies = copies.replace("@!P1 LDG.E.64.SYS R8, [R2+0x10]", "LDGDEPBAR").replace(
            "FADD R0, R8, R12", f"DEPBAR.LE SB0, {kept:#x}")
        assert code_facts(copies).in_flight == flying, code_facts(copies)
    # The inner loop, and the one with products.
    assert code_facts(CODE.replace(".text.Loop:", ".text.Loop:\n.L_x_9:").replace(
        "EXIT", "BRA `(.L_x_9)")).instructions == 5
    assert code_facts(CODE.replace("@P0 BRA `(.L_x_0)", "NOP")).instructions == 13
    # Two ways through the same products in a loop around them: the shorter one.
    start, end = CODE.index(".L_x_0:"), CODE.index("        /*0060*/")
    second = CODE[start:end].replace("L_x_0", "L_x_8").replace("        /*0040*/",
                                                               "        /*0040*/ NOP ;\n        /*0040*/")
    two = (f"{CODE[:start]}.L_x_9:\n        /*0008*/ NOP ;\n{CODE[start:end]}{second}"
           f"        /*0050*/  @P0 BRA `(.L_x_9) ;\n{CODE[end:]}")
    assert code_facts(two).instructions == 5, code_facts(two)
    assert code_facts(two.replace("HMMA", "NOP", 1)).instructions == 6, code_facts(two.replace("HMMA", "NOP", 1))
    # Flags.
    for without in ("        /*0070*/                   MEMBAR.SC.GPU ;\n",
                    "        /*0090*/                   MEMBAR.SC.GPU ;\n"):
        assert code_facts(CODE.replace(without, "")).flags == 0
    assert code_facts(CODE.replace("ATOMG", "REDG")).flags == 0

    facts = {("K", 75): code_facts(CODE)}
    text = machine_code.format_budgets(facts, "13.0.88", "# head\n")
    budgets = machine_code.parse_budgets(text)
    expect(machine_code.check(facts, budgets, "13.0.88"))
    for change, *words in (({"instructions": 6}, "takes 6 instructions for 2", "budget 5 for 2"),
                           ({"products": 1}, "takes 5 instructions for 1"),
                           ({"products": 0}, "for 0"), ({"in_flight": 16}, "16 bytes", "budget 24"),
                           ({"spills": 2}, "2 instructions on local memory")):
        worse = {("K", 75): dataclasses.replace(facts["K", 75], **change)}
        expect(machine_code.check(worse, budgets, "13.0.88"), *words)
        if "spills" not in change:
            expect(machine_code.check(worse, budgets, "13.1.0"))
    better = dataclasses.replace(facts["K", 75], instructions=9, products=4, in_flight=32)
    expect(machine_code.check({("K", 75): better}, budgets, "13.0.88"))
    loads = {("L", 90): machine_code.Facts(instructions=10, loaded=16)}
    loads_budgets = machine_code.parse_budgets(machine_code.format_budgets(loads, "13.0.88", ""))
    expect(machine_code.check({("L", 90): machine_code.Facts(instructions=11, loaded=16)},
                              loads_budgets, "13.0.88"), "for 16", "byte loaded")
    expect(machine_code.check(loads, budgets, "13.0.88"), "no budget of machine code")
    expect(machine_code.check({("L", 75): loads["L", 90], **loads}, loads_budgets, "13.0.88"),
           "no budget")
    expect(machine_code.check({("M", 90): loads["L", 90], **facts}, machine_code.Budgets(
        "13.0.88", {**budgets.limits, ("M", 90): (10, 0, 16, 0), ("L", 90): (1, 1, 1, 1)}), "13.0.88"),
           "no such kernel")
    for wrong in (text + text, text.replace("5 2 24 24", "5 2 24"), text.replace("5 2", "5 x"),
                  text.replace("|", "/", 1)):
        try:
            machine_code.parse_budgets(wrong)
        except ValueError:
            continue
        assert False, f"expected a refusal of {wrong}"
    assert machine_code.weights_a_round("QuantizedRowsKernel<Half, 4, 2>", 64) == 128
    assert machine_code.weights_a_round("MatMulRowsKernel<Half, 8, 2>", 16) == 32
    assert machine_code.weights_a_round("MatMulGatedKernel<Half, 32>", 16) == 16
    assert machine_code.weights_a_round("NormedGatedKernel<Half>", 16) == 32
    assert machine_code.weights_a_round("NormedRowsKernel<Half, 2>", 16) == 32
    row = machine_code.table({("MatMulRowsKernel<Half, 16, 1>", 75): (80, 16, 192, 64)})
    assert "| 80 | 2.5 a weight | 64 | - | - | - | - | - | - | 20 | - |" in row, row
    assert machine_code.margin("MatMulTileKernel<Half, 64>", 75, (80, 16, 192, 64)) is None


def test_planted(compiler):
    reports = kernel_check.reports_of(compiler, [kernel_check.HERE / "planted.cu"],
                                      kernel_check.QUICK, 1)
    plain = Budget(0, 1, {arch: 255 for arch in kernel_rules.ARCHITECTURES}, frozenset())
    mma = dataclasses.replace(plain, marks=frozenset({"mma"}))
    flag = dataclasses.replace(plain, marks=frozenset({"flag"}))
    budgets = {
        "LastBlockKernel<true>": flag,
        "LastBlockKernel<false>": flag,
        "GoodKernel": dataclasses.replace(plain, dynamic_shared=1024, marks=frozenset({"nc"})),
        "AttentionGoodKernel<Half>": mma,
        "AttentionGoodKernel<BFloat16>": dataclasses.replace(
            mma, registers={**plain.registers, 75: None}),
        **{name: plain for name in (
            "AttentionWithoutMmaKernel", "SpillsKernel", "StackKernel", "DoubleKernel",
            "ContractedKernel", "ApproximateKernel", "HalfSumKernel", "UnboundedKernel", "EarlyKernel",
            "NeverAwaitsKernel")},
    }
    found = list(kernel_rules.check(reports, budgets))
    for name, words in (
            ("AttentionWithoutMmaKernel", "lacks the mark mma"), ("SpillsKernel", "of spills"),
            ("StackKernel", "bytes of stack"), ("DoubleKernel", "no double precision"),
            ("ContractedKernel", "may be contracted"), ("ApproximateKernel", "as the chip likes"),
            ("LastBlockKernel<false>", "no atomic has a fence"),
            ("HalfSumKernel", "16 bits"), ("UnboundedKernel", "no launch bounds")):
        for arch in kernel_check.QUICK:
            assert any(line.startswith(f"{name} at sm_{arch}: ") and words in line
                       for line in found), (name, arch, words, found)
    for name, words in (("EarlyKernel", "ld.global.nc.v4.u32 before griddepcontrol.wait"),
                        ("NeverAwaitsKernel", "lacks griddepcontrol.wait")):
        lines = [line for line in found if line.startswith(name)]
        assert len(lines) == 1 and f"at sm_90: {words}" in lines[0], lines
    good = [line for line in found if line.startswith((
        "GoodKernel", "AttentionGoodKernel", "LastBlockKernel<true>"))]
    assert not good, good
    if compiler.release.startswith("13."):
        twice = "set(BATON_CUDA_NVIDIA_SOURCES products/cuda_stopwatch.cc products/cuda_stopwatch.cc)"
        expect(kernel_check.host_breaches(compiler, twice), "do not compile together")
    # The kernel's own rounding up is what breaks a budget that is one register short.
    name = "GoodKernel"
    registers = reports[name, 75].registers
    tight = dataclasses.replace(budgets[name], registers={**plain.registers, 75: registers - 1})
    expect(kernel_rules.check({(name, 75): reports[name, 75]}, {name: tight}),
           f"{registers} registers, budget {registers - 1}")


def run(compiler):
    test_parsing()
    test_occupancy()
    test_rules()
    test_machine_code()
    test_lists()
    if compiler is None:
        print("kernel_check: no nvcc: planted.cu is not compiled, its rules were shown on texts alone")
    else:
        test_planted(compiler)
    print("every rule can fail")
    return 0
