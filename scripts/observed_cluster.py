"""A cluster of the demo model with a real Prometheus that scrapes all its processes, and load for both: what scripts/observe
and the tests of the dashboards run."""

import contextlib
import datetime
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import demo_cluster

ROOT = Path(__file__).resolve().parents[1]
NAMESPACE = "demo"
RULE_FILES = [ROOT / "deploy/prometheus" / name for name in ("rules.yaml", "alerts.yaml")]
# In place of $__rate_interval: long enough that every process has work in each.
RATE_INTERVAL_S = 10
PATIENCE_S = 60


class Prometheus:
    """Scrapes `targets` (addresses), which may change later, and evaluates the rules, at each interval."""

    def __init__(self, folder, targets, rule_files=RULE_FILES, interval="1s", namespace=NAMESPACE):
        self._namespace, self._targets_file = namespace, folder / "targets.json"
        self.scrape(targets)
        config = {"global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
                  "rule_files": [str(path) for path in rule_files],
                  "scrape_configs": [{"job_name": "baton", "file_sd_configs": [{"files": [str(self._targets_file)]}]}]}
        path = folder / "prometheus.json"  # JSON is YAML
        path.write_text(json.dumps(config), encoding="utf-8")
        self._log = folder / "prometheus.log"
        with open(self._log, "w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                ["prometheus", f"--config.file={path}", f"--storage.tsdb.path={folder / 'tsdb'}",
                 "--web.listen-address=127.0.0.1:0"], stdout=log, stderr=subprocess.STDOUT)
        self._url = None
        try:
            wait_for(self._ready, self._why)
            self.wait_for_scrapes()
        except BaseException:
            self.close()
            raise

    def close(self):
        end_process(self._process)

    def scrape(self, targets):
        """Sets the targets, from now on."""
        self.targets = len(targets)  # that should answer
        new = self._targets_file.with_suffix(".new")
        new.write_text(json.dumps([{"targets": targets, "labels": {"namespace": self._namespace}}]), encoding="utf-8")
        new.replace(self._targets_file)

    def _why(self):
        return "Prometheus: " + self._log.read_text(encoding="utf-8")

    def _ready(self):
        if self._process.poll() is not None:
            sys.exit(self._why())
        listening = re.search(r'msg="Listening on" address=(\S+)', self._log.read_text(encoding="utf-8"))
        if listening is None:
            return False
        self._url = f"http://{listening[1]}"
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self._url}/-/ready", timeout=PATIENCE_S):
            return True
        return False

    def get(self, path, **parameters):
        """The data of an answer of the HTTP API."""
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters, doseq=True)}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(f"{parameters}: {error.read().decode()}") from error

    def query(self, expression, at=None):
        """Labels and value of each series at a time; now without one."""
        when = {} if at is None else {"time": at}
        return [(one["metric"], float(one["value"][1])) for one in self.get("query", query=expression, **when)["result"]]

    def query_range(self, expression, start, end, step):
        """Labels and (time, value) of each series."""
        result = self.get("query_range", query=expression, start=start, end=end, step=step)["result"]
        return [(one["metric"], [(at, float(value)) for at, value in one["values"]]) for one in result]

    def label_values(self, label, selector):
        return self.get(f"label/{label}/values", **{"match[]": selector})

    def wait_for_scrapes(self):
        """Returns once every target was scraped, well, after this call."""
        asked = time.time()

        def scraped():
            return self.query(f"count(timestamp(up == 1) > {asked})")[0:1] in ([({}, float(self.targets))],)
        wait_for(scraped, self._why)

    def wait_for_rates(self):
        """A time at which every target had been scraped twice within RATE_INTERVAL_S, so that rates have a value then. Later
        a machine that stalls may leave a gap."""
        asked = []

        def rated():
            asked.append(time.time())
            return self.query(f"count(sum_over_time(up[{RATE_INTERVAL_S}s]) >= 2)", asked[-1]) == [({}, float(self.targets))]
        wait_for(rated, self._why)
        return asked[-1]

    def wait_for_rules(self):
        """Returns once every group of rules was evaluated, well, after this call."""
        asked = datetime.datetime.now(datetime.timezone.utc)

        def evaluated():
            groups = self.get("rules")["groups"]
            return groups and all(datetime.datetime.fromisoformat(group["lastEvaluation"]) > asked for group in groups)
        wait_for(evaluated, self._why)


