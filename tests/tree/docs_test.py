#!/usr/bin/env python3
"""Every error reason in the code stands in docs/errors.md, and every link and every document cited in a comment
leads to a file. (tests/cluster/metrics_test.cc compares docs/metrics.md with the code.)

  docs_test.py --root DIR     prints what is missing; exits 1 if anything is
  docs_test.py --self-test    shows that each rule can fail
"""

import argparse
import re
import sys
import tempfile
from pathlib import Path

ROOMS = ("common", "router", "prefill_worker", "decode_worker", "client", "cli")
# MakeError(code, "REASON", …), InvalidField("REASON", …), and our own makers of errors that take it first.
REASON = re.compile(r'(?:MakeError\(\s*[\w:.()]+,\s*|InvalidField\(\s*|Mismatch\(\s*|Overloaded\(\s*|Lost\(\s*)"([A-Z0-9_]+)"')
LINK = re.compile(r"\]\(([^)#:\s]*)(?:#([^)\s]+))?\)")  # to a file here; addresses have a colon
CITED = re.compile(r"\bdocs/[\w/-]+\.(?:md|svg)\b")


def breaches(code, errors):
    """What is missing, given all source text and the document."""
    documented = set(re.findall(r"`([A-Z0-9_]+)`", errors))
    for reason in sorted(set(REASON.findall(code)) - documented):
        yield f"docs/errors.md: lacks reason {reason}"


def anchors(text):
    """The names that GitHub gives to a document's headings."""
    headings = re.findall(r"^#+ (.*)", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(root):
    documents = [*root.glob("*.md"), *(p for room in ("docs", "common", "models", "client") for p in (root / room).rglob("*.md"))]
    for path in sorted(documents):
        for target, anchor in LINK.findall(path.read_text(encoding="utf-8")):
            file = path.parent / target if target else path
            if not file.exists():
                yield f"{path.relative_to(root)}: links to {target}, which does not exist"
            elif anchor and anchor not in anchors(file.read_text(encoding="utf-8")):
                yield f"{path.relative_to(root)}: links to {target}#{anchor}, which has no such heading"
    for room in (*ROOMS, "benchmarks", "scripts", "tests"):
        for path in sorted((root / room).rglob("*")):
            if path.suffix in (".h", ".cc", ".cu", ".py", ".txt", "") and path.is_file():
                text = path.read_text(encoding="utf-8", errors="replace")
                for cited in sorted(set(CITED.findall(text))):
                    if not (root / cited).exists():
                        yield f"{path.relative_to(root)}: cites {cited}, which does not exist"


def check(root):
    sources = [p for room in ROOMS for p in sorted((root / room).rglob("*.cc"))]
    code = "\n".join(p.read_text(encoding="utf-8") for p in sources)
    return [*breaches(code, (root / "docs/errors.md").read_text(encoding="utf-8")), *broken_links(root)]


def self_test():
    code = 'MakeError(absl::StatusCode::kInternal, "A_B", x); InvalidField(\n "C", y);'
    assert list(breaches(code, "`A_B` `C`")) == []
    assert list(breaches(code, "`A_B`")) == ["docs/errors.md: lacks reason C"]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "router").mkdir()
        (root / "README.md").write_text("# Two words\n[a](#two-words) [b](https://x.y) [c](no.md) [d](README.md#no)")
        (root / "router/a.h").write_text("// See docs" "/no.md.")
        assert len(list(broken_links(root))) == 3, list(broken_links(root))
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
