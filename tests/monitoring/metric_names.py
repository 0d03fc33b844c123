"""The metrics that docs/metrics.md documents, and those that a text names. tests/tree/docs_test.py compares the document with
the code."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAME = re.compile(r"`(baton_[a-z0-9_]+)`")
USED = re.compile(r"(?<![\w:])baton_[a-z0-9_]+(?![\w:])")  # not within the name of a recording rule
HISTOGRAM_PARTS = ("_bucket", "_sum", "_count")


def documented(text=None):
    """Name and type of every metric: its type is in the first cell that is one."""
    text = text if text is not None else (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    types = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        kind = next((cell for cell in cells if cell in ("counter", "gauge", "histogram")), None)
        for name in NAME.findall(cells[0]) if kind else ():
            types[name] = kind
    for name in NAME.findall(text):
        types.setdefault(name, "gauge")  # named in a sentence: information with the value 1
    return types


def series(types):
    """Name of every series that these metrics have, and its metric."""
    return {name + part: name for name, kind in types.items()
            for part in (HISTOGRAM_PARTS if kind == "histogram" else ("",))}


def unknown(text, types):
    return sorted(set(USED.findall(text)) - set(series(types)))
