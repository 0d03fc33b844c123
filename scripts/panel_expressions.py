"""The dashboards of deploy/grafana as data: their panels, and the expressions that Prometheus sees."""

import json
import re
from pathlib import Path

DASHBOARDS = Path(__file__).resolve().parents[1] / "deploy/grafana/dashboards"


def load_dashboards():
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(DASHBOARDS.glob("*.json"))]


def panels_of(dashboard):
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def substituted(expression, rate_interval="1m", **values):
    """What Grafana sends: with these values of the variables; all of them for a variable without."""
    expression = expression.replace("$__rate_interval", rate_interval)
    return re.sub(r"\$(\w+)", lambda match: values.get(match[1], ".*"), expression)
