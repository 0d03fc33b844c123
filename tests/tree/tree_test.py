#!/usr/bin/env python3
"""Rules of the source tree that the compiler does not know (ARCHITECTURE.md, CONTRIBUTING.md).

  tree_test.py --root DIR     prints each breach as "file:line: what, expected"; exits 1 if any
  tree_test.py --self-test    shows on a small tree that each breach is reported

An exception goes into one of the lists below with its reason. One that is no longer needed is a
breach too.
"""

import argparse
import graphlib
import os
import re
import sys
from pathlib import Path

# ---- The rules, as data -------------------------------------------------------------------------

# Room: rooms whose headers it may include, besides its own. "base/rpc" is common/base/rpc, the only
# place where base meets gRPC; "proto" is the generated code.
WORKER_ROOMS = {"base", "base/rpc", "telemetry", "kv", "backend", "model", "engine", "security",
                "kv_store", "tracing", "transfer", "worker", "prefill", "proto"}
EDGES = {
    "base": set(),
    "base/rpc": {"base", "proto"},
    "telemetry": {"base"},
    "tracing": {"base", "json"},
    "json": {"base"},
    "gguf": {"base", "json"},
    "security": {"base"},
    "tokenizer": {"base", "json", "gguf"},
    "chat": {"base", "json", "gguf"},
    # Its program, which the worker starts, has the tokenizer; the library has not.
    "grammar": {"base", "json", "tokenizer", "proto"},
    "kv": {"base"},
    "kv_store": {"base", "kv"},
    "backend": {"base"},
    "model": {"base", "json", "gguf", "backend"},
    "engine": {"base", "kv", "backend", "model"},
    "transfer": {"base", "base/rpc", "kv", "backend", "proto"},
    "worker": {"base", "base/rpc", "telemetry", "kv", "backend", "model", "engine", "security",
               "tracing", "transfer", "proto"},
    "prefill": {"base", "base/rpc", "telemetry", "kv", "kv_store", "backend", "model", "engine",
                "security", "tracing", "transfer", "worker", "proto"},
    "router": {"base", "base/rpc", "chat", "grammar", "json", "security", "telemetry", "tokenizer", "tracing",
               "kv", "proto"},
    "prefill_worker": WORKER_ROOMS,
    "decode_worker": WORKER_ROOMS | {"grammar"},
    "client": {"base", "base/rpc", "proto"},
    # The router's own choices, and the workers' own estimates (docs/adr/0031-a-room-for-the-simulator.md).
    "simulator": {"base", "kv", "transfer", "worker", "router", "proto"},
    # engine, kv_store: `baton plan` is the workers' own arithmetic (docs/adr/0007-plan-in-the-command.md).
    "cli": {"base", "base/rpc", "proto", "client", "engine", "kv_store", "security", "simulator"},
}
# Folder: its sub-rooms, and for each the others that its files may include. A sub-room is a folder
# ("cpu"), or a header beside them with its source ("tensor.h"). Any other file beside them stands
# above all sub-rooms: it may include each, and none includes it.
SUBROOMS = {
    "common/backend/cuda": {
        "cuda_options.h": set(),
        "simt": set(),  # the kernels' dialect: nvcc and the emulation
        "kernels": {"simt"},
        "runtime": {"cuda_options.h", "simt", "kernels"},  # memory, streams, events, copies
        "products": {"kernels", "runtime"},  # cuBLASLt beside Baton's kernels, measured
        "matrices": {"kernels", "runtime", "products"},  # weights and products with them
        "nccl": {"simt", "kernels", "runtime"},  # links with other devices
        "sampling": {"kernels", "runtime"},
        "steps": {"kernels", "runtime", "sampling"},  # batches, attention plans, graphs
        "plan": {"kernels", "runtime", "matrices", "sampling", "steps"},  # host arithmetic
        "emulated": {"simt", "runtime"},
    },
    "decode_worker": {
        "drafts": set(),  # tokens in, tokens out
    },
    "router": {
        "prefix_index": set(),
        "fleet": {"prefix_index"},
        "options.h": {"fleet"},  # reads --workers-file to check it
        "metrics.h": {"fleet"},
        "routing": {"prefix_index", "fleet", "metrics.h"},
        "request": {"options.h", "fleet", "metrics.h", "routing"},  # one call
        "score": {"options.h", "fleet", "metrics.h", "routing", "request"},  # scoring calls
        "api": {"options.h", "fleet", "metrics.h", "routing", "request", "score"},  # gRPC
        "http": {"options.h", "fleet", "metrics.h", "request", "score"},  # OpenAI's API
    },
}
FREE_ROOMS = ("tests", "benchmarks")
BINARY_ROOMS = ("router", "prefill_worker", "decode_worker", "client", "simulator", "cli")

