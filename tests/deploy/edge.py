"""What the components `ingress` and `gateway` promise: how clients outside reach the routers. Each check yields breaches."""

import re

from policies import flag, of_kind, role_of, servers

LONGEST_SILENCE_S = 3600  # of an answer whose first token waits
CERTIFICATE = "baton-clients-tls"  # the Secret that docs/operations.md makes
NEVER = "0s"


def routers_ports(resources):
    """(Service, port by name or number) -> the name of the routers' port that is behind it."""
    return {(s["metadata"]["name"], key): port["targetPort"] for s in of_kind(resources, "Service")
            if s["spec"]["selector"].get("app.kubernetes.io/component") == "router" and s["spec"].get("clusterIP") != "None"
            for port in s["spec"]["ports"] for key in (port["name"], port["port"])}


def ingresses(resources):
    ports = routers_ports(resources)
    for ingress in of_kind(resources, "Ingress"):
        name, notes, spec = ingress["metadata"]["name"], ingress["metadata"]["annotations"], ingress["spec"]
        backends = {(b["name"], b["port"]["name"]) for rule in spec["rules"] for path in rule["http"]["paths"]
                    for b in [path["backend"]["service"]]}
        if {ports.get(backend) for backend in backends} not in ({"http"}, {"grpc"}):
            yield f"Ingress {name}: leads to {sorted(backends)}, expected one port of the routers"
            continue
        service, kind = next(iter(backends))
        if notes.get("nginx.org/grpc-services") != (service if kind == "grpc" else None):
            yield f"Ingress {name}: speaks {'no gRPC' if kind == 'grpc' else 'gRPC'} to port {kind}"
        if kind == "http" and notes.get("nginx.org/proxy-buffering") != "False":
            yield f"Ingress {name}: tokens wait in buffers"
        for timeout in ("proxy-read-timeout", "proxy-send-timeout"):
            if not re.fullmatch(r"\d+s", notes.get(f"nginx.org/{timeout}", "")) or \
                    int(notes[f"nginx.org/{timeout}"][:-1]) < LONGEST_SILENCE_S:
                yield f"Ingress {name}: {timeout} is {notes.get(f'nginx.org/{timeout}')}"
        if notes.get("nginx.org/client-max-body-size") != "0":
            yield f"Ingress {name}: refuses requests that routers take"
        hosts = {rule["host"] for rule in spec["rules"]}
        if hosts != {host for tls in spec["tls"] for host in tls["hosts"]}:
            yield f"Ingress {name}: a host has no certificate"
        if {tls["secretName"] for tls in spec["tls"]} != {CERTIFICATE}:
            yield f"Ingress {name}: its certificate is not in {CERTIFICATE}"


def protocols(resources):
    """A controller that goes by the Service speaks to each port what it speaks."""
    if of_kind(resources, "Ingress") or of_kind(resources, "Gateway"):
        for service in of_kind(resources, "Service"):
            if service["metadata"]["name"] == "baton-router":
                found = {p["name"]: p.get("appProtocol") for p in service["spec"]["ports"]}
                if found != {"grpc": "kubernetes.io/h2c", "http": "http"}:
                    yield f"Service baton-router: its protocols are {found}"


def routes(resources):
    ports = routers_ports(resources)
    listeners = {(g["metadata"]["name"], one["name"]): one for g in of_kind(resources, "Gateway") for one in g["spec"]["listeners"]}
    for (name, _), listener in listeners.items():
        if listener["protocol"] != "HTTPS" or listener["tls"]["certificateRefs"] != [{"name": CERTIFICATE}]:
            yield f"Gateway {name}: listener {listener['name']} has no TLS by {CERTIFICATE}"
    of_http, of_grpc = (of_kind(resources, kind) for kind in ("HTTPRoute", "GRPCRoute"))
    for route in (*of_http, *of_grpc):
        kind, spec = route["kind"], route["spec"]
        for parent in spec["parentRefs"]:
            listener = listeners.get((parent["name"], parent["sectionName"]))
            if listener is None or spec["hostnames"] != [listener["hostname"]]:
                yield f"{kind}: no listener for {spec['hostnames']}"
        for rule in spec["rules"]:
            for backend in rule["backendRefs"]:
                if ports.get((backend["name"], backend["port"])) != ("http" if kind == "HTTPRoute" else "grpc"):
                    yield f"{kind}: leads to {backend}"
            if kind == "HTTPRoute" and rule.get("timeouts") != {"request": NEVER, "backendRequest": NEVER}:
                yield f"{kind}: ends long answers, timeouts are {rule.get('timeouts')}"
    if {h for r in of_http for h in r["spec"]["hostnames"]} & {h for r in of_grpc for h in r["spec"]["hostnames"]}:
        yield "an HTTPRoute and a GRPCRoute share a host"
    unlimited = {target["name"] for p in of_kind(resources, "BackendTrafficPolicy") for target in p["spec"]["targetRefs"]
                 if target["kind"] == "GRPCRoute" and p["spec"]["timeout"]["http"]["requestTimeout"] == NEVER}
    for route in of_grpc:
        if route["metadata"]["name"] not in unlimited:
            yield f"GRPCRoute {route['metadata']['name']}: ends long answers: no BackendTrafficPolicy"


def plaintext(resources):
    """The controllers of these components speak no TLS to routers."""
    if of_kind(resources, "Ingress") or of_kind(resources, "Gateway"):
        for name, deployment, container in servers(resources):
            if role_of(deployment) == "router" and flag(container, "tls-cert"):
                yield f"{name}: serves TLS, which the controller does not speak to it"


def breaches(resources):
    return [breach for check in (ingresses, protocols, routes, plaintext) for breach in check(resources)]
