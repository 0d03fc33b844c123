#!/usr/bin/env python3
"""The components of deploy/k8s that suit some clusters only: deploy_test.py checks what they promise, and this test that each
promise can be broken, that the kinds of CPU are those of the programs, and which alerts a cluster of decode workers has.

  variants_test.py --bin DIR --root DIR
"""

import argparse
import copy
import re
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

import cpu_kinds
import deploy_test
import policies
import yaml

ARGUMENTS = None
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "monitoring"))
from rules_test import promtool  # noqa: E402

KINDS = ("cpu-amx", "cpu-avx512", "cpu-avx2")


def spec(resources, kind, name):
    return next(r for r in resources if r["kind"] == kind and r["metadata"]["name"] == name)["spec"]


def container(resources, name):
    return spec(resources, "Deployment", name)["template"]["spec"]["containers"][0]


def notes(resources, name):
    return next(r for r in resources if r["kind"] == "Ingress" and r["metadata"]["name"] == name)["metadata"]["annotations"]


class VariantsTest(unittest.TestCase):
    def breaks(self, composition, mutations):
        """Each change of a good composition is a breach."""
        good = deploy_test.composed(*composition)
        self.assertEqual(deploy_test.breaches(good), [])
        for what, mutate in mutations.items():
            changed = copy.deepcopy(good)
            mutate(changed)
            self.assertNotEqual(deploy_test.breaches(changed), [], what)

    def test_what_breaks_an_ingress(self):
        def path(r, name):
            return spec(r, "Ingress", name)["rules"][0]["http"]["paths"][0]["backend"]["service"]
        self.breaks(("cpu", ["ingress"]), {
            "buffers": lambda r: notes(r, "baton-http").pop("nginx.org/proxy-buffering"),
            "a short silence": lambda r: notes(r, "baton-http").update({"nginx.org/proxy-read-timeout": "60s"}),
            "a short silence of gRPC": lambda r: notes(r, "baton-grpc").pop("nginx.org/proxy-send-timeout"),
            "a limit of bodies": lambda r: notes(r, "baton-http").pop("nginx.org/client-max-body-size"),
            "gRPC over HTTP/1.1": lambda r: notes(r, "baton-grpc").pop("nginx.org/grpc-services"),
            "gRPC to the HTTP port": lambda r: notes(r, "baton-http").update({"nginx.org/grpc-services": "baton-router"}),
            "a Service that is not there": lambda r: path(r, "baton-http").update(name="router"),
            "a port that is not there": lambda r: path(r, "baton-grpc").update(port={"name": "metrics"}),
            "a host without certificate": lambda r: spec(r, "Ingress", "baton-http")["tls"][0].update(hosts=["other"]),
            "another certificate": lambda r: spec(r, "Ingress", "baton-http")["tls"][0].update(secretName="x"),
            "routers open to all": lambda r: spec(r, "NetworkPolicy", "baton-router").update(
                ingress=[{"ports": [{"port": "grpc"}, {"port": "http"}]}]),
            "a closed router": lambda r: spec(r, "NetworkPolicy", "baton-ingress").update(ingress=[]),
            "metrics for the controller": lambda r: spec(r, "NetworkPolicy", "baton-ingress")["ingress"][0]["ports"].append({"port": "metrics"}),
            "another controller": lambda r: spec(r, "NetworkPolicy", "baton-ingress")["ingress"][0].update(
                **{"from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}}}]}),
            "TLS at the routers": lambda r: container(r, "baton-router")["args"].append("--tls-cert=/etc/baton/router-tls/tls.crt"),
        })

    def test_the_documented_patch_of_the_hosts(self):
        document = (ARGUMENTS.root / "docs/operations.md").read_text(encoding="utf-8")
        (patch,) = re.findall(r"^    patches:\n(?:    .*\n)+", document, re.MULTILINE)
        resources = deploy_test.rendered("resources: [../baton/deploy/k8s/overlays/cpu]\n"
                                         "components: [../baton/deploy/k8s/components/ingress]\n" + textwrap.dedent(patch))
        self.assertEqual(deploy_test.breaches(resources), [])
        self.assertEqual(spec(resources, "Ingress", "baton-http")["rules"][0]["host"], "llm.you.example")

    def test_what_breaks_a_gateway(self):
        def rule(r, kind):
            return spec(r, kind, "baton")["rules"][0]
        self.breaks(("cpu", ["gateway"]), {
            "a time limit": lambda r: rule(r, "HTTPRoute").update(timeouts={"request": "60s"}),
            "the default time limit": lambda r: rule(r, "HTTPRoute").pop("timeouts"),
            "Envoy's time limit": lambda r: spec(r, "BackendTrafficPolicy", "baton-grpc")["timeout"]["http"].update(requestTimeout="15s"),
            "a policy of another route": lambda r: spec(r, "BackendTrafficPolicy", "baton-grpc")["targetRefs"][0].update(name="x"),
            "gRPC to the HTTP port": lambda r: rule(r, "GRPCRoute")["backendRefs"][0].update(port=8000),
            "a Service without address": lambda r: rule(r, "GRPCRoute")["backendRefs"][0].update(name="baton-routers"),
            "gRPC over HTTP/1.1": lambda r: [p.pop("appProtocol") for p in spec(r, "Service", "baton-router")["ports"]],
            "no listener": lambda r: spec(r, "HTTPRoute", "baton")["parentRefs"][0].update(sectionName="other"),
            "another host": lambda r: spec(r, "HTTPRoute", "baton").update(hostnames=["other.example.com"]),
            "one host for both": lambda r: [
                spec(r, kind, "baton").update(hostnames=["llm.example.com"]) for kind in ("HTTPRoute", "GRPCRoute")],
            "plaintext": lambda r: spec(r, "Gateway", "baton")["listeners"][0].update(protocol="HTTP"),
            "routers open to all": lambda r: spec(r, "NetworkPolicy", "baton-gateway")["ingress"][0].pop("from"),
        })

    def test_what_breaks_scaled_routers(self):
        self.breaks(("cpu", ["router-autoscaling"]), {
            "replicas beside the autoscaler": lambda r: spec(r, "Deployment", "baton-router").update(replicas=2),
            "down to one": lambda r: spec(r, "HorizontalPodAutoscaler", "baton-router").update(minReplicas=1),
            "of another Deployment": lambda r: spec(r, "HorizontalPodAutoscaler", "baton-router")["scaleTargetRef"].update(name="x"),
            "half of them at once": lambda r: spec(r, "PodDisruptionBudget", "baton-router").update(maxUnavailable="50%"),
            "a fixed number of routers": lambda r: container(r, "baton-prefill")["args"].append("--ready-routers=2"),
        })
        resources = deploy_test.composed("cpu", ["router-autoscaling"])
        (metric,) = spec(resources, "HorizontalPodAutoscaler", "baton-router")["metrics"]
        router = spec(resources, "Deployment", "baton-router")["template"]["spec"]["containers"]
        (measured,) = (c for c in router if c["name"] == metric["containerResource"]["container"])
        share = metric["containerResource"]["target"]["averageUtilization"] / 100
        cores = {amount: float(measured["resources"][amount]["cpu"]) for amount in ("requests", "limits")}
        self.assertLess(cores["requests"] * share, cores["limits"], "a router that is held back never scales")

    def test_the_runtime_class_is_of_gpu_workers(self):
        resources = deploy_test.composed("t4", ["nvidia-runtime"])
        self.assertEqual({name: pod["spec"].get("runtimeClassName") for name, pod in policies.pods(resources)},
                         {"baton-router": None, "baton-prefill": "nvidia", "baton-decode": "nvidia"})

    def test_kinds_of_cpu(self):
        admitted = {}
        for kind in KINDS:
            resources = deploy_test.composed("cpu", [kind])
            self.assertEqual(cpu_kinds.breaches(resources), [])
            bound = cpu_kinds.workers(resources)
            self.assertEqual({d["metadata"]["name"] for d in bound}, {"baton-prefill", "baton-decode"})
            (admitted[kind],) = {frozenset(name for name, flags in cpu_kinds.NODES.items() if cpu_kinds.admits(d, flags)) for d in bound}
            preferred = {d["metadata"]["name"]: {name for name in admitted[kind] if cpu_kinds.preference(d, cpu_kinds.NODES[name]) > 0}
                         for d in bound}
            wide = {name for name in admitted[kind] if "AVX512F" in cpu_kinds.NODES[name]} if kind == "cpu-avx2" else set()
            self.assertEqual(preferred, {"baton-prefill": wide, "baton-decode": set()})
        self.assertEqual(admitted["cpu-amx"], {"Sapphire Rapids"})
        self.assertEqual(admitted["cpu-avx512"], {"Cooper Lake", "Zen 4"})
        self.assertEqual(admitted["cpu-avx2"], {name for name, flags in cpu_kinds.NODES.items() if flags >= cpu_kinds.AVX2})

    def test_what_breaks_a_kind_of_cpu(self):
        def terms(r, name="baton-decode"):
            affinity = spec(r, "Deployment", name)["template"]["spec"]["affinity"]["nodeAffinity"]
            return affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0]["matchExpressions"]

        def settings(r):
            return next(m for m in r if m["kind"] == "ConfigMap" and "DTYPE" in m["data"])["data"]
        self.breaks(("cpu", ["cpu-amx"]), {
            "a node without AMX": lambda r: [terms(r).remove(e) for e in list(terms(r)) if "AMX" in e["key"]],
            "another label": lambda r: [e.update(key=e["key"] + "x") for e in terms(r) + terms(r, "baton-prefill")],
        })
        self.breaks(("cpu", ["cpu-avx512"]), {
            "a node with AMX": lambda r: terms(r).pop(),
            "nodes without bfloat16": lambda r: terms(r).__delitem__(0),
        })
        self.breaks(("cpu", ["cpu-avx2"]), {
            "bfloat16 where there is some": lambda r: settings(r).update(DTYPE="auto"),
            "nodes without AVX2": lambda r: terms(r).__delitem__(slice(None)) or terms(r).append(
                {"key": cpu_kinds.PREFIX + "AVX", "operator": "Exists"}),
            "no node": lambda r: terms(r).clear(),
        })

    def test_the_numerics_of_this_machine_are_as_modelled(self):
        flags = cpu_kinds.flags_of(Path("/proc/cpuinfo").read_text(encoding="utf-8"))
        if flags is None:
            self.skipTest("/proc/cpuinfo has no line `flags`: this is no x86 CPU")
        for dtype in ("auto", "float32", "bfloat16"):
            # The kernel may refuse a process the registers of AMX.
            expected = {cpu_kinds.numerics(flags, dtype), cpu_kinds.numerics(flags - cpu_kinds.AMX, dtype)}
            with subprocess.Popen(
                    [ARGUMENTS.bin / "baton-decode-worker", "--model", ARGUMENTS.root / "models/demo", "--dtype", dtype, "--threads=1",
                     "--kv-cache-memory=64MB"], stderr=subprocess.PIPE, text=True) as process:
                served = next((line for line in process.stderr if " KV blocks of " in line), None)  # none if it does not start
                process.kill()
                process.communicate(timeout=60)
            said = served and re.search(r", by (cpu \w+) \d+$", served.strip())
            self.assertIn(said and said[1], expected, (dtype, served))

    def test_the_flags_of_a_machine(self):
        haswell = "processor\t: 0\nflags\t\t: fpu avx f16c fma avx2\nbugs\t\t: spectre_v1\n"
        self.assertEqual(cpu_kinds.flags_of(haswell), cpu_kinds.AVX2)
        self.assertEqual(cpu_kinds.numerics(cpu_kinds.flags_of(haswell), "auto"), "cpu fma")
        self.assertEqual(cpu_kinds.numerics(cpu_kinds.flags_of(haswell.replace("f16c ", "")), "auto"), "cpu portable")
        self.assertIsNone(cpu_kinds.flags_of("processor\t: 0\nFeatures\t: fp asimd\n"))

    def test_decode_workers_alone(self):
        composition = ("cpu", ["monitoring", "autoscaling", "kv-fetch", "decode-only"])
        resources = deploy_test.composed(*composition)
        self.assertEqual({policies.role_of(d) for _, d, _ in policies.servers(resources)}, {"router", "decode"})
        self.assertEqual([(r["kind"], r["metadata"]["name"]) for r in resources if r["metadata"]["name"] == "baton-prefill"], [])
        self.assertIsNone(policies.flag(container(resources, "baton-router"), "prefill-dns"))
        self.breaks(composition, {
            "a list of prefill workers": lambda r: container(r, "baton-router")["args"].append("--prefill-dns=baton-prefill:50061"),
            "an autoscaler of nothing": lambda r: spec(r, "ScaledObject", "baton-decode")["scaleTargetRef"].update(name="baton-prefill"),
            "workers that cannot compute for each other": lambda r: spec(r, "NetworkPolicy", "baton-decode").update(egress=[]),
        })
        # In the wrong order, what is added for prefill workers stays.
        wrong = deploy_test.composed("cpu", ["decode-only", "autoscaling"])
        self.assertNotEqual(deploy_test.breaches(wrong), [])

    def test_alerts_of_decode_workers_alone(self):
        """promtool on the rendered rules: what is an alarm beside prefill workers is none without."""
        series = [{"series": 'baton_workers{namespace="n", model="m", instance="r", worker_role="prefill", state="ready"}', "values": "0x20"},
                  {"series": 'baton_workers{namespace="n", model="m", instance="r", worker_role="decode", state="ready"}', "values": "1x9 0x11"},
                  {"series": 'baton_route_decisions_total{namespace="n", model="m", instance="r", decision="decode_only"}', "values": "0+9x20"}]

        def firing(components, name, minute):
            """The roles (or "all") for which the alert fires, of the rules that the composition has."""
            resources = deploy_test.composed("cpu", ["monitoring", *components])
            fires = []
            with tempfile.TemporaryDirectory(prefix="baton-variants-") as folder:
                for rules in policies.of_kind(resources, "PrometheusRule"):
                    (Path(folder) / f"{rules['metadata']['name']}.yaml").write_text(yaml.safe_dump(rules["spec"]), encoding="utf-8")
                # A condition on ALERTS, since an expected alert would need its whole text.
                for role in ("prefill", "decode", "all"):
                    where = f'ALERTS{{alertname="{name}",alertstate="firing"' + (f',worker_role="{role}"}}' if role != "all" else "}")
                    test = {"rule_files": ["baton-rules.yaml", "baton-alerts.yaml"], "evaluation_interval": "1m", "tests": [
                        {"interval": "1m", "input_series": series, "promql_expr_test": [
                            {"expr": f"count({where}) or vector(0)", "eval_time": f"{minute}m", "exp_samples": [{"labels": "{}", "value": 0}]}]}]}
                    (Path(folder) / "test.yaml").write_text(yaml.safe_dump(test), encoding="utf-8")
                    try:
                        promtool("test", "rules", "test.yaml", cwd=folder)
                    except AssertionError as error:
                        self.assertIn("got:", str(error))
                        fires.append(role)
            return fires

        self.assertEqual(firing([], "BatonRoleBelowMinimum", 8), ["prefill", "all"])
        self.assertEqual(firing([], "BatonPrefillBypassed", 15), ["all"])
        self.assertEqual(firing(["decode-only"], "BatonRoleBelowMinimum", 8), [])
        self.assertEqual(firing(["decode-only"], "BatonRoleBelowMinimum", 15), ["decode", "all"])
        self.assertEqual(firing(["decode-only"], "BatonPrefillBypassed", 15), [])


def main():
    global ARGUMENTS
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--root", type=Path, required=True)
    ARGUMENTS, rest = parser.parse_known_args()
    deploy_test.ARGUMENTS = ARGUMENTS
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
