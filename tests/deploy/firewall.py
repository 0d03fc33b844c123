"""Makes the firewall of one host, in nftables, of NetworkPolicies, as a network plugin does. A pod that a policy selects for
a direction is closed in that direction but for what its policies allow; packets that none allows are dropped. It raises
NotImplementedError for what it does not know."""

from dataclasses import dataclass

import hosts
from policies import matches

RULE_KEYS = {"Ingress": {"from", "ports"}, "Egress": {"to", "ports"}}


@dataclass(frozen=True)
class End:
    """A pod as policies see it. Its address is that of its host."""
    address: str
    namespace: str
    labels: dict
    ports: dict  # The name of each port of its containers leads to its number.


def rules(own, policies, ends):
    """Returns the table `allowed` of the host of `own`, for Host.nft(). `ends` has all pods that there are."""
    # A policy is for the pods of its own namespace.
    policies = [policy for policy in policies if policy["metadata"]["namespace"] == own.namespace
                and matches(policy["spec"]["podSelector"], own.labels)]
    # The node is where the kubelet probes from, and policies do not hold for it.
    chains = [_chain(own, policies, ends, "Ingress", "from",
                     f"hook input priority 0; policy drop;\nip saddr {hosts.NODE} accept; iif lo"),
              _chain(own, policies, ends, "Egress", "to", "hook output priority 0; policy drop;\noif lo")]
    return "table inet allowed {\n" + "".join(chains) + "}\n"


def _chain(own, policies, ends, direction, peers, head):
    chosen = [policy for policy in policies if direction in policy["spec"]["policyTypes"]]
    if not chosen:
        return ""
    lines = {line for policy in chosen for rule in policy["spec"].get(direction.lower()) or []
             for line in _lines(own, policy["metadata"]["namespace"], ends, direction, peers, rule)}
    return (f"chain {direction.lower()} {{ type filter {head} accept;\nct state established,related accept;\n"
            + "".join(sorted(lines)) + "}\n")


def _lines(own, namespace, ends, direction, peers, rule):
    """Yields the lines that let through what a rule of a policy allows."""
    if not set(rule) <= RULE_KEYS[direction]:
        raise NotImplementedError(f"rule {rule}")
    side = "saddr" if direction == "Ingress" else "daddr"
    others = [end for end in ends if any(_fits(peer, namespace, end) for peer in rule[peers])] if rule.get(peers) else [None]
    for other in others:
        where = f"ip {side} {other.address} " if other else ""
        # A port's name is that of the pod that is called.
        called = own if direction == "Ingress" else other
        if not rule.get("ports"):
            yield f"{where}accept;\n"
        for port in rule.get("ports") or []:
            if not set(port) <= {"port", "protocol"}:
                raise NotImplementedError(f"port {port}")
            number = port["port"]
            if isinstance(number, str):
                if called is None:
                    raise NotImplementedError(f"the port {number} of anything")
                number = called.ports.get(number)  # a pod that has none of this name has nothing to be called at
            if number is not None:
                yield f"{where}{port.get('protocol', 'TCP').lower()} dport {number} accept;\n"


def _fits(peer, namespace, end):
    if not peer or not set(peer) <= {"podSelector", "namespaceSelector"}:
        raise NotImplementedError(f"peer {peer}")
    if "namespaceSelector" in peer:
        if not matches(peer["namespaceSelector"], {"kubernetes.io/metadata.name": end.namespace}):
            return False
    elif end.namespace != namespace:
        return False
    return matches(peer.get("podSelector", {}), end.labels)
