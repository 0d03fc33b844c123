#!/usr/bin/env python3
"""`baton chat` on a terminal and in scripts, against a cluster of processes.

  chat_terminal_test.py --bin DIR --root DIR
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from terminal import PATIENCE_S, Terminal

ARGUMENTS = None
TABLE = ["Table:", " buko = 1071", " deha = 9194", "Q deha ?"]
ANSWER = "9194"


class ChatTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory(prefix="baton-chat-")
        cls.addClassCleanup(directory.cleanup)
        cls.scratch = Path(directory.name)
        cls.binary = ARGUMENTS.bin / "baton"
        cluster, (cls.address, *_) = start_cluster(cls.binary, cls.scratch)
        cls.addClassCleanup(cluster.wait, PATIENCE_S)
        cls.addClassCleanup(cluster.terminate)

    def environment(self):
        return {**os.environ, "BATON_ADDRESS": self.address, "TERM": "xterm", "LC_ALL": "C.UTF-8",
                "XDG_STATE_HOME": str(self.scratch / self.id())}

    def terminal(self, *flags):
        terminal = Terminal([self.binary, "chat", "--temperature", "0", *flags], self.environment())
        terminal.expect("Model demo.")
        terminal.expect("> ")
        return terminal

    def saved(self, terminal, name):
        file = self.scratch / name
        terminal.type(f"/save {file}\n")
        terminal.expect("\n> ")
        return json.loads(file.read_text(encoding="utf-8"))

    def test_a_conversation(self):
        terminal = self.terminal("--max-tokens", "16")
        terminal.type('"""' + "\n".join(TABLE) + '"""\n')
        terminal.expect('Q deha ?"""\n')
        terminal.expect(ANSWER)
        terminal.expect("prompt tokens cached, first token after ")
        terminal.expect("\n> ")
        terminal.type("caf\u00e9\\\nagain\n")
        terminal.expect(" tokens, ")
        terminal.expect("\n> ")
        messages = self.saved(terminal, "saved.json")
        self.assertEqual([m["role"] for m in messages], ["user", "assistant"] * 2)
        self.assertEqual(messages[0]["content"], "\n".join(TABLE))
        self.assertIn(ANSWER, messages[1]["content"])
        self.assertEqual(messages[2]["content"], "caf\u00e9\nagain")
        terminal.type("/nothing\n")
        terminal.expect("there is no command /nothing")
        terminal.type("\x04")  # Ctrl-D
        self.assertEqual(terminal.wait(), 0)

    def test_keys_during_an_answer_and_a_line(self):
        terminal = self.terminal()
        terminal.type("/set min_tokens 900\n")
        terminal.expect("\n> ")
        for _ in range(50):  # on a busy machine, the answer may be complete before Ctrl-C arrives
            terminal.type("/clear\n")
            terminal.expect("\n> ")
            terminal.type("Table:\n")
            terminal.expect(" willow willow")  # the model repeats itself
            terminal.type("\x03")
            if terminal.expect("[cancelled]\n> ", "tokens/s]\n> ").startswith("[cancelled]"):
                break
            terminal.expect("^C\n> ")
        else:
            self.fail("no answer was cancelled")
        messages = self.saved(terminal, "cancelled.json")
        self.assertEqual([m["role"] for m in messages], ["user", "assistant"])
        self.assertNotEqual(messages[1]["content"], "")
        terminal.type("/clear\n")
        terminal.expect("\n> ")
        terminal.type("not sent\x03")
        terminal.expect("^C\n> ")
        self.assertEqual(self.saved(terminal, "cleared.json"), [])
        terminal.type("Table:\n")
        terminal.expect(" willow willow")
        terminal.type("\x04")  # before the prompt: it counts once the answer is complete
        self.assertEqual(terminal.wait(), 0)

    def test_history_outlives_the_program(self):
        terminal = self.terminal()
        terminal.type("/set seed 4711\n")
        terminal.expect("\n> ")
        terminal.type("/exit\n")
        self.assertEqual(terminal.wait(), 0)
        terminal = self.terminal()
        terminal.type("\x1b[A\x1b[A")  # arrow up
        terminal.expect("/set seed 4711")
        terminal.type("\x15\x04")  # Ctrl-U drops the line
        self.assertEqual(terminal.wait(), 0)

    def test_sigterm_ends_it(self):
        terminal = self.terminal()
        terminal.kill(signal.SIGTERM)
        self.assertEqual(terminal.wait(), 130)

    def script(self, lines, *flags, **environment):
        return subprocess.run([self.binary, "chat", "--temperature", "0", "--max-tokens", "16", *flags],
                              input="\n".join(lines) + "\n", env={**self.environment(), **environment},
                              capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    def test_scripts(self):
        result = self.script(['"""', *TABLE, '"""'])
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn(ANSWER, result.stdout)
        self.assertNotIn(">", result.stdout)
        generated = subprocess.run(
            [self.binary, "generate", "--temperature", "0", "--max-tokens", "16", "\n".join(TABLE)],
            env=self.environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=True)
        self.assertEqual(result.stdout, generated.stdout)  # the model's template adds nothing
        result = self.script(["/nothing", "Hi"])
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertIn("/help", result.stderr)
        result = self.script(["Hi"], BATON_ADDRESS="127.0.0.1:1")
        self.assertEqual((result.returncode, result.stdout), (3, ""))
        self.assertIn("router at 127.0.0.1:1", result.stderr)


class DemoChatTest(unittest.TestCase):
    """The second half of `scripts/demo --chat`, with the model in models/demo."""

    FLAGS = ["--temperature", "0", "--max-tokens", "8"]

    def command(self):
        return [sys.executable, ARGUMENTS.root / "scripts/demo_chat.py", ARGUMENTS.bin, ARGUMENTS.root / "models/demo",
                *self.FLAGS]

    def test_from_a_pipe(self):
        result = subprocess.run(self.command(), input='"""\n' + "\n".join(TABLE) + '\n"""\n', capture_output=True,
                                text=True, timeout=PATIENCE_S, check=False)
        self.assertEqual((result.returncode, result.stdout.strip()), (0, ANSWER), result.stderr)

    def test_on_a_terminal(self):
        with tempfile.TemporaryDirectory() as state:
            terminal = Terminal(self.command(), {**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8",
                                                 "XDG_STATE_HOME": state})
            terminal.expect("two prefill and two decode workers")
            terminal.expect("Model demo.")
            terminal.expect("> ")
            terminal.type("a line that Ctrl-C drops\x03")  # the cluster stays up
            terminal.expect("> ")
            terminal.type('"""' + "\n".join(TABLE) + '"""\n')
            terminal.expect('Q deha ?"""\n')
            terminal.expect(ANSWER)
            terminal.expect("\n> ")
            terminal.type("\x04")
            self.assertEqual(terminal.wait(), 0)


def main():
    global ARGUMENTS, start_cluster
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--root", type=Path, required=True)
    ARGUMENTS = parser.parse_args()
    sys.path.insert(0, str(ARGUMENTS.root / "scripts"))
    from demo_cluster import start_cluster  # pylint: disable=import-outside-toplevel
    unittest.main(argv=sys.argv[:1])


if __name__ == "__main__":
    main()
