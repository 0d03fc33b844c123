#!/usr/bin/env python3
"""Draws the dashboards of deploy/grafana as SVG, from what a Prometheus answers about a cluster under load. Grafana has no
part in it: layout, expressions, units and legends are those of the dashboards, the drawing is not Grafana's.

    scripts/dashboard_pictures.py [--seconds 60] [--rate 6] [--bin build/cpu-release/bin] [--out docs/images]
"""

import argparse
import math
import re
import tempfile
import threading
import time
from pathlib import Path
from xml.sax.saxutils import escape

from observed_cluster import RATE_INTERVAL_S, ROOT, ObservedCluster
from panel_expressions import load_dashboards, panels_of, substituted

COLUMN, LINE, GAP = 50, 30, 8  # pixels
RIGHT, TOP, BOTTOM = 14, 30, 38  # of a plot within its panel
LEGEND_LINES, CHARACTER = 2, 5.6
# Distinct for people who see red and green alike (Okabe and Ito).
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999933", "#882255")
STEP_S = 1
ROUTER = "baton-router"  # is drawn of a cluster in which a decode worker hangs from the middle on


def shown(value, unit):
    """A value with its unit, as short as Grafana shows it."""
    if unit == "s":
        return f"{value:.3g} s" if value >= 1 or value == 0 else f"{1e3 * value:.3g} ms"
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit.startswith("suffix:"):
        return f"{value:.4g} {unit.removeprefix('suffix:').strip()}"
    base, suffix = {"Bps": (1000, "B/s"), "bytes": (1024, "B"), "reqps": (1000, "req/s")}.get(unit, (1000, ""))
    for prefix in ("", "k", "M", "G", "T") if base == 1000 else ("", "Ki", "Mi", "Gi", "Ti"):
        if abs(value) < base:
            break
        value /= base
    return f"{value:.3g} {prefix}{suffix}".strip()


def ticks(low, high, base):
    """Three to six round values that enclose both. `base` is 1024 for bytes."""
    span = high - low or 1.0
    unit = base ** math.floor(math.log(span / 4, base)) if base == 1024 else 1.0
    power = 10 ** math.floor(math.log10(span / 4 / unit)) * unit
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= span / 4)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [step * number for number in range(first, max(last, first + 1) + 1)]


def text(x, y, content, attributes=""):
    return f'<text x="{x:.0f}" y="{y:.0f}" {attributes}>{escape(content)}</text>'


def legend_of(template, labels):
    return re.sub(r"{{(\w+)}}", lambda match: labels.get(match[1], ""), template).strip()


def unbroken(points, step_s):
    """The points up to each gap in time."""
    part = []
    for point in points:
        if part and point[0] - part[-1][0] > 1.5 * step_s:
            yield part
            part = []
        part.append(point)
    yield part


