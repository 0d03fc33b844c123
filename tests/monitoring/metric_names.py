"""The metrics that docs/metrics.md documents, and those that a text names. tests/cluster/metrics_test.cc makes the
document from the code."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAME = re.compile(r"`(baton_[a-z0-9_]+)`")
USED = re.compile(r"(?<![\w:])baton_[a-z0-9_]+(?![\w:])")  # not within the name of a recording rule
HISTOGRAM_PARTS = ("_bucket", "_sum", "_count")


def rows(text=None):
    """The cells of each line about a metric: its name, type and labels."""
    text = text if text is not None else (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) > 1 and cells[1] in ("counter", "gauge", "histogram"):
            yield NAME.fullmatch(cells[0])[1], *cells[1:]


def documented(text=None):
    """Name and type of every metric."""
    return {name: kind for name, kind, *_ in rows(text)}


def documented_labels(text=None):
    """Name and labels of every metric, but for those that all have."""
    return {name: set(re.findall(r"`(\w+)`", labels)) for name, _, labels, *_ in rows(text)}


def series(types):
    """Name of every series that these metrics have, and its metric."""
    return {name + part: name for name, kind in types.items()
            for part in (HISTOGRAM_PARTS if kind == "histogram" else ("",))}


def unknown(text, types):
    return sorted(set(USED.findall(text)) - set(series(types)))
