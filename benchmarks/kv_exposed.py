#!/usr/bin/env python3
"""Runs kv_exposed_bench between two hosts in network namespaces, over a link of each given rate.

    benchmarks/kv_exposed.py build/cpu-release/bin/kv_exposed_bench [--gbit 1,10] [--layout 0.5b] [flags of kv_exposed_bench]

Needs what tests/deploy/hosts.py needs: root and iproute2.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "deploy"))
import hosts  # noqa: E402


def measure(network, binary, gbit, layout, flags):
    sender, receiver = network.hosts["sender"], network.hosts["receiver"]
    sender.throttle(f"{gbit}gbit", burst="256kb")
    address = f"{sender.address}:7000"
    server = subprocess.Popen([*sender.inside, binary, "--listen", address, "--layout", layout], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    server.stdout.readline()  # it is ready
    subprocess.run([*receiver.inside, binary, "--address", address, "--gbit", gbit, "--layout", layout, *flags], check=True)
    server.stdin.close()
    server.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--gbit", default="1,10", help="rates of the link")
    parser.add_argument("--layout", default="0.5b", help="shape of the KV")
    arguments, flags = parser.parse_known_args()
    hosts.enter_namespaces()
    with tempfile.TemporaryDirectory() as folder:
        network = hosts.Network(Path(folder))
        for name in ("sender", "receiver"):
            network.add(name)
        for gbit in arguments.gbit.split(","):
            measure(network, arguments.binary, gbit, arguments.layout, flags)
        network.close()


if __name__ == "__main__":
    main()
