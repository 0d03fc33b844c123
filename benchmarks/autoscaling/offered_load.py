"""Open loads whose rate changes, and what became of their requests.

Arrivals are a Poisson process: they do not wait for answers. `baton bench serve` sends them, as a trace.
"""

import hashlib
import json
import math
import random
import subprocess
from typing import NamedTuple

# Tokens; drawn so that each power of two within is as likely.
PROMPT_TOKENS = (30, 600)
ANSWER_TOKENS = (10, 150)


class Load(NamedTuple):
    name: str
    rate: object  # requests a second, of the time in seconds
    peak: float   # the largest rate
    seconds: float


def sine(low, high, period_s, periods):
    middle, swing = (low + high) / 2, (high - low) / 2
    return Load("sine", lambda at_s: middle - swing * math.cos(2 * math.pi * at_s / period_s), high, period_s * periods)


def flash_crowd(calm, factor, calm_s, crowd_s, crowds):
    """The rate jumps from the calm one to `factor` times as much and back, `crowds` times, and is calm at the end."""
    period_s = calm_s + crowd_s
    return Load("flash", lambda at_s: calm * factor if at_s % period_s >= calm_s else calm, calm * factor,
                period_s * crowds + calm_s)


def draw(load, seed):
    """Returns the lines of a trace, the first of which is at 0."""
    random_ = random.Random(f"{seed} {load.name}")
    lines, at_s = [{"timestamp": 0.0, "input_length": PROMPT_TOKENS[0], "output_length": ANSWER_TOKENS[0]}], 0.0
    while True:
        at_s += random_.expovariate(load.peak)
        if at_s >= load.seconds:
            return lines
        if random_.random() * load.peak < load.rate(at_s):
            lines.append({"timestamp": round(at_s, 4), "input_length": _tokens(random_, *PROMPT_TOKENS),
                          "output_length": _tokens(random_, *ANSWER_TOKENS)})


def _tokens(random_, least, most):
    return round(math.exp(random_.uniform(math.log(least), math.log(most))))


class Sender:
    """A process that sends a trace to a router."""

    def __init__(self, baton, address, lines, folder, seed):
        self.count = len(lines)
        self._result, self._log = folder / "requests.json", folder / "bench.log"
        trace = folder / "trace.jsonl"
        trace.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        with open(self._log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [baton, "bench", "serve", "--address", address, "--dataset-name", "trace", "--dataset-path", trace,
                 "--timed-trace-sec-multiplier", "1", "--num-prompts", str(self.count), "--seed", str(seed), "--disable-tqdm",
                 "--save-result", "--save-detailed", "--result-dir", folder, "--result-filename", self._result.name],
                stdout=log, stderr=subprocess.STDOUT)

    def ended(self):
        return self.process.poll() is not None

    def close(self):
        self.process.kill()
        self.process.wait()

    def requests(self):
        """Returns what became of the requests, in the order of the trace. The sender must have ended."""
        if not self._result.exists():
            raise RuntimeError(f"the load failed: {self._log.read_text(encoding='utf-8')[-2000:]}")
        result = json.loads(self._result.read_text(encoding="utf-8"))
        requests = [Request(sent_s - queued_s, queued_s + ttft_s, sum(gaps) / len(gaps) if gaps else 0.0, text, error)
                    for sent_s, queued_s, ttft_s, gaps, text, error in zip(
                        result["start_times"], result["queue_times"], result["ttfts"], result["itls"],
                        result["generated_texts"], result["errors"], strict=True)]
        if len(requests) != self.count:
            raise RuntimeError(f"{len(requests)} of {self.count} requests were sent")
        return requests


class Request(NamedTuple):
    due_s: float  # its arrival, after the first one
    ttft_s: float  # from then to the first token
    gap_s: float  # the mean time between its tokens
    text: str
    error: str  # empty: it was answered

    def good(self, ttft_s, gap_s):
        return not self.error and self.ttft_s <= ttft_s and self.gap_s <= gap_s


def goodput(requests, ttft_s, gap_s):
    """Returns the share of the requests that were answered in time. Errors were not."""
    return sum(request.good(ttft_s, gap_s) for request in requests) / len(requests)


def digest(requests):
    """Returns a hash of all answers, which depend on the requests alone."""
    return hashlib.sha256("\0".join(request.text for request in requests).encode()).hexdigest()


def quantile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))]
