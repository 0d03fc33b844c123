#!/usr/bin/env python3
"""Every alert fires by a real fault, and none without one. A real Prometheus scrapes a real cluster under load and evaluates the
rules of deploy/prometheus, in which all ranges and every `for` are SHORTER times as short (scaled_rules.py). The test breaks
processes, links, limits and lists one after the other; each time the alerts that the fault is for must fire with all their
labels, and be over once it is healed.

  live_alerts_test.py --bin DIR     runs the cluster of DIR, which is beside that of the tests' programs
  live_alerts_test.py --self-test   shows that the checks can fail, and that each alert has a fault
"""

import argparse
import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import metric_names
import scaled_rules

sys.path.insert(0, str(metric_names.ROOT / "scripts"))
from observed_cluster import NAMESPACE, RULE_FILES, Prometheus, wait_for  # noqa: E402

SHORTER = 60  # 5 minutes are 5 seconds
SCRAPE_MS = 1000
SLOW_SCRAPE_S = 0.9 * SCRAPE_MS / 1000  # The timeout is the interval.
LEAST_SCRAPES = 4  # A range has so many: a late one must not leave a rate without data.
PATIENCE_S = 120
HEALTHY_S = 10
PREFILL, DECODE = ("prefill-0", "prefill-1"), ("decode-0", "decode-1")
# A decode worker has room for some ten of the long answers, and a preempted one's KV comes anew from the prefill worker.
LIMIT = 64  # --max-inflight-requests
FLAGS = ["--worker-flags=--kv-cache-memory,64MB", "--decode-flags=--num-blocks,256,--host-kv-memory,0",
         f"--router-flags=--max-inflight-requests,{LIMIT},--retry-budget-reserve,8,--retry-budget-capacity,8"]
# Each load says what its requests ask for, and how many come or run at once.
LIGHT = ["--random-input-len", "128", "--random-output-len", "16", "--request-rate", "4"]
SHORT = ["--random-input-len", "64", "--random-output-len", "32", "--max-concurrency", str(LIMIT - 4)]
HEAVY = ["--random-input-len", "128", "--random-output-len", "320", "--max-concurrency", str(LIMIT - 4)]
TOO_MUCH = ["--random-input-len", "128", "--random-output-len", "64", "--max-concurrency", str(LIMIT + 16)]
LATE_S, LATE_GAP_S = 2.5, 0.1  # The objectives of rules.yaml are a first token and a gap between tokens within these.
# These look back for days: they stay once they came.
ON_OBJECTIVES = {"BatonFirstTokenBudgetBurn", "BatonInterTokenBudgetBurn"}
# This has the alerts that no fault here makes fire, each with the reason.
NOT_TRIED = {}


