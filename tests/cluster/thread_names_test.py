#!/usr/bin/env python3
"""Every thread of a cluster's processes has a name that says what it does, which `top -H` and debuggers show. Only the main
thread has the program's name.

    thread_names_test.py BIN_DIR
"""
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts")]
import demo_cluster  # noqa: E402

BIN = Path(sys.argv.pop(1)) if len(sys.argv) > 1 else ROOT / "build/cpu-release/bin"


def read(path):
    """Empty if the thread has ended."""
    try:
        return path.read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def children_of(pid):
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in read(task / "children").split()]
    return found + [grandchild for child in found for grandchild in children_of(child)]


def name_of(task):
    return read(task / "comm")


class ThreadNames(unittest.TestCase):
    def test_all_have_one(self):
        with tempfile.TemporaryDirectory() as directory:
            cluster, addresses = demo_cluster.start_cluster(BIN / "baton", Path(directory), prefill=1, decode=1)
            try:
                demo_cluster.ask(BIN / "baton", addresses[0], "brano kipe")
                programs = {}
                for pid in children_of(cluster.pid):
                    tasks = [task for task in Path(f"/proc/{pid}/task").iterdir()]
                    main = name_of(Path(f"/proc/{pid}/task/{pid}"))
                    names = sorted(name_of(task) for task in tasks if task.name != str(pid))
                    self.assertNotIn(main, names, f"{main}: a thread without a name")
                    programs[main] = names
            finally:
                cluster.terminate()
                cluster.wait(timeout=demo_cluster.PATIENCE_S)
        self.assertIn("worker-loop", programs["baton-prefill-w"])
        self.assertIn("worker-loop", programs["baton-decode-wo"])
        self.assertIn("http", programs["baton-router"])


if __name__ == "__main__":
    unittest.main()
