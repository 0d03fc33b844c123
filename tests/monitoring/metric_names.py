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


def _call(text, at):
    """The text from there to the end of its first parentheses."""
    depth = 0
    for end in range(at, len(text)):
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        if depth == 0 and text[end] == ")":
            return text[at:end + 1]
    return text[at:]


def nan_when_idle(expression):
    """The divisors and quantiles of an expression that may be 0 / 0: those that neither `> 0` nor `>= 0` leaves out."""
    text = " ".join(expression.split())
    for match in re.finditer(" / ", text):
        divisor = _call(text, match.end())
        if not divisor.startswith("clamp_min(") and not (divisor.startswith("(") and divisor.endswith(" > 0)")):
            yield divisor
    for match in re.finditer("histogram_quantile", text):
        quantile = _call(text, match.start())
        if not text.startswith(" >= 0", match.start() + len(quantile)):
            yield quantile


def unknown(text, types):
    return sorted(set(USED.findall(text)) - set(series(types)))
