#!/usr/bin/env python3
"""The second half of scripts/demo --chat: starts a cluster as a user would and holds a chat with it.

    demo_chat.py BIN_DIR MODEL [flag of `baton chat` instead of those below ...]

Without a terminal, each line of standard input is a message, and only the answers are printed.
"""

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from demo_cluster import PATIENCE_S, start_cluster

# The page, and clients that name no sampling, use these: the model's file recommends none, and at temperature 1 it
# writes nonsense. Temperature and top_p are its authors' advice; without the penalty it repeats itself until the
# context is full.
DEFAULTS = '{"temperature": 0.2, "top_p": 0.9, "repetition_penalty": 1.1}'
# A model as small as this one answers noticeably better with activations that are not rounded to 8 bits.
WORKER_FLAGS = ["--dequantize-weights", "--override-generation-config", DEFAULTS]
# A conversation may fill the context of 8,192 tokens, even on a CPU that computes in float32.
KV_CACHE_MEMORY = "400MB"
# The chat is greedy, so that the same question has the same answer for everyone.
CHAT_FLAGS = ["--temperature", "0", "--repetition-penalty", "1.1", "--max-tokens", "256"]


def main():
    binary, model, *chat_flags = sys.argv[1:]
    binary = Path(binary) / "baton"
    with tempfile.TemporaryDirectory(prefix="baton-demo-") as directory:
        cluster, (address, _, http) = start_cluster(binary, Path(directory), *WORKER_FLAGS, model=model,
                                                    kv_cache_memory=KV_CACHE_MEMORY, own_session=True)
        try:
            if sys.stdin.isatty():
                print(f"demo: {Path(model).stem} on two prefill and two decode workers.\n"
                      f"demo: a page with this chat and the state of the cluster: http://{http}/\n"
                      f"demo: in another terminal: {binary} explain --last 3 --address {address}\n"
                      f"demo: Ctrl-D ends the chat and the cluster.\n", flush=True)
            signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for the chat, which cancels the answer
            return subprocess.run([binary, "chat", "--address", address, *(chat_flags or CHAT_FLAGS)],
                                  check=False).returncode
        finally:
            cluster.terminate()
            cluster.wait(timeout=PATIENCE_S)


if __name__ == "__main__":
    sys.exit(main())
