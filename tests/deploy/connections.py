"""Which connections open between the hosts of a cluster, found by trying them."""

import asyncio
import json
import subprocess
import sys

TRIED_S = 2  # A connection whose packets are dropped is silent for ever.
# This program runs on a host: it reads [[address, port], ...] and says what becomes of each connection.
PROBE = f"""
import asyncio, json, sys

async def tried(address, port):
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(address, port), {TRIED_S})
    except ConnectionRefusedError:
        return "refused"
    except (OSError, asyncio.TimeoutError):
        return "silent"
    writer.close()
    return "open"

async def main():
    print(json.dumps(await asyncio.gather(*(tried(*target) for target in json.load(sys.stdin)))))

asyncio.run(main())
"""


async def _from(host, targets):
    process = await asyncio.create_subprocess_exec(*host.inside, sys.executable, "-c", PROBE, stdin=subprocess.PIPE,
                                                   stdout=subprocess.PIPE)
    output, _ = await process.communicate(json.dumps(targets).encode())
    if process.returncode != 0:
        raise RuntimeError(f"the probe on {host.name} ended with {process.returncode}")
    return json.loads(output)


async def opened(sources, targets):
    """Tries all connections from `sources`, (name, host), to `targets`, (name, host, {port's name: number}), and returns the
    (name, name, port's name) of those that open. It raises AssertionError if one is refused: nothing listens there, so it says
    nothing about firewalls."""
    found = set()
    tried = [[(target, port, other.address, number) for target, other, ports in targets if other is not host
              for port, number in ports.items()] for _, host in sources]
    outcomes = await asyncio.gather(*(_from(host, [[address, number] for _, _, address, number in connections])
                                      for (_, host), connections in zip(sources, tried)))
    for (source, _), connections, ends in zip(sources, tried, outcomes):
        for (target, port, _, _), end in zip(connections, ends):
            assert end != "refused", f"nothing listens at port {port} of {target}"
            if end == "open":
                found.add((source, target, port))
    return found
