#!/usr/bin/env python3
"""`baton up` with API keys, TLS and client certificates, which are made by the commands of docs/security.md.

  up_tls_test.py --bin DIR --root DIR
"""

import argparse
import http.client
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ARGUMENTS = None
PATIENCE_S = 120  # a limit, not an expectation
NAME = "router.example"  # in the router's certificate
PROMPT = "Table:\n buko = 1071\n deha = 9194\nQ deha ?"
ANSWER = "9194"


def make_certificates(directory):
    """Runs the commands of the document that call openssl."""
    document = (ARGUMENTS.root / "docs/security.md").read_text(encoding="utf-8")
    commands = re.search(r"## TLS and mTLS\n\n(.*?)    tls=", document, re.DOTALL).group(1)
    made = subprocess.run(["bash", "-euc", commands], cwd=directory, capture_output=True, text=True,
                          timeout=PATIENCE_S, check=False)
    assert made.returncode == 0, made.stderr


class UpTlsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="baton-up-tls-")
        cls.addClassCleanup(folder.cleanup)
        cls.files = Path(folder.name)
        make_certificates(cls.files)
        made = json.loads(cls.baton("keys", "new", "--tenant", "team-a", "--json").stdout)
        admin = json.loads(cls.baton("keys", "new", "--tenant", "ops", "--admin", "--json").stdout)
        cls.key, cls.admin_key = made["key"], admin["key"]
        (cls.files / "keys").write_text(made["line"] + "\n" + admin["line"] + "\n", encoding="utf-8")
        from demo_cluster import start_cluster
        cluster, (cls.grpc, _, cls.http) = start_cluster(
            ARGUMENTS.bin / "baton", cls.files, "--api-keys", cls.files / "keys",
            "--ssl-certfile", cls.files / "router.pem", "--ssl-keyfile", cls.files / "router.key",
            "--ssl-ca-certs", cls.files / "ca.pem")
        cls.addClassCleanup(cluster.wait, PATIENCE_S)
        cls.addClassCleanup(cluster.terminate)

    @classmethod
    def baton(cls, *arguments, **environment):
        return subprocess.run([ARGUMENTS.bin / "baton", *arguments], capture_output=True, text=True,
                              timeout=PATIENCE_S, check=False, env={**os.environ, **environment})

    def generate(self, *flags, key=""):
        return self.baton("generate", "--address", self.grpc, "--temperature", "0", "--max-tokens", "16",
                          *flags, PROMPT, BATON_API_KEY=key)

    def ask_over_https(self, certificate, key):
        """The status and the text of a completion."""
        context = ssl.create_default_context(cafile=self.files / "ca.pem")
        if certificate:
            context.load_cert_chain(self.files / "client.pem", self.files / "client.key")
        host, port = self.http.rsplit(":", 1)
        connection = http.client.HTTPSConnection(NAME, timeout=PATIENCE_S)
        with socket.create_connection((host, int(port)), PATIENCE_S) as plain, \
                context.wrap_socket(plain, server_hostname=NAME) as connection.sock:
            connection.request("POST", "/v1/completions", headers={"Authorization": f"Bearer {key}"},
                               body=json.dumps({"prompt": PROMPT, "max_tokens": 16, "temperature": 0}))
            response = connection.getresponse()
            return response.status, response.read().decode()

    def test_https(self):
        status, text = self.ask_over_https(certificate=True, key=self.key)
        self.assertEqual(status, 200, text)
        self.assertIn(ANSWER, text)
        self.assertEqual(self.ask_over_https(certificate=True, key="another")[0], 401)
        with self.assertRaises(OSError):  # ssl.SSLError, or a connection that the router has closed
            self.ask_over_https(certificate=False, key=self.key)

    def test_grpc(self):
        tls = ("--tls-ca", self.files / "ca.pem", "--tls-server-name", NAME)
        client = ("--tls-cert", self.files / "client.pem", "--tls-key", self.files / "client.key")
        answered = self.generate(*tls, *client, key=self.key)
        self.assertEqual(answered.returncode, 0, answered.stderr)
        self.assertIn(ANSWER, answered.stdout)
        self.assertEqual(self.generate(*tls, *client, key="another").returncode, 1)
        self.assertEqual(self.generate(*tls, key=self.key).returncode, 3)  # no certificate
        self.assertEqual(self.generate(key=self.key).returncode, 3)  # plaintext

    def test_workers_have_the_names_that_up_prints(self):
        access = ("--address", self.grpc, "--tls-ca", self.files / "ca.pem", "--tls-server-name", NAME,
                  "--tls-cert", self.files / "client.pem", "--tls-key", self.files / "client.key")
        listed = self.baton("workers", "--json", *access, BATON_API_KEY=self.admin_key)
        self.assertEqual(listed.returncode, 0, listed.stderr)
        self.assertEqual({worker["worker_id"] for worker in json.loads(listed.stdout)["workers"]},
                         {"prefill-0", "prefill-1", "decode-0", "decode-1"})

    def test_what_up_prints(self):
        log = (self.files / "up.log").read_text(encoding="utf-8")
        for worker in ("prefill-0", "prefill-1", "decode-0", "decode-1"):
            self.assertRegex(log, rf"(?m)^\[{worker}\] .*loading weights \d+ %$")
        self.assertIn(f"base_url https://{self.http}/v1", log)
        self.assertIn(f"--address {self.grpc} --tls-ca CA.pem", log)


class UpKeysTest(unittest.TestCase):
    def test_the_commands_that_up_prints_work(self):
        with tempfile.TemporaryDirectory(prefix="baton-up-keys-") as folder:
            files = Path(folder)
            made = json.loads(UpTlsTest.baton("keys", "new", "--tenant", "team-a", "--json").stdout)
            (files / "keys").write_text(made["line"] + "\n", encoding="utf-8")
            from demo_cluster import start_cluster
            cluster, _ = start_cluster(ARGUMENTS.bin / "baton", files, "--api-keys", files / "keys",
                                       prefill=0, decode=1)
            try:
                log = (files / "up.log").read_text(encoding="utf-8")
                commands = re.findall(r"^  try: (.*)$", log, re.MULTILINE)
                self.assertEqual(len(commands), 2, log)
                for command in commands:
                    command = command.replace("curl ", "curl --silent --show-error --fail ")
                    for key, ends_well in ((made["key"], True), ("another", False)):
                        filled_in = re.sub(r"(?<=KEY=|rer )KEY", key, command)
                        answered = subprocess.run(
                            ["bash", "-euc", filled_in],
                            env={**os.environ, "PATH": f"{ARGUMENTS.bin}:{os.environ['PATH']}"},
                            capture_output=True, text=True, timeout=PATIENCE_S, check=False)
                        self.assertEqual(answered.returncode == 0, ends_well, answered.stderr)
            finally:
                cluster.terminate()
                cluster.wait(PATIENCE_S)


def main():
    global ARGUMENTS
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--root", type=Path, required=True)
    ARGUMENTS = parser.parse_args()
    sys.path.insert(0, str(ARGUMENTS.root / "scripts"))
    unittest.main(argv=sys.argv[:1])


if __name__ == "__main__":
    main()