# (what, include pattern, folders that may)
THIRD_PARTY = [
    ("gRPC and Protobuf", r"(grpc|grpcpp|google/protobuf)/|.*\.pb\.h$",
     ("common/base/rpc", "common/grammar", "common/transfer", "common/worker", "common/prefill", *BINARY_ROOMS)),
    ("oneDNN", r"(oneapi/)?dnnl", ("common/backend/cpu",)),
    ("prometheus-cpp", r"prometheus/|[Cc]ivet",
     ("common/telemetry", "common/worker", "common/prefill", "router", "prefill_worker",
      "decode_worker")),
    ("XGrammar", r"xgrammar/|dlpack/", ("common/grammar/program",)),
    ("nlohmann JSON", r"nlohmann/", ("common/json", "router/http", "simulator", "cli")),
    ("simdjson", r"simdjson", ("common/json",)),
    # tracing: each server sends its spans itself (docs/adr/0013-tracing-module.md).
    ("libcurl", r"curl/", ("cli", "common/tracing")),
    # telemetry: prometheus-cpp's own server has no IPv6, as Debian builds it.
    ("Boost.Beast and Asio", r"boost/(asio|beast)", ("router/http", "common/telemetry")),
    ("OpenSSL", r"openssl/", ("cli", "common/security")),
    ("hiredis", r"hiredis/", ("common/kv_store",)),
    ("CUDA", r"(cuda|cublas|cuda_.*|cudnn|cub/|cutlass/|mma)[\w./]*$", ("common/backend/cuda",)),
    ("NCCL", r"nccl", ("common/transfer", "common/backend/cuda")),
]

# Where tests get their seeds, and what else would draw one that BATON_TEST_SEED does not repeat.
SEED_FILES = ("tests/testing/seed.h", "tests/testing/seed.py")
UNSEEDED_CPP = re.compile(r"\b(std::random_device|std::default_random_engine|absl::(?:Insecure)?BitGen|"
                          r"random_seed|srand|rand|drand48|arc4random|getrandom|getentropy|RAND_bytes)\b")
UNSEEDED_PYTHON = re.compile(r"(\b(?:np|numpy)\.random\.(?!default_rng\([^)])|\bos\.urandom|"
                             r"(?<![\w.])random\.(?!Random\([^)])|(?<![\w.])secrets\.|"
                             r"\buuid\.uuid[14]|\bfrom (?:random|secrets) import)")

MAX_LINES = 500  # a tripwire, not a law: ask whether the file is one thing
WARN_LINES = 400
BANNED_NAME = re.compile(r"(^|_)(manager|util|helper|impl)s?(_|\.|$)")

# ---- Exceptions, each with its reason -----------------------------------------------------------

