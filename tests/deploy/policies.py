"""What Baton's deployments promise beyond the schemas. Each check takes all resources and yields breaches."""

import re

ROLES = ("router", "prefill", "decode")
SECRETS = {"baton-api-keys": {"api-keys"}, "baton-worker-secret": {"worker-secret"},
           "baton-kv-tier": {"redis-password"}, "baton-router-tls": {"tls.crt", "tls.key"}, "baton-internal-tls": {"ca.crt", "tls.crt", "tls.key"}}
CLOSING_S = 5  # after the drain: connections close, the process ends
LIVENESS_PATIENCE_S = 60
MONITORING = "monitoring"  # the namespace that may scrape
# The namespaces of what leads clients to routers; with one, nothing else reaches them.
CONTROLLERS = {"Ingress": "nginx-ingress", "Gateway": "envoy-gateway-system"}
FILLING = ("baton-model-pull",)  # what writes to the model's volume


def of_kind(resources, kind):
    return [r for r in resources if r["kind"] == kind]


def pods(resources):
    """(name, pod template) of each workload."""
    return [(r["metadata"]["name"], r["spec"]["template"]) for r in resources if r["kind"] in ("Deployment", "Job")]


def servers(resources):
    return [(r["metadata"]["name"], r, r["spec"]["template"]["spec"]["containers"][0])
            for r in of_kind(resources, "Deployment")]


