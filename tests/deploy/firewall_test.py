#!/usr/bin/env python3
"""firewall.py: what policies open in the firewall of a host, and what it does not take."""

import unittest

import firewall

ROUTER = firewall.End("10.0.0.1", "baton", {"role": "router"}, {"grpc": 1, "http": 2})
WORKER = firewall.End("10.0.0.2", "baton", {"role": "worker"}, {"grpc": 3})
OTHER = firewall.End("10.0.0.3", "baton", {"role": "worker"}, {"grpc": 4})
ELSEWHERE = firewall.End("10.0.0.4", "monitoring", {"role": "router"}, {})
ENDS = (ROUTER, WORKER, OTHER, ELSEWHERE)
WORKERS = {"podSelector": {"matchLabels": {"role": "worker"}}}


def opened(own, *specs, namespace="baton"):
    """The lines of each chain of the host that let a packet through, by the name of the chain."""
    policies = [{"metadata": {"namespace": namespace}, "spec": {"podSelector": {}, **spec}} for spec in specs]
    chains = {}
    for line in firewall.rules(own, policies, ENDS).splitlines():
        if line.startswith("chain"):
            chains[line.split()[1]] = lines = []
        elif line.startswith(("ip ", "tcp", "udp", "accept")) and firewall.hosts.NODE not in line:
            lines.append(line.removesuffix(" accept;"))
    return chains


def ingress(*rules):
    return {"policyTypes": ["Ingress"], "ingress": list(rules)}


def egress(*rules):
    return {"policyTypes": ["Egress"], "egress": list(rules)}


class FirewallTest(unittest.TestCase):
    def test_a_pod_that_no_policy_selects_is_open(self):
        self.assertEqual(opened(WORKER), {})
        self.assertEqual(opened(WORKER, {**ingress(), "podSelector": {"matchLabels": {"role": "router"}}}), {})
        self.assertEqual(opened(WORKER, ingress(), namespace="another"), {})

    def test_what_is_not_allowed_is_dropped_in_the_directions_that_are_named(self):
        self.assertEqual(opened(WORKER, ingress()), {"ingress": []})
        self.assertEqual(opened(WORKER, {"policyTypes": ["Ingress", "Egress"]}), {"ingress": [], "egress": []})
        self.assertIn("hook input priority 0; policy drop;", firewall.rules(WORKER, [{"metadata": {"namespace": "baton"}, "spec": {
            "podSelector": {}, **ingress()}}], ENDS))

    def test_policies_add_up(self):
        self.assertEqual(opened(WORKER, ingress({"from": [WORKERS], "ports": [{"port": 9}]}), ingress({"ports": [{"port": 8}]})),
                         {"ingress": ["ip saddr 10.0.0.2 tcp dport 9", "ip saddr 10.0.0.3 tcp dport 9", "tcp dport 8"]})

    def test_a_named_port_is_that_of_the_pod_that_is_called(self):
        grpc = [{"port": "grpc"}]
        self.assertEqual(opened(WORKER, ingress({"ports": grpc})), {"ingress": ["tcp dport 3"]})
        self.assertEqual(opened(ROUTER, egress({"to": [WORKERS], "ports": grpc})),
                         {"egress": ["ip daddr 10.0.0.2 tcp dport 3", "ip daddr 10.0.0.3 tcp dport 4"]})
        self.assertEqual(opened(WORKER, ingress({"ports": [{"port": "http"}]})), {"ingress": []})

    def test_peers(self):
        anything = {"podSelector": {}}
        monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
        for peers, addresses in (([anything], "123"), ([monitoring], "4"), ([{"namespaceSelector": {}}], "1234"),
                                 ([{**monitoring, **WORKERS}], ""), ([WORKERS, monitoring], "234")):
            self.assertEqual(opened(WORKER, egress({"to": peers})), {"egress": [f"ip daddr 10.0.0.{n}" for n in addresses]}, peers)

    def test_protocols_and_rules_without_ports(self):
        self.assertEqual(opened(WORKER, egress({"ports": [{"port": 53, "protocol": "UDP"}]})), {"egress": ["udp dport 53"]})
        self.assertEqual(opened(WORKER, egress({})), {"egress": ["accept;"]})

    def test_what_is_not_known_is_not_ignored(self):
        for rule in ({"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}, {"to": [{}]}, {"from": []},
                     {"ports": [{"port": 1, "endPort": 9}]}, {"ports": [{"port": "grpc"}]}):
            with self.assertRaises(NotImplementedError, msg=rule):
                opened(WORKER, egress(rule))


if __name__ == "__main__":
    unittest.main()
