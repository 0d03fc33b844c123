"""A program on a terminal, for tests."""

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time

PATIENCE_S = 120  # a limit, not an expectation
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|[\r\x07]")


class Terminal:
    """A process on a new terminal."""

    def __init__(self, command, environment):
        self.raw = ""    # all that was written
        self.shown = ""  # the same without escape sequences
        self.last_settings = None  # of the terminal, after wait()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._seen = 0
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.execve(command[0], [str(word) for word in command], environment)

    def type(self, text):
        os.write(self._fd, text.encode())

    def expect(self, *texts):
        """Waits until one of the texts is shown behind what was expected before; returns it."""
        end = time.monotonic() + PATIENCE_S
        while True:
            for text in texts:
                place = self.shown.find(text, self._seen)
                if place >= 0:
                    self._seen = place + len(text)
                    return text
            assert self._read(end), f"none of {texts} in {self.shown[self._seen:]!r}"

    def resize(self, columns, rows):
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def settings(self):
        return termios.tcgetattr(self._fd)

    def read_until(self, holds):
        """Waits until the function, of all that was written, returns something true; returns it."""
        end = time.monotonic() + PATIENCE_S
        while not (held := holds(self.raw)):
            assert self._read(end), f"not in {self.raw[-5000:]!r}"
        return held

    def wait(self):
        """Reads to the end; returns the exit code."""
        end = time.monotonic() + PATIENCE_S
        while self._read(end):
            pass
        if time.monotonic() > end:
            self.kill(signal.SIGKILL)
        self.last_settings = self.settings()
        os.close(self._fd)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def kill(self, number):
        os.kill(self._pid, number)

    def _read(self, end):
        """False when the process has closed its terminal, or it takes too long."""
        if not select.select([self._fd], [], [], max(0, end - time.monotonic()))[0]:
            return False
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # how Linux reports the end
            return False
        self.raw += self._decoder.decode(data)
        self.shown = ESCAPES.sub("", self.raw)  # a sequence may come in two parts
        return bool(data)
