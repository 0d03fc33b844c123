#!/usr/bin/env python3
"""What open connections cost a router: threads, memory, and the time of a request beside them.

    http_connections.py HOST:PORT ROUTER_PID [CONNECTIONS] [--streams]

Opens idle connections, or with --streams one stream each. Prints the process' threads and resident
memory before, with, and after them, and the time of GET /v1/models.
"""
import argparse
import asyncio
import collections
import json
import statistics
import time
import urllib.request


def process(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        fields = dict(line.split(":", 1) for line in status)
    return f"{fields['Threads'].strip()} threads, {int(fields['VmRSS'].split()[0]) / 1024:.1f} MiB"


def models_ms(address):
    begin = time.monotonic()
    with urllib.request.urlopen(f"http://{address}/v1/models", timeout=60) as answer:
        answer.read()
    return (time.monotonic() - begin) * 1e3


async def run(options):
    host, port = options.address.rsplit(":", 1)
    body = json.dumps({"prompt": "x", "max_tokens": 900, "stream": True, "ignore_eos": True}).encode()
    print(f"before: {process(options.pid)}")
    connections = []
    for _ in range(options.connections):
        reader, writer = await asyncio.open_connection(host, int(port))
        if options.streams:
            writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        connections.append((reader, writer))
    if options.streams:
        heads = await asyncio.gather(*(reader.readline() for reader, _ in connections))
        print(dict(collections.Counter(head.split()[1].decode() for head in heads)))
    print(f"with {options.connections}: {process(options.pid)}")
    times = [models_ms(options.address) for _ in range(200)]
    print(f"GET /v1/models: p50 {statistics.median(times):.2f} ms, longest {max(times):.2f} ms")
    for _, writer in connections:
        writer.close()
    await asyncio.gather(*(writer.wait_closed() for _, writer in connections), return_exceptions=True)
    print(f"after: {process(options.pid)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("pid", type=int)
    parser.add_argument("connections", type=int, nargs="?", default=2000)
    parser.add_argument("--streams", action="store_true")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
