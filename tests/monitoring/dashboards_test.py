#!/usr/bin/env python3
"""deploy/grafana without a Grafana: the files are what make_dashboards.py writes, keep Grafana's conventions, lose no key in
Grafana's own schema (grafana-foundation-sdk), and every expression parses, is accepted as a recording rule, and names only
metrics and labels that docs/metrics.md documents. live_dashboards_test.py asks a real Prometheus.

  dashboards_test.py                runs all checks
  dashboards_test.py --self-test    shows that each check can fail
"""

import copy
import itertools
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import promql_parser
import yaml
from grafana_foundation_sdk.cog import encoder, plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

import metric_names
from rules_test import promtool

sys.path.insert(0, str(metric_names.ROOT / "scripts"))
from panel_expressions import load_dashboards, panels_of, substituted  # noqa: E402

GRAFANA = metric_names.ROOT / "deploy/grafana"
COLUMNS = 24
UNITS = ("s", "percentunit", "Bps", "bytes", "reqps", "short", "suffix:/s", "suffix: tokens", "suffix: tokens/s")
QUANTILE = re.compile(r"histogram_quantile\([\d.]+, sum by \([a-z_, ]*\ble\)")
VARIABLES = ("datasource", "namespace", "model", "role", "instance")
# Labels that every series has: from the processes, and from the scrape (docs/dashboards.md).
COMMON_LABELS = {"model", "role", "namespace", "instance", "job", "le"}


def targets_of(dashboard):
    for panel in panels_of(dashboard):
        for target in panel["targets"]:
            yield f"{dashboard['uid']}: {panel['title']}: {target['refId']}", target["expr"]


def values_of(node, key):
    """All values of a key, at any depth."""
    if isinstance(node, dict):
        yield from (value for name, value in node.items() if name == key)
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from values_of(child, key)


def lint(dashboard):
    uid = dashboard.get("uid")
    if dashboard.get("id", 0) is not None or not re.fullmatch(r"baton-[a-z-]{1,34}", uid or ""):
        yield f"{uid}: expected id null and a fixed uid that begins with baton-"
    if dashboard["schemaVersion"] not in range(38, 42):
        yield f"{uid}: schemaVersion {dashboard['schemaVersion']}, expected 38 to 41"
    names = tuple(variable["name"] for variable in dashboard["templating"]["list"])
    if names != VARIABLES:
        yield f"{uid}: variables {names}, expected {VARIABLES}"
    for source in values_of(dashboard, "datasource"):
        if source != {"type": "prometheus", "uid": "${datasource}"}:
            yield f"{uid}: data source {source}, expected the variable"
    ids = [panel["id"] for panel in dashboard["panels"]]
    if len(set(ids)) != len(ids):
        yield f"{uid}: panels share an id"
    yield from misplaced(uid, dashboard["panels"])
    for panel in panels_of(dashboard):
        yield from panel_lint(f"{uid}: {panel['title']}", panel)


def misplaced(uid, panels):
    def area(panel):
        place = panel["gridPos"]
        return place["x"], place["y"], place["x"] + place["w"], place["y"] + place["h"]

    for panel in panels:
        if area(panel)[0] < 0 or area(panel)[2] > COLUMNS:
            yield f"{uid}: {panel['title']} is not within {COLUMNS} columns"
    for one, other in itertools.combinations(panels, 2):
        a, b = area(one), area(other)
        if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]:
            yield f"{uid}: {one['title']} overlaps {other['title']}"


def panel_lint(place, panel):
    unit = panel["fieldConfig"]["defaults"].get("unit")
    if unit not in UNITS:
        yield f"{place}: unit {unit}, expected one of {', '.join(UNITS)}"
    if not panel["description"].endswith("."):
        yield f"{place}: has no description, or one that is no sentence"
    letters = [target["refId"] for target in panel["targets"]]
    if len(set(letters)) != len(letters) or not letters:
        yield f"{place}: refIds {letters}, expected some that differ"
    for target in panel["targets"]:
        expression = target["expr"]
        if "[" in expression and set(re.findall(r"\[([^\]]*)\]", expression)) != {"$__rate_interval"}:
            yield f"{place}: {expression}: expected the range $__rate_interval"
        if expression.count("histogram_quantile") != len(QUANTILE.findall(expression)):
            yield f"{place}: {expression}: expected a quantile from sum by (..., le)"
        for part in metric_names.nan_when_idle(expression):
            yield f"{place}: {part} may be NaN"
        labels = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        if not labels <= set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", expression)))):
            yield f"{place}: legend {target['legendFormat']}: expected only labels that the expression keeps"


def lost_keys(dashboard):
    """Keys that Grafana's schema does not have: misspelt ones, or at a wrong place. The schema drops null."""
    plugins.register_default_plugins()
    seen = json.loads(encoder.JSONEncoder().encode(Dashboard.from_json(copy.deepcopy(dashboard))))

    def lost(before, after, path):
        if isinstance(before, dict):
            for key, value in before.items():
                if value is not None and (not isinstance(after, dict) or key not in after):
                    yield f"{dashboard['uid']}: Grafana's schema has no {path}{key}"
                elif value is not None:
                    yield from lost(value, after[key], f"{path}{key}.")
        elif isinstance(before, list):
            for number, (one, other) in enumerate(zip(before, after)):
                yield from lost(one, other, f"{path}{number}.")
    return lost(dashboard, seen, "")


