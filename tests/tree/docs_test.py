#!/usr/bin/env python3
"""Every error reason in the code stands in docs/errors.md, every link and every document cited in a comment leads to
a file, and what Baton is for stands everywhere in the words of README.md. (tests/cluster/metrics_test.cc compares
docs/metrics.md with the code.)

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

# Files that have both sentences of README.md, and files with room for what Baton does alone.
PURPOSE = ("cli/commands.cc", "cmake/Packages.cmake", "deploy/docker/Dockerfile")
IN_SHORT = ("cmake/baton.pc.in", "client/python/pyproject.toml", "client/python/src/baton/__init__.py",
            "client/python/README.md", "client/cpp/README.md")


def plain(text):
    """One line, without the ends of strings that C++ and shells join."""
    return " ".join(re.sub(r'"\n\s*"|\\\n', "", text).split())


def other_purposes(root):
    """Files that say otherwise than README.md what Baton is for."""
    paragraphs = [plain(paragraph) for paragraph in (root / "README.md").read_text(encoding="utf-8").split("\n\n")]
    what, who = paragraphs[1].split(". ")[0] + ".", paragraphs[2]
    short = what.removeprefix("Baton ").removesuffix(".")
    for names, sentence in ((PURPOSE, f"{what} {who}"), (IN_SHORT, short)):
        for name in names:
            if sentence not in plain((root / name).read_text(encoding="utf-8")):
                yield f"{name}: lacks the words of README.md: {sentence}"


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
    return [*breaches(code, (root / "docs/errors.md").read_text(encoding="utf-8")),
            *broken_links(root), *other_purposes(root)]


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
        (root / "README.md").write_text("# T\n\nBaton does\nit. And more.\n\nIt is\nfor us.\n\nEnd")
        for name in (*PURPOSE, *IN_SHORT):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text("x(Baton does it. It "
                                     "is for us.")
        (root / PURPOSE[0]).write_text('"Baton does it. It "\n    "is for us."')
        assert not list(other_purposes(root)), list(other_purposes(root))
        (root / PURPOSE[0]).write_text("Baton does it.")
        (root / IN_SHORT[1]).write_text("Baton is it.")
        assert [line.split(":")[0] for line in other_purposes(root)] == [PURPOSE[0], IN_SHORT[1]]
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
