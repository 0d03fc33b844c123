#!/usr/bin/env python3
"""The half of scripts/gpu-check that measures, without a GPU: what is made of figures, of programs that
print them, hang, fail and talk; and, with --program, the program itself on the emulated device.

  gpu_bench_test.py [--program gpu_bench_emulated]
"""

import argparse
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import stat
import subprocess
import sys
import tempfile
import time
import unittest.mock
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.dont_write_bytecode = True  # it would lie in scripts/
sys.path.insert(0, str(ROOT / "scripts"))
import gpu_bench  # noqa: E402
import gpu_peers  # noqa: E402
import gpu_report  # noqa: E402

# A copy of 1 TB/s and a product of 100 TFLOP/s.
CEILINGS = [
    {"part": "ceilings", "what": "copy", "seconds": 2e-3, "bytes": 2e9, "flops": 0},
    {"part": "ceilings", "what": "product", "engine": 0, "dtype": "float16", "side": 1, "by": "x",
     "seconds": 1.0, "bytes": 1, "flops": 1},
    {"part": "ceilings", "what": "product", "engine": 1, "dtype": "bfloat16", "side": 8192,
     "by": "cuBLASLt", "seconds": 1e-2, "bytes": 1, "flops": 1e12}]


def attention(case, seconds, beyond):
    return {"part": "kernels", "what": "attention_split", "case": case, "rows": 1,
            "kv_beyond_4_l2": beyond, "seconds": seconds, "bytes": 1e9, "flops": 1e9}


def product(kernel, seconds, m=1, weight_bytes=1e8):
    return {"part": "kernels", "what": kernel, "case": f"big m{m}", "m": m,
            "weight_bytes": weight_bytes, "seconds": seconds, "bytes": 1e8, "flops": 1e6}


def step(model, seconds, batch=1, context=2048):
    return {"part": "steps", "what": "step", "model": model, "batch": batch, "context": context,
            "seconds": seconds, "alone_seconds": 2 * seconds, "bytes": 1e9, "flops": 1e9}


def prompt(seconds, products, tokens=2048, cached=0, model="qwen2.5-7b"):
    return {"part": "prefill", "what": "prefill", "model": model, "tokens": tokens,
            "cached": cached, "products_seconds": products, "seconds": seconds, "bytes": 1e9,
            "flops": 1e13}


def peer(what, cell, seconds):
    return {"part": "peers", "what": what, "cell": cell, "seconds": seconds}


def goals_of(*rows):
    """Goal -> (measured, reached)."""
    return {goal: (measured, reached) for goal, measured, reached in
            gpu_report.Report([*CEILINGS, *rows]).goals()[3]}


def goal_of(words, *rows):
    found = [value for goal, value in goals_of(*rows).items() if all(w in goal for w in words)]
    assert len(found) == 1, (words, found)
    return found[0]


def test_floors():
    report = gpu_report.Report(CEILINGS)
    assert report.copy == 1e12 and report.matrix == 1e14, (report.copy, report.matrix)
    assert report.floor({"bytes": 1e9, "flops": 1e9}) == 1e-3
    assert report.floor({"bytes": 1e9, "flops": 1e12}) == 1e-2
    assert report.percent({"bytes": 1e9, "flops": 0, "seconds": 2e-3}) == 50
    to_device = {"part": "ceilings", "what": "to_device", "seconds": 1.0, "bytes": 1e10, "flops": 0}
    with_link = gpu_report.Report([*CEILINGS, to_device])
    assert with_link.floor({"bytes": 1e12, "flops": 0, "link_bytes": 1e9}) == 1.1
    without = gpu_report.Report([attention("a", 1e-3, 1)])
    assert without.floor({"bytes": 1, "flops": 1}) is None
    assert "not measured" in without.markdown([]), "no ceilings, no percentages"


