"""Hosts on one machine: a network namespace each, joined by a bridge, with a name server, policies, links that are cut or
slow, and virtual addresses. All of it lives in namespaces of the calling process and ends with it.

Needs root (or CAP_SYS_ADMIN and CAP_NET_ADMIN), iproute2, nftables and dnsmasq. The kernel here lacks netem: links can be
cut and throttled, not delayed.
"""

import ipaddress
import os
import signal
import subprocess
import sys
from pathlib import Path

NODE = "10.244.0.1"  # the bridge: the machine itself, where the kubelet runs and the name server listens
HOSTS = ipaddress.ip_network("10.244.0.0/16")
VIRTUAL = ipaddress.ip_network("10.96.0.0/16")
DOMAIN = "cluster.local"
_INSIDE = "BATON_TEST_NAMESPACES"
SKIPPED = 77  # the exit code that ctest takes for a test that could not run


def enter_namespaces():
    """Runs the program again in namespaces where it may do all this. Returns only inside."""
    if _INSIDE in os.environ:
        return
    unshare = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    probe = subprocess.run([*unshare, "sh", "-c", "mount -t tmpfs tmpfs /run && nft list tables"], capture_output=True, text=True,
                           check=False)
    if probe.returncode != 0:
        print(f"{sys.argv[0]}: skipped, no namespaces or no firewall in them: {probe.stderr.strip()}", file=sys.stderr)
        sys.exit(SKIPPED)
    os.environ[_INSIDE] = "1"
    os.execvp(unshare[0], [*unshare, sys.executable, *sys.argv])


def run(*words, stdin=None):
    result = subprocess.run(words, input=stdin, capture_output=True, text=True, timeout=60, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, words))}: {result.stderr}{stdin or ''}")
    return result.stdout


class Host:
    """One address on the network."""

    def __init__(self, name, address):
        self.name, self.address = name, address
        self.inside = ["nsenter", f"--net=/run/netns/{name}"]  # before a command that runs on the host

    def nft(self, table, rules=""):
        """Replaces a table of the host's firewall, at once."""
        run(*self.inside, "nft", "-f", "-", stdin=f"table inet {table} {{}}\ndelete table inet {table}\n{rules}")

    def cut(self, *others):
        """Drops packets to the others and from them; of everyone but the node if none is named. Neither end notices: no
        connection is closed."""
        what = f"{{ {', '.join(other.address for other in others)} }}" if others else f"!= {NODE}"
        self.nft("cut", "table inet cut {\n"
                 f"chain sent {{ type filter hook output priority -10; oif lo accept; ip daddr {what} drop; }}\n"
                 f"chain received {{ type filter hook input priority -10; iif lo accept; ip saddr {what} drop; }}\n}}\n")

    def heal(self):
        self.nft("cut")

    def throttle(self, rate, burst="64kbit"):
        """Bounds what the host sends, such as "1mbit"; None: no bound. A fast link needs a larger burst."""
        run("tc", "-n", self.name, "qdisc", "del" if rate is None else "replace", "dev", "eth0", "root",
            *([] if rate is None else ["tbf", "rate", rate, "burst", burst, "latency", "400ms"]))


class Network:
    """The hosts and their name server. `folder` holds files that change."""

    def __init__(self, folder: Path):
        self._folder = folder
        self.hosts = {}
        self._free = (str(address) for address in HOSTS.hosts() if str(address) != NODE)
        self._virtual = (str(address) for address in VIRTUAL.hosts())
        resolv = Path(os.path.realpath("/etc/resolv.conf"))
        run("mount", "-t", "tmpfs", "tmpfs", "/run")
        resolv.parent.mkdir(parents=True, exist_ok=True)
        resolv.touch()
        Path("/run/netns").mkdir()
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "node", "type", "bridge")
        run("ip", "address", "add", f"{NODE}/{HOSTS.prefixlen}", "dev", "node")
        run("ip", "link", "set", "node", "up")
        self.resolv_conf = folder / "resolv.conf"
        self.resolv_conf.write_text(f"nameserver {NODE}\nsearch baton.svc.{DOMAIN} svc.{DOMAIN} {DOMAIN}\noptions ndots:5\n",
                                    encoding="utf-8")
        run("mount", "--bind", self.resolv_conf, resolv)
        self._names = folder / "names"
        self._names.touch()
        self._name_server = None
        self.start_name_server()

    def close(self):
        self.stop_name_server()

    def start_name_server(self):
        with open(self._folder / "dnsmasq.log", "a", encoding="utf-8") as log:
            self._name_server = subprocess.Popen(
                ["dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--user=root",
                 "--pid-file=", "--log-facility=-", f"--addn-hosts={self._names}", f"--listen-address={NODE}",
                 "--bind-interfaces", f"--local=/{DOMAIN}/", "--local-ttl=1"], stdout=log, stderr=subprocess.STDOUT)

    def stop_name_server(self):
        self._name_server.kill()
        self._name_server.wait()

    def name(self, names):
        """What each name resolves to: {name: addresses}."""
        lines = [f"{address} {name}.{DOMAIN}\n" for name, addresses in sorted(names.items()) for address in addresses]
        text = "".join(lines)
        if text != self._names.read_text(encoding="utf-8"):
            new = self._folder / "names.new"
            new.write_text(text, encoding="utf-8")
            new.replace(self._names)
            self._name_server.send_signal(signal.SIGHUP)

    def add(self, name):
        host = Host(name, next(self._free))
        port = f"v{host.address.replace('.', '')[5:]}"  # at most 15 characters
        run("ip", "netns", "add", name)
        run("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "link", "set", port, "master", "node", "up")
        run("ip", "-n", name, "address", "add", f"{host.address}/{HOSTS.prefixlen}", "dev", "eth0")
        for link in ("eth0", "lo"):
            run("ip", "-n", name, "link", "set", link, "up")
        run("ip", "-n", name, "route", "add", "default", "via", NODE)
        self.hosts[name] = host
        return host

    def remove(self, host):
        del self.hosts[host.name]
        run("ip", "netns", "delete", host.name)

    def virtual_address(self):
        return next(self._virtual)


def forward(host, services):
    """On one host, connections to virtual addresses go to one of their endpoints, drawn for each: what kube-proxy does.
    `services`: (address, port) -> [(address, port)]. Without endpoints a connection is refused."""
    rules, refused = [], []
    for (address, port), endpoints in services.items():
        if endpoints:
            choices = ", ".join(f"{i} : {to} . {to_port}" for i, (to, to_port) in enumerate(endpoints))
            rules.append(f"ip daddr {address} tcp dport {port} dnat ip to numgen random mod {len(endpoints)} map {{ {choices} }}")
        else:
            refused.append(f"ip daddr {address} tcp dport {port} reject with tcp reset")
    run(*host.inside, "nft", "-f", "-", stdin="table ip services {}\ndelete table ip services\ntable ip services {\n"
        "chain nat { type nat hook output priority -100;\n" + "\n".join(rules) + "\n}\n"
        "chain refuse { type filter hook output priority 0;\n" + "\n".join(refused) + "\n}\n}\n")


