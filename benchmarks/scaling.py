#!/usr/bin/env python3
"""Do workers that an autoscaler adds and removes keep up with a load that changes, and what do they save?

    scaling.py BIN_DIR [--load sine flash] [--period 360] [--periods 10] [--speed 10] [--svg NAME] [--json FILE]

A cluster of real processes: a router, prefill and decode workers on paced devices (tests/testing/paced_backend.h), and a
Prometheus that scrapes them. In place of KEDA and a HorizontalPodAutoscaler a loop reads the ScaledObjects of
deploy/k8s/components/autoscaling, evaluates their queries on that Prometheus, and starts and ends workers: a worker that
leaves gets SIGTERM and drains, and its address leaves the router's file of workers once its process has ended. Times of the
objects are divided by --speed, since an hour's sine takes minutes here; a new worker needs --start-s of the same time. The
means of the routers' signals, over 15 s, are not.

Loads, with prompts and answers of mixed lengths that arrive as a Poisson process: `sine`, from --low to --high requests a
second; `flash`, --calm requests a second, and --crowd times as many for --crowd-s seconds. Goodput is the share of all
requests that have their first token within --ttft-s of their arrival, and a mean time between tokens of at most --gap-s.

Prints a table, and writes NAME_sine.svg and NAME_flash.svg. With --constant no worker comes or goes: as answers depend on their
requests alone, `answers` of the --json file must then be the same. Needs `prometheus`. Exits with 1 if a request failed.
"""

import argparse
import bisect
import json
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "benchmarks/autoscaling")]
import dashboard_pictures as pictures  # noqa: E402
import hpa  # noqa: E402
import offered_load  # noqa: E402
from fleet import ROLES, Fleet  # noqa: E402
from observed_cluster import Prometheus  # noqa: E402

NAMESPACE = "baton"
TICK_S, SAMPLE_S = 0.05, 1.0
DRAIN_S = 90  # for those that still drain after the last answer


class Run:
    """One load on one cluster. `samples`: times, and by role the workers that are wanted, ready and draining."""

    def __init__(self, options, load, folder):
        self.options, self.load = options, load
        self.objects = {role: options.objects[f"baton-{role}"] for role in ROLES}
        flags = ["--model", options.model]
        worker = ["--threads", "1", "--log-level", "warning",
                  "--device-prefill-cost", options.prefill_cost, "--device-decode-cost", options.decode_cost]
        own = {"prefill": options.prefill_flags, "decode": options.decode_flags}
        self.fleet = Fleet(
            folder, {role: [options.bin_dir / f"baton-paced-{role}-worker", *worker, *own[role]] for role in ROLES},
            [options.bin_dir / "baton-router", *options.router_flags], flags, options.start_s / options.speed)
        self.folder, self.samples, self.requests = folder, [], []
        self.seconds, self.worker_s, self._ended_s = 0.0, 0.0, None

    def run(self):
        counts = {role: self.options.constant[i] if self.options.constant else self.objects[role].least
                  for i, role in enumerate(ROLES)}
        prometheus = sender = None
        try:
            self.fleet.start(counts)
            prometheus = Prometheus(self.folder, self.fleet.metrics_addresses(), rule_files=[], interval="500ms",
                                    namespace=NAMESPACE)
            self.fleet.on_change = lambda: prometheus.scrape(self.fleet.metrics_addresses())
            before_s = self._worker_seconds()
            lines = offered_load.draw(self.load, self.options.seed)
            sender = offered_load.Sender(self.options.bin_dir / "baton", self.fleet.address, lines, self.folder,
                                         self.options.seed)
            self._follow(prometheus, sender)
            self.worker_s -= before_s
            self.requests = sender.requests()
            self._drain()
        finally:
            if sender:
                sender.close()
            if prometheus:
                prometheus.close()
            self.fleet.close()

    def _follow(self, prometheus, sender):
        scalers = {role: hpa.Autoscaler(scaled) for role, scaled in self.objects.items()} if not self.options.constant else {}
        due, sample_due, begin_s = dict.fromkeys(scalers, 0.0), 0.0, time.monotonic()
        while not self._settled(sender):
            now_s = time.monotonic() - begin_s
            if not sender.ended():
                self.seconds, self.worker_s = now_s, self._worker_seconds()
            self.fleet.tick()
            for role, scaler in scalers.items():
                if now_s >= due[role]:
                    due[role] = now_s + scaler.scaled.polling_s
                    values = [value_of(prometheus, trigger.query) for trigger in scaler.scaled.triggers]
                    self.fleet.scale(role, scaler.decide(now_s, self.fleet.wanted(role), values))
            if now_s >= sample_due:
                sample_due = now_s + SAMPLE_S
                self.samples.append((now_s, {role: (self.fleet.wanted(role), self.fleet.counts(role)["ready"],
                                                    self.fleet.counts(role)["draining"]) for role in ROLES}))
            time.sleep(TICK_S)

    def _settled(self, sender):
        """The load has ended and, if there is time left for it, the fleet has shrunk."""
        if not sender.ended():
            return False
        if self.options.constant:
            return True
        self._ended_s = self._ended_s or time.monotonic()
        return (time.monotonic() > self._ended_s + self.options.settle_s
                or all(self.fleet.wanted(role) == self.objects[role].least for role in ROLES))

    def _worker_seconds(self):
        return sum(self.fleet.worker_seconds(role) for role in ROLES)

    def _drain(self):
        """Those that leave have to end well, too."""
        end = time.monotonic() + DRAIN_S
        while any(self.fleet.counts(role)["draining"] for role in ROLES):
            self.fleet.tick()
            if time.monotonic() > end:
                raise RuntimeError(f"a worker drains for more than {DRAIN_S} s")
            time.sleep(TICK_S)

    def wanted(self, role):
        return [counts[role][0] for _, counts in self.samples]

    def left(self):
        """Returns the workers that have served and left."""
        return [worker for worker in self.fleet.gone if worker.addresses]

    def figures(self):
        slo = self.options.ttft_s, self.options.gap_s
        answered = [request for request in self.requests if not request.error] or self.requests
        constant_s = sum(max(self.wanted(role)) for role in ROLES) * self.seconds
        return {
            "load": self.load.name, "requests": len(self.requests), "errors": sum(bool(r.error) for r in self.requests),
            "goodput": offered_load.goodput(self.requests, *slo),
            "ttft_p50_s": offered_load.quantile([r.ttft_s for r in answered], 0.5),
            "ttft_p99_s": offered_load.quantile([r.ttft_s for r in answered], 0.99),
            "gap_p50_s": offered_load.quantile([r.gap_s for r in answered], 0.5),
            "gap_p99_s": offered_load.quantile([r.gap_s for r in answered], 0.99),
            "late_first": sum(not r.error and r.ttft_s > slo[0] for r in self.requests),
            "slow_tokens": sum(not r.error and r.gap_s > slo[1] for r in self.requests),
            "workers": {role: (min(self.wanted(role)), statistics.mean(self.wanted(role)), max(self.wanted(role)))
                        for role in ROLES},
            "left": len(self.left()), "longest_drain_s": max([w.ended_s - w.asked_s for w in self.left()], default=0.0),
            "worker_s": self.worker_s, "constant_s": constant_s, "seconds": self.seconds,
            "answers": offered_load.digest(self.requests),
            "errors_by_text": sorted({r.error for r in self.requests if r.error})[:10]}


