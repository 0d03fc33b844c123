#!/usr/bin/env python3
"""The manifests of deploy/k8s: every overlay with every set of components, rendered by Kustomize; and compose.yaml.

  deploy_test.py --bin DIR --root DIR

They fit the schemas of three versions of Kubernetes strictly, keep the policies of policies.py, and have command
lines that the programs accept. Each of these checks is shown to fail, too.
"""

import argparse
import atexit
import copy
import functools
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import cpu_kinds
import edge
import policies
import schemas
import yaml
from kustomize import render
from pod_spec import command_line, environment

ARGUMENTS = None
OVERLAYS = ("cpu", "t4")
COMPONENTS = ("tls", "monitoring", "autoscaling")
# What opens connections for a feature: each alone, and all with all of the others.
FEATURES = ("tracing", "kv-fetch", "kv-tier-redis", "nccl")
# What suits some clusters only, and combinations of it with the others.
VARIANTS = (("cpu", "cpu-amx"), ("cpu", "cpu-avx512"), ("cpu", "cpu-avx2"), ("cpu", "ingress"), ("cpu", "gateway"),
            ("cpu", "ingress", "gateway"), ("cpu", "router-autoscaling"), ("t4", "nvidia-runtime"), ("cpu", "decode-only"),
            ("cpu", *COMPONENTS, "router-autoscaling", *FEATURES[:-1], "cpu-avx2", "decode-only"),
            ("t4", *COMPONENTS[1:], "router-autoscaling", "nvidia-runtime", "gateway", *FEATURES, "decode-only"))
# Maps whose keys are data.
FREE_FORM = {"data", "labels", "matchLabels", "annotations", "limits", "requests"}


def rendered(kustomization, **files):
    """The resources of a user's overlay: its kustomization.yaml, where ../baton is this tree, and files beside it."""
    with tempfile.TemporaryDirectory(prefix="baton-deploy-") as folder:
        tree = os.path.relpath(ARGUMENTS.root, Path(folder).resolve())
        (Path(folder) / "kustomization.yaml").write_text(kustomization.replace("../baton", tree), encoding="utf-8")
        for name, text in files.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        return render(ARGUMENTS.root, Path(folder))


def composed(overlay, components):
    return rendered(yaml.safe_dump({"resources": [f"../baton/deploy/k8s/overlays/{overlay}"],
                                    "components": [f"../baton/deploy/k8s/components/{name}" for name in components]}))


def breaches(resources):
    """Of all that the deployments promise."""
    return [*policies.breaches(resources), *edge.breaches(resources), *cpu_kinds.breaches(resources)]


def words_of(resources, container):
    """The words of a container's command, with a model that is not there."""
    values = environment(container, {r["metadata"]["name"]: r["data"] for r in policies.of_kind(resources, "ConfigMap")}, "pod-0")
    return command_line(container, {**values, "MODEL_PATH": "/no/such/model"})


@functools.cache
def certificates():
    """A folder with the files of the Secrets of TLS."""
    folder = Path(tempfile.mkdtemp(prefix="baton-deploy-"))
    atexit.register(shutil.rmtree, folder)
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                    "-subj", "/CN=worker.baton", "-addext", "subjectAltName=DNS:worker.baton", "-keyout", folder / "tls.key", "-out", folder / "tls.crt"],
                   capture_output=True, timeout=60, check=True)
    shutil.copy(folder / "tls.crt", folder / "ca.crt")
    return folder


def refusal(words):
    """Why the program does not accept the flags; empty if it does."""
    words = [re.sub(r"/etc/baton/\w+-tls", str(certificates()), word) for word in words]
    words = [re.sub("^--address=.*", "--address=127.0.0.1:1", word) for word in words]  # where nothing listens
    result = subprocess.run([ARGUMENTS.bin / words[0], *words[1:]], capture_output=True, text=True, timeout=60, check=False)
    if words[:2] == ["baton", "health"]:
        return "" if result.returncode == 3 else result.stderr
    # It gets as far as the model, which is not there, only with flags that are right.
    return "" if result.returncode == 2 and '"/no/such/model" is no directory' in result.stderr else result.stderr


def command_lines(resources):
    for _, _, container in policies.servers(resources):
        yield words_of(resources, container)
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            if "exec" in container.get(probe, {}):
                yield container[probe]["exec"]["command"]


