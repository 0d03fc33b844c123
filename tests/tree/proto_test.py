#!/usr/bin/env python3
"""The protos keep the rules of proto/buf.yaml, and the public API (baton/v1) stays compatible with
the last release, whose image is proto/baseline.binpb.

  proto_test.py --root DIR     prints what `buf lint` and `buf breaking` find; exits 1 if anything
  proto_test.py --self-test --root DIR
                               shows on a copy that additions pass, and that breaks are reported

`buf` is beside the Python that runs this: scripts/setup installs the PyPI package buf-bin.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BUF = Path(sys.executable).parent / "buf"
BASELINE = "baseline.binpb"


def findings(proto):
    """What buf finds wrong in the module `proto`, by lines."""
    found = []
    for arguments in (["lint"], ["breaking", "--against", str(proto / BASELINE)]):
        with tempfile.TemporaryDirectory() as cache:
            run = subprocess.run([BUF, arguments[0], str(proto), *arguments[1:]], text=True,
                                 capture_output=True, env={"BUF_CACHE_DIR": cache, "HOME": cache})
        lines = (run.stdout + run.stderr).splitlines()
        # Every failure has a reason; one without would pass for a clean run.
        assert bool(lines) == (run.returncode != 0), (arguments, run.returncode, lines)
        found += lines
    return found


# File, what to replace, by what, and what buf then says; "" for a change that is allowed.
CHANGES = [
    ("baton/v1/admin.proto", "string detail = 6;", "string detail = 6; string new_field = 900;", ""),
    ("baton/v1/admin.proto", "string detail = 6;", "", 'field "6" with name "detail"'),
    ("baton/v1/admin.proto", "string detail = 6;", "int64 detail = 6;", "changed type"),
    ("baton/v1/admin.proto", "string detail = 6;", "string details = 6;", "changed name"),
    ("baton/v1/inference.proto", "rpc ListModels(ListModelsRequest) returns (ListModelsResponse);",
     "", 'RPC "ListModels"'),
    ("baton/v1/inference.proto", "FINISH_REASON_LENGTH = 2;", "FINISH_REASON_LENGTH = 3;",
     'enum value "2"'),
    ("baton/v1/admin.proto", "string detail = 6;", "string detail = 6; string newField = 900;",
     "lower_snake_case"),
    ("baton/internal/v1/worker.proto", "int32 queued = 2;", "", ""),  # one release at both ends
]


def self_test(root):
    wrong = []
    for path, before, after, expected in CHANGES:
        with tempfile.TemporaryDirectory() as folder:
            proto = Path(folder) / "proto"
            shutil.copytree(root / "proto", proto)
            text = (proto / path).read_text(encoding="utf-8")
            assert before in text, f"{path} has no {before}"
            (proto / path).write_text(text.replace(before, after, 1), encoding="utf-8")
            found = "\n".join(findings(proto))
            if (expected not in found) if expected else found:
                wrong.append(f'{path}: "{before}" to "{after}": expected "{expected}", got "{found}"')
    return wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    if not BUF.exists():
        sys.exit(f"{BUF} is missing: run scripts/setup")
    root = arguments.root.resolve()
    found = self_test(root) if arguments.self_test else findings(root / "proto")
    print("\n".join(found) or "ok")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
