#!/usr/bin/env python3
"""The rendered manifests of deploy/k8s on a cluster of hosts: discovery by DNS, roll-outs, a revision that does not fit,
scaling, partitions, hosts that vanish; all under load whose tokens are compared with the oracle's.

  hosts_test.py --bin DIR --root DIR

Needs root; without it, it is skipped (exit code 77).
"""

import argparse
import asyncio
import contextlib
import copy
import functools
import shutil
import sys
import tempfile
import time
import unittest
from pathlib import Path

import hosts
from hosts_cluster import DECODE, PATIENCE_S, PREFILL, ROUTER, Deployed, Load

ARGUMENTS = None
LOOP = asyncio.Runner()
FAILED = []


def in_loop(test):
    return functools.wraps(test)(lambda self: LOOP.run(test(self)))


class HostsTest(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="baton-hosts-")  # kept after a failure
        LOOP.run(cls.set_up())

    @classmethod
    async def set_up(cls):
        cls.deployed = Deployed(ARGUMENTS.root, ARGUMENTS.bin, Path(cls.folder), quick=True)
        cls.cluster = cls.deployed.cluster
        await cls.deployed.start()

    @classmethod
    def tearDownClass(cls):
        LOOP.run(cls.cluster.close())
        LOOP.close()
        if FAILED:
            print("\n".join(cls.cluster.events), f"logs are in {cls.folder}", sep="\n", file=sys.stderr)
        else:
            shutil.rmtree(cls.folder)

    def run(self, result=None):
        before = len(result.failures) + len(result.errors)
        super().run(result)
        if len(result.failures) + len(result.errors) > before:
            FAILED.append(self.id())

    @contextlib.asynccontextmanager
    async def load(self):
        """Load while the body runs, all of it answered, and right."""
        load = await Load.start(self.deployed)
        try:
            yield
            report = await load.report()
        finally:
            await load.stop()
        self.assertGreaterEqual(report["right"], 20, report)
        self.assertEqual((report["errors"], report["wrong"]), (0, 0), (report, self.cluster.events))

    async def workers_are(self, expected):
        """Waits until a router's list is as expected: nothing announces it. Another router may be a moment behind."""
        end = time.monotonic() + 60
        while not expected(workers := await self.deployed.workers()):
            self.assertLess(time.monotonic(), end, workers)
            await asyncio.sleep(0.1)

    async def all_are_ready(self):
        await self.workers_are(lambda workers: workers == {
            pod.host.address: ("ready", pod.name) for name in (PREFILL, DECODE) for pod in self.cluster.pods(name)})

    async def reaches(self, host, other, port):
        """Whether a connection from one host to another opens."""
        script = f"import socket; socket.create_connection(('{other.address}', {port}), timeout=1)"
        process = await asyncio.create_subprocess_exec(*host.inside, sys.executable, "-c", script, stderr=asyncio.subprocess.DEVNULL)
        return await process.wait() == 0

    @in_loop
    async def test_1_discovery_and_policies(self):
        await self.all_are_ready()
        router, prefill, decode = (self.cluster.pods(name)[0] for name in (ROUTER, PREFILL, DECODE))
        reached = {(a.spec["serviceAccountName"], b.spec["serviceAccountName"]) for a in (router, prefill, decode)
                   for b in (router, prefill, decode) if a is not b and await self.reaches(a.host, b.host, b.port("grpc"))}
        self.assertEqual(reached, {(ROUTER, PREFILL), (ROUTER, DECODE), (DECODE, PREFILL)})
        self.assertTrue(await self.reaches(self.cluster.client, router.host, 50051))
        self.assertFalse(await self.reaches(self.cluster.client, decode.host, 50061))
        self.assertFalse(await self.reaches(self.cluster.client, router.host, 9090), "/metrics is open to every host")
        status = Path(f"/proc/{decode.container.first()}/status").read_text(encoding="ascii")
        for line in ("Uid:\t10001\t10001", "CapEff:\t0000000000000000", "NoNewPrivs:\t1"):
            self.assertIn(line, status)

    @in_loop
    async def test_2_rolling_restart_of_each_role(self):
        async with self.load():
            for name in (DECODE, PREFILL, ROUTER):
                before = {pod.name for pod in self.cluster.pods(name)}
                self.cluster.deployment(name).restart()
                await self.cluster.settle(name)
                self.assertFalse(before & {pod.name for pod in self.cluster.pods(name)})
        self.assertEqual([e for e in self.cluster.events if "exit code" in e or "killed" in e or "probe failed" in e], [])
        await self.all_are_ready()

    @in_loop
    async def test_3_a_revision_that_does_not_fit_stops_the_roll_out(self):
        decode = self.cluster.deployment(DECODE)
        fits, old = copy.deepcopy(decode.template), {pod.name for pod in decode.pods}
        async with self.load():
            args = decode.template["spec"]["containers"][0]["args"]
            args[args.index("--block-size=$(BLOCK_SIZE)")] = "--block-size=32"
            decode.restart()
            try:
                await self.cluster.until(lambda: len(decode.pods) == 3, PATIENCE_S)
                (new,) = (pod for pod in decode.pods if pod.name not in old)
                await self.workers_are(lambda workers: workers.get(new.host.address) == ("refused", new.name))
                self.assertFalse(new.ready)
                self.assertEqual({pod.name for pod in decode.pods if pod.ready}, old)
            finally:
                decode.template = fits
                decode.restart()
            await self.cluster.settle(DECODE)

    @in_loop
    async def test_4_scale_out_and_in(self):
        async with self.load():
            for replicas in (3, 1, 2):
                for name in (DECODE, PREFILL):
                    self.cluster.deployment(name).scale(replicas)
                await self.cluster.settle(DECODE, PREFILL)
        await self.all_are_ready()

    @in_loop
    async def test_5_a_slow_link_and_a_pair_that_cannot_reach_each_other(self):
        decode, prefill = self.cluster.pods(DECODE)[0], self.cluster.pods(PREFILL)[0]
        async with self.load():
            prefill.host.throttle("8mbit")
            await asyncio.sleep(3)  # each fault's own length
            prefill.host.throttle(None)
            decode.host.cut(prefill.host)
            await asyncio.sleep(5)
            decode.host.heal()

    @in_loop
    async def test_6_a_host_that_vanishes(self):
        async with self.load():
            for name in (DECODE, PREFILL):
                pod = self.cluster.pods(name)[0]
                pod.host.cut()
                await self.workers_are(lambda workers, address=pod.host.address: workers[address][0] in ("expired", "connecting"))
                pod.host.heal()
                await self.all_are_ready()

    @in_loop
    async def test_7_without_name_server(self):
        async with self.load():
            self.deployed.network.stop_name_server()
            await asyncio.sleep(5)  # the fault's own length
            self.deployed.network.start_name_server()
            self.cluster.deployment(DECODE).scale(3)
            await self.cluster.settle(DECODE)  # the new one is found, too


def main():
    global ARGUMENTS
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--root", type=Path, required=True)
    ARGUMENTS, rest = parser.parse_known_args()
    hosts.enter_namespaces()
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
