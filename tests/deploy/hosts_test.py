#!/usr/bin/env python3
"""The rendered manifests of deploy/k8s on a cluster of hosts: discovery by DNS, policies, roll-outs, a revision that does not
fit, scaling, partitions, hosts that vanish, components; all under load whose tokens are compared with the oracle's.

  hosts_test.py --bin DIR --root DIR

Needs root; without it, it is skipped (exit code 77).
"""

import argparse
import asyncio
import contextlib
import copy
import functools
import itertools
import shutil
import sys
import tempfile
import time
import unittest
from pathlib import Path

import connections
import hosts
from hosts_cluster import DECODE, PATIENCE_S, PREFILL, ROUTER, Deployed, Load
from policies import of_kind
from strangers import Collector, Redis

ARGUMENTS = None
LOOP = asyncio.Runner()
FAILED = []
ROLES = ("router", "prefill", "decode")
OUTSIDE = {"redis": Redis.PORT, "collector": Collector.PORT}
# By the policies of the base.
ALLOWED = ({(source, worker, "grpc") for source in ("router", "decode") for worker in ("prefill", "decode")}
           | {(stranger, "router", port) for stranger in ("client", "stray", "prometheus", "redis", "collector")
              for port in ("grpc", "http")})


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
        # Pods that are not of the manifests.
        cls.redis, cls.collector = Redis(cls.cluster), Collector(cls.cluster)
        cls.strangers = {"client": cls.cluster.client, "stray": cls.cluster.stranger("stray", "baton"),
                         "prometheus": cls.cluster.stranger("prometheus", "monitoring"),
                         "redis": cls.redis.host, "collector": cls.collector.host}
        await cls.deployed.start()

    @classmethod
    def tearDownClass(cls):
        LOOP.run(cls.cluster.close())
        cls.redis.close()
        cls.collector.close()
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
    async def load(self, **options):
        """Load while the body runs, all of it answered, and right."""
        load = await Load.start(self.deployed, **options)
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

    async def opened(self):
        """Finds which connections open: (from, to, port), of pods by their roles. Within a role it tries one pod's to another."""
        pods = {role: self.cluster.pods(f"baton-{role}") for role in ROLES}
        sources = [(role, of_role[0].host) for role, of_role in pods.items()] + list(self.strangers.items())
        targets = [(role, of_role[1].host, of_role[1].end.ports) for role, of_role in pods.items()]
        return await connections.opened(sources, targets) | await connections.opened(
            sources[:len(ROLES)], [(name, self.strangers[name], {"tcp": port}) for name, port in OUTSIDE.items()])

    async def only(self, expected):
        """Waits until all expected connections open, and then nothing else does."""
        end = time.monotonic() + PATIENCE_S
        while not expected <= (found := await self.opened()):
            self.assertLess(time.monotonic(), end, expected - found)
        self.assertEqual(found, expected)

    @in_loop
    async def test_1_discovery_and_policies(self):
        await self.all_are_ready()
        await self.only(ALLOWED)
        policies = self.cluster.delete("NetworkPolicy")
        try:
            await self.only({(source, target, port) for source in (*ROLES, *self.strangers) for target in ROLES
                             for port in self.cluster.pods(f"baton-{target}")[0].end.ports}
                            | {(role, name, "tcp") for role in ROLES for name in OUTSIDE})
        finally:
            self.cluster.apply(policies)
        await self.cluster.settle()
        decode, = self.cluster.pods(DECODE)[:1]
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

    @in_loop
    async def test_8_components_serve_under_their_policies(self):
        """What the features connect to is there, and nothing else can be reached."""
        async with self.load():
            self.cluster.apply(self.deployed.rendered("monitoring", "tracing", "kv-fetch", "kv-tier-redis"))
            await self.cluster.settle()
        routers, workers = ({pod.host.address for name in names for pod in self.cluster.pods(name)}
                            for names in ((ROUTER,), (PREFILL, DECODE)))
        await self.all_connect(routers | workers, workers)
        async with self.load():
            allowed = (ALLOWED | {("prefill", "prefill", "grpc"), ("prefill", "decode", "grpc")}
                       | {(stranger, role, "metrics") for stranger in ("prometheus", "collector") for role in ROLES}
                       | {("prefill", "redis", "tcp"), ("decode", "redis", "tcp")}
                       | {(role, "collector", "tcp") for role in ROLES})
            await self.only(allowed)
            # The component's workers need GPUs, its policy does not.
            self.cluster.apply(of_kind(self.deployed.rendered("nccl"), "NetworkPolicy"))
            workers = ROLES[1:]
            await self.only(allowed | {(one, other, port) for one in workers for other in workers for port in ("grpc", "metrics")})


    async def all_connect(self, tracers, tiered):
        """Waits until all have connected to the collector and to Redis, which each does when it has something to send.

        A worker asks Redis for prompts that its cache lacks, and cases of one load are soon cached: so loads have others."""
        end = time.monotonic() + PATIENCE_S
        for seed in itertools.count(2):
            async with self.load(seed=seed, clients=6):
                others_s = time.monotonic() + 5
                while time.monotonic() < others_s:
                    found = self.collector.callers(), await self.redis.callers()
                    if found[0] >= tracers and found[1] >= tiered:
                        return
                    self.assertLess(time.monotonic(), end, (found, tracers, tiered))
                    await asyncio.sleep(0.1)


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
