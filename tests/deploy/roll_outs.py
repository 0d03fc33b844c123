#!/usr/bin/env python3
"""Roll-outs of the rendered manifests under load, by hand: each role is restarted --count times on hosts of one machine, with
the probes, hooks and grace periods of deploy/k8s. Prints a table for docs/results/roll_outs.md.

  sudo .venv/bin/python tests/deploy/roll_outs.py [--bin DIR] [--count 20] [--roles NAME...]

Exits with 1 if a request failed, a token differed from the oracle's, a container ended badly or a probe failed.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

import hosts
from hosts_cluster import DECODE, PREFILL, ROUTER, Deployed, Load

ROOT = Path(__file__).resolve().parents[2]
QUIET_S = 30


def row(what, count, report, seconds):
    return (f"| {what} | {count} | {report['right'] + report['errors'] + report['wrong']} | {report['retries']} | "
            f"{report['errors']} | {report['wrong']} | "
            f"{report['first_token_p50_ms']:.0f} / {report['first_token_p99_ms']:.0f} ms | "
            f"{report['gap_p50_ms']:.1f} / {report['gap_p99_ms']:.1f} ms | {seconds:.0f} s |")


async def campaign(arguments, folder):
    deployed = Deployed(ROOT, arguments.bin, folder, quick=False)
    cluster = deployed.cluster
    try:
        await deployed.start()
        load = await Load.start(deployed, clients=arguments.clients)
        print("| what | roll-outs | requests | retries | failed | wrong | first token p50 / p99 | between tokens p50 / p99 | slowest |\n"
              "|---|---|---|---|---|---|---|---|---|")
        await asyncio.sleep(QUIET_S)  # how long nothing is rolled out
        reports = [await load.report()]
        print(row("nothing", 0, reports[0], QUIET_S), flush=True)
        for name in arguments.roles:
            slowest = 0
            for _ in range(arguments.count):
                begin = time.monotonic()
                cluster.deployment(name).restart()
                await cluster.settle(name, timeout=900)
                slowest = max(slowest, time.monotonic() - begin)
            reports.append(await load.report())
            print(row(f"`{name}`, 2 replicas", arguments.count, reports[-1], slowest), flush=True)
        await load.stop()
    finally:
        await cluster.close()
    bad = [event for event in cluster.events if "exit code" in event or "killed" in event or "failed" in event]
    print("\n".join(bad + reports[-1]["errors_by_reason"].splitlines()))
    return any(report["errors"] + report["wrong"] for report in reports) or bool(bad)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=Path, default=ROOT / "build/cpu-release/bin")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--roles", nargs="+", default=[DECODE, PREFILL, ROUTER])
    parser.add_argument("--clients", type=int, default=4)
    arguments = parser.parse_args()
    hosts.enter_namespaces()
    folder = Path(tempfile.mkdtemp(prefix="baton-hosts-"))
    print(f"logs are in {folder}")
    sys.exit(1 if asyncio.run(campaign(arguments, folder)) else 0)


if __name__ == "__main__":
    main()
