#!/usr/bin/env python3
"""deploy/prometheus: promtool accepts rules and configurations, its unit tests pass, every alert has a history in which it
fires, one in which it does not, and a section in docs/alerts.md, and every metric that is named is documented.

  rules_test.py                runs promtool, then the checks below
  rules_test.py --self-test    shows that each check can fail
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

import metric_names

ROOT = metric_names.ROOT
RULES = ROOT / "deploy/prometheus"
# A build of Prometheus may lack the discovery in Kubernetes (Debian's does): these pods stand for what it finds.
POD = {"__meta_kubernetes_pod_container_port_name": "metrics", "__meta_kubernetes_pod_phase": "Running",
       "__meta_kubernetes_namespace": "prod", "__meta_kubernetes_pod_name": "baton-decode-0"}
DROPPED = [{"__meta_kubernetes_pod_container_port_name": "grpc"}, {"__meta_kubernetes_pod_phase": "Succeeded"}]


def promtool(*arguments, cwd=RULES):
    program = shutil.which("promtool") or sys.exit("promtool is missing: scripts/setup installs it")
    done = subprocess.run([program, *arguments], cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"promtool {' '.join(arguments)}:\n{done.stdout}{done.stderr}"
    return done.stdout


def rules_of(text):
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


def alert_breaches(alerts, document, *tests):
    """What an alert lacks, given the rules, docs/alerts.md and the unit tests."""
    headings = {line.removeprefix("## ") for line in document.splitlines() if line.startswith("## ")} - {"Tests"}
    cases = [case for text in tests for test in yaml.safe_load(text)["tests"] for case in test.get("alert_rule_test", ())]
    names = {rule["alert"] for rule in rules_of(alerts)}
    for rule in rules_of(alerts):
        name, severity = rule["alert"], rule["labels"]["severity"]
        if rule["annotations"].get("runbook") != f"docs/alerts.md#{name.lower()}":
            yield f"{name}: runbook is {rule['annotations'].get('runbook')}, expected docs/alerts.md#{name.lower()}"
        of_rule = [[alert for alert in case["exp_alerts"] if alert["exp_labels"]["severity"] == severity]
                   for case in cases if case["alertname"] == name]
        if not any(of_rule):
            yield f"{name}: no test in which it fires with severity {severity}"
        if all(of_rule):
            yield f"{name}: no test in which it does not fire with severity {severity}"
    for name in sorted(names ^ headings):
        yield f"{name}: {'has no section in docs/alerts.md' if name in names else 'has a section, but is no alert'}"


def record_breaches(rules, alerts, tests):
    """Recorded names that no unit test asks for, and such that an alert reads and no rule records."""
    recorded = {rule["record"] for rule in rules_of(rules)}
    for name in sorted(name for name in recorded if name not in tests):
        yield f"{name}: no unit test"
    for rule in rules_of(alerts):
        for word in re.split(r"[\s(){]+", rule["expr"]):
            if ":" in word and word.split(":")[0] in ("model", "role", "baton") and word not in recorded:
                yield f"{rule['alert']}: reads {word}, which no rule records"


def kubernetes_breaches(text):
    config = yaml.safe_load(text)
    job, = config["scrape_configs"]
    if [found["role"] for found in job.pop("kubernetes_sd_configs")] != ["pod"]:
        yield "discovers something else than pods"
    config["rule_files"] = []
    job["static_configs"] = [{"targets": [f"10.0.0.{i}:9090"], "labels": {**POD, **other}}
                             for i, other in enumerate([{}, *DROPPED])]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "prometheus.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        found = json.loads(promtool("check", "service-discovery", "--timeout=1s", "prometheus.yaml", job["job_name"],
                                    cwd=folder))
    labels = [{name: value for name, value in target["labels"].items() if not name.startswith("__")}
              for target in found if target["labels"]]
    if labels != [{"instance": "baton-decode-0", "job": "baton", "namespace": "prod"}]:
        yield f"the targets have labels {labels}"


def check():
    texts = {path.name: path.read_text(encoding="utf-8") for path in (*RULES.glob("*.yaml"), *RULES.glob("tests/*.yaml"))}
    promtool("check", "rules", "rules.yaml", "alerts.yaml")
    promtool("check", "config", "prometheus.yaml")
    promtool("test", "rules", *(name for name in texts if name.endswith("_test.yaml")), cwd=RULES / "tests")
    document = (ROOT / "docs/alerts.md").read_text(encoding="utf-8")
    types = metric_names.documented()
    return [*alert_breaches(texts["alerts.yaml"], document, texts["alerts_test.yaml"], texts["burn_test.yaml"]),
            *record_breaches(texts["rules.yaml"], texts["alerts.yaml"], texts["rules_test.yaml"]),
            *kubernetes_breaches(texts["prometheus-kubernetes.yaml"]),
            *(f"{rule['record']}: {part} may be NaN" for rule in rules_of(texts["rules.yaml"])
              for part in metric_names.nan_when_idle(rule["expr"])),
            *(f"{name}: names {metric}, which docs/metrics.md does not document"
              for name, text in sorted(texts.items()) for metric in metric_names.unknown(text, types))]


def self_test():
    alerts = """groups: [{name: g, rules: [{alert: A, expr: model:x > 1, labels: {severity: page},
                annotations: {runbook: docs/alerts.md#a}}]}]"""
    fires = "{alertname: A, exp_alerts: [{exp_labels: {severity: page}}]}"
    both = f"tests: [{{alert_rule_test: [{fires}, {{alertname: A, exp_alerts: []}}]}}]"
    assert not list(alert_breaches(alerts, "## A", both))
    assert len(list(alert_breaches(alerts, "## A", f"tests: [{{alert_rule_test: [{fires}]}}]"))) == 1
    assert len(list(alert_breaches(alerts, "## A", both.replace("page", "ticket")))) == 1
    assert len(list(alert_breaches(alerts.replace("#a", "#b"), "## B", both))) == 3
    rules = "groups: [{name: g, rules: [{record: model:x, expr: x}]}]"
    assert not list(record_breaches(rules, alerts, "model:x"))
    assert len(list(record_breaches(rules, alerts, ""))) == 1
    assert len(list(record_breaches(rules, alerts.replace("model:x", "model:y"), "model:x"))) == 1
    config = (RULES / "prometheus-kubernetes.yaml").read_text(encoding="utf-8")
    assert len(list(kubernetes_breaches(config.replace("regex: metrics", "regex: .+")))) == 1
    for good in ("sum(a) / (sum(b) > 0)", "a / (b + (c) > 0)", "a / clamp_min(b, 1)", "1 + histogram_quantile(0.5, sum by (le) (a)) >= 0"):
        assert not list(metric_names.nan_when_idle(good)), good
    for bad in ("a / b", "a / sum(b)", "a / (b)", "a / (b >= 0)", "(a > 0) / b", "histogram_quantile(0.5, sum by (le) (a))",
                "histogram_quantile(0.5, a) >= 0 or histogram_quantile(0.9, a)"):
        assert len(list(metric_names.nan_when_idle(bad))) == 1, bad
    types = metric_names.documented("| `baton_a_total` | counter | |\n| `baton_b` | histogram | |\n`baton_c` is 1")
    assert types == {"baton_a_total": "counter", "baton_b": "histogram"}
    assert metric_names.unknown("baton_a_total baton_b_sum model:baton_x:rate", types) == []
    assert metric_names.unknown("rate(baton_a) baton_b", types) == ["baton_a", "baton_b"]
    return []


def main():
    found = self_test() if sys.argv[1:] == ["--self-test"] else check()
    print("\n".join(found) or "ok")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
