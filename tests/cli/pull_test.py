#!/usr/bin/env python3
"""`baton pull` against a Hub on this machine: two HTTP servers, of which the second has the large files.

  pull_test.py --baton FILE --root DIR
"""

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
import seed  # noqa: E402

ARGUMENTS = None
COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_secret"
PATIENCE_S = 60


def git_hash(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class File:
    """A file of the fake model: what the Hub says of it, and what it sends."""

    def __init__(self, content, large=False):
        self.content = self.sent = content
        self.large = large  # on the second server
        self.hash = hashlib.sha256(content).hexdigest() if large else git_hash(content)
        self.commit = COMMIT
        self.breaks = 0  # so many answers end in the middle
        self.ranges = True


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub = self.server.hub
        hub.requests.append((self.server.name, self.command, self.path, dict(self.headers)))
        if self.server.name == "hub" and hub.status != 200:
            return self.answer(hub.status, b"no\n")
        if self.path.startswith("/api/models/"):
            names = [{"rfilename": name} for name in [*hub.files, *hub.more_names]]
            if self.path != f"/api/models/org/m/revision/{hub.revision}":
                return self.answer(404, b"no revision")
            return self.answer(200, json.dumps({"sha": COMMIT, "siblings": names}).encode())
        name = self.path.split(f"/{COMMIT}/")[-1].split("?")[0]
        file = hub.files[name]
        if self.server.name == "hub" and file.large:
            headers = {"X_Linked_ETag": f'"{file.hash}"', "X_Linked_Size": str(len(file.content)),
                       "X_Repo_Commit": file.commit}
            if hub.plain_redirect:
                headers = {}
            location = f"{hub.url('store')}/{COMMIT}/{name}?signature=1"
            return self.answer(302, Location=location if hub.location is None else hub.location, **headers)
        if self.server.name == "hub" and not self.path.startswith("/moved/"):
            return self.answer(307, Location=f"/moved/{COMMIT}/{name}")  # as the Hub does for small files
        return self.send_content(file)

    def send_content(self, file):
        begin, status, headers = 0, 200, {"ETag": f'W/"{file.hash}"', "X_Repo_Commit": file.commit}
        if "Range" in self.headers and file.ranges:
            begin = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
            status = 206
            headers["Content_Range"] = f"bytes {begin}-{len(file.sent) - 1}/{len(file.sent)}"
        body = file.sent[begin:]
        if self.command == "GET" and file.breaks > 0:
            file.breaks -= 1
            self.answer(status, body[: len(body) // 2], Content_Length=str(len(body)), **headers)
            self.close_connection = True
            return None
        return self.answer(status, body, **headers)


class FakeHub:
    def __init__(self):
        self.requests = []
        self.status = 200
        self.revision = "main"
        self.more_names = []
        self.plain_redirect = False
        self.location = None  # of large files, instead of the second server
        self.files = {
            "config.json": File((ARGUMENTS.root / "models/demo/config.json").read_bytes()),
            "tokenizer.json": File((ARGUMENTS.root / "models/demo/tokenizer.json").read_bytes()),
            "model.safetensors": File(seed.generator("weights").randbytes(200_000), large=True),
            "README.md": File(b"text"),
            "consolidated.safetensors": File(b"other weights", large=True),
            "original/config.json": File(b"{}"),
        }
        self.servers = {}
        for name in ("hub", "store"):
            server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
            server.daemon_threads = True
            server.name, server.hub = name, self
            self.servers[name] = server
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()

    def url(self, name):
        return f"http://127.0.0.1:{self.servers[name].server_address[1]}"

    def close(self):
        for server in self.servers.values():
            server.shutdown()
            server.server_close()


class PullTest(unittest.TestCase):
    def setUp(self):
        self.hub = FakeHub()
        self.addCleanup(self.hub.close)
        self.weights = self.hub.files["model.safetensors"]
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.home = Path(folder.name)
        self.folder = self.home / "hub/models--org--m"
        self.blob = self.folder / "blobs" / self.weights.hash
        self.partial = self.blob.with_name(self.blob.name + ".incomplete")
        self.environment = {"PATH": os.environ["PATH"], "HF_HOME": str(self.home),
                            "HF_ENDPOINT": self.hub.url("hub"), "HF_TOKEN": TOKEN}

    def run_baton(self, *arguments):
        return subprocess.run([ARGUMENTS.baton, *arguments], env=self.environment, capture_output=True,
                              text=True, timeout=PATIENCE_S, check=False)

    def pull(self, *flags):
        result = self.run_baton("pull", "org/m", "--json", *flags)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def refused(self, *expected, code=1):
        result = self.run_baton("pull", "org/m")
        self.assertEqual(result.returncode, code, result.stderr)
        for text in expected:
            self.assertIn(text, result.stderr)
        self.assertNotIn(TOKEN, result.stderr)
        self.assertFalse((self.folder / "refs/main").exists())
        self.assertFalse(self.blob.exists())

    def test_fills_the_cache_that_others_read(self):
        pulled = self.pull()
        snapshot = self.folder / "snapshots" / COMMIT
        self.assertEqual(pulled["path"], str(snapshot))
        self.assertEqual({f["name"] for f in pulled["files"]},
                         {"config.json", "tokenizer.json", "model.safetensors"})
        self.assertEqual(pulled["downloaded_bytes"], sum(f["bytes"] for f in pulled["files"]))
        for file in pulled["files"]:
            link = snapshot / file["name"]
            self.assertEqual(os.readlink(link), f"../../blobs/{file['hash']}")
            self.assertEqual(link.read_bytes(), self.hub.files[file["name"]].content)
        self.assertEqual((self.folder / "refs/main").read_text(encoding="utf-8"), COMMIT)
        self.assertEqual(list(self.folder.rglob("*.incomplete")) + list(self.folder.rglob("*.tmp")), [])
        # The token goes to the Hub alone.
        for server, _, _, headers in self.hub.requests:
            self.assertEqual(headers.get("Authorization"),
                             f"Bearer {TOKEN}" if server == "hub" else None)
        self.assertIn("store", {server for server, *_ in self.hub.requests})
        # What is there is not downloaded again; a text for people is the path.
        self.assertEqual(self.pull()["downloaded_bytes"], 0)
        self.assertEqual(self.run_baton("pull", "org/m").stdout, f"{snapshot}\n")
        # Found by Baton (which plans without weights), and by huggingface_hub without a network.
        (snapshot / "model.safetensors").unlink()
        plan = self.run_baton("plan", "--model", "org/m", "--gpu", "t4", "--context", "1024",
                              "--prompt-tokens", "512")
        self.assertEqual(plan.returncode, 0, plan.stderr)
        found = subprocess.run(
            [sys.executable, "-c", "from huggingface_hub import snapshot_download as s; print(s('org/m'))"],
            env={**self.environment, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True,
            timeout=PATIENCE_S, check=False)
        self.assertEqual(found.stdout, f"{snapshot}\n", found.stderr)

    def test_goes_on_where_an_earlier_download_ended(self):
        self.blob.parent.mkdir(parents=True)
        self.partial.write_bytes(self.weights.content[:150_000])
        pulled = self.pull("--include", "*.safetensors")
        self.assertEqual({f["name"] for f in pulled["files"]},
                         {"model.safetensors", "consolidated.safetensors"})
        self.assertEqual(self.blob.read_bytes(), self.weights.content)
        self.assertIn("bytes=150000-", [h.get("Range") for *_, h in self.hub.requests])

    def test_resumes_an_answer_that_breaks(self):
        self.weights.breaks = 1
        self.pull()
        self.assertEqual(self.blob.read_bytes(), self.weights.content)
        ranges = [h.get("Range") for s, c, _, h in self.hub.requests if s == "store" and c == "GET"]
        self.assertEqual(ranges, [None, "bytes=100000-"])

    def test_starts_again_without_ranges(self):
        self.weights.ranges = False
        self.blob.parent.mkdir(parents=True)
        self.partial.write_bytes(b"x" * 150_000)
        pulled = self.pull("--include", "model.safetensors")
        self.assertEqual(pulled["downloaded_bytes"], len(self.weights.content))
        self.assertEqual(self.blob.read_bytes(), self.weights.content)

    def test_wrong_content_is_dropped(self):
        self.weights.sent = self.weights.content[:-1] + bytes([self.weights.content[-1] ^ 1])
        self.refused("model.safetensors: expected SHA-256 " + self.weights.hash)
        self.assertFalse(self.partial.exists())
        self.weights.sent = self.weights.content
        shutil.rmtree(self.folder)
        config = self.hub.files["config.json"]
        config.sent = config.content[:-1] + b"x"
        self.refused("config.json: expected Git hash " + config.hash)

    def test_more_bytes_than_promised_are_refused(self):
        self.weights.sent = self.weights.content + b"x"
        self.refused("expected 200000 bytes, got more")
        self.assertLessEqual(self.partial.stat().st_size, 200_000)

    def test_names_that_lead_out_are_refused(self):
        for name in ("../x.json", "/tmp/x.json", "a/../../tokenizer.json", "a//b.json", "tokenizer\\x",
                     "..", "", "tokenizer\n.json", "x" * 300):
            self.hub.more_names = [name]
            self.refused("expected file names that stay in the model's directory")
        self.assertFalse(self.folder.exists())

    def test_what_the_hub_must_say(self):
        self.weights.commit = COMMIT[::-1]
        self.refused("expected X-Repo-Commit " + COMMIT)
        self.weights.commit = COMMIT
        self.weights.hash = "../../x"
        self.refused("expected an ETag of 40 or 64 hex digits")
        self.hub.plain_redirect = True
        self.refused("expected X-Linked-ETag beside a redirect to another host")

    def test_refusals_of_the_hub(self):
        for status, text in ((401, "expected a token"), (403, "expected a token"),
                             (404, "expected a model that exists")):
            self.hub.status = status
            self.refused(f"answered {status}: no", text)
        self.hub.status = 503
        self.refused("UNAVAILABLE", "answered 503", code=3)
        self.environment["HF_ENDPOINT"] = "http://127.0.0.1:1"
        self.refused("UNAVAILABLE", code=3)
        self.environment["HF_ENDPOINT"] = "huggingface.co"
        self.refused("expected http:// or https://", code=2)
        self.environment["HF_ENDPOINT"] = "http://127.0.0.1:1"
        self.environment["HF_HUB_OFFLINE"] = "1"
        self.refused("HF_HUB_OFFLINE is set")

    def test_wrong_flags(self):
        for arguments in (["../m"], ["a/b/c"], ["org/m", "--revision", "../x"], ["org/m", "--revision", ""]):
            result = self.run_baton("pull", *arguments)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn("expected", result.stderr)
        self.assertEqual(self.hub.requests, [])

    def test_redirects_that_lead_nowhere_are_refused(self):
        for location in ("evil.example/x", "ftp://127.0.0.1/x", ""):
            self.hub.location = location
            self.refused("expected a redirect to an http URL")

    def test_a_revision_has_its_own_reference(self):
        self.hub.revision = "refs%2Fpr%2F1"
        del self.environment["HF_TOKEN"]
        (self.home / "token").write_text("hf_saved\n", encoding="utf-8")
        self.pull("--revision", "refs/pr/1", "--include", "config.json")
        self.assertEqual((self.folder / "refs/refs/pr/1").read_text(encoding="utf-8"), COMMIT)
        self.assertFalse((self.folder / "refs/main").exists())
        self.assertEqual(self.hub.requests[0][3]["Authorization"], "Bearer hf_saved")

    def test_waits_for_another_download(self):
        lock = self.home / "hub/.locks/models--org--m" / f"{self.weights.hash}.lock"
        lock.parent.mkdir(parents=True)
        with open(lock, "w", encoding="utf-8") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with subprocess.Popen([ARGUMENTS.baton, "pull", "org/m"], env=self.environment, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE) as pulling:
                self.assertIn("another download has the lock", pulling.stderr.readline())
                self.assertFalse(self.blob.exists())
                fcntl.flock(held, fcntl.LOCK_UN)
                pulling.communicate(timeout=PATIENCE_S)
                self.assertEqual(pulling.returncode, 0)
        self.assertTrue(self.blob.exists())


def main():
    global ARGUMENTS
    parser = argparse.ArgumentParser()
    parser.add_argument("--baton", type=Path, required=True)
    parser.add_argument("--root", type=Path, required=True)
    ARGUMENTS = parser.parse_args()
    unittest.main(argv=sys.argv[:1])


if __name__ == "__main__":
    main()
