"""A kubelet and the controllers of Deployments, Services and NetworkPolicies, for tests: runs rendered manifests as
processes on the hosts of hosts.py.

It does what the manifests of deploy/k8s rely on: init containers, environment, volumes (ConfigMap, Secret, a claim), user
and read-only root, startup, liveness and readiness probes by gRPC, preStop hooks, SIGTERM, the grace period and SIGKILL;
rolling updates with maxSurge and maxUnavailable; endpoints of ready pods, headless Services in the DNS, policies in the
firewall of each pod. It raises NotImplementedError for what it does not know. Images are ignored: containers see the
machine's /usr and the programs of one folder. Limits of resources are not enforced.

One asyncio loop runs everything; all functions are for its thread.
"""

import asyncio
import contextlib
import copy
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

import firewall
import hosts
from pod_spec import command_line, environment
from policies import matches

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
import seed  # noqa: E402

UNPRIVILEGED = ["--clear-groups", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"]
FIRST_BACKOFF_S = 10


class Roots:
    """A root file system for each pod, made of parts of the machine's. Lives below /run, which is private."""

    def __init__(self, programs: Path, resolv_conf: Path, claims):
        self._programs, self._resolv_conf, self._claims = programs, resolv_conf, claims

    def make(self, pod_name, spec, config_maps, secrets):
        root = Path("/run/pods") / pod_name
        root.mkdir(parents=True)
        hosts.run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", root)
        for name in ("usr", "bin", "sbin", "lib", "lib64"):
            if Path("/", name).is_symlink():
                (root / name).symlink_to(os.readlink(Path("/", name)))
            elif Path("/", name).exists():
                self._bind(Path("/", name), root / name)
        self._bind(self._programs, root / "baton")
        for name in ("proc", "dev", "tmp", "etc"):
            (root / name).mkdir()
        for name in ("null", "zero", "full", "random", "urandom"):
            (root / "dev" / name).touch()
            hosts.run("mount", "--bind", Path("/dev", name), root / "dev" / name)
        for name in ("nsswitch.conf", "ld.so.cache", "hosts", "passwd", "group"):
            shutil.copyfile(Path("/etc", name), root / "etc" / name)
        shutil.copyfile(self._resolv_conf, root / "etc/resolv.conf")
        volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
        group = spec["securityContext"]["fsGroup"]
        for path, name in {mount["mountPath"]: mount["name"] for container in spec.get("initContainers", []) + spec["containers"]
                           for mount in container.get("volumeMounts", [])}.items():
            self._volume(volumes[name], root / path.lstrip("/"), group, config_maps, secrets)
        hosts.run("mount", "-o", "remount,ro", root)
        return root

    @staticmethod
    def _bind(source, target):
        target.mkdir(parents=True)
        hosts.run("mount", "-o", "bind,ro", source, target)

    def _volume(self, volume, target, group, config_maps, secrets):
        if "persistentVolumeClaim" in volume:
            return self._bind(self._claims[volume["persistentVolumeClaim"]["claimName"]], target)
        if "configMap" in volume:
            source, data = volume["configMap"], config_maps[volume["configMap"]["name"]]
        elif "secret" in volume:
            source, data = volume["secret"], secrets[volume["secret"]["secretName"]]
        else:
            raise NotImplementedError(f"volume {volume}")
        target.mkdir(parents=True)
        for name, text in data.items():
            (target / name).write_text(text, encoding="utf-8")
            os.chown(target / name, 0, group)
            (target / name).chmod(source.get("defaultMode", 0o644))
        return None

    @staticmethod
    def remove(root):
        hosts.run("umount", "--recursive", "--lazy", root)
        root.rmdir()


class Container:
    """A process, the first of a PID namespace."""

    def __init__(self, pod, spec):
        self._spec, self._pod = spec, pod
        self._values = environment(spec, pod.cluster.data("ConfigMap"), pod.name)
        context = pod.spec["securityContext"]
        expected = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
        if spec["securityContext"] != expected:
            raise NotImplementedError(f"securityContext {spec['securityContext']}")
        self._user = ["setpriv", f"--reuid={context['runAsUser']}", f"--regid={context['runAsGroup']}", *UNPRIVILEGED, "--"]
        self._unshare = self.ended = None

    async def start(self, log):
        words = [*self._pod.host.inside, "unshare", "--mount", "--pid", "--fork", "--kill-child",
                 f"--mount-proc={self._pod.root}/proc", "chroot", self._pod.root, *self._user, *command_line(self._spec, self._values)]
        self._unshare = await asyncio.create_subprocess_exec(*words, env=self._environment(), stdout=log, stderr=subprocess.STDOUT)
        self.ended = asyncio.create_task(self._unshare.wait())
        return self

    def _environment(self):
        return {"PATH": "/baton:/usr/bin:/usr/sbin:/bin:/sbin", **self._values}

    def first(self):
        """The process 1 of the container as this namespace numbers it; None once it has ended, or before it began."""
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children").read_text(encoding="ascii").split()
            return int(children[0]) if children else None
        return None

    def signal(self, number):
        first = self.first()
        if first is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(first, number)
        elif number in (signal.SIGTERM, signal.SIGKILL) and not self.ended.done():
            self._unshare.kill()  # it has no child yet

    async def run(self, words, timeout):
        """Runs a command in the container. Its exit code; None if it ran out of time."""
        first = self.first()
        if first is None:
            return None
        process = await asyncio.create_subprocess_exec(
            "nsenter", f"--target={first}", "--mount", "--pid", "--net", "--root", "--wd", *self._user, *words,
            env=self._environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            return await asyncio.wait_for(process.wait(), timeout)
        except asyncio.TimeoutError:
            process.kill()
            await process.wait()
            return None


class Pod:
    """One replica, from its creation until its host has gone. `gone` is done then."""

    def __init__(self, cluster, name, namespace, template, revision):
        self.cluster, self.name, self.revision = cluster, name, revision
        self.labels, self.spec = template["metadata"]["labels"], template["spec"]
        self.ready = self.terminating = False
        self.restarts = 0
        self.container = None
        self.host = cluster.network.add(name)
        self.end = firewall.End(self.host.address, namespace, self.labels, {
            port["name"]: port["containerPort"] for c in self.spec["containers"] for port in c.get("ports", [])})
        self.root = cluster.roots.make(name, self.spec, cluster.data("ConfigMap"), cluster.data("Secret"))
        self.log_path = cluster.folder / f"{name}.log"
        self.created = time.monotonic()
        self._stop = asyncio.Event()
        self.gone = asyncio.get_running_loop().create_task(self._live())

    def delete(self):
        if not self.terminating:
            self.terminating = True
            self._stop.set()
            self.cluster.changed()

    def port(self, name):
        """The number of a port of the container."""
        return self.end.ports.get(name, name)

    def log(self):
        return self.log_path.read_text(encoding="utf-8")

    async def _live(self):
        (spec,) = self.spec["containers"]
        backoff = FIRST_BACKOFF_S
        try:
            with open(self.log_path, "a", encoding="utf-8") as log:
                for init in self.spec.get("initContainers", []):
                    while not self.terminating and await (await Container(self, init).start(log)).ended != 0:
                        await self._wait(backoff)
                while not self.terminating:
                    self.container = await Container(self, spec).start(log)
                    await self._serve(spec)
                    if not self.terminating:
                        self.restarts += 1
                        self.cluster.event(self, f"its container ended with {self.container.ended.result()}")
                        await self._wait(backoff)
                        backoff *= 2
        except Exception as error:  # such as a manifest that this kubelet does not understand
            self.cluster.failed(error)
        finally:
            self.ready = False
            self.cluster.roots.remove(self.root)
            self.cluster.network.remove(self.host)
            self.cluster.removed(self)

    async def _wait(self, seconds):
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    async def _serve(self, spec):
        """Until the container has ended, by itself, by a probe or by the pod's deletion."""
        ended, stop = self.container.ended, asyncio.create_task(self._stop.wait())
        probes = asyncio.create_task(self._probe(spec))
        await asyncio.wait((ended, stop, probes), return_when=asyncio.FIRST_COMPLETED)
        if probes.done() and not ended.done() and not stop.done():
            probes.result()  # raises if it is a probe that this kubelet does not know
        for task in (stop, probes):
            task.cancel()
        if not ended.done():
            await self._terminate(spec)
        self._set_ready(False)

    async def _terminate(self, spec):
        deadline = time.monotonic() + self.spec["terminationGracePeriodSeconds"]
        hook = spec.get("lifecycle", {}).get("preStop")
        if hook is not None:
            await self.container.run(hook["exec"]["command"], deadline - time.monotonic())
        self.container.signal(signal.SIGTERM)
        try:
            code = await asyncio.wait_for(asyncio.shield(self.container.ended), max(0, deadline - time.monotonic()))
            if code != 0:
                self.cluster.event(self, f"exit code {code} after SIGTERM")
        except asyncio.TimeoutError:
            self.cluster.event(self, "killed: the grace period has passed")
            self.container.signal(signal.SIGKILL)
            await self.container.ended

    async def _probe(self, spec):
        """Returns when the container is to be restarted."""
        if not await self._probed(spec["startupProbe"], True):
            return self.cluster.event(self, "its startup probe failed")
        readiness = asyncio.create_task(self._follow_readiness(spec["readinessProbe"]))
        try:
            await self._probed(spec["livenessProbe"], False)
        finally:
            readiness.cancel()
        return self.cluster.event(self, "its liveness probe failed")

    async def _follow_readiness(self, probe):
        while True:
            await self._probed({**probe, "failureThreshold": float("inf")}, True)
            self._set_ready(True)
            await self._probed(probe, False)
            self._set_ready(False)

    async def _probed(self, probe, wanted):
        """Probes until one succeeds, if that is wanted, or so many in a row fail. Whether the last one succeeded."""
        failures = 0
        while True:
            begin = time.monotonic()
            if await self._ask(probe):
                failures = 0
                if wanted:
                    return True
            else:
                failures += 1
                if failures >= probe.get("failureThreshold", 3):
                    return False
            await asyncio.sleep(max(0, begin + probe.get("periodSeconds", 10) - time.monotonic()))

    async def _ask(self, probe):
        timeout = probe.get("timeoutSeconds", 1)
        if "exec" in probe:
            return await self.container.run(probe["exec"]["command"], timeout) == 0
        if "grpc" not in probe:
            raise NotImplementedError(f"probe {probe}")
        request = health_pb2.HealthCheckRequest(service=probe["grpc"].get("service", ""))
        async with grpc.aio.insecure_channel(f"{self.host.address}:{probe['grpc']['port']}") as channel:
            try:
                answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout)
            except grpc.aio.AioRpcError:
                return False
            return answer.status == health_pb2.HealthCheckResponse.SERVING

    def _set_ready(self, ready):
        if self.ready != ready:
            self.ready = ready
            self.cluster.event(self, "ready" if ready else "not ready")
            self.cluster.changed()


class Deployment:
    """Keeps its replicas, and replaces them one revision by the next."""

    def __init__(self, cluster, resource):
        self._cluster = cluster
        self.name, self._namespace = resource["metadata"]["name"], resource["metadata"]["namespace"]
        self.pods = []
        self._random = seed.generator(self.name)
        self.replace(resource["spec"])

    def replace(self, spec):
        self.replicas = spec.get("replicas", 1)
        self.template = copy.deepcopy(spec["template"])
        rolling = spec["strategy"]["rollingUpdate"]
        self._surge, self._unavailable = int(rolling["maxSurge"]), int(rolling["maxUnavailable"])
        self._revise()

    def restart(self):
        """As `kubectl rollout restart`."""
        self.template["metadata"].setdefault("annotations", {})["kubectl.kubernetes.io/restartedAt"] = str(time.time_ns())
        self._revise()

    def _revise(self):
        self.revision = hashlib.sha256(json.dumps(self.template, sort_keys=True).encode()).hexdigest()[:6]
        self._cluster.changed()

    def scale(self, replicas):
        self.replicas = replicas
        self._cluster.changed()

    def settled(self):
        """All replicas are of this revision and ready, and nothing else is left."""
        return len(self.pods) == self.replicas and all(
            pod.ready and not pod.terminating and pod.revision == self.revision for pod in self.pods)

    def reconcile(self):
        live = [pod for pod in self.pods if not pod.terminating]
        new = [pod for pod in live if pod.revision == self.revision]
        old = [pod for pod in live if pod.revision != self.revision]
        surplus = len(new) - self.replicas
        for pod in self._first_to_go(new)[:max(0, surplus)]:
            pod.delete()
        surge = self._surge if old else 0
        for _ in range(min(self.replicas - len(new), self.replicas + surge - len(live))):
            self.pods.append(Pod(self._cluster, f"{self.name}-{self.revision}-{self._random.randrange(16**4):04x}", self._namespace,
                                 self.template, self.revision))
            self._cluster.changed()
        ready = sum(pod.ready for pod in live)
        for pod in self._first_to_go(old):
            if pod.ready and ready <= self.replicas - self._unavailable:
                break
            ready -= pod.ready
            pod.delete()

    @staticmethod
    def _first_to_go(pods):
        return sorted(pods, key=lambda pod: (pod.ready, -pod.created))


class Cluster:
    """What the API server holds, and the controllers. `claims`: name of a claim -> folder. `events`: what happened to pods."""

    def __init__(self, folder, network, programs, claims):
        self.folder, self.network = folder, network
        self.roots = Roots(programs, network.resolv_conf, claims)
        self.events = []
        self._resources, self._deployments, self._addresses, self._applied = {}, {}, {}, {}
        self._strangers, self._names = [], {}
        self._begin = time.monotonic()
        self._failure = None
        self._wake, self._turned = asyncio.Event(), asyncio.Condition()
        self.client = self.stranger("client", "clients")
        self._controller = asyncio.create_task(self._control())

    async def close(self):
        try:
            for deployment in self._deployments.values():
                deployment.scale(0)
            await self.until(lambda: not self.pods(), 180)
        finally:
            self._controller.cancel()
            self.network.close()

    def stranger(self, name, namespace, labels=None, service=None):
        """Returns the host of a new pod that the manifests do not have. `service` is a name that it gets in the DNS."""
        host = self.network.add(name)
        self._strangers.append(firewall.End(host.address, namespace, labels or {}, {}))
        if service is not None:
            self._names[service] = [host.address]
        self.changed()
        return host

    def delete(self, kind):
        """Deletes all resources of the kind, and returns them."""
        deleted = [r for (k, _), r in self._resources.items() if k == kind]
        self._resources = {key: r for key, r in self._resources.items() if key[0] != kind}
        self.changed()
        return deleted

    def apply(self, resources):
        """As `kubectl apply`. What is not listed stays."""
        self._resources |= {(r["kind"], r["metadata"]["name"]): r for r in resources}
        for resource in resources:
            if resource["kind"] == "Deployment":
                name = resource["metadata"]["name"]
                if name in self._deployments:
                    self._deployments[name].replace(resource["spec"])
                else:
                    self._deployments[name] = Deployment(self, resource)
        self.changed()

    def data(self, kind):
        return {name: r.get("stringData", r.get("data", {})) for (k, name), r in self._resources.items() if k == kind}

    def deployment(self, name):
        return self._deployments[name]

    def pods(self, name=None):
        return [pod for d in self._deployments.values() if name in (None, d.name) for pod in d.pods]

    def event(self, pod, what):
        self.events.append(f"{time.monotonic() - self._begin:.2f} s: {pod.name}: {what}")

    def changed(self):
        self._wake.set()

    def failed(self, error):
        """Ends the controller, and what waits for it, with the error."""
        self._failure = error
        self.changed()

    def removed(self, pod):
        for deployment in self._deployments.values():
            if pod in deployment.pods:
                deployment.pods.remove(pod)
        self._applied.pop(pod.name, None)
        self.changed()

    async def until(self, condition, timeout):
        """Waits for what depends on pods. TimeoutError with the events if it does not come."""
        async with self._turned:
            try:
                await asyncio.wait_for(self._turned.wait_for(lambda: self._controller.done() or condition()), timeout)
            except asyncio.TimeoutError as error:
                raise TimeoutError("\n".join(self.events)) from error
        if self._controller.done():
            self._controller.result()

    async def settle(self, *names, timeout=180):
        wanted = [self._deployments[name] for name in names or self._deployments]
        await self.until(lambda: all(deployment.settled() for deployment in wanted), timeout)

    async def _control(self):
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                for deployment in self._deployments.values():
                    deployment.reconcile()
                self._publish()
                if self._failure is not None:
                    raise self._failure
                async with self._turned:
                    self._turned.notify_all()
        finally:
            async with self._turned:
                self._turned.notify_all()

    def _publish(self):
        """Names, virtual addresses and firewalls follow the pods."""
        names, forwards = dict(self._names), {}
        for (kind, name), service in self._resources.items():
            if kind != "Service":
                continue
            spec = service["spec"]
            chosen = [pod for pod in self.pods() if matches({"matchLabels": spec["selector"]}, pod.labels)
                      and (spec.get("publishNotReadyAddresses") or (pod.ready and not pod.terminating))]
            full = f"{name}.{service['metadata']['namespace']}.svc"
            if spec.get("clusterIP") == "None":
                names[full] = [pod.host.address for pod in chosen]
                continue
            if name not in self._addresses:
                self._addresses[name] = self.network.virtual_address()
            address = self._addresses[name]
            names[full] = [address]
            for port in spec["ports"]:
                forwards[(address, port["port"])] = [(pod.host.address, pod.port(port["targetPort"])) for pod in chosen]
        self.network.name(names)
        if self._applied.get("client") != forwards:
            self._applied["client"] = forwards
            hosts.forward(self.client, forwards)
        policies = [r for (kind, _), r in self._resources.items() if kind == "NetworkPolicy"]
        ends = [*(pod.end for pod in self.pods()), *self._strangers]
        for pod in self.pods():
            rules = firewall.rules(pod.end, policies, ends)
            if self._applied.get(pod.name) != rules:
                self._applied[pod.name] = rules
                pod.host.nft("allowed", rules)
