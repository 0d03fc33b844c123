"""The cluster of deploy/k8s on the hosts of one machine, as a user deploys it, with load whose answers are checked.

What differs from the rendered overlay, so that it fits: one core and a KV pool of 64 MB for each worker; and, for tests
that only wait otherwise, probes every second and routers that leave sooner.
"""

import asyncio
import base64
import json
import os
import subprocess

import hosts
from kubelet import Cluster
from kustomize import render
from policies import of_kind, servers

OVERLAY = """
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../baton/deploy/k8s/overlays/cpu]
secretGenerator:
- {name: baton-worker-secret, namespace: baton, options: {disableNameSuffixHash: true}, files: [worker-secret]}
- {name: baton-api-keys, namespace: baton, options: {disableNameSuffixHash: true}, files: [api-keys]}
- {name: baton-kv-tier, namespace: baton, options: {disableNameSuffixHash: true}, files: [redis-password]}
components: [COMPONENTS]
"""
REDIS_PASSWORD = "of the tests"
ROUTER, PREFILL, DECODE = "baton-router", "baton-prefill", "baton-decode"
ADDRESS = "baton-router:50051"
PATIENCE_S = 180


def small(resources, quick):
    for _, deployment, container in servers(resources):
        if deployment["metadata"]["name"] != ROUTER:
            container["resources"]["limits"]["cpu"] = "1"
            container["args"] = [arg for arg in container["args"] if not arg.startswith("--kv-cache-memory")] + ["--kv-cache-memory=64MB"]
        elif quick:
            container["lifecycle"]["preStop"]["exec"]["command"] = ["sleep", "5"]
        for probe in ("startupProbe", "readinessProbe") if quick else ():
            container[probe]["periodSeconds"] = 1
    return resources


class Load:
    """Checked requests from the client's host: checked_load."""

    def __init__(self, process):
        self._process = process

    @classmethod
    async def start(cls, deployed, share=0.5, clients=3, seed=1):
        load = cls(await asyncio.create_subprocess_exec(
            *deployed.cluster.client.inside, deployed.tests / "checked_load", "--address", ADDRESS, "--clients", str(clients),
            "--share", str(share), "--seed", str(seed), "--model", deployed.root / "models/demo", env={**os.environ, "BATON_API_KEY": deployed.key},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert await load._line() == "ready"
        return load

    async def _line(self):
        return (await asyncio.wait_for(self._process.stdout.readline(), PATIENCE_S)).decode().strip()

    async def report(self):
        """Since the last one, or the start."""
        self._process.stdin.write(b"\n")
        return json.loads(await self._line())

    async def stop(self):
        self._process.stdin.close()
        await asyncio.wait_for(self._process.wait(), PATIENCE_S)


class Deployed:
    """The cluster, ready. `bin_dir` is that of the programs, `tests` that of the tests' own."""

    def __init__(self, root, bin_dir, folder, quick):
        self.root, self.tests, self._baton = root, bin_dir.parent / "tests", bin_dir / "baton"
        made = json.loads(subprocess.run([self._baton, "keys", "new", "--tenant", "ops", "--admin", "--json"], check=True,
                                         capture_output=True, text=True, timeout=60).stdout)
        self.key = made["key"]
        self._folder, self._quick, self._api_keys = folder, quick, made["line"]
        self.resources = self.rendered()
        self.network = hosts.Network(folder)
        self.cluster = Cluster(folder, self.network, bin_dir, {"baton-model": root / "models/demo"})

    def rendered(self, *components):
        """The overlay with these components."""
        overlay = self._folder / "-".join(["overlay", *components])
        overlay.mkdir()
        kustomization = OVERLAY.replace("COMPONENTS", ", ".join(f"../baton/deploy/k8s/components/{name}" for name in components))
        for name, text in {"kustomization.yaml": kustomization.replace("../baton", os.path.relpath(self.root, overlay.resolve())),
                           "worker-secret": "0123456789abcdef" * 4 + "\n", "api-keys": self._api_keys + "\n",
                           "redis-password": REDIS_PASSWORD}.items():
            (overlay / name).write_text(text, encoding="utf-8")
        resources = small(render(self.root, overlay), self._quick)
        for secret in of_kind(resources, "Secret"):
            secret["stringData"] = {name: base64.b64decode(text).decode() for name, text in secret.pop("data").items()}
        return resources

    async def start(self):
        self.cluster.apply(self.resources)
        await self.cluster.settle(timeout=PATIENCE_S)

    async def baton(self, *words):
        """The CLI on the client's host, with the operator's key: its output; AssertionError if it fails."""
        process = await asyncio.create_subprocess_exec(
            *self.cluster.client.inside, self._baton, *words, "--address", ADDRESS, env={**os.environ, "BATON_API_KEY": self.key},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
        assert process.returncode == 0, output.decode()
        return output.decode()

    async def workers(self):
        """(state, id) of each by the address of its host, as one of the routers lists it."""
        return {w["address"].partition(":")[0]: (w["state"].removeprefix("WORKER_STATE_").lower(), w["worker_id"])
                for w in json.loads(await self.baton("workers", "--json"))["workers"]}