class FaultyCluster:
    """The program faulty_cluster, whose source says what commands it takes. It runs as long as a `with` of this object. `names`
    maps the metrics address of each process to its name."""

    def __init__(self, bin_dir, folder):
        self.workers_file, self._baton = folder / "workers", bin_dir / "baton"
        self._log = open(folder / "cluster.log", "w", encoding="utf-8")
        self._process = subprocess.Popen(
            [bin_dir.parent / "tests/faulty_cluster", "--bin-dir", bin_dir, "--model", metric_names.ROOT / "models/demo",
             "--workers-file", self.workers_file, "--log-dir", folder / "logs", *FLAGS],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True)
        self._lock = threading.Lock()
        try:
            line = self._process.stdout.readline()
            if not line:
                sys.exit("the cluster did not start: " + (folder / "cluster.log").read_text(encoding="utf-8"))
            started = json.loads(line)
            self.address = started["address"]
            self.names = {process["metrics_address"]: process["name"] for process in started["processes"]}
        except BaseException:
            self._kill()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self._process.stdin.close()
            self._process.wait(timeout=PATIENCE_S)
        except BaseException:  # Ctrl-C, too
            self._kill()
            raise
        finally:
            self._log.close()

    def _kill(self):
        """Its own processes end with it."""
        self._process.kill()
        self._process.wait()

    def tell(self, *words):
        with self._lock:
            self._process.stdin.write(" ".join(map(str, words)) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline().strip()
        if answer != "ok":
            raise RuntimeError(f"{words}: {answer or 'the cluster has ended'}")

    def signal(self, number, *workers):
        for worker in workers:
            self.tell("signal", worker, int(number))

    def baton(self, *words):
        return subprocess.run([self._baton, *words, "--address", self.address], check=True, capture_output=True, text=True,
                              timeout=PATIENCE_S).stdout

    def bench(self, *words):
        return [self._baton, "bench", "serve", "--address", self.address, "--dataset-name", "random", "--disable-tqdm", *words]

    @contextlib.contextmanager
    def load(self, words):
        """Requests that run until the end of the body, whatever becomes of them."""
        process = subprocess.Popen(self.bench("--num-prompts", "1000000", *words), stdout=subprocess.DEVNULL, stderr=self._log)
        try:
            yield
        finally:
            process.kill()
            process.wait(timeout=PATIENCE_S)


# A fault is there while the body of its `with` runs, and is healed after it.

@contextlib.contextmanager
def nothing_but_light_load(cluster):
    with cluster.load(LIGHT):
        yield


@contextlib.contextmanager
def killed_prefill_workers(cluster):
    with cluster.load(LIGHT):
        cluster.signal(signal.SIGKILL, *PREFILL)
        yield
    cluster.tell("restart", *PREFILL)


@contextlib.contextmanager
def hung_decode_worker(cluster):
    with cluster.load(LIGHT):
        cluster.signal(signal.SIGSTOP, "decode-0")
        try:
            yield
        finally:
            cluster.signal(signal.SIGCONT, "decode-0")


@contextlib.contextmanager
def drained_decode_workers(cluster):
    with cluster.load(LIGHT):
        for worker in DECODE:
            cluster.baton("drain", worker)
        yield
    for worker in DECODE:
        cluster.baton("undrain", worker)


@contextlib.contextmanager
def spoilt_worker_list(cluster):
    text = cluster.workers_file.read_text(encoding="utf-8")
    with cluster.load(LIGHT):
        cluster.workers_file.write_text("decode nowhere\n", encoding="utf-8")
        yield
    cluster.workers_file.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def load_above_the_limit(cluster):
    with cluster.load(TOO_MUCH):
        yield


@contextlib.contextmanager
def more_answers_than_room(cluster):
    with cluster.load(HEAVY):
        yield


@contextlib.contextmanager
def flipped_bits(cluster):
    """KV is spoilt between the tiers. Long answers preempt one another, so that KV also has to come anew."""
    with cluster.load(HEAVY):
        cluster.tell("flip", "decode*", "prefill*", 2e-6)
        yield
    cluster.tell("heal")


@contextlib.contextmanager
def standing_still(cluster, load, awake_s, asleep_s):
    """Decode workers are awake and asleep in turn."""
    over = threading.Event()

    def pulse():
        while not over.wait(awake_s):
            cluster.signal(signal.SIGSTOP, *DECODE)
            over.wait(asleep_s)
            cluster.signal(signal.SIGCONT, *DECODE)

    with cluster.load(load):
        thread = threading.Thread(target=pulse, name="pulse")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def slow_steps(cluster):
    """Every few steps, the next token is late."""
    return standing_still(cluster, SHORT, 0.005, LATE_GAP_S + 0.025)


def long_pauses(cluster):
    """Requests wait, first for the worker that has them, and then until the router finds another."""
    return standing_still(cluster, LIGHT, LATE_S, LATE_S + 1.5)


def fires(alert, severity, **labels):
    """An alert that must fire, with exactly these labels. A tuple has the values of which one must be there."""
    return alert, {"severity": severity, **labels}


MODEL = {"namespace": NAMESPACE, "model": "demo"}
SCRAPED = {"namespace": NAMESPACE, "job": "baton"}
FULL = {"BatonKvCacheFull", "BatonPreemptions"}
# A row has a fault, what must fire, and what else may. Slow steps come first: windows of hours then have few tokens that were in
# time.
FAULTS = (
    (slow_steps, [fires("BatonInterTokenBudgetBurn", severity, **MODEL) for severity in ("page", "ticket")],
     FULL | {"BatonTargetDown"}),
    (long_pauses, [fires("BatonFirstTokenBudgetBurn", severity, **MODEL) for severity in ("page", "ticket")],
     {"BatonTargetDown", "BatonRoleBelowMinimum", "BatonRefusals", "BatonRequestsFail"}),
    (spoilt_worker_list, [fires("BatonWorkerListStale", "ticket", **MODEL, instance="router")], set()),
    (drained_decode_workers, [
        fires("BatonRoleBelowMinimum", "page", **MODEL, worker_role="decode"),
        fires("BatonRequestsFail", "page", **MODEL),
        fires("BatonRefusals", "ticket", **MODEL)], set()),
    (killed_prefill_workers, [
        fires("BatonTargetDown", "page", **SCRAPED, instance="prefill-0"),
        fires("BatonTargetDown", "page", **SCRAPED, instance="prefill-1"),
        fires("BatonRoleBelowMinimum", "page", **MODEL, worker_role="prefill"),
        fires("BatonWorkerUnreachable", "ticket", **MODEL, worker_role="prefill"),
        fires("BatonPrefillBypassed", "ticket", **MODEL)], {"BatonWorkerExpired"}),
    (hung_decode_worker, [
        fires("BatonTargetDown", "page", **SCRAPED, instance="decode-0"),
        fires("BatonWorkerExpired", "ticket", **MODEL, worker_role="decode")], {"BatonWorkerUnreachable"}),
    (load_above_the_limit, [fires("BatonRefusals", "ticket", **MODEL)], FULL),
    (more_answers_than_room, [
        fires("BatonKvCacheFull", "ticket", **SCRAPED, model="demo", role="decode", instance=DECODE),
        fires("BatonPreemptions", "ticket", **MODEL)], set()),
    (flipped_bits, [
        fires("BatonKvChecksumFailure", "page", **MODEL, instance=DECODE),
        fires("BatonKvTransferFailures", "ticket", **MODEL),
        fires("BatonKvRecomputed", "ticket", **MODEL, instance=DECODE),
        fires("BatonRetryBudgetExhausted", "ticket", **MODEL)], FULL | {"BatonRequestsFail", "BatonPrefillBypassed"}),
)


def fits(expected, labels):
    """Whether these are the labels of the alert."""
    alert, values = expected
    return labels["alertname"] == alert and set(labels) - {"__name__", "alertname", "alertstate"} == set(values) and all(
        labels[name] in (value if isinstance(value, tuple) else (value,)) for name, value in values.items())


def uncovered(rules, faults, not_tried):
    """What of the rules' alerts no fault is for, and what is for no alert."""
    alerts = {(rule["alert"], rule["labels"]["severity"]) for group in rules["groups"] for rule in group["rules"]}
    tried = {(alert, labels["severity"]) for _, must, _ in faults for alert, labels in must}
    names = {alert for alert, _ in alerts}
    for alert, severity in sorted(alerts - tried):
        if alert not in not_tried:
            yield f"{alert}, {severity}: no fault makes it fire, and NOT_TRIED has no reason"
    for alert, severity in sorted(tried - alerts):
        yield f"{alert}, {severity}: a fault is for it, but it is no alert"
    for alert in sorted(alert for alert in not_tried if alert not in names or not not_tried[alert]):
        yield f"{alert}: is in NOT_TRIED, but is no alert, or has no reason"


def unlabelled(rules, faults):
    """Labels that a text of an alert shows, and that the alert does not have when it fires."""
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        shown = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
        for labels in (labels for _, must, _ in faults for alert, labels in must
                       if (alert, labels["severity"]) == (rule["alert"], rule["labels"]["severity"])):
            yield from (f"{rule['alert']}: shows a label {name}, which it does not have" for name in sorted(shown - set(labels)))


class Watch:
    """What Prometheus says about alerts."""

    def __init__(self, prometheus, names):
        self._prometheus, self._names = prometheus, names

    def fired(self, begin):
        """The labels of all that have fired since, with the names of processes for their addresses."""
        found = self._prometheus.query_range('ALERTS{alertstate="firing"}', begin, time.time(), SCRAPE_MS / 1000)
        return [labels | ({"instance": self._names[labels["instance"]]} if "instance" in labels else {}) for labels, _ in found]

    def late(self):
        """How many tokens have missed their objective so far."""
        (_, late), = self._prometheus.query("+".join(
            f'sum({metric}_count) - sum({metric}_bucket{{le="{objective}"}})' for metric, objective in (
                ("baton_time_to_first_token_seconds", LATE_S), ("baton_inter_token_latency_seconds", LATE_GAP_S))))
        return late

    def slow(self, begin):
        """The names of the processes of which a scrape since took nearly the timeout, or ended by it."""
        took = f"max_over_time(scrape_duration_seconds[{round(1000 * (time.time() - begin))}ms]) > {SLOW_SCRAPE_S}"
        return {self._names[labels["instance"]] for labels, _ in self._prometheus.query(took)}

    def active(self):
        """The names of all that are pending or fire, but for those on objectives."""
        return {labels["alertname"] for labels, _ in self._prometheus.query("ALERTS")} - ON_OBJECTIVES


def unexpected(fired, expected, slow):
    """The names of the alerts that fired and are not expected. A busy machine may have scrapes that time out, so BatonTargetDown
    counts only for processes that are not among the slow ones."""
    return sorted({labels["alertname"] for labels in fired if labels["alertname"] not in expected and not (
        labels["alertname"] == "BatonTargetDown" and labels["instance"] in slow)})


def named(names, slow):
    """What a line of the output says of alerts, and of processes whose scrapes were slow."""
    return (", ".join(sorted(names)) or "nothing") + " fired" + (f"; slow scrapes of {', '.join(sorted(slow))}" if slow else "")


def try_fault(cluster, watch, fault, must, may):
    """What did not fire as it must, or did and must not."""
    begin = time.time()

    def missing():
        fired = watch.fired(begin)
        return [expected for expected in must if not any(fits(expected, labels) for labels in fired)]

    with fault(cluster):
        wait_for(lambda: not missing(), lambda: f"{fault.__name__}: {missing()} of {watch.fired(begin)}", PATIENCE_S)
    took = time.time() - begin
    wait_for(lambda: not watch.active(), lambda: f"{fault.__name__} is over, but not {watch.active()}", PATIENCE_S)
    fired, slow = watch.fired(begin), watch.slow(begin)
    print(f"{fault.__name__}: {len(must)} alerts after {took:.1f} s, over after {time.time() - begin:.1f} s; "
          f"{named({labels['alertname'] for labels in fired}, slow)}", flush=True)
    expected = {alert for alert, _ in must} | may | ON_OBJECTIVES
    yield from (f"{fault.__name__}: {alert} fired, too" for alert in unexpected(fired, expected, slow))


def healthy(cluster, watch):
    """What fires without a fault. Late tokens and slow scrapes, which a busy machine may have, count as faults."""
    begin = time.time()
    subprocess.run(cluster.bench("--num-prompts", str(4 * HEALTHY_S), *LIGHT), check=True, capture_output=True, timeout=PATIENCE_S)
    fired, late, slow = watch.fired(begin), watch.late(), watch.slow(begin)
    print(f"without a fault: {late} late tokens, {named({labels['alertname'] for labels in fired}, slow)}", flush=True)
    yield from (f"without a fault: {alert} fired" for alert in unexpected(fired, ON_OBJECTIVES if late > 0 else set(), slow))


def scaled_files(folder):
    for path in RULE_FILES:
        rules = scaled_rules.scaled(path.read_text(encoding="utf-8"), SHORTER, LEAST_SCRAPES * SCRAPE_MS)
        scaled = folder / path.name
        scaled.write_text(json.dumps(rules), encoding="utf-8")  # JSON is YAML
        yield scaled


def run(bin_dir):
    """What is wrong. The logs are kept then."""
    folder, found = Path(tempfile.mkdtemp(prefix="baton-alerts-")), None
    try:
        found = run_in(folder, bin_dir)
    finally:
        if found == []:
            shutil.rmtree(folder)
        else:
            print(f"logs are in {folder}", file=sys.stderr)
    return found


def run_in(folder, bin_dir):
    with FaultyCluster(bin_dir, folder) as cluster:
        prometheus = Prometheus(folder, list(cluster.names), list(scaled_files(folder)), f"{SCRAPE_MS}ms")
        try:
            watch = Watch(prometheus, cluster.names)
            found = list(healthy(cluster, watch))
            for fault in FAULTS:
                found += try_fault(cluster, watch, *fault)
            return found
        finally:
            prometheus.close()


def refuses(text):
    """Whether the rewriter does not take a rule with this text."""
    try:
        scaled_rules.scaled(f"groups: [{{name: g, rules: [{{alert: A, {text}}}]}}]", 100, 2000)
    except ValueError:
        return True
    return False


def self_test():
    scaled = scaled_rules.scaled("""groups: [{name: g, rules: [
        {alert: A, for: 1m, labels: {severity: page}, expr: 'sum by (x) (rate(a{b=~"[5m]|offset"}[5m])) / rate(c[1h]) > 0.05'},
        {record: r, expr: 'increase(a[3d]) > 0'}]}]""", 100, 2000)
    assert scaled == {"groups": [{"name": "g", "rules": [
        {"alert": "A", "for": "600ms", "labels": {"severity": "page"},
         "expr": 'sum by (x) (rate(a{b=~"[5m]|offset"}[3000ms])) / rate(c[36000ms]) > 0.05'},
        {"record": "r", "expr": "increase(a[2592000ms]) > 0"}]}]}, scaled
    assert not refuses("expr: 'rate(a[5m])'")
    for text in ("expr: 'rate(a[1m])'", "expr: 'rate(a[1h30m])'", "expr: 'rate(a[5m:1m])'", "expr: 'rate(a[5x])'",
                 "expr: 'rate(a[5m)'", "expr: 'a offset 5m'", "expr: 'time() - a > 60'", "expr: 'a @ 5'",
                 "expr: 'increase(a[5m]) > 3'", "expr: 'increase(a[5m])'", "expr: a, for: 5",
                 "expr: a, for: 1ms", "expr: a, keep_firing_for: 5m"):
        assert refuses(text), text
    for text in ("{groups: [], x: 1}", "groups: [{name: g, interval: 1m, rules: []}]"):
        try:
            scaled_rules.scaled(text, 100, 2000)
        except ValueError:
            continue
        raise AssertionError(text)

    rules = {"groups": [{"rules": [{"alert": "A", "labels": {"severity": severity}, "annotations": {"summary": "{{ $labels.x }}"}}
                                   for severity in ("page", "ticket")]}]}
    both = [(None, [fires("A", "page"), fires("A", "ticket")], set())]
    assert not list(uncovered(rules, both, {}))
    assert not list(uncovered(rules, [], {"A": "it takes a month"}))
    assert len(list(uncovered(rules, [(None, [fires("A", "page")], set())], {}))) == 1
    assert len(list(uncovered(rules, [*both, (None, [fires("B", "page")], set())], {}))) == 1
    assert len(list(uncovered(rules, both, {"A": "", "B": "it was there"}))) == 2

    assert not list(unlabelled(rules, [(None, [fires("A", "page", x="1"), fires("B", "page")], set())]))
    assert len(list(unlabelled(rules, [(None, [fires("A", "page")], set())]))) == 1

    alert = {"__name__": "ALERTS", "alertname": "A", "alertstate": "firing", "severity": "page", "instance": "d"}
    assert fits(fires("A", "page", instance=("c", "d")), alert)
    for other in (fires("B", "page", instance="d"), fires("A", "ticket", instance="d"), fires("A", "page", instance="c"),
                  fires("A", "page"), fires("A", "page", instance="d", model="m")):
        assert not fits(other, alert), other

    fired = [{"alertname": "BatonTargetDown", "instance": name} for name in ("a", "b")] + [{"alertname": "A"}]
    assert unexpected(fired, {"A"}, {"a", "b"}) == []
    assert unexpected(fired, {"BatonTargetDown"}, {"a", "b"}) == ["A"]
    assert unexpected(fired, {"A"}, {"a"}) == ["BatonTargetDown"]
    return []


def alerts():
    path, = (path for path in RULE_FILES if path.name == "alerts.yaml")
    return scaled_rules.scaled(path.read_text(encoding="utf-8"), SHORTER, LEAST_SCRAPES * SCRAPE_MS)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=Path)
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    found = [*uncovered(alerts(), FAULTS, NOT_TRIED), *unlabelled(alerts(), FAULTS)]
    found += self_test() if arguments.self_test else run(arguments.bin.resolve())
    print("\n".join(found) or "ok")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