def test_goals():
    decode = ("decode attention", "85")
    assert goal_of(decode) == ("not measured", "")
    assert goal_of(decode, attention("a", 1.1e-3, 1)) == ("90.9 % (a)", "yes")
    measured, reached = goal_of(decode, attention("a", 1.1e-3, 1), attention("b", 2e-3, 1),
                                attention("small", 1, 0))
    assert measured == "50 % (b, the least of 2)" and reached == "**no**", (measured, reached)
    traffic = {"part": "ncu", "what": "attention_split", "case": "a", "dram_bytes": 1.04e9}
    assert goal_of(("DRAM",), attention("a", 1e-3, 1), traffic)[1] == "yes"
    assert goal_of(("DRAM",), attention("a", 1e-3, 1), {**traffic, "dram_bytes": 1.06e9})[1] == "**no**"
    gemv = ("one row", "cuBLASLt")
    assert goal_of(gemv, product("cublas", 1.05e-4), product("cublas", 9, m=2),
                   product("cublas", 9, weight_bytes=1e6)) == ("95.2 % (big m1)", "yes")
    assert goal_of(("one row", "our kernels"), product("matmul_rows", 2e-4))[1] == "**no**"
    assert goal_of(("qwen2.5-1.5b", "60"), step("qwen2.5-1.5b", 1e-3 / 0.61),
                   step("qwen2.5-1.5b", 9, context=512), step("qwen2.5-1.5b", 9, batch=8))[1] == "yes"
    assert goal_of(("qwen2.5-7b", "80"), step("qwen2.5-7b", 1e-3 / 0.79))[1] == "**no**"
    rate, alone = ("matrix rate",), ("products alone",)
    assert goal_of(rate, prompt(1 / 5.6, 0.1), prompt(9, 1, tokens=512),
                   prompt(9, 1, model="qwen2.5-0.5b"))[1] == "yes"
    assert goal_of(rate, prompt(1 / 5.4, 0.1))[1] == "**no**"
    assert goal_of(alone, prompt(0.1, 0.081))[1] == "yes"
    assert goal_of(alone, prompt(0.1, 0.081), prompt(0.1, 0.079, tokens=8192))[1] == "**no**"
    faster = ("step: faster",)
    cell = "qwen2.5-7b step b1 c2048"
    ours = step("qwen2.5-7b", 1e-3)
    assert goal_of(faster, ours, peer("transformers compiled step", cell, 2e-3))[0].startswith("2 ×")
    assert goal_of(faster, ours, peer("transformers compiled step", cell, 0.9e-3))[1] == "**no**"
    assert goal_of(faster, ours, peer("transformers compiled step", "other", 0.9e-3))[1] == ""


def test_cells():
    """A peer's cell names what it is compared with; of several kernels, the faster."""
    rows = [*CEILINGS, product("cublas", 2e-4), product("matmul_rows", 1e-4),
            attention("a", 1e-3, 1), prompt(0.5, 0.1, cached=1024),
            peer("torch.mm", "product big m1", 3e-4), peer("SDPA", "attention a", 5e-4),
            peer("transformers eager prefill", "qwen2.5-7b prefill 2048 cached 1024", 1.0)]
    text = gpu_report.Report(rows).markdown(["gpu: none"])
    assert "| torch.mm | product big m1 | 0.3000 | 0.1000 | 3.00 |" in text, text
    assert "| SDPA | attention a | 0.5000 | 1.0000 | 0.50 |" in text, text
    assert "| qwen2.5-7b prefill 2048 cached 1024 | 1,000.0000 | 500.0000 | 2.00 |" in text, text
    assert text.startswith("- gpu: none\n"), text
    # A later figure replaces an earlier one; a skip does not.
    later = gpu_report.latest([step("m", 1.0), {**step("m", 2.0)}])
    assert [r["seconds"] for r in later] == [2.0], later
    skip = {k: v for k, v in step("m", 0).items() if k not in gpu_report.MEASURED}
    assert "seconds" in gpu_report.latest([step("m", 1.0), {**skip, "skipped": "x"}])[0]
    text = gpu_report.Report([*CEILINGS, {**skip, "skipped": "no room"}]).markdown([])
    assert "| m | 1 | 2048 | skipped: no room |" in text, text


