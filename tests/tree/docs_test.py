#!/usr/bin/env python3
"""Every error reason and metric name in the code stands in docs/errors.md and docs/metrics.md, and every
metric named there is in the code.

  docs_test.py --root DIR     prints what is missing; exits 1 if anything is
  docs_test.py --self-test    shows that each rule can fail
"""

import argparse
import re
import sys
from pathlib import Path

ROOMS = ("common", "router", "prefill_worker", "decode_worker", "client", "cli")
# MakeError(code, "REASON", …), InvalidField("REASON", …), and our own makers of errors that take it first.
REASON = re.compile(r'(?:MakeError\(\s*[\w:.()]+,\s*|InvalidField\(\s*|Mismatch\(\s*|Overloaded\(\s*|Lost\(\s*)"([A-Z0-9_]+)"')
METRIC = re.compile(r'"(baton_[a-z0-9_]+)"')
METRIC_IN_DOCS = re.compile(r"`(baton_[a-z0-9_]+)`")


def breaches(code, errors, metrics):
    """What is missing, given all source text and the two documents."""
    documented = set(re.findall(r"`([A-Z0-9_]+)`", errors))
    for reason in sorted(set(REASON.findall(code)) - documented):
        yield f"docs/errors.md: lacks reason {reason}"
    exported = set(METRIC.findall(code))
    named = set(METRIC_IN_DOCS.findall(metrics))
    for name in sorted(exported - named):
        yield f"docs/metrics.md: lacks {name}"
    for name in sorted(named - exported):
        yield f"docs/metrics.md: names {name}, which no code exports"


def check(root):
    sources = [p for room in ROOMS for p in sorted((root / room).rglob("*.cc"))]
    code = "\n".join(p.read_text(encoding="utf-8") for p in sources)
    return list(breaches(code, (root / "docs/errors.md").read_text(encoding="utf-8"),
                         (root / "docs/metrics.md").read_text(encoding="utf-8")))


def self_test():
    code = 'MakeError(absl::StatusCode::kInternal, "A_B", x); InvalidField(\n "C", y); f("baton_x_total");'
    assert list(breaches(code, "`A_B` `C`", "`baton_x_total`")) == []
    assert list(breaches(code, "`A_B`", "`baton_x_total`")) == ["docs/errors.md: lacks reason C"]
    assert len(list(breaches(code, "`A_B` `C`", "`baton_y`"))) == 2
    return []


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=Path)
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    found = self_test() if arguments.self_test else check(arguments.root)
    print("\n".join(found) or "ok")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