class Panel:
    def __init__(self, panel, series, step_s=STEP_S):
        """`series`: pairs of legend and (time, value), which are `step_s` apart."""
        self._panel, self._series, self._step_s = panel, series, step_s
        place = panel["gridPos"]
        self._x, self._y = place["x"] * COLUMN + GAP / 2, place["y"] * LINE + GAP / 2
        self._width, self._height = place["w"] * COLUMN - GAP, place["h"] * LINE - GAP
        self._defaults = panel["fieldConfig"]["defaults"]
        self._unit = self._defaults["unit"]

    def draw(self, start, end):
        frame = f'<rect width="{self._width}" height="{self._height}" rx="3" fill="#fff" stroke="#d0d0d8"/>'
        title = text(10, 18, self._panel["title"], 'font-weight="bold" font-size="12"')
        if not self._series:
            inner = text(self._width / 2, self._height / 2, "No data", 'text-anchor="middle"')
        else:
            inner = self._numbers() if self._panel["type"] == "stat" else self._plot(start, end)
        return f'<g transform="translate({self._x:.0f} {self._y:.0f})">{frame}{title}{inner}</g>'

    def _numbers(self):
        steps = self._defaults.get("thresholds", {}).get("steps", [])
        out = []
        share = (self._width - 20) / len(self._series)
        for number, (legend, values) in enumerate(self._series):
            value = values[-1][1]
            reached = [step["color"] for step in steps if step["value"] is None or value >= step["value"]]
            x = 10 + share * (number + 0.5)
            out.append(text(x, self._height * 0.58, shown(value, self._unit), 'font-size="24" text-anchor="middle" '
                            f'fill="{ {"red": "#c4162a", "green": "#37872d"}.get(reached[-1] if reached else "", "#222")}"'))
            out += [text(x, self._height * 0.58 + 20 + 13 * line, part, 'text-anchor="middle" fill="#555"')
                    for line, part in enumerate(legend.split(": "))]
        return "".join(out)

    def _stacked(self):
        """Each series with the sum of those before it; (time, from, to)."""
        stack = self._defaults["custom"]["stacking"]["mode"] == "normal"
        below = {}
        for legend, values in self._series:
            points = []
            for at, value in values:
                low = below.get(at, 0.0) if stack else 0.0
                below[at] = low + value
                points.append((at, low, low + value))
            yield legend, points, stack

    def _plot(self, start, end):
        drawn = list(self._stacked())
        values = [high for _, points, _ in drawn for _, _, high in points]
        low = min([*values, self._defaults.get("min", math.inf)])
        marks = ticks(low, max([*values, self._defaults.get("max", -math.inf)]), 1024 if self._unit == "bytes" else 10)
        left = 14 + CHARACTER * max(len(shown(mark, self._unit)) for mark in marks)
        width, height = self._width - left - RIGHT, self._height - TOP - BOTTOM - 13 * LEGEND_LINES + 12

        def x_of(at):
            return left + (at - start) / (end - start) * width

        def y_of(value):
            return TOP + height - (value - marks[0]) / (marks[-1] - marks[0]) * height

        out = []
        for mark in marks:
            out.append(f'<path d="M{left:.0f} {y_of(mark):.1f}h{width:.0f}" stroke="#e8e8ec"/>')
            out.append(text(left - 5, y_of(mark) + 4, shown(mark, self._unit), 'text-anchor="end" fill="#555"'))
        for seconds in ticks(0, end - start, 10):
            if seconds <= end - start:
                out.append(text(x_of(start + seconds), TOP + height + 14, f"{seconds:g} s", 'text-anchor="middle" fill="#555"'))
        for number, (_, points, stack) in enumerate(drawn):
            color = COLORS[number % len(COLORS)]
            for part in unbroken(points, self._step_s):
                line = " ".join(f"{x_of(at):.0f} {y_of(high):.0f}" for at, _, high in part)
                if stack:
                    back = " ".join(f"{x_of(at):.0f} {y_of(under):.0f}" for at, under, _ in reversed(part))
                    out.append(f'<path d="M{line} {back}z" fill="{color}" fill-opacity="0.6"/>')
                out.append(f'<path d="M{line}" fill="none" stroke="{color}" stroke-width="1.4"/>')
        return "".join(out) + self._legend([legend for legend, _, _ in drawn])

    def _legend(self, names):
        out, x, line = [], 10.0, 0
        for number, name in enumerate(names):
            width = 16 + CHARACTER * len(name) + 10
            if x + width > self._width and x > 10:
                x, line = 10.0, line + 1
            if line == LEGEND_LINES:
                out.append(text(self._width - 8, self._height - 6, f"+{len(names) - number}", 'text-anchor="end" fill="#555"'))
                break
            y = self._height - 6 - 13 * (LEGEND_LINES - 1 - line)
            out.append(f'<rect x="{x:.0f}" y="{y - 6}" width="10" height="4" fill="{COLORS[number % len(COLORS)]}"/>')
            out.append(text(x + 14, y, name, 'fill="#333"'))
            x += width
        return "".join(out)


def picture(prometheus, dashboard, start, end):
    parts = []
    for panel in panels_of(dashboard):
        series = [(legend_of(target["legendFormat"], labels), values) for target in panel["targets"]
                  for labels, values in prometheus.query_range(
                      substituted(target["expr"], rate_interval=f"{RATE_INTERVAL_S}s"), start, end, STEP_S)]
        finite = [(legend, [(at, value) for at, value in values if math.isfinite(value)]) for legend, values in series]
        parts.append(Panel(panel, [one for one in finite if one[1]]).draw(start, end))
    for row in dashboard["panels"]:
        if row["type"] == "row":
            parts.append(text(GAP, (row["gridPos"]["y"] + 0.7) * LINE, row["title"], 'font-size="13" font-weight="bold"'))
    return page(parts, max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"]))


def page(parts, lines):
    """The whole picture, of so many lines of the grid."""
    width, height = 24 * COLUMN, lines * LINE
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="10" '
            f'fill="#222"><rect width="{width}" height="{height}" fill="#f4f5f5"/>' + "\n".join(parts) + "</svg>\n")


def observe(arguments, dashboards, disturb):
    """Draws the dashboards after load in whose middle the cluster is disturbed."""
    with tempfile.TemporaryDirectory(prefix="baton-pictures-") as folder:
        with ObservedCluster(arguments.bin, Path(folder)) as cluster:
            start = time.time() + RATE_INTERVAL_S
            middle = threading.Timer(arguments.seconds / 2, disturb, [cluster])
            middle.start()
            cluster.load(arguments.seconds, arguments.rate)
            middle.join()
            for dashboard in dashboards:
                drawn = picture(cluster.prometheus, dashboard, start, time.time())
                name = f"{dashboard['uid'].removeprefix('baton-')}_dashboard.svg"
                (arguments.out / name).write_text(drawn, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=ROOT / "build/cpu-release/bin", help="where the binaries are")
    parser.add_argument("--seconds", type=float, default=60, help="how long the load lasts")
    parser.add_argument("--rate", type=float, default=6, help="requests a second over gRPC; half as many go over HTTP")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images", help="where the pictures go")
    arguments = parser.parse_args()
    calm = [dashboard for dashboard in load_dashboards() if dashboard["uid"] != ROUTER]
    observe(arguments, calm, lambda cluster: None)
    router = [dashboard for dashboard in load_dashboards() if dashboard["uid"] == ROUTER]
    observe(arguments, router, lambda cluster: cluster.freeze("decode"))


if __name__ == "__main__":
    main()