def test_gated():
    """One kernel beside the better of the two ways in two kernels."""
    def row(what, case, seconds):
        return {"part": "kernels", "what": what, "case": case, "m": 1, "seconds": seconds,
                "bytes": 1e6, "flops": 1e6}

    rows = [*CEILINGS, row("gated_fused", "a m1", 1e-5), row("gated_ours", "a m1", 3e-5),
            row("gated_measured", "a m1", 2e-5), row("gated_fused", "b int4 m1", 2e-5),
            row("gated_ours", "b int4 m1", 1e-5), row("gated_fused", "c m1", 1e-5)]
    text = gpu_report.Report(rows).markdown([])
    assert "| a m1 | 10.00 | 30.00 | 20.00 | 2.00 |" in text, text
    assert "| b int4 m1 | 20.00 | 10.00 |  | 0.50 |" in text, text
    assert "| c m1 | 10.00 |  |  |  |" in text, text
    assert "Gate and up" not in gpu_report.Report(CEILINGS).markdown([])


def test_traffic():
    text = ('==PROF== Connected\n"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
            '"0","K","dram__bytes_read.sum","byte","1,000"\n"0","K","dram__bytes_write.sum","byte","24"\n')
    assert gpu_bench.traffic_of(text) == 1024
    assert gpu_bench.traffic_of("==ERROR== ERR_NVGPUCTRPERM\n") is None
    assert gpu_bench.traffic_of(text.replace("1,000", "n/a")) is None


# In place of gpu_bench: what it does depends on the part.
PROGRAM = """#!{python}
import json, os, sys, time
part = [a for a in sys.argv if a.startswith("--part=")][0][7:]
scratch = ([a[10:] for a in sys.argv if a.startswith("--scratch=")] or [None])[0]
say = lambda row: print(json.dumps(row), flush=True)
if part == "models":
    for name in ("one", "two"): say({{"part": "models", "what": name, "config": {{}}}})
elif part == "ceilings":
    print("a library says hello")
    for row in {ceilings!r}: say(row)
elif part == "kernels" and "--group=attention" not in sys.argv:
    say({norm!r})
elif part == "kernels":
    say({kernel!r})
    print("no more", file=sys.stderr)
    sys.exit(3)
elif part == "steps":
    model = [a for a in sys.argv if a.startswith("--models=")][0][9:]
    open(scratch + "/left-behind", "w").close()
    say(dict({step!r}, model=model))
    print('{{"part": "steps", "what"', flush=True)  # half a row
    if model == "two": time.sleep(600)
elif part == "checkpoint":
    os.mkdir(scratch + "/weights")
    say({{"part": "checkpoint", "what": "big", "folder": scratch + "/weights"}})
"""

# This script stands in for gpu_clusters.py: it prints how it was called, and fails.
CLUSTERS = """import json, os, sys
model = sys.argv[sys.argv.index("--load-model") + 1]
print(json.dumps({"part": "clusters", "what": "texts", "case": " ".join(sys.argv[1:6]), "device": "fake",
                  "asked": len(os.listdir(model)), "right": 1, "same": 0}))
print("libraries", os.environ.get("LD_LIBRARY_PATH"), file=sys.stderr)
sys.exit(1)
"""