def fields(value, path=()):
    """The paths of all fields of a resource."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if "/" in key:
                continue  # a label of a selector
            yield (*path, key)
            if key not in FREE_FORM:
                yield from fields(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from fields(inner, (*path, index))


def misspelt(resource, path):
    """The resource with one more letter in the name of the field."""
    changed = copy.deepcopy(resource)
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1] + "c"] = at.pop(path[-1])
    return changed


class DeployTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.compositions = {
            (overlay, *components): composed(overlay, components)
            for overlay in OVERLAYS
            for count in range(len(COMPONENTS) + 1)
            for components in itertools.combinations(COMPONENTS, count)}
        cls.compositions |= {(overlay, *features): composed(overlay, features)
                             for overlay in OVERLAYS
                             for features in (*((feature,) for feature in FEATURES), (*COMPONENTS, *FEATURES[:-1]),
                                              (*COMPONENTS, *FEATURES))}
        cls.compositions |= {(overlay, *components): composed(overlay, components) for overlay, *components in VARIANTS}
        unique = {json.dumps(r, sort_keys=True): r for all_of in cls.compositions.values() for r in all_of}
        cls.unique = list(unique.values())

    def all_of(self, name, linked=True):
        """A composition with all components, to be changed. Unless it is linked, without NCCL, which opens all between workers."""
        return copy.deepcopy(self.compositions[(name, *COMPONENTS, *(FEATURES if linked else FEATURES[:-1]))])

    def test_every_resource_fits_the_schemas(self):
        self.assertEqual([b for r in self.unique for b in schemas.breaches(r)], [])

    def test_every_composition_keeps_the_policies(self):
        for name, resources in self.compositions.items():
            self.assertEqual(breaches(resources), [], name)

    def test_programs_accept_their_command_lines(self):
        lines = {tuple(words) for resources in self.compositions.values() for words in command_lines(resources)}
        self.assertGreater(len(lines), 10)
        for words in lines:
            self.assertEqual(refusal(list(words)), "", words)

    def test_probes_with_tls(self):
        """The prefill worker of the component tls, on loopback, with its probes."""
        resources = self.compositions[("cpu", "tls")]
        container = next(c for name, _, c in policies.servers(resources) if name == "baton-prefill")
        with tempfile.TemporaryDirectory(prefix="baton-deploy-") as folder:
            bound, secret = Path(folder) / "address", Path(folder) / "worker-secret"
            secret.write_text("0123456789abcdef0123456789abcdef\n", encoding="utf-8")
            own = {"--model": ARGUMENTS.root / "models/demo", "--listen": "127.0.0.1:0", "--metrics-listen": "127.0.0.1:0",
                   "--worker-secret-file": secret, "--kv-cache-memory": "64MB", "--threads": "1"}

            def here(words):
                flags = [word.partition("=") for word in words]
                words = [f"{flag}={own.get(flag, value)}" if equals else flag for flag, equals, value in flags]
                words = [re.sub(r"/etc/baton/\w+-tls", str(certificates()), word) for word in words]
                return [str(ARGUMENTS.bin / words[0]), *words[1:]]

            def probe(name, without=()):
                words = [w for w in here(container[name]["exec"]["command"]) if not w.startswith(without)]
                return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False).returncode

            with subprocess.Popen([*here(words_of(resources, container)), f"--address-file={bound}"],
                                  stderr=subprocess.DEVNULL) as worker:
                try:
                    end = time.monotonic() + 120
                    while not bound.exists() and worker.poll() is None and time.monotonic() < end:
                        time.sleep(0.02)  # nothing announces the file
                    own["--address"] = bound.read_text(encoding="utf-8").splitlines()[0]
                    self.assertEqual(probe("startupProbe"), 0)
                    self.assertEqual(probe("livenessProbe"), 0)
                    self.assertEqual(probe("readinessProbe"), 1, "no router has accepted it")
                    self.assertNotEqual(probe("livenessProbe", without=("--tls-cert", "--tls-key")), 0)
                finally:
                    worker.terminate()

    def test_a_wrong_flag_is_found(self):
        for _, _, container in policies.servers(self.compositions[("cpu",)]):
            words = words_of(self.compositions[("cpu",)], container)
            self.assertNotEqual(refusal([*words, "--no-such-flag=1"]), "")
            self.assertNotEqual(refusal([*words, "--drain-grace-ms=soon"]), "")

    def test_every_misspelt_field_is_found(self):
        seen, missed = set(), []
        for resource in self.unique:
            for path in fields(resource):
                kind = (resource["kind"], *(key for key in path if isinstance(key, str)))
                if kind in seen or kind[1:] in (("apiVersion",), ("kind",), ("metadata",), ("metadata", "name")):
                    continue  # what the schema is chosen by, and the resource's name
                seen.add(kind)
                if not any(schemas.breaches(misspelt(resource, path), schemas.VERSIONS[:1])):
                    missed.append(kind)
        self.assertGreater(len(seen), 200)
        self.assertEqual(missed, [])

    def test_every_breach_of_a_policy_is_found(self):
        def container(resources, name):
            return next(c for n, _, c in policies.servers(resources) if n == name)

        def deployment(resources, name):
            return next(d for n, d, _ in policies.servers(resources) if n == name)["spec"]

        def pod(resources, name):
            return deployment(resources, name)["template"]["spec"]

        def resource(resources, kind, name):
            return next(r for r in resources if r["kind"] == kind and r["metadata"]["name"] == name)["spec"]

        mutations = {
            "root": lambda r: pod(r, "baton-router")["securityContext"].update(runAsUser=0),
            "no seccomp": lambda r: pod(r, "baton-router")["securityContext"].pop("seccompProfile"),
            "a capability": lambda r: container(r, "baton-decode")["securityContext"]["capabilities"].update(add=["SYS_ADMIN"]),
            "a writable root": lambda r: pod(r, "baton-decode")["initContainers"][0]["securityContext"].pop("readOnlyRootFilesystem"),
            "a token": lambda r: pod(r, "baton-router").pop("automountServiceAccountToken"),
            "no memory limit": lambda r: container(r, "baton-router")["resources"]["limits"].pop("memory"),
            "latest": lambda r: container(r, "baton-router").update(image="baton:latest"),
            "a writable model": lambda r: [m.pop("readOnly") for m in container(r, "baton-decode")["volumeMounts"] if m["name"] == "model"],
            "another secret": lambda r: pod(r, "baton-router")["volumes"].append({"name": "x", "secret": {"secretName": "x"}}),
            "a file elsewhere": lambda r: container(r, "baton-router")["args"].append("--api-keys=/etc/baton/keys/api-keys"),
            "a file that the secret lacks": lambda r: container(r, "baton-router")["args"].append("--tls-key=/etc/baton/router-tls/key"),
            "no liveness": lambda r: container(r, "baton-decode").pop("livenessProbe"),
            "liveness by readiness": lambda r: container(r, "baton-decode").update(livenessProbe=container(r, "baton-decode")["readinessProbe"]),
            "impatient liveness": lambda r: container(r, "baton-prefill")["livenessProbe"].update(failureThreshold=1),
            "gRPC probe with TLS": lambda r: container(r, "baton-prefill").update(livenessProbe={"grpc": {"port": 50061}, "timeoutSeconds": 9, "periodSeconds": 60}),
            "a short grace": lambda r: pod(r, "baton-decode").update(terminationGracePeriodSeconds=60),
            "a long drain": lambda r: container(r, "baton-router")["args"].append("--drain-grace-ms=130000"),
            "a hook that kills": lambda r: container(r, "baton-decode").update(lifecycle={"preStop": {"exec": {"command": ["kill", "1"]}}}),
            "a short hook": lambda r: container(r, "baton-router")["lifecycle"]["preStop"]["exec"].update(command=["sleep", "1"]),
            "one replica": lambda r: deployment(r, "baton-router").update(replicas=1),
            "replicas beside KEDA": lambda r: deployment(r, "baton-decode").update(replicas=3),
            "no budget": lambda r: r.remove(next(x for x in r if x["kind"] == "PodDisruptionBudget")),
            "all at once": lambda r: deployment(r, "baton-router")["strategy"]["rollingUpdate"].update(maxUnavailable=2),
            "a fixed number of routers": lambda r: container(r, "baton-decode")["args"].append("--ready-routers=2"),
            "routers by one address": lambda r: container(r, "baton-decode")["args"].append("--ready-routers-dns=baton-router"),
            "routers that are not ready": lambda r: resource(r, "Service", "baton-routers").update(publishNotReadyAddresses=True),
            "no names": lambda r: [rule.pop("ports") for rule in resource(r, "NetworkPolicy", "baton-prefill")["egress"]],
            "no spread": lambda r: pod(r, "baton-router")["topologySpreadConstraints"].pop(),
            "another port": lambda r: container(r, "baton-prefill")["args"].append("--listen=0.0.0.0:50099"),
            "a name of no Service": lambda r: container(r, "baton-router")["args"].append("--decode-dns=baton-decoders:50061"),
            "ready addresses only": lambda r: resource(r, "Service", "baton-decode").pop("publishNotReadyAddresses"),
            "open workers": lambda r: resource(r, "NetworkPolicy", "baton-decode")["ingress"][0].pop("from"),
            "no KV path": lambda r: resource(r, "NetworkPolicy", "baton-decode").update(egress=[]),
            "open metrics": lambda r: resource(r, "NetworkPolicy", "baton-metrics")["ingress"][0].pop("from"),
            "a check without memory": lambda r: pod(r, "baton-decode")["initContainers"][0]["resources"]["limits"].update(memory="256Mi"),
            "no path for fetches": lambda r: resource(r, "NetworkPolicy", "baton-kv-fetch").update(egress=[]),
            "no door for fetches": lambda r: resource(r, "NetworkPolicy", "baton-kv-fetched").update(ingress=[]),
            "another collector": lambda r: container(r, "baton-router")["args"].append("--otlp-traces-endpoint=http://otel.tracing.svc:4318"),
            "no path to Redis": lambda r: resource(r, "NetworkPolicy", "baton-kv-tier").update(egress=[]),
            "a path to anything": lambda r: resource(r, "NetworkPolicy", "baton-kv-tier")["egress"][0].pop("to"),
            "no links": lambda r: resource(r, "NetworkPolicy", "baton-nccl").update(ingress=[]),
            "a GPU for the CPU": lambda r: container(r, "baton-decode")["args"].append("--device=cpu"),
        }
        for what, mutate in mutations.items():
            resources = self.all_of("t4", linked=what == "no links")
            mutate(resources)
            self.assertNotEqual(policies.breaches(resources), [], what)

    def test_autoscaling_asks_for_metrics_that_exist(self):
        documented = set(re.findall(r"`(baton_\w+)`", (ARGUMENTS.root / "docs/metrics.md").read_text(encoding="utf-8")))
        scaled = policies.of_kind(self.compositions[("cpu", "autoscaling")], "ScaledObject")
        for trigger in (t for r in scaled for t in r["spec"]["triggers"]):
            query = trigger["metadata"]["query"]
            self.assertIn('namespace="baton"', query)
            self.assertLessEqual(set(re.findall(r"baton_\w+", query)), documented)

    def test_all_rules_and_dashboards_are_deployed(self):
        resources = self.compositions[("cpu", "monitoring")]
        folder = ARGUMENTS.root / "deploy"
        subprocess.run([sys.executable, folder / "k8s/components/monitoring/make_rules.py", "--check"], check=True, timeout=60)
        rules = {r["metadata"]["name"]: r["spec"] for r in policies.of_kind(resources, "PrometheusRule")}
        written = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))
                   for path in (folder / "prometheus/rules.yaml", folder / "prometheus/alerts.yaml")}
        self.assertEqual(rules, {f"baton-{name}": spec for name, spec in written.items()})
        # What kube-prometheus-stack selects, unless its values say otherwise.
        for taken in (r for kind in ("PodMonitor", "PrometheusRule") for r in policies.of_kind(resources, kind)):
            self.assertEqual(taken["metadata"]["labels"].get("release"), "kube-prometheus-stack", taken["metadata"]["name"])
        dashboards = next(r for r in resources if r["metadata"]["name"] == "baton-dashboards")
        self.assertEqual(dashboards["data"], {path.name: path.read_text(encoding="utf-8")
                                              for path in (folder / "grafana/dashboards").glob("*.json")})
        self.assertEqual(dashboards["metadata"]["labels"]["grafana_dashboard"], "1")
        # `kubectl apply` keeps a copy in an annotation, of at most 256 KiB.
        self.assertLess(len(json.dumps(dashboards)), 250_000)

    def test_what_comes_before_an_overlay(self):
        resources = render(ARGUMENTS.root, ARGUMENTS.root / "deploy/k8s/model")
        found = [b for r in resources for b in schemas.breaches(r)]
        self.assertEqual([*found, *policies.security(resources), *policies.volumes(resources)], [])
        # As kubectl applies them: in this order. All else is in the namespace that the first one makes.
        self.assertEqual(resources[0]["kind"], "Namespace")
        namespaces = {resources[0]["metadata"]["name"]}
        self.assertEqual({r["metadata"]["namespace"] for r in resources[1:]}, namespaces)
        document = (ARGUMENTS.root / "docs/operations.md").read_text(encoding="utf-8")
        steps = [document.index(step) for step in ("kubectl apply -k deploy/k8s/model", "kubectl -n baton create secret",
                                                   "kubectl apply -k YOUR_OVERLAY")]
        self.assertEqual(steps, sorted(steps), "a step needs what a later one makes")
        # What the workers mount, and where their settings look.
        (claim,) = policies.of_kind(resources, "PersistentVolumeClaim")
        mounted = {v["persistentVolumeClaim"]["claimName"] for rs in (resources, self.all_of("cpu")) for _, pod in policies.pods(rs)
                   for v in pod["spec"]["volumes"] if "persistentVolumeClaim" in v}
        self.assertEqual(mounted, {claim["metadata"]["name"]})

    def test_compose(self):
        compose = yaml.safe_load((ARGUMENTS.root / "deploy/docker/compose.yaml").read_text(encoding="utf-8"))
        services = {name: service for name, service in compose["services"].items() if "build" in service}
        self.assertEqual(set(services), {"router", "prefill", "decode"})
        for name, service in services.items():
            words = [re.sub(r"\$\{\w+:-(\w+)\}", r"\1", word) for word in service["command"]]
            self.assertEqual(refusal([word.replace("=/model", "=/no/such/model") for word in words]), "", name)
            self.assertEqual(refusal(service["healthcheck"]["test"][1:]), "", name)
            self.assertTrue(service["read_only"] and service["cap_drop"] == ["ALL"], name)
            flags = dict(word.partition("=")[::2] for word in words[1:])
            self.assertLess(int(flags["--drain-grace-ms"]) / 1000 + policies.CLOSING_S, int(service["stop_grace_period"][:-1]))
            for dns in ("--prefill-dns", "--decode-dns"):
                if dns in flags:
                    self.assertEqual(flags[dns].split(":")[1], "50061")
                    self.assertIn(flags[dns].split(":")[0], services)
            for port in service.get("ports", []):
                self.assertTrue(port.startswith("127.0.0.1:"), "--insecure serves every caller")
        self.assertTrue(compose["networks"]["workers"]["internal"])

    def test_the_model_check(self):
        base = ARGUMENTS.root / "deploy/k8s/base"

        def check(change=lambda model: None):
            with tempfile.TemporaryDirectory() as folder:
                model = Path(folder) / "model"
                shutil.copytree(ARGUMENTS.root / "models/demo", model)
                change(model)
                return subprocess.run(["sh", base / "verify-model.sh", model, base / "SHA256SUMS"], capture_output=True,
                                      text=True, timeout=60, check=False).returncode

        def flip(model):
            weights = bytearray((model / "model.safetensors").read_bytes())
            weights[len(weights) // 2] ^= 1
            (model / "model.safetensors").write_bytes(weights)

        self.assertEqual(check(), 0, "deploy/k8s/base/SHA256SUMS is that of models/demo")
        self.assertNotEqual(check(flip), 0)
        self.assertNotEqual(check(lambda model: (model / "tokenizer.json").unlink()), 0)
        self.assertNotEqual(check(lambda model: (model / "model-2.safetensors").write_bytes(b"")), 0)

    def test_the_documented_overlay(self):
        document = (ARGUMENTS.root / "docs/operations.md").read_text(encoding="utf-8")
        (overlay,) = re.findall(r"```yaml\n(.*?)```", document, re.DOTALL)
        resources = rendered(overlay + "namespace: another\n", SHA256SUMS="0 the user's\n")
        self.assertEqual([b for r in resources for b in schemas.breaches(r)] + breaches(resources), [])
        self.assertEqual({r["metadata"].get("namespace", r["metadata"]["name"]) for r in resources}, {"another"})
        data = {k: v for r in resources if r["kind"] == "ConfigMap" for k, v in r["data"].items()}
        self.assertEqual((data["SHA256SUMS"], data["DTYPE"]), ("0 the user's\n", "float16"))
        self.assertIn("snapshots/", data["MODEL_PATH"])
        self.assertEqual({c["image"] for _, _, c in policies.servers(resources)},
                         {"ghcr.io/you/baton:0.1.0", "ghcr.io/you/baton-cuda:0.1.0"})

    def test_images_have_the_version_of_this_tree(self):
        version = re.search(r"project\(baton VERSION (\S+)", (ARGUMENTS.root / "CMakeLists.txt").read_text(encoding="utf-8")).group(1)
        images = {c["image"] for r in self.unique if r["kind"] == "Deployment" for c in r["spec"]["template"]["spec"]["containers"]}
        self.assertEqual(images, {f"registry.example/baton:{version}", f"registry.example/baton-cuda:{version}"})


def main():
    global ARGUMENTS
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--root", type=Path, required=True)
    ARGUMENTS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
