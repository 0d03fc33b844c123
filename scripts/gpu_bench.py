"""The second half of scripts/gpu-check: runs what times the GPU, keeps every figure as it comes, and has
scripts/gpu_report.py make tables of them.

Figures are lines of JSON in a file that several runs may share: a row of a later run replaces the same
cell of an earlier one. Whatever is cut short leaves the rows that were there.
"""

import csv
import dataclasses
import glob
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import gpu_report

HERE = Path(__file__).resolve().parent
PARTS = ("ceilings", "kernels", "steps", "prefill", "clusters", "peers")
PROGRAM = "gpu_bench"
# Of kernels: each in a separate process, so that a failure ends no other.
GROUPS = ("attention", "products", "quantized", "gated", "normed", "experts", "passes", "sampling", "blocks",
          "recurrence")
PEERS = "gpu_peers.py"
CLUSTERS = "gpu_clusters.py"
FILES = ("gpu_bench.py", "gpu_report.py", PEERS, CLUSTERS, "demo_cluster.py")  # files of a pack beside gpu-check
CLUSTER_MODEL = "qwen2.5-0.5b"
CLUSTER_SECONDS = 180  # the most that a run may take; it takes two minutes
CHECKPOINT_BYTES = 16 << 30  # of the largest model
# Cases whose traffic ncu is asked for.
TRAFFIC = ("attention_split qwen2.5-7b b64 c8192", "attention_split qwen2.5-0.5b b64 c8192",
           "matmul_rows qwen2.5-7b gate_up m1", "cublas qwen2.5-7b gate_up m1",
           "quantized_int4 qwen2.5-7b-int4 gate_up m1", "norm qwen2.5-7b rows 2048")
TRAFFIC_SECONDS = 45


@dataclasses.dataclass
class Bench:
    program: Path
    results: Path   # lines of JSON, to which is added
    markdown: Path
    header: list    # the first lines of the Markdown
    environment: dict
    scratch: str
    models: list    # empty: all
    deadline: float  # time.monotonic()
    groups: tuple = GROUPS  # of kernels
    cluster: Path = None  # a folder with the programs of a cluster, bin, and their libraries, lib
    demo: Path = None     # the model of their texts
    python: str = None  # for peers; else one that has torch
    ncu: str = None
    rows: list = dataclasses.field(default_factory=list)

    def left(self):
        return self.deadline - time.monotonic()

    def read(self):
        if self.results.is_file():
            self.rows = read_rows(self.results)

    def keep(self, row):
        self.rows.append(row)
        with open(self.results, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        if row["part"] not in ("models", "header"):
            print(gpu_report.one_line(row), flush=True)
        write_markdown(self.rows, self.header, self.markdown)


def read_rows(path):
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = parse_row(line)
        if row is not None:
            rows.append(row)
    return rows


def write_markdown(rows, header, path):
    text = gpu_report.Report(rows).markdown(header)
    fresh = path.with_suffix(".new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


def parse_row(line):
    """A row, or None for what is none: half a line, and what libraries print."""
    if not line.startswith("{"):
        return None
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("part"), str) and "what" in row else None


def run(bench, part, command, of=""):
    """Whether it ran to its end. Its rows are kept as they come, and how it ended."""
    name = {"part": "runs", "what": part, **({"of": of} if of else {})}
    seconds = bench.left()
    if seconds < 1:
        bench.keep({**name, "result": "not run: the time was over"})
        return False
    begin = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        # A new session, so that its whole process group ends at the time limit.
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True,
                                   errors="replace", env=bench.environment, start_new_session=True)
        timed_out = threading.Event()

        def end():
            timed_out.set()
            os.killpg(process.pid, 9)

        timer = threading.Timer(seconds, end)
        timer.start()
        try:
            for line in process.stdout:
                row = parse_row(line)
                if row is not None:
                    bench.keep(row)
                elif line.strip():
                    print(f"  {line.rstrip()}", flush=True)
            code = process.wait()
        except BaseException:
            os.killpg(process.pid, 9)
            process.wait()
            raise
        finally:
            timer.cancel()
        took = f"{time.monotonic() - begin:.0f} s"
        if code == 0:
            bench.keep({**name, "result": f"ended after {took}"})
            return True
        errors.seek(0)
        lines = errors.read().splitlines()[-20:]
        if lines:
            print("\n".join(f"  {line}" for line in lines), flush=True)
        why = f"cut after {took}" if timed_out.is_set() else f"exit code {code} after {took}"
        last = next((line for line in reversed(lines) if line.strip()), "")
        bench.keep({**name, "result": why + ("" if timed_out.is_set() or not last else f": {last[:200]}")})
        return False


def model_names(bench):
    """Of the program, or those that were asked for."""
    if bench.models:
        return bench.models
    answer = subprocess.run([bench.program, "--part=models"], capture_output=True, text=True,
                            env=bench.environment, check=False, timeout=120)
    rows = [parse_row(line) for line in answer.stdout.splitlines()]
    return [row["what"] for row in rows if row]


def find_scratch():
    """Where the largest checkpoint fits: memory before the disk."""
    for folder in ("/dev/shm", tempfile.gettempdir()):
        if os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > 1.2 * CHECKPOINT_BYTES:
            return folder
    return tempfile.gettempdir()