def selectors(node):
    """All vector selectors of an expression."""
    found = []

    def visit(part):
        if isinstance(part, promql_parser.VectorSelector):
            found.append(part)
    promql_parser.walk(node, pre_visit=visit)
    return found


def name_breaches(place, expression, types, labels):
    """What Prometheus would not say: a metric or label that nothing has."""
    series = metric_names.series(types)
    try:
        tree = promql_parser.parse(substituted(expression))
    except ValueError as error:
        yield f"{place}: {error}"
        return
    for selector in selectors(tree):
        if selector.name not in series:
            yield f"{place}: names {selector.name}, which docs/metrics.md does not document"
            continue
        for matcher in selector.matchers.matchers:
            if matcher.name not in COMMON_LABELS | labels.get(series[selector.name], set()):
                yield f"{place}: {selector.name} has no label {matcher.name}"


def type_breaches(place, expression, types):
    for name, metric in metric_names.series(types).items():
        uses, rates = len(re.findall(rf"\b{name}{{", expression)), expression.count(f"rate({name}{{")
        if rates != (0 if types[metric] == "gauge" else uses):
            yield f"{place}: {metric} is a {types[metric]}; expected a rate of counters and histograms only, and of all of them"


def rule_breaches(expressions):
    """promtool accepts each expression as a recording rule."""
    rules = [{"record": f"baton:panel:{number}", "expr": substituted(one)} for number, one in enumerate(expressions)]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "panels.yaml").write_text(
            yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}), encoding="utf-8")
        try:
            promtool("check", "rules", "panels.yaml", cwd=folder)
        except AssertionError as error:
            yield str(error)


def check(dashboards):
    types, labels = metric_names.documented(), metric_names.documented_labels()
    if len({dashboard["uid"] for dashboard in dashboards}) != len(dashboards):
        yield "dashboards share a uid"
    for dashboard in dashboards:
        yield from lint(dashboard)
        yield from lost_keys(dashboard)
        for place, expression in targets_of(dashboard):
            yield from name_breaches(place, expression, types, labels)
            yield from type_breaches(place, expression, types)
        for variable in dashboard["templating"]["list"][1:]:
            query = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
            yield from name_breaches(f"{dashboard['uid']}: ${variable['name']}", query[1], types, labels)
    yield from rule_breaches([expression for dashboard in dashboards for _, expression in targets_of(dashboard)])


def self_test():
    """Each change of a good dashboard is a breach that is reported with the given words."""
    good = load_dashboards()[0]
    assert not list(lint(good)) and not list(lost_keys(good))

    def reports(words, checks, change):
        changed = copy.deepcopy(good)
        change(changed, panels_of(changed)[0])
        found = [breach for one in checks for breach in one(changed)]
        assert any(words in breach for breach in found), (words, found)

    reports("id null", [lint], lambda d, p: d.update(id=7))
    reports("schemaVersion", [lint], lambda d, p: d.update(schemaVersion=36))
    reports("variables", [lint], lambda d, p: d["templating"]["list"].pop())
    reports("data source", [lint], lambda d, p: p["targets"][0].update(datasource={"type": "prometheus", "uid": "P1809F7CD0"}))
    reports("share an id", [lint], lambda d, p: p.update(id=d["panels"][0]["id"]))
    reports("overlaps", [lint], lambda d, p: p["gridPos"].update(w=COLUMNS))
    reports("columns", [lint], lambda d, p: p["gridPos"].update(x=COLUMNS))
    reports("unit", [lint], lambda d, p: p["fieldConfig"]["defaults"].update(unit="seconds"))
    reports("description", [lint], lambda d, p: p.update(description=""))
    reports("refIds", [lint], lambda d, p: p["targets"].extend(p["targets"]))
    reports("legend", [lint], lambda d, p: p["targets"][0].update(legendFormat="{{nothing}}"))
    reports("range", [lint], lambda d, p: p["targets"][0].update(expr="rate(x[5m])"))
    reports("quantile", [lint], lambda d, p: p["targets"][0].update(expr="histogram_quantile(0.9, x)"))
    reports("NaN", [lint], lambda d, p: p["targets"][0].update(expr="sum(x) / sum(y)"))
    reports("fieldConfg", [lost_keys], lambda d, p: p.update(fieldConfg={}))
    reports("legendFormt", [lost_keys], lambda d, p: p["targets"][0].update(legendFormt="x"))
    reports("showLegnd", [lost_keys], lambda d, p: p["options"]["legend"].update(showLegnd=True))
    types, labels = {"baton_a_total": "counter", "baton_b": "gauge"}, {"baton_a_total": {"reason"}}
    assert not list(name_breaches("", 'rate(baton_a_total{reason="x"}[1m])', types, labels))
    for bad in ('baton_c', 'baton_b{reason="x"}', 'sum(', 'rate(baton_b)'):
        assert len(list(name_breaches("", bad, types, labels))) == 1, bad
    assert not list(type_breaches("", "rate(baton_a_total{}[1m]) + baton_b{}", types))
    for bad in ("baton_a_total{}", "rate(baton_b{}[1m])"):
        assert len(list(type_breaches("", bad, types))) == 1, bad
    assert not list(rule_breaches(["sum(up)"])) and list(rule_breaches(["sum(up"]))
    return []


def main():
    if sys.argv[1:] == ["--self-test"]:
        found = self_test()
    else:
        subprocess.run([sys.executable, GRAFANA / "make_dashboards.py", "--check"], check=True, timeout=60)
        found = list(check(load_dashboards()))
    print("\n".join(found) or "ok")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