def value_of(prometheus, query):
    """Returns the value of a query; None without one. Several series are an error, as they are for KEDA."""
    result = prometheus.query(query)
    if len(result) > 1:
        raise ValueError(f"{query}: {len(result)} series, expected one")
    return result[0][1] if result else None


def picture(run):
    """Returns an SVG of load, goodput, latencies and workers over time."""
    seconds, options = run.seconds, run.options
    width = max(SAMPLE_S, seconds / 300)
    places = [width * (i + 0.5) for i in range(int(seconds / width))]
    by_place = [[] for _ in places]
    for request in run.requests:
        if request.due_s < width * len(places):
            by_place[int(request.due_s / width)].append(request)
    good = [[r for r in part if r.good(options.ttft_s, options.gap_s)] for part in by_place]
    answered = [[r for r in part if not r.error] for part in by_place]

    def over_time(parts, value):
        return [(at, value(part)) for at, part in zip(places, parts) if part]

    def workers(role, of):
        times = [at for at, _ in run.samples]
        return [(at, run.samples[max(0, bisect.bisect(times, at) - 1)][1][role][of]) for at in places]

    panels = [("offered load, and what is answered in time", "suffix: req/s", [
        ("offered", [(at, len(part) / width) for at, part in zip(places, by_place)]),
        ("in time", [(at, len(part) / width) for at, part in zip(places, good)])]),
              ("time to the first token", "s", [
                  ("median", over_time(answered, lambda part: statistics.median(r.ttft_s for r in part))),
                  ("longest", over_time(answered, lambda part: max(r.ttft_s for r in part)))])]
    panels += [(f"{role} workers", "suffix:", [("wanted", workers(role, 0)), ("ready", workers(role, 1)),
                                               ("draining", workers(role, 2))]) for role in ROLES]
    parts = []
    for i, (title, unit, series) in enumerate(panels):
        panel = {"gridPos": {"x": 12 * (i % 2), "y": 8 * (i // 2), "w": 12, "h": 8}, "title": title, "type": "timeseries",
                 "fieldConfig": {"defaults": {"unit": unit, "min": 0, "custom": {"stacking": {"mode": "none"}}}}}
        parts.append(pictures.Panel(panel, [(name, points or [(0, 0)]) for name, points in series], width).draw(0, seconds))
    return pictures.page(parts, 16)


def row(figures):
    workers = [f"{low} to {high}, mean {mean:.1f}" for low, mean, high in figures["workers"].values()]
    cells = [figures["load"], f"{figures['seconds']:.0f}", f"{figures['requests']:,}", figures["errors"],
             f"{100 * figures['goodput']:.1f} %", f"{figures['ttft_p50_s']:.2f}", f"{figures['ttft_p99_s']:.2f}",
             f"{1e3 * figures['gap_p50_s']:.0f}", f"{1e3 * figures['gap_p99_s']:.0f}", *workers, figures["left"],
             f"{figures['longest_drain_s']:.1f}", f"{figures['worker_s']:,.0f}", f"{figures['constant_s']:,.0f}",
             f"{100 * (1 - figures['worker_s'] / figures['constant_s']):.0f} %"]
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


HEADS = ("load", "seconds", "requests", "errors", "goodput", "TTFT p50, s", "p99", "token gap p50, ms", "p99",
         *(f"{role} workers" for role in ROLES), "scale-downs", "longest drain, s", "worker-seconds", "of a constant fleet",
         "saved")


def loads_of(options):
    known = {"sine": offered_load.sine(options.low, options.high, options.period, options.periods),
             "flash": offered_load.flash_crowd(options.calm, options.crowd, options.calm_s, options.crowd_s, options.crowds)}
    return [known[name] for name in options.load]


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir", type=Path)
    parser.add_argument("--load", nargs="+", choices=["sine", "flash"], default=["sine", "flash"])
    parser.add_argument("--low", type=float, default=1, help="sine: the least rate")
    parser.add_argument("--high", type=float, default=24, help="sine: the largest rate")
    parser.add_argument("--period", type=float, default=360, help="sine: seconds")
    parser.add_argument("--periods", type=int, default=10)
    parser.add_argument("--calm", type=float, default=2.4, help="flash: requests a second between the crowds")
    parser.add_argument("--crowd", type=float, default=10, help="flash: so many times as many")
    parser.add_argument("--calm-s", type=float, default=120)
    parser.add_argument("--crowd-s", type=float, default=300)
    parser.add_argument("--crowds", type=int, default=2)
    parser.add_argument("--speed", type=float, default=10, help="times of the autoscaler are divided by it")
    parser.add_argument("--start-s", type=float, default=30, help="of a worker, before its process; divided by --speed, too")
    parser.add_argument("--scaled-objects", type=Path, default=ROOT / "deploy/k8s/components/autoscaling/scaledobjects.yaml")
    parser.add_argument("--constant", type=int, nargs=2, metavar=("PREFILL", "DECODE"),
                        help="no autoscaler: so many workers all the time")
    parser.add_argument("--settle-s", type=float, default=0, help="after the load, until the fleet has shrunk")
    parser.add_argument("--prefill-cost", default="5000,1000,0.2", help="of a worker's device, in microseconds")
    parser.add_argument("--decode-cost", default="20000,2000,1")
    parser.add_argument("--prefill-flags", type=str.split, default=["--num-blocks", "1024"])
    parser.add_argument("--decode-flags", type=str.split, default=["--max-num-seqs", "24", "--num-blocks", "256"])
    parser.add_argument("--router-flags", type=str.split, default=["--max-inflight-requests", "2048"])
    parser.add_argument("--model", default=str(ROOT / "models/demo"))
    parser.add_argument("--ttft-s", type=float, default=2.5)
    parser.add_argument("--gap-s", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--svg", type=Path, help="the beginning of the pictures' names")
    parser.add_argument("--json", type=Path, help="file for all figures")
    options = parser.parse_args(arguments)
    options.objects = hpa.read_objects(options.scaled_objects, options.speed)
    targets = [f"baton-{role}" for role in ROLES]
    if not set(targets) <= set(options.objects):
        parser.error(f"{options.scaled_objects}: its objects scale {', '.join(options.objects) or 'nothing'}, "
                     f"expected {' and '.join(targets)}")
    return options


def run_all(options):
    runs = []
    for load in loads_of(options):
        with tempfile.TemporaryDirectory(prefix="baton-scaling-") as folder:
            runs.append(Run(options, load, Path(folder)))
            runs[-1].run()
        print(row(runs[-1].figures()), flush=True)
        for text in runs[-1].figures()["errors_by_text"]:
            print(f"error: {text}", flush=True)
        if options.svg:
            Path(f"{options.svg}_{load.name}.svg").write_text(picture(runs[-1]), encoding="utf-8")
    return runs


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the processes end
    options = parse()
    print("| " + " | ".join(HEADS) + " |\n" + "|---" * len(HEADS) + "|", flush=True)
    runs = run_all(options)
    if options.json:
        options.json.write_text(json.dumps([run.figures() for run in runs], indent=2), encoding="utf-8")
    return 1 if any(run.figures()["errors"] for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