def end_process(process):
    """Ends it by SIGTERM. One that takes too long is killed, and an error."""
    process.terminate()
    try:
        process.wait(timeout=PATIENCE_S)
    except BaseException:  # Ctrl-C, too
        process.kill()
        process.wait()
        raise


def wait_for(condition, why, patience_s=PATIENCE_S):
    end = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > end:
            sys.exit(f"waited {patience_s} s for nothing: {why()}")
        time.sleep(0.05)


class ObservedCluster:
    """Two workers of each role and a router, from the binaries in `bin_dir`. Use it in a `with`."""

    def __init__(self, bin_dir, folder):
        self._baton = Path(bin_dir).resolve() / "baton"
        self._folder = folder
        self._frozen = None
        # Dashboards show transfers, and alerts lost prefill workers: all prompts go there.
        self._cluster, (self.address, _, self.http) = demo_cluster.start_cluster(
            self._baton, folder, "--json", "--max-local-prefill-tokens", "0")
        log = (folder / "up.log").read_text(encoding="utf-8")
        self._processes = json.loads(next(line for line in log.splitlines() if line.startswith("{")))["processes"]
        try:
            self.prometheus = Prometheus(folder, [process["metrics_address"] for process in self._processes])
        except BaseException:
            self._stop()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.prometheus.close()
        finally:
            self._stop()

    def _stop(self):
        if self._frozen is not None:
            os.kill(self._frozen, signal.SIGKILL)
        end_process(self._cluster)

    def freeze(self, role):
        """Stops one worker of the role: its connections stay open, and it is silent from now on."""
        victim = next(process for process in self._processes if process["name"].startswith(role))
        self.prometheus.targets -= 1
        self._frozen = victim["pid"]
        os.kill(self._frozen, signal.SIGSTOP)

    def load(self, seconds, rate):
        """Sends `rate` requests a second over gRPC, with prefixes that repeat, and half as many over HTTP. Returns the seconds
        to the first token and the gaps between tokens of each request, as the clients saw them."""
        server = {"grpc": ["--address", self.address, "--dataset-name", "prefix_repetition",
                           "--prefix-repetition-prefix-len", "96", "--prefix-repetition-suffix-len", "96",
                           "--prefix-repetition-num-prefixes", "6", "--prefix-repetition-output-len", "64"],
                  "http": ["--backend", "openai", "--base-url", f"http://{self.http}", "--vocab-size", "256",
                           "--dataset-name", "random", "--random-input-len", "128", "--random-output-len", "16"]}
        runs = []
        for name, share in (("grpc", 1), ("http", 0.5)):
            command = [self._baton, "bench", "serve", *server[name], "--request-rate", str(rate * share), "--seed", "7",
                       "--num-prompts", str(int(seconds * rate * share)), "--disable-tqdm", "--save-result", "--save-detailed",
                       "--result-dir", self._folder, "--result-filename", f"{name}.json"]
            runs.append((name, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)))
        requests = []
        for name, run in runs:
            output, _ = run.communicate(timeout=seconds + PATIENCE_S)
            if run.returncode != 0:
                sys.exit(f"the load over {name} failed:\n{output}")
            result = json.loads((self._folder / f"{name}.json").read_text(encoding="utf-8"))
            if result["failed"] > 0:
                sys.exit(f"the load over {name}: {result['failures']}")
            requests += zip(result["ttfts"], result["itls"])
        self.prometheus.wait_for_scrapes()
        return requests
