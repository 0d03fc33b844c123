#!/usr/bin/env python3
"""Every panel of every dashboard has data. A real Prometheus scrapes a cluster under load; each expression is evaluated for
each value of the variables that it uses, and must give at least one series and finite values only. Stacked stages add
up to the whole. The rules evaluate, their records have data, and no alert fires. Before the load, while the cluster is idle,
shares, means and quantiles give nothing, all other expressions finite values, and no record is NaN.

  live_dashboards_test.py --bin DIR [--seconds 12] [--rate 6]
"""

import argparse
import math
import sys
import tempfile
import time
from pathlib import Path

import metric_names

sys.path.insert(0, str(metric_names.ROOT / "scripts"))
from observed_cluster import RATE_INTERVAL_S, ObservedCluster  # noqa: E402
from panel_expressions import load_dashboards, panels_of, substituted  # noqa: E402

STEP_S = 1
LOOKED_AT_S = 3  # up to the end of the load
# The roles whose processes a dashboard's variables list.
ROLES = {"baton-overview": ["decode", "prefill", "router"], "baton-prefill-decode": ["decode", "prefill", "router"],
         "baton-kv": ["decode", "prefill"], "baton-transfer": ["decode", "prefill"],
         "baton-router": ["decode", "prefill", "router"]}


def values_of(prometheus, dashboard):
    """The values that Grafana lists for each variable, each time with all values of the others; roles with their instances."""
    queries = {variable["name"]: variable["query"]["query"] for variable in dashboard["templating"]["list"]
               if variable["type"] == "query"}

    def listed(name, **chosen):
        selector, label = substituted(queries[name], **chosen).removeprefix("label_values(").removesuffix(")").rsplit(", ", 1)
        return prometheus.label_values(label, selector)
    return listed("namespace"), listed("model"), {role: listed("instance", role=role) for role in listed("role")}


def choices(prometheus, dashboard):
    """What a user can choose: all, one namespace, one model, one role, one process."""
    namespaces, models, roles = values_of(prometheus, dashboard)
    if not namespaces or not models or sorted(roles) != ROLES[dashboard["uid"]]:
        raise AssertionError(f"{dashboard['uid']}: variables list {namespaces}, {models}, {roles}")
    yield {}
    yield from ({"namespace": value} for value in namespaces)
    yield from ({"model": value} for value in models)
    for role, instances in roles.items():
        yield {"role": role}
        yield from ({"role": role, "instance": instance} for instance in instances)


def expressions(prometheus, dashboards):
    """Place and text of each expression as Prometheus sees it, once."""
    asked = set()
    for dashboard in dashboards:
        for choice in choices(prometheus, dashboard):
            for panel in panels_of(dashboard):
                for target in panel["targets"]:
                    expression = substituted(target["expr"], rate_interval=f"{RATE_INTERVAL_S}s", **choice)
                    if expression not in asked:
                        asked.add(expression)
                        yield f"{dashboard['uid']}: {panel['title']}: {target['refId']} with {choice or 'all'}", expression
    print(f"{len(asked)} expressions evaluated")


def empty_panels(prometheus, dashboards, end):
    for place, expression in expressions(prometheus, dashboards):
        yield from gaps(place, prometheus.query_range(expression, end - LOOKED_AT_S, end, STEP_S))


def idle_breaches(prometheus, dashboards, at):
    """What a cluster without requests shows that is neither 0 nor, of what nothing was observed, no value."""
    for place, expression in expressions(prometheus, dashboards):
        result = [(labels, [(at, value)]) for labels, value in prometheus.query(expression, at)]
        if " > 0)" not in expression and "histogram_quantile" not in expression:
            yield from gaps(f"idle: {place}", result)
        elif result:
            yield f"idle: {place}: {result}, expected no value"
    for group in prometheus.get("rules")["groups"]:
        for name in {rule["name"] for rule in group["rules"] if rule["type"] == "recording"}:
            values = [value for _, value in prometheus.query(name)]
            if not all(math.isfinite(value) for value in values):
                yield f"idle: {name}: {values}"


def gaps(place, result):
    """What is wrong with an answer: it is empty, or something in it is not finite."""
    if not result:
        yield f"{place}: empty"
    for labels, values in result:
        if not all(math.isfinite(value) for _, value in values):
            yield f"{place}: {labels}: {[value for _, value in values]}"


def wrong_stacks(prometheus, dashboards, end):
    """The stages of a stacked latency add up to its mean."""
    stacks = {"Time to first token by stage": "baton_time_to_first_token_seconds",
              "From the first to the second token": "baton_second_token_latency_seconds"}

    def at_end(expression):
        return sum(values[-1][1] for _, values in prometheus.query_range(
            substituted(expression, rate_interval=f"{RATE_INTERVAL_S}s"), end, end, STEP_S))

    panels = {panel["title"]: panel for dashboard in dashboards for panel in panels_of(dashboard)}
    for title, metric in stacks.items():
        stages = [at_end(target["expr"]) for target in panels[title]["targets"]]
        mean = at_end(f"sum(rate({metric}_sum[$__rate_interval])) / sum(rate({metric}_count[$__rate_interval]))")
        if abs(sum(stages) - mean) > 0.01 * mean:
            yield f"{title}: the stages {stages} add up to {sum(stages)}, and the mean is {mean}"


def rule_failures(prometheus):
    for group in prometheus.get("rules")["groups"]:
        for rule in group["rules"]:
            if rule["health"] != "ok":
                yield f"{rule['name']}: {rule.get('lastError', rule['health'])}"
            if rule["type"] == "alerting" and rule["state"] == "firing":
                yield f"{rule['name']}: fires in a healthy cluster"
            if rule["type"] == "recording":
                yield from gaps(rule["name"], [(labels, [(0, value)]) for labels, value in prometheus.query(rule["name"])])


def undocumented(prometheus):
    """What processes export under Baton's name: each must be documented."""
    names = {name for name in prometheus.label_values("__name__", '{job="baton"}') if name.startswith("baton_")}
    series = set(metric_names.series(metric_names.documented()))
    yield from (f"{name}: is exported, and not documented" for name in sorted(names - series))
    yield from (f"{name}: is documented, and not exported" for name in sorted(series - names))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--rate", type=float, default=6)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="baton-dashboards-") as folder:
        with ObservedCluster(arguments.bin, Path(folder)) as cluster:
            dashboards, prometheus = load_dashboards(), cluster.prometheus
            idle = prometheus.wait_for_rates()
            prometheus.wait_for_rules()
            found = [*idle_breaches(prometheus, dashboards, idle)]
            cluster.load(arguments.seconds, arguments.rate)
            end = time.time()
            found += [*empty_panels(prometheus, dashboards, end), *wrong_stacks(prometheus, dashboards, end),
                      *rule_failures(prometheus), *undocumented(prometheus)]
    print("\n".join(found) or "ok")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