def role_of(deployment):
    return deployment["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]


def flag(container, name):
    """The value of --name=VALUE in the command line; None if it is not there."""
    values = [a.partition("=")[2] for a in container["args"] if a.partition("=")[0] == f"--{name}"]
    return values[-1] if values else None


def matches(selector, labels):
    def expression(e):
        value = labels.get(e["key"])
        return {"In": value in e.get("values", []), "Exists": value is not None}[e["operator"]]
    return (all(labels.get(k) == v for k, v in selector.get("matchLabels", {}).items())
            and all(expression(e) for e in selector.get("matchExpressions", [])))


def security(resources):
    for name, pod in pods(resources):
        spec = pod["spec"]
        context = spec.get("securityContext", {})
        if context.get("runAsNonRoot") is not True or context.get("runAsUser") != 10001:
            yield f"{name}: runs as another user than 10001"
        if context.get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield f"{name}: seccomp is not RuntimeDefault"
        if spec.get("automountServiceAccountToken") is not False:
            yield f"{name}: has a token of the API server"
        for key in ("hostNetwork", "hostPID", "hostIPC"):
            if spec.get(key):
                yield f"{name}: {key}"
        for container in spec.get("initContainers", []) + spec["containers"]:
            where = f"{name}/{container['name']}"
            expected = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
            if container.get("securityContext") != expected:
                yield f"{where}: securityContext is {container.get('securityContext')}, expected {expected}"
            if not re.search(r":\d+\.\d+", container["image"]):
                yield f"{where}: image {container['image']} has no version"
            resources_ = container.get("resources", {})
            for amount in ("requests", "limits"):
                missing = {"cpu", "memory"} - set(resources_.get(amount, {}))
                if missing:
                    yield f"{where}: {amount} lack {sorted(missing)}"


GIB = {"Mi": 1 / 1024, "Gi": 1}


def memory(resources):
    """The check of the model fills the page cache for the server that reads it next."""
    for name, deployment, server in servers(resources):
        check = deployment["spec"]["template"]["spec"]["initContainers"][0]
        limits = [float(c["resources"]["limits"].get("memory", "0Gi")[:-2]) * GIB[c["resources"]["limits"].get("memory", "0Gi")[-2:]]
                  for c in (check, server)]
        if limits[0] < limits[1]:
            yield f"{name}: {check['name']} may have less memory than the server"


def volumes(resources):
    configs = {r["metadata"]["name"]: r.get("data", {}) for r in of_kind(resources, "ConfigMap")}
    accounts = {r["metadata"]["name"] for r in of_kind(resources, "ServiceAccount")}
    for name, pod in pods(resources):
        spec = pod["spec"]
        if spec["serviceAccountName"] not in accounts:
            yield f"{name}: no ServiceAccount {spec['serviceAccountName']}"
        known = {}
        for volume in spec["volumes"]:
            known[volume["name"]] = volume
            if "hostPath" in volume:
                yield f"{name}: volume {volume['name']} is of the host"
            if "configMap" in volume and volume["configMap"]["name"] not in configs:
                yield f"{name}: no ConfigMap {volume['configMap']['name']}"
            if "secret" in volume and volume["secret"]["secretName"] not in SECRETS:
                yield f"{name}: Secret {volume['secret']['secretName']} is not documented"
        mounted = set()
        for container in spec.get("initContainers", []) + spec["containers"]:
            for mount in container.get("volumeMounts", []):
                mounted.add(mount["name"])
                if mount["name"] not in known:
                    yield f"{name}: no volume {mount['name']}"
                elif "emptyDir" not in known[mount["name"]] and not mount.get("readOnly") and name not in FILLING:
                    yield f"{name}: {mount['name']} is mounted writable"
            for source in container.get("envFrom", []):
                if source["configMapRef"]["name"] not in configs:
                    yield f"{name}: no ConfigMap {source['configMapRef']['name']}"
            yield from files(name, container, known)
        for unused in sorted(set(known) - mounted):
            yield f"{name}: volume {unused} is not mounted"


def files(name, container, known):
    """Every file in a command line is in a volume of the container."""
    words = container.get("command", []) + container.get("args", [])
    for path in re.findall(r"/etc/baton/[\w./-]+", " ".join(words)):
        mount = next((m for m in container["volumeMounts"] if path.startswith(m["mountPath"] + "/")), None)
        if mount is None:
            yield f"{name}/{container['name']}: {path} is on no volume"
            continue
        volume = known.get(mount["name"], {})
        file = path[len(mount["mountPath"]) + 1:]
        if "secret" in volume and file not in SECRETS.get(volume["secret"]["secretName"], {file}):
            yield f"{name}/{container['name']}: Secret {volume['secret']['secretName']} has no {file}"


def probes(resources):
    for name, deployment, container in servers(resources):
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            if probe not in container:
                yield f"{name}: no {probe}"
        live, ready = container.get("livenessProbe", {}), container.get("readinessProbe", {})
        patience = live.get("periodSeconds", 10) * live.get("failureThreshold", 3)
        if patience < LIVENESS_PATIENCE_S or live.get("timeoutSeconds", 1) < 5:
            yield f"{name}: liveness ends a busy process after {patience} s"
        # Readiness depends on routers, workers and drains; liveness must not.
        service = "baton.v1.InferenceService" if role_of(deployment) == "router" else "baton.internal.v1.WorkerService"
        if service in str(live) or "/readyz" in str(live):
            yield f"{name}: liveness asks for readiness"
        if service not in str(ready) and ready.get("httpGet", {}).get("path") != "/readyz":
            yield f"{name}: readiness does not ask for {service}"
        if flag(container, "tls-cert") and ("grpc" in live or "grpc" in ready):
            yield f"{name}: the kubelet's gRPC probes speak no TLS"


def drain(resources):
    for name, deployment, container in servers(resources):
        grace = deployment["spec"]["template"]["spec"].get("terminationGracePeriodSeconds", 30)
        command = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", "0"])
        if command[0] != "sleep":
            yield f"{name}: preStop runs {command}: its time is unknown, and a signal would make SIGTERM the second one"
            continue
        needed = float(command[1]) + int(flag(container, "drain-grace-ms")) / 1000 + CLOSING_S
        if needed > grace:
            yield f"{name}: preStop and drain take up to {needed:.0f} s, but terminationGracePeriodSeconds is {grace}"
        if role_of(deployment) == "router" and float(command[1]) < 5:
            yield f"{name}: new connections may still reach it when it stops: preStop takes {command[1]} s"


def scaled(resources):
    """The least replicas of each Deployment that has an autoscaler."""
    return {r["spec"]["scaleTargetRef"]["name"]: r["spec"].get("minReplicaCount") or r["spec"].get("minReplicas", 1)
            for kind in ("ScaledObject", "HorizontalPodAutoscaler") for r in of_kind(resources, kind)}


def rollout(resources):
    budgets = of_kind(resources, "PodDisruptionBudget")
    least = scaled(resources)
    for name, deployment, _ in servers(resources):
        spec = deployment["spec"]
        labels = spec["template"]["metadata"]["labels"]
        replicas = least[name] if name in least else spec.get("replicas", 1)
        if replicas < 2:
            yield f"{name}: {replicas} replicas"
        if name in least and "replicas" in spec:
            yield f"{name}: replicas are set beside an autoscaler"
        if [b["spec"]["maxUnavailable"] for b in budgets if matches(b["spec"]["selector"], labels)] != [1]:
            yield f"{name}: expected one PodDisruptionBudget with maxUnavailable 1"
        gone = spec["strategy"]["rollingUpdate"]["maxUnavailable"]
        gpu = "nvidia.com/gpu" in str(spec["template"]["spec"]["containers"][0]["resources"])
        if gone != (1 if gpu else 0):
            yield f"{name}: a roll-out may take {gone} pods away"
        if {c["topologyKey"] for c in spec["template"]["spec"]["topologySpreadConstraints"]
                if matches(c["labelSelector"], labels)} != {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}:
            yield f"{name}: is not spread over hosts and zones"
    for target in least:
        if target not in [name for name, *_ in servers(resources)]:
            yield f"an autoscaler is of {target}, which does not exist"


def readiness(resources):
    """A worker waits for all routers that are ready, however many there are: a headless Service lists them."""
    routers = [d["spec"]["template"]["metadata"]["labels"] for _, d, _ in servers(resources) if role_of(d) == "router"]
    listing = {s["metadata"]["name"] for s in of_kind(resources, "Service")
               if s["spec"].get("clusterIP") == "None" and not s["spec"].get("publishNotReadyAddresses")
               and any(matches({"matchLabels": s["spec"]["selector"]}, labels) for labels in routers)}
    for name, deployment, container in servers(resources):
        if role_of(deployment) == "router":
            continue
        if flag(container, "ready-routers-dns") not in listing:
            yield f"{name}: --ready-routers-dns={flag(container, 'ready-routers-dns')}, expected one of {sorted(listing)}"
        if flag(container, "ready-routers") is not None:
            yield f"{name}: --ready-routers is a number, which does not follow the routers"


def services(resources):
    deployments = servers(resources)
    found = {}
    for service in of_kind(resources, "Service"):
        name, spec = service["metadata"]["name"], service["spec"]
        chosen = [c for _, d, c in deployments
                  if matches({"matchLabels": spec["selector"]}, d["spec"]["template"]["metadata"]["labels"])]
        if len(chosen) != 1:
            yield f"Service {name} selects {len(chosen)} Deployments, expected 1"
            continue
        ports = {p["name"]: p["containerPort"] for p in chosen[0]["ports"]}
        for port in spec["ports"]:
            if port["targetPort"] not in ports:
                yield f"Service {name}: no port {port['targetPort']} in its pods"
        found[name] = spec
        for port in chosen[0]["ports"]:
            listens = {"grpc": "listen", "http": "http-listen", "metrics": "metrics-listen"}[port["name"]]
            if flag(chosen[0], listens) != f"0.0.0.0:{port['containerPort']}":
                yield f"Service {name}: port {port['name']} is not that of --{listens}"
    for name, _, container in deployments:
        for dns in ("prefill-dns", "decode-dns"):
            address = flag(container, dns)
            if address is None:
                continue
            host, _, port = address.partition(":")
            spec = found.get(host)
            if spec is None or spec.get("clusterIP") != "None" or not spec.get("publishNotReadyAddresses"):
                yield f"{name}: --{dns} names no headless Service with all addresses"
            elif f"{spec['ports'][0]['port']}" != port or not host.endswith(dns[:-4]):
                yield f"{name}: --{dns} is {address}"


def network(resources):
    """Who may connect to whom, by the policies; kubelets aside."""
    labels = {role_of(d): d["spec"]["template"]["metadata"]["labels"] for _, d, _ in servers(resources)}
    policies = of_kind(resources, "NetworkPolicy")

    def allows(direction, peer_key, here, there, port):
        of_here = [p["spec"] for p in policies if direction.capitalize() in p["spec"]["policyTypes"]
                   and matches(p["spec"]["podSelector"], labels[here])]
        if not of_here:
            return True
        for rule in (r for spec in of_here for r in spec.get(direction, [])):
            ports = [p["port"] for p in rule.get("ports", [])]
            peers = rule.get(peer_key)
            reached = peers is None or any(
                matches(p["podSelector"], labels[there]) if there in labels and "namespaceSelector" not in p
                else there not in labels and p.get("namespaceSelector", {}).get("matchLabels")
                == {"kubernetes.io/metadata.name": there} for p in peers)
            if reached and (not ports or port in ports):
                return True
        return False

    monitored = bool(of_kind(resources, "PodMonitor"))
    workers = [c for _, d, c in servers(resources) if role_of(d) != "router"]
    fetches = any(flag(c, "kv-fetch") is not None for c in workers)
    linked = any(flag(c, "kv-transport") == "nccl" for c in workers)
    callers = {namespace for kind, namespace in CONTROLLERS.items() if of_kind(resources, kind)}
    for here in (*labels, "elsewhere", MONITORING, *CONTROLLERS.values()):
        for there in labels:
            for port in ("grpc", "http", "metrics"):
                wanted = (there == "router" and port in ("grpc", "http") and (not callers or here in callers)
                          or (here, there, port) in {("router", "prefill", "grpc"), ("router", "decode", "grpc"),
                                                     ("decode", "prefill", "grpc"), ("decode", "decode", "grpc")})
                wanted = wanted and (here not in ROLES or there != "router")  # pods of Baton call no router
                wanted = wanted or (fetches and here == "prefill" and there != "router" and port == "grpc")
                # NCCL's ports are the kernel's to choose.
                wanted = wanted or (linked and here in ("prefill", "decode") and there in ("prefill", "decode"))
                wanted = wanted or (here == MONITORING and port == "metrics" and monitored)
                can = allows("ingress", "from", there, here, port) and (
                    here not in ROLES or allows("egress", "to", here, there, port))
                if can != wanted:
                    yield f"{here} can{'' if can else 'not'} connect to {there} at port {port}"


def egress(resources):
    """Which namespaces beside Baton's pods may connect to, by the policies and by what their flags name."""
    for name, deployment, container in servers(resources):
        named = set()
        for text in (flag(container, "otlp-traces-endpoint") or "", flag(container, "kv-tier") or ""):
            named |= {(namespace, int(port)) for namespace, port in re.findall(r"[\w-]+\.([\w-]+)\.svc:(\d+)", text)}
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        allowed, resolves = set(), False
        for policy in of_kind(resources, "NetworkPolicy"):
            if not matches(policy["spec"]["podSelector"], labels):
                continue
            for rule in policy["spec"].get("egress", []):
                ports = {p["port"] for p in rule.get("ports", [])}
                if "to" not in rule:
                    resolves |= ports == {53}
                    if ports != {53}:
                        yield f"{name}: may connect to anything, by {policy['metadata']['name']}"
                for peer in rule.get("to", []):
                    if "namespaceSelector" in peer:
                        allowed |= {(peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"], p) for p in ports}
        for namespace, port in sorted(named ^ allowed):
            yield f"{name}: {'cannot' if (namespace, port) in named else 'may'} connect to {namespace} at port {port}"
        if (named or flag(container, "decode-dns") or flag(container, "ready-routers-dns")) and not resolves:
            yield f"{name}: no name server can be asked"


def devices(resources):
    for name, deployment, container in servers(resources):
        spec = deployment["spec"]["template"]["spec"]
        gpus = container["resources"]["limits"].get("nvidia.com/gpu")
        device = flag(container, "device") or "cpu"
        if (gpus is not None) != device.startswith("cuda"):
            yield f"{name}: --device={device} with {gpus} GPUs"
        if gpus is None and "cuda" in container["image"]:
            yield f"{name}: has an image for GPUs, but no GPU"
        if gpus and (not spec.get("tolerations") or not spec.get("affinity")
                     or "/dev/shm" not in str(container["volumeMounts"])):
            yield f"{name}: GPU nodes need a toleration, an affinity and /dev/shm"


CHECKS = (security, memory, volumes, probes, drain, rollout, readiness, services, network, egress, devices)


def breaches(resources):
    return [breach for check in CHECKS for breach in check(resources)]