def find_ncu():
    for place in (shutil.which("ncu"), *sorted(glob.glob("/usr/local/cuda*/bin/ncu")),
                  *sorted(glob.glob("/opt/nvidia/nsight-compute/*/ncu"))):
        if place and os.access(place, os.X_OK):
            return place
    return None


def find_python():
    """One that has torch, if there is one."""
    for python in (sys.executable, shutil.which("python3"), shutil.which("python")):
        if python and subprocess.run([python, "-c", "import torch"], capture_output=True,
                                     check=False).returncode == 0:
            return python
    return sys.executable


def measure_traffic(bench):
    """Bytes that cross the memory bus in single launches, by ncu: as good as it gets, never a
    failure."""
    if bench.ncu is None:
        print("  no ncu here: traffic is not counted")
        return
    measured = {f"{r['what']} {r['case']}": r for r in bench.rows if r["part"] == "kernels"}
    for name in TRAFFIC:
        if name not in measured or bench.left() < 5:
            continue
        command = [bench.ncu, "--csv", "--print-units", "base", "--metrics",
                   "dram__bytes_read.sum,dram__bytes_write.sum", str(bench.program), "--part=kernels",
                   "--once", f"--only={name} "]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, errors="replace",
                                    env=bench.environment, check=False,
                                    timeout=min(bench.left(), TRAFFIC_SECONDS))
        except subprocess.TimeoutExpired:
            print(f"  ncu took too long for {name}")
            return
        total = traffic_of(answer.stdout)
        if total is None:
            said = [line for line in answer.stdout.splitlines() if line.startswith("==ERROR==")]
            print(f"  ncu counted nothing for {name}: {said[0] if said else answer.returncode}")
            return
        row = measured[name]
        bench.keep({"part": "ncu", "what": row["what"], "case": row["case"], "dram_bytes": total})


def traffic_of(text):
    """The sum of ncu's CSV, None if there is none."""
    lines = text.splitlines()
    head = next((i for i, line in enumerate(lines) if '"Metric Value"' in line), None)
    if head is None:
        return None
    total = 0.0
    found = False
    for row in csv.DictReader(io.StringIO("\n".join(lines[head:]))):
        if (row.get("Metric Name") or "").startswith("dram__bytes"):
            try:
                total += float(row["Metric Value"].replace(",", ""))
            except ValueError:
                return None
            found = True
    return total if found else None


def run_parts(bench, parts):
    """0 if all ran to their ends. Ceilings are measured in each run whose figures want them."""
    if not os.access(bench.program, os.X_OK):
        print(f"gpu-check: {bench.program}: no such program")
        return 1
    bench.read()
    bench.keep({"part": "header", "what": "header", "header": bench.header})
    parts = [part for part in PARTS
             if part in parts or (part == "ceilings" and {"kernels", "steps", "prefill"} & set(parts))]
    # What a program that was ended leaves of a checkpoint goes with the folder.
    with tempfile.TemporaryDirectory(prefix="gpu-bench-", dir=bench.scratch) as scratch:
        good = [run_part(bench, part, scratch) for part in parts]
    print(f"\n{bench.markdown.read_text(encoding='utf-8')}")
    print(f"gpu-check: figures in {bench.results}, tables in {bench.markdown}")
    return 0 if all(good) else 1


def run_part(bench, part, scratch):
    print(f"---- {part}", flush=True)
    command = [str(bench.program), f"--part={part}", f"--scratch={scratch}"]
    models = [f"--models={','.join(bench.models)}"] if bench.models else []
    if part in ("steps", "prefill"):
        names = model_names(bench)
        if not names:
            bench.keep({"part": "runs", "what": part, "result": "the program names no models"})
        return all([run(bench, part, [*command, f"--models={model}"], model) for model in names] or
                   [False])
    if part == "peers":
        python = bench.python or find_python()
        return run(bench, part, [python, str(HERE / PEERS), "--results", str(bench.results),
                                 "--seconds", f"{max(1, bench.left() - 10):.0f}", *models])
    if part == "clusters":
        return run_clusters(bench, command, scratch)
    if part == "kernels":
        good = all([run(bench, part, [*command, f"--group={group}", *models], group)
                    for group in bench.groups])
        measure_traffic(bench)
        return good
    return run(bench, part, command)


def run_clusters(bench, command, scratch):
    """Clusters serve texts of the demo model, and a load to random weights with its tokenizer."""
    written = subprocess.run([*command[:1], "--part=checkpoint", f"--models={CLUSTER_MODEL}", f"--scratch={scratch}"],
                             capture_output=True, text=True, env=bench.environment, check=False)
    rows = [row for row in map(parse_row, written.stdout.splitlines()) if row and row["part"] == "checkpoint"]
    if not rows:
        bench.keep({"part": "runs", "what": "clusters", "result": f"no checkpoint: {written.stderr.strip()[-200:]}"})
        return False
    folder = Path(rows[0]["folder"])
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(bench.demo / name, folder / name)
    clusters = dataclasses.replace(bench, deadline=min(bench.deadline, time.monotonic() + CLUSTER_SECONDS))
    return run(clusters, "clusters", [sys.executable, str(HERE / CLUSTERS), str(bench.cluster / "bin"), "--libraries",
                                      str(bench.cluster / "lib"), "--demo", str(bench.demo), "--load-model", str(folder),
                                      "--seconds", f"{clusters.left():.0f}"])