UNMIRRORED_TESTS = {
    "tests/common/backend/cuda/backend_test.cc":
        "tests backend.h on every device",
    "tests/common/backend/cuda/backend_kv_test.cc":
        "the second half of backend_test.cc: the KV pool",
    "tests/common/backend/cuda/peer_processes_test.cc":
        "the part of backend_test.cc that needs a second process",
    "tests/common/backend/cuda/ptx/machine_test.cc":
        "tests the interpreter of PTX, which is tests' own",
    "tests/common/prefill/kv_fetch_test.cc":
        "tests fetches as the whole loop makes them",
    "tests/common/prefill/retention_test.cc":
        "tests retention as the scheduler applies it",
    "tests/common/prefill/scoring_test.cc":
        "tests scoring as the whole loop does it",
    "tests/common/transfer/device_pool_test.cc":
        "the part of shared_pool_test.cc about pools in device memory",
    "tests/common/engine/engine_embedding_test.cc":
        "hidden states for embeddings of engine.h",
    "tests/common/engine/engine_asynchrony_test.cc":
        "the part of engine_test.cc that needs a device of its own, which no GPU is",
    "tests/common/engine/engine_tuning_test.cc":
        "the part of engine_test.cc that watches a library of matrix products",
    "tests/common/engine/run_ahead_test.cc":
        "the part of engine_test.cc about steps in two halves",
    "tests/common/engine/drafts_test.cc":
        "steps with drafts, of batch.h, device_draws.h and the recurrent layers of every backend",
    "tests/common/engine/mtp_head_test.cc":
        "the part of engine_test.cc about MTP heads",
    "tests/common/engine/one_answer_test.cc":
        "engine_test.cc asks whether a step is right; this, whether all ways there agree",
    "tests/common/backend/cuda/simt/emulated_machine_test.cc":
        "tests emulated.cc: blocks, warps, copies, and breaches of their rules",
    "tests/common/backend/cpu/vector_ops_test.cc":
        "vector_kernels.h is compiled once per instruction set: tested through the backend",
    "tests/common/chat/chat_golden_test.cc":
        "the second half of chat_template_test.cc: published templates against jinja2",
    "tests/common/chat/special_tokens_test.cc":
        "the part of model_chat_test.cc that has a tokenizer, too: conversations that spell special tokens",
    "tests/common/tokenizer/tokenizer_golden_test.cc":
        "the second half of tokenizer_test.cc: strings against Hugging Face's tokenizers",
    "tests/common/kv/radix_cache_property_test.cc":
        "the second half of radix_cache_test.cc: histories against a model",
    "tests/common/model/sampler_property_test.cc":
        "the second half of sampler_test.cc: random requests against a slow sampler",
    "tests/common/model/transformer_gguf_test.cc":
        "the part of transformer_test.cc that has other checkpoints: GGUF files against directories",
    "tests/common/model/transformer_quantized_test.cc":
        "the part of transformer_test.cc that has other checkpoints: quantised ones against float ones",
}
LONG_FILES = {
    "router/metrics.cc": "one list: of each metric its declaration, its member and its event",
}

# ---- The tree -----------------------------------------------------------------------------------