def write_fake(program):
    program.write_text(PROGRAM.format(python=sys.executable, ceilings=CEILINGS,
                                      kernel=attention("a", 1e-3, 1), step=step("m", 2e-3),
                                      norm={"part": "kernels", "what": "norm", "case": "n",
                                            "seconds": 1e-3, "bytes": 1e9, "flops": 0}),
                       encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def run_fake(folder, parts, seconds, models=(), program="good"):
    folder = Path(folder)
    write_fake(folder / "good")
    (folder / "silent").write_text("#!/bin/sh\nexit 0\n", encoding="utf-8")
    (folder / "silent").chmod(0o755)
    program = folder / program
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    bench = gpu_bench.Bench(program=program, results=folder / "r.jsonl", markdown=folder / "r.md",
                            header=["gpu: fake"], environment=dict(os.environ), scratch=str(scratch),
                            models=list(models), deadline=time.monotonic() + seconds,
                            cluster=folder / "cluster", demo=ROOT / "models/demo")
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = gpu_bench.run_parts(bench, parts)
    assert not list(scratch.iterdir()), "checkpoints are left behind"
    return code, output.getvalue(), (folder / "r.md").read_text(encoding="utf-8"), bench


def test_libraries_of_clusters():
    """The programs of a cluster are loaded with the pack's libraries, before those that the caller names."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "baton").write_text("#!/bin/sh\necho loads $LD_LIBRARY_PATH\nexit 1\n", encoding="utf-8")
        (Path(folder) / "baton").chmod(0o755)
        command = [ROOT / "scripts" / gpu_bench.CLUSTERS, folder, "--libraries", f"{folder}/lib", "--demo",
                   ROOT / "models/demo", "--runs", "texts"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60,
                             env={**os.environ, "LD_LIBRARY_PATH": "/elsewhere"})
        assert ran.returncode == 1 and f"loads {folder}/lib:/elsewhere" in ran.stderr, ran


def test_running():
    with tempfile.TemporaryDirectory() as folder:
        code, output, text, bench = run_fake(folder, ["kernels"], 60)
        assert code == 1 and "a library says hello" in output and "no more" in output, output
        assert "| kernels | attention | exit code 3 after" in text and ": no more |" in text, text
        assert "| ceilings |  | ended after" in text, "percentages want ceilings"
        assert "| attention_split | a | 1,000.00 | 1,000.000 | 1,000.00 | 100 % |" in text, text
        assert "| norm | n |" in text, "what fails takes no other with it"
        begin = time.monotonic()
        code, output, text, bench = run_fake(folder, ["steps"], 4)
        assert time.monotonic() - begin < 60
        assert code == 1 and "| steps | one | ended after" in text, text
        assert "| steps | two | cut after" in text, text
        # What there was before the cut stays, and what an earlier call brought.
        assert "| two | 1 | 2048 | 2.000 | 1.000 | 50 % | 500 | 4.000 |" in text, text
        assert "| attention_split | a |" in text, text
        rows = gpu_bench.read_rows(bench.results)
        assert sum(r["part"] == "steps" for r in rows) == 2, rows
        code, _, text, _ = run_fake(folder, ["steps"], 60, models=["one"])
        assert code == 0, text
        code, output, text, _ = run_fake(folder, ["steps"], 60, program="missing")
        assert code == 1 and "no such program" in output, output
        code, output, text, _ = run_fake(folder, ["steps"], 60, program="silent")
        assert code == 1 and "| steps |  | the program names no models |" in text, text
        code, _, text, _ = run_fake(folder, ["steps"], 0, models=["one"])
        assert code == 1 and "| steps | one | not run: the time was over |" in text, text
        (Path(folder) / "clusters.py").write_text(CLUSTERS, encoding="utf-8")
        with unittest.mock.patch.object(gpu_bench, "CLUSTERS", f"{folder}/clusters.py"):
            code, _, text, _ = run_fake(folder, ["clusters"], 60)
        # The tokenizer's two files lie beside the weights. Python itself goes on with its machine's libraries.
        cluster = f"{folder}/cluster"
        assert (f"| texts | {cluster}/bin --libraries {cluster}/lib --demo {ROOT / 'models/demo'} | fake "
                "| asked 2, right 1, same 0 |") in text, text
        here = os.environ.get("LD_LIBRARY_PATH")
        assert code == 1 and f"| clusters |  | exit code 1 after 0 s: libraries {here} |" in text, text
        # The tables of several runs' figures, anywhere.
        made = subprocess.run([sys.executable, ROOT / "scripts/gpu-check", "--markdown",
                               Path(folder) / "all.md", "--render", bench.results],
                              capture_output=True, text=True, check=False)
        assert made.returncode == 0, made
        rendered = (Path(folder) / "all.md").read_text(encoding="utf-8")
        assert rendered == text, "the same rows, the same tables"


def test_gpu_check():
    """The whole command, where a GPU is said to be: tests first, what measures afterwards."""
    loader = importlib.machinery.SourceFileLoader("gpu_check", str(ROOT / "scripts/gpu-check"))
    gpu_check = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
    sys.modules["gpu_check"] = gpu_check
    loader.exec_module(gpu_check)
    gpu_check.gpu_line = lambda: "Fake GPU, 9.0"
    gpu_check.cublas_folder = lambda: "/some/where"
    with tempfile.TemporaryDirectory() as folder:
        pack = Path(folder)
        (pack / gpu_check.LIST).write_text("native | missing | * | 20 |\n", encoding="utf-8")
        (pack / "built.txt").write_text("commit abc\n", encoding="utf-8")
        (pack / "bin/native").mkdir(parents=True)
        write_fake(pack / "bin/native/gpu_bench")
        arguments, sys.argv = sys.argv, ["gpu-check", folder, "--logs", folder, "--scratch", folder,
                                         "--results", str(pack / "f.jsonl"), "--models", "one"]
        output = io.StringIO()
        try:
            with contextlib.redirect_stdout(output):
                sys.argv += ["--part", "steps"]
                assert gpu_check.main() == 0, output.getvalue()
                assert "missing" not in output.getvalue(), "tests were not asked for"
                sys.argv += ["--part", "native"]
                assert gpu_check.main() == 1, "the test program is not there"
            said = output.getvalue()
            assert said.index("---- steps") < said.index("no such program"), "parts run as named"
            sys.argv[sys.argv.index("steps")] = "kernels"
            before = len(gpu_bench.read_rows(pack / "f.jsonl"))
            with contextlib.redirect_stdout(output):
                sys.argv += ["--groups", "passes,blocks"]
                assert gpu_check.main() == 1
            runs = [r for r in gpu_bench.read_rows(pack / "f.jsonl")[before:] if r["part"] == "runs"]
            assert [r.get("of") for r in runs] == [None, "passes", "blocks"], runs
            with contextlib.redirect_stderr(io.StringIO()) as errors:
                sys.argv[-1] = "passes,none"
                try:
                    gpu_check.main()
                    assert False, "expected a refusal"
                except SystemExit as refusal:
                    assert refusal.code == 2 and "none given" in errors.getvalue(), errors.getvalue()
        finally:
            sys.argv = arguments
        text = (pack / "f.md").read_text(encoding="utf-8")
        assert text.startswith("- gpu: Fake GPU, 9.0\n- programs: commit abc\n- date: 20"), text
        assert "| one | 1 | 2048 | 2.000 |" in text and "no such program" in output.getvalue(), text


def test_peers():
    """What is not installed is said, and no failure."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "r.jsonl"
        arguments, torch = sys.argv, gpu_peers.torch
        sys.argv, gpu_peers.torch = ["gpu_peers.py", "--results", str(results)], None
        output = io.StringIO()
        try:
            with contextlib.redirect_stdout(output):
                code = gpu_peers.main()
        finally:
            sys.argv, gpu_peers.torch = arguments, torch
        row = json.loads(output.getvalue())
        assert code == 0 and row["what"] == "torch" and row["skipped"] == "not installed", row
        assert "| torch |  | skipped: not installed |" in gpu_report.Report([row]).markdown([])
    assert gpu_peers.Peers.shape({"batch": 2, "rows": 1, "context": 512, "query_heads": 4,
                                  "kv_heads": 2, "head_dim": 64}) == (2, 1, 512, 4, 2, 64)
    assert gpu_peers.Peers.shape({"batch": 1, "rows": 24, "context": 8, "query_heads": 4,
                                  "kv_heads": 2, "head_dim": 64}) == (1, 24, 32, 4, 2, 64)


def test_peers_order():
    """The most telling cells are compiled before all others, and none twice."""
    peers = object.__new__(gpu_peers.Peers)
    plain, quantized = {"what": "config"}, {"quantization_config": {}}
    peers.rows = [{"part": "models", "what": name, "config": config}
                  for name, config in (("a", plain), ("b", plain), ("c", quantized))]
    for name in "abc":
        peers.rows += [step(name, 1, batch=b, context=c) for b in (1, 8, 32) for c in (512, 2048)]
        peers.rows += [prompt(1, 1, tokens=t, cached=k, model=name) for t in (512, 2048)
                       for k in (0, t // 2)]
    peers.done = {("transformers compiled step", "a step b8 c512")}
    peers.left = lambda: 1e9
    peers.make_model = lambda config, dtype: None
    peers.dtype = lambda row: None
    peers.free = lambda: None
    order = []

    def measure(kind):
        def run(_model, rows):
            for row in rows:
                cell = gpu_report.cell_of(row)
                order.append((kind, cell))
                peers.done.add((gpu_peers.KINDS[kind], cell))
        run.__name__ = kind
        return run

    for kind in gpu_peers.KINDS:
        setattr(peers, kind, measure(kind))
    peers.models([])
    assert len(order) == len(set(order)) == 2 * (4 + 6 + 4) - 1, order
    assert not [o for o in order if o[1].startswith("c ") or o[1] == "a step b8 c512"], order
    assert {kind for kind, _ in order[:8]} == {"prefills"}, order
    assert order[8:14] == [
        *(("steps", f"{name} step b{b} c2048") for b in (1, 32) for name in "ab"),
        *(("compiled_prefills", f"{name} prefill 2048 cached 0") for name in "ab")], order
    assert order[14] == ("steps", "a step b8 c2048"), order


def test_program(program):
    """All that is to be measured on a GPU, on the emulated device: every row is there."""
    with tempfile.TemporaryDirectory() as folder:
        bench = gpu_bench.Bench(program=Path(program), results=Path(folder) / "r.jsonl",
                                markdown=Path(folder) / "r.md", header=[],
                                environment=dict(os.environ), scratch=folder, models=[],
                                deadline=time.monotonic() + 240)
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            code = gpu_bench.run_parts(bench, ["kernels", "steps", "prefill"])
        assert code == 0, output.getvalue()
        rows = bench.rows
        text = bench.markdown.read_text(encoding="utf-8")

        def cells(part, *keys):
            return sorted(tuple(r[k] for k in keys) for r in rows if r["part"] == part)

        assert not [r for r in rows if "skipped" in r], rows
        assert {what for (what,) in cells("ceilings", "what")} == {
            "copy", "read", "write", "product", "to_device", "to_host"}, rows
        kernels = {what for (what,) in cells("kernels", "what")}
        assert kernels == {"attention_split", "attention_tile", "attention_split_variant", "attention_tile_variant",
                           "attention_split_fused", "attention_tile_paired", "attention_tile_variant_paired",
                           "matmul_rows", "quantized_int4", "quantized_int8", "gated_fused",
                           "gated_ours", "normed_fused", "normed_apart", "norm", "post_norm", "rope_write",
                           "silu_mul", "gather", "scale_logits", "sampling", "copy_blocks", "gather_kv",
                           "experts_route", "experts_gate", "experts_down", "experts_sum", "experts_fetch",
                           "latent_split", "latent_tile", "short_conv", "head_products_before", "head_products_after",
                           "gated_delta", "state_space"}, kernels
        per_kernel = {k: sum(r["what"] == k and r["part"] == "kernels" for r in rows) for k in kernels}
        assert per_kernel["attention_split"] == 8 and per_kernel["matmul_rows"] == 16, per_kernel
        assert per_kernel["attention_split_variant"] == 4 and per_kernel["attention_tile_variant"] == 2, per_kernel
        assert per_kernel["quantized_int4"] == 8 and per_kernel["sampling"] == 8, per_kernel
        assert per_kernel["gated_fused"] == per_kernel["gated_ours"] == 9, per_kernel
        assert cells("steps", "model", "batch", "context") == sorted(
            (m, b, c) for m in ("tiny", "tiny-int4", "tiny-experts", "tiny-experts, experts on the host")
            for b in (1, 2) for c in (16, 272)), rows
        on_host = [r for r in rows if "link_bytes" in r]
        assert {r["what"] for r in on_host} == {"experts_fetch", "step", "prefill"}, on_host
        assert all(r["link_bytes"] > 0 for r in on_host), on_host
        assert cells("prefill", "model", "tokens", "cached") == [
            ("tiny", 8, 0), ("tiny", 8, 4), ("tiny", 40, 0), ("tiny", 40, 20),
            *((m, t, c) for m in ("tiny-experts", "tiny-experts, experts on the host")
              for t, c in ((8, 0), (8, 4), (40, 0), (40, 20))),
            ("tiny-int4", 40, 0), ("tiny-int4", 40, 20)], [
                r for r in rows if r["part"] == "prefill"]
        products = {r["model"] for r in rows if r["part"] == "prefill" and "products_seconds" in r}
        assert products == {"tiny", "tiny-experts", "tiny-experts, experts on the host"}, products
        for row in rows:
            if "seconds" in row:
                assert row["seconds"] > 0 and row["bytes"] > 0, row
                assert row["part"] != "steps" or row["alone_seconds"] > 0, row
        # The step's floor is the plan's: weights, and the cache of all sequences.
        step_bytes = {(r["model"], r["batch"]): r["bytes"] for r in rows
                      if r["part"] == "steps" and r["context"] == 272}
        kv = 2 * 2 * 2 * 16 * 2 * (272 + 3 + 1)  # layers, K and V, heads of 16, 2 bytes, tokens
        assert step_bytes["tiny", 2] - step_bytes["tiny", 1] == kv, step_bytes
        assert step_bytes["tiny-int4", 2] - step_bytes["tiny-int4", 1] == kv, step_bytes
        assert text.count("\n| tiny | 40 | ") == 2, text
        assert {(r["what"], r.get("of")) for r in rows if r["part"] == "runs"} == {
            ("ceilings", None), *(("kernels", group) for group in gpu_bench.GROUPS), ("steps", "tiny"), ("steps", "tiny-int4"),
            ("steps", "tiny-experts"), ("prefill", "tiny-experts"),
            ("prefill", "tiny"), ("prefill", "tiny-int4")}, rows
    only = subprocess.run([program, "--part=kernels", "--once", "--only=norm tiny rows 1 "],
                          capture_output=True, text=True, check=True).stdout
    found = [gpu_bench.parse_row(line) for line in only.splitlines()]
    assert [r["case"] for r in found if r["part"] == "kernels"] == ["tiny rows 1"], only
    # The shapes of a GPU, as far as one gets without: plans are made, operands have room in a T4.
    dry = subprocess.run([program, "--part=kernels", "--dry"], capture_output=True, text=True,
                         check=True).stdout
    found = [r for r in map(gpu_bench.parse_row, dry.splitlines()) if r["part"] == "kernels"]
    assert not [r for r in found if "skipped" in r], [r for r in found if "skipped" in r]
    counts = {k: sum(r["what"] == k for r in found) for k in {r["what"] for r in found}}
    assert counts == {"attention_split": 70, "attention_split_fused": 60, "attention_tile": 35,
                      "attention_tile_single": 6, "attention_split_variant": 6, "attention_tile_variant": 3,
                      "attention_tile_variant_single": 2, "matmul_rows": 138,
                      "quantized_int4": 36, "quantized_int8": 36, "gated_fused": 46, "gated_ours": 46,
                      "normed_fused": 16, "normed_apart": 16, "norm": 15, "post_norm": 6, "rope_write": 25,
                      "silu_mul": 15, "gather": 15, "scale_logits": 2, "sampling": 16, "copy_blocks": 5,
                      "gather_kv": 5, "experts_route": 12, "experts_gate": 12, "experts_down": 12, "experts_sum": 12,
                      "experts_fetch": 12, "latent_split": 4, "latent_tile": 2, "head_products_before": 6,
                      "head_products_after": 6, "gated_delta": 4, "state_space": 4, "short_conv": 8}, counts
    named = {f"{r['what']} {r['case']}" for r in found}
    missing = [name for name in gpu_bench.TRAFFIC
               if name not in named and not name.startswith("cublas ")]
    assert not missing, missing
    for wrong in (["--part=other"], ["--part=steps", "--models=none"], ["--other"],
                  ["--part=kernels", "--group=none"],
                  ["--part=steps", "--scratch=/no/such/folder"]):
        refused = subprocess.run([program, *wrong], capture_output=True, text=True, check=False)
        assert refused.returncode == 1 and "gpu_bench: " in refused.stderr, (wrong, refused)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program")
    program = parser.parse_args().program
    if program:
        test_program(program)
        print("gpu_bench prints what it should")
        return 0
    for test in (test_floors, test_goals, test_cells, test_gated, test_traffic, test_running,
                 test_libraries_of_clusters, test_gpu_check, test_peers, test_peers_order):
        test()
    print("gpu-check --bench reckons as it should")
    return 0


if __name__ == "__main__":
    sys.exit(main())
