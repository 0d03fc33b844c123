"""Starts servers of other namespaces, to which components of deploy/k8s connect, each on a host of its own."""

import asyncio
import subprocess
import sys

import hosts
from hosts_cluster import REDIS_PASSWORD

# This program takes whatever is posted, and prints the address that it came from.
COLLECTOR = """
import http.server, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        print(self.client_address[0], flush=True)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

http.server.ThreadingHTTPServer(("0.0.0.0", int(sys.argv[1])), Handler).serve_forever()
"""


class Collector:
    """otel-collector.monitoring.svc."""
    PORT = 4318

    def __init__(self, cluster):
        self.host = cluster.stranger("collector", "monitoring", service="otel-collector.monitoring.svc")
        self._path = cluster.folder / "collector.out"
        with open(self._path, "w", encoding="utf-8") as out, open(cluster.folder / "collector.log", "w", encoding="utf-8") as log:
            self._process = subprocess.Popen([*self.host.inside, sys.executable, "-c", COLLECTOR, str(self.PORT)],
                                             stdout=out, stderr=log)

    def callers(self):
        """The addresses that spans came from."""
        return set(self._path.read_text(encoding="ascii").split())

    def close(self):
        self._process.kill()
        self._process.wait()


class Redis:
    """redis.redis.svc."""
    PORT = 6379

    def __init__(self, cluster):
        self.host = cluster.stranger("redis", "redis", service="redis.redis.svc")
        with open(cluster.folder / "redis.log", "w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [*self.host.inside, "redis-server", "--port", str(self.PORT), "--bind", "0.0.0.0", "--save", "",
                 "--dir", cluster.folder, "--requirepass", REDIS_PASSWORD], stdout=log, stderr=subprocess.STDOUT)

    async def callers(self):
        """The addresses that are connected."""
        clients = await asyncio.to_thread(hosts.run, *self.host.inside, "redis-cli", "-a", REDIS_PASSWORD, "--no-auth-warning",
                                          "client", "list")
        return {word.removeprefix("addr=").partition(":")[0] for word in clients.split()
                if word.startswith("addr=") and not word.startswith("addr=127.")}

    def close(self):
        self._process.kill()
        self._process.wait()