ROOTS = ("common", *BINARY_ROOMS, "tests", "benchmarks", "proto")
CPP = {".h", ".cc", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')


def files(root, *suffixes):
    """Paths relative to the root, sorted."""
    for top in ROOTS:
        for path in sorted((root / top).rglob("*")):
            relative = path.relative_to(root)
            hidden = any(p.startswith(".") or p in ("build", "__pycache__") for p in relative.parts)
            if path.is_file() and not hidden and path.suffix in suffixes:
                yield relative


def lines(root, path):
    return (root / path).read_text(encoding="utf-8").splitlines()


def room_of(path):
    """The room of a path from the root; None if it belongs to none."""
    parts = Path(path).parts
    if parts[:3] == ("common", "base", "rpc"):
        return "base/rpc"
    if parts[0] == "common":
        return parts[1] if len(parts) > 2 else None
    if parts[0] == "proto" or re.match(r"(baton|google)/.*\.pb\.h$", str(path)):
        return "proto"
    return parts[0] if parts[0] in EDGES or parts[0] in FREE_ROOMS else None


def under(path, folders):
    return any(str(path).startswith(folder + "/") for folder in folders)


# ---- The checks: each takes the root and yields (place, breach) ----------------------------------

def check_includes(root):
    for path in files(root, *CPP):
        room = room_of(path)
        if room in FREE_ROOMS:
            continue
        if room not in EDGES:
            yield path, f"is in no room, expected one of {', '.join(EDGES)}"
            continue
        for number, line in enumerate(lines(root, path), 1):
            match = INCLUDE.match(line)
            if match:
                yield from include_breaches(root, path, number, room, *match.groups())


def include_breaches(root, path, number, room, mark, header):
    place = f"{path}:{number}"
    for what, pattern, folders in THIRD_PARTY:
        if re.match(pattern, header) and not under(path, folders):
            yield place, f"includes {what} ({header}), which only {', '.join(folders)} may"
    if header.startswith(".") or (mark == '"' and (root / path.parent / header).is_file()
                                  and not (root / header).is_file()):
        yield place, f'includes "{header}", expected the path from the root of the tree'
        return
    target = room_of(header)
    if target is None or target == room or target in EDGES[room]:
        return
    may = ", ".join(sorted(EDGES[room])) or "nothing else"
    yield place, f"{room} includes {target} ({header}), but may include only {may}"


def check_links(root):
    """The same edges for the DEPS of a room's library."""
    call = re.compile(r"baton_(?:library|binary)\(\s*(\w+)([^)]*)\)")
    for path in files(root, ".txt"):
        room = room_of(path)
        if path.name != "CMakeLists.txt" or room not in EDGES:
            continue
        for _, arguments in call.findall((root / path).read_text(encoding="utf-8")):
            for dep in re.findall(r"\bbaton_(\w+)", arguments.partition("DEPS")[2]):
                target = {"base_rpc": "base/rpc"}.get(dep) or room_of_target(dep)
                if target and target != room and target not in EDGES[room]:
                    yield path, f"{room} links baton_{dep}, but may not use {target}"


def room_of_target(name):
    """The room with the longest name that the target's begins with: backend_cpu is of backend."""
    rooms = [r for r in (*EDGES, "proto") if name == r or name.startswith(r + "_")]
    return max(rooms, key=len, default=None)


def check_subrooms(root, tables=SUBROOMS):
    for parent, table in tables.items():
        yield from table_breaches(root, parent, table)
        for path in files(root, *CPP):
            if under(path, (parent,)):
                yield from subroom_breaches(root, path, parent, table)


def table_breaches(root, parent, table):
    for room, targets in table.items():
        if not (root / parent / room).exists():
            yield f"{parent}/{room}", "is listed in SUBROOMS, but does not exist: take it off the list"
        for target in sorted(targets - set(table)):
            yield parent, f"{room} may include {target}, which is no sub-room in SUBROOMS"
    try:
        graphlib.TopologicalSorter(table).prepare()
    except graphlib.CycleError as error:
        yield parent, f"has a circle of sub-rooms: {' <- '.join(error.args[1])}"


def subroom_breaches(root, path, parent, table):
    room = subroom_of(path, parent, table)
    if room is None:
        return
    if room not in table:
        yield path, f"is in no sub-room of {parent}, expected one of {', '.join(table)}"
        return
    for number, line in enumerate(lines(root, path), 1):
        match = INCLUDE.match(line)
        if not match or not under(match.group(2), (parent,)):
            continue
        target = subroom_of(match.group(2), parent, table)
        if target != room and target not in table[room]:
            may = ", ".join(sorted(table[room])) or "nothing else"
            yield f"{path}:{number}", (f"sub-room {room} includes {match.group(2)}, but of {parent} "
                                       f"may include only {may}")


def subroom_of(path, parent, table):
    """The first folder below the parent, or a listed header; None for another file beside them."""
    parts = Path(path).relative_to(parent).parts
    if len(parts) > 1:
        return parts[0]
    header = str(Path(parts[0]).with_suffix(".h"))
    return header if header in table else None


def check_mirror(root, exceptions=UNMIRRORED_TESTS):
    for path in files(root, ".cc"):
        if not under(path, ("tests/common",)) or not path.name.endswith("_test.cc"):
            continue
        source = Path(*path.parts[1:-1]) / path.name[:-len("_test.cc")]
        mirrored = any((root / source).with_suffix(s).is_file() for s in CPP)
        if not mirrored and str(path) not in exceptions:
            yield path, f"tests nothing that exists, expected {source}.cc or {source}.h"
        if mirrored and str(path) in exceptions:
            yield path, "is listed in UNMIRRORED_TESTS, but mirrors a file: take it off the list"
    yield from missing(root, exceptions, "UNMIRRORED_TESTS")


def check_length(root, exceptions=LONG_FILES):
    for path in files(root, ".py", *CPP):
        if not under(path, ("common", *BINARY_ROOMS)):
            continue
        count = len(lines(root, path))
        if count > MAX_LINES and str(path) not in exceptions:
            yield path, f"has {count} lines, expected at most {MAX_LINES}: is it one thing?"
        elif count > WARN_LINES:
            print(f"note: {path} has {count} lines")
        if count <= MAX_LINES and str(path) in exceptions:
            yield path, f"is listed in LONG_FILES, but has {count} lines: take it off the list"
    yield from missing(root, exceptions, "LONG_FILES")


def check_guards(root):
    for path in files(root, ".h", ".cuh"):
        guard = "BATON_" + re.sub(r"[^A-Za-z0-9]", "_", str(path)).upper() + "_"
        code = [line for line in lines(root, path) if line.startswith("#")]
        if code[:2] != [f"#ifndef {guard}", f"#define {guard}"]:
            yield path, f"begins with another guard than expected: {guard}"
        elif code[-1] != f"#endif  // {guard}":
            yield path, f"ends with \"{code[-1]}\", expected \"#endif  // {guard}\""


def check_names(root):
    for path in files(root, ".py", ".proto", *CPP):
        for part in path.parts:
            banned = BANNED_NAME.search(part)
            if banned:
                yield path, f"is named \"{banned.group(2)}\", expected a name for what it does"


def check_seeds(root):
    for path in files(root, ".py", *CPP):
        if not under(path, ("tests",)) or str(path) in SEED_FILES:
            continue
        text = (root / path).read_text(encoding="utf-8")
        python = path.suffix == ".py"
        text = re.sub(r"#[^\n]*", "", text) if python else without_comments_and_strings(text)
        for number, line in enumerate(text.splitlines(), 1):
            for found in (UNSEEDED_PYTHON if python else UNSEEDED_CPP).findall(line):
                yield f"{path}:{number}", f"draws by {found}, expected a seed from {SEED_FILES[python]}"


def check_modes(root):
    """Documents and head comments show such a file as a command."""
    for top in (*ROOTS, "deploy", "models", "packaging", "scripts"):
        for path in sorted((root / top).rglob("*")):
            relative = path.relative_to(root)
            hidden = any(p.startswith(".") or p in ("build", "__pycache__") for p in relative.parts)
            if hidden or not path.is_file():
                continue
            with open(path, "rb") as file:
                program = file.read(2) == b"#!"
            if program and not os.access(path, os.X_OK):
                yield relative, "begins with #!, expected an executable file (chmod +x)"


def without_comments_and_strings(text):
    """Blanks them, keeping the lines."""
    token = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
    return token.sub(lambda m: "\n" * m.group().count("\n") or " ", text)


def missing(root, exceptions, name):
    for path in exceptions:
        if not (root / path).is_file():
            yield path, f"is listed in {name}, but does not exist: take it off the list"


CHECKS = (check_includes, check_links, check_subrooms, check_mirror, check_length, check_guards,
          check_names, check_seeds, check_modes)


def breaches(root, checks=CHECKS):
    return [f"{place}: {what}" for check in checks for place, what in check(root)]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path)
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    if arguments.self_test:
        import tree_self_test
        return tree_self_test.run()
    if arguments.root is None or not (arguments.root / "common").is_dir():
        parser.error(f"--root is {arguments.root}, expected the root of the tree")
    found = breaches(arguments.root)
    print("\n".join(found) if found else f"{arguments.root}: the tree keeps its rules")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
