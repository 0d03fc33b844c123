"""Workers as processes whose number changes, and a router that follows them by a file.

Workers start and leave as pods do. A new one needs a time to start, then its address joins the list of discovery as soon as it
listens. One that leaves gets SIGTERM and drains, and its address stays in the list until its process has ended.
"""

import collections
import os
import signal
import subprocess
import time

PATIENCE_S = 60  # a limit for a start, not an expectation
ROLES = ("prefill", "decode")


class Worker:
    """A process that is wished for, runs, or has ended."""

    def __init__(self, role, number, due_s):
        self.role, self.name, self.due_s = role, f"{role}{number}", due_s
        self.process, self.addresses, self.log = None, None, None
        self.began_s, self.asked_s = time.monotonic(), None  # asked: to leave
        self.ended_s = None

    def state(self):
        if self.asked_s is not None:
            return "draining"
        return "ready" if self.addresses else "starting"


class Fleet:
    """A router, and workers whose numbers scale() changes. tick() has to be called often."""

    def __init__(self, folder, programs, router, flags, start_s=0.0):
        """`programs` has each role's program with its flags, `router` the router's, and all get `flags`. A worker's process starts
        `start_s` after the wish for it, as a pod needs time for its node, image and model."""
        self._folder, self._programs, self._router, self._flags = folder, programs, router, flags
        self.start_s = start_s
        self._file = folder / "workers"
        self._workers = []
        self._numbers = collections.Counter()
        self.gone = []
        self.process = None
        self.address = self.metrics_address = None  # of the router
        self.on_change = lambda: None  # the list of addresses is another one

    def start(self, counts):
        """Returns once so many workers serve, and the router."""
        start_s, self.start_s = self.start_s, 0.0
        for role, count in counts.items():
            self.scale(role, count)
        self._wait_for(lambda: all(worker.addresses for worker in self._workers))
        self.start_s = start_s
        bound = self._folder / "router.address"
        self.process = self._launch(
            "router", [*self._router, "--workers-file", self._file, "--metrics-listen", "127.0.0.1:0"], bound)
        self._wait_for(bound.exists)
        self.address, self.metrics_address = bound.read_text(encoding="utf-8").split()[:2]

    def close(self):
        processes = [worker.process for worker in self._workers if worker.process] + ([self.process] if self.process else [])
        for process in processes:
            process.kill()
            process.wait()

    def scale(self, role, count):
        """Wishes for `count` workers of the role. Those that leave are the youngest, before all others those that do not serve
        yet, as a ReplicaSet chooses them."""
        stay = [worker for worker in self._workers if worker.role == role and worker.asked_s is None]
        for _ in range(count - len(stay)):
            self._numbers[role] += 1
            self._workers.append(Worker(role, self._numbers[role], time.monotonic() + self.start_s))
        for worker in sorted(stay, key=lambda worker: (not worker.addresses, worker.began_s))[count:]:
            worker.asked_s = time.monotonic()
            if worker.process:
                worker.process.send_signal(signal.SIGTERM)

    def tick(self):
        """Does what is due, and notices what has changed."""
        changed = False
        for worker in list(self._workers):
            if worker.process is None:
                if worker.asked_s is not None:
                    self._forget(worker)
                elif time.monotonic() >= worker.due_s:
                    worker.process = self._launch(worker.name, self._programs[worker.role], self._bound(worker))
                continue
            code = worker.process.poll()
            if code is not None:
                if worker.asked_s is None or (code != 0 and worker.addresses):
                    raise RuntimeError(f"{worker.name} ended with {code}: {self._log_of(worker.name)}")
                self._forget(worker)
                changed |= worker.addresses is not None
            elif worker.addresses is None and self._bound(worker).exists():
                worker.addresses = self._bound(worker).read_text(encoding="utf-8").split()
                changed = True
            elif worker.addresses is None and time.monotonic() > worker.due_s + PATIENCE_S:
                raise RuntimeError(f"{worker.name} does not start: {self._log_of(worker.name)}")
        if changed:
            self._list()
        if self.process is not None and self.process.poll() is not None:
            raise RuntimeError(f"the router ended with {self.process.poll()}: {self._log_of('router')}")

    def counts(self, role):
        """Workers by state: starting, ready and draining."""
        return collections.Counter(worker.state() for worker in self._workers if worker.role == role)

    def wanted(self, role):
        counts = self.counts(role)
        return counts["starting"] + counts["ready"]

    def metrics_addresses(self):
        return [worker.addresses[1] for worker in self._workers if worker.addresses] + [self.metrics_address]

    def worker_seconds(self, role):
        """Returns the sum of the workers' times from the wish for each to its end, or until now."""
        now = time.monotonic()
        return sum((worker.ended_s or now) - worker.began_s for worker in [*self._workers, *self.gone] if worker.role == role)

    def _forget(self, worker):
        worker.ended_s = time.monotonic()
        self._workers.remove(worker)
        self.gone.append(worker)

    def _bound(self, worker):
        return self._folder / f"{worker.name}.address"

    def _launch(self, name, command, bound):
        with open(self._folder / f"{name}.log", "w", encoding="utf-8") as log:
            return subprocess.Popen([*command, *self._flags, "--listen", "127.0.0.1:0", "--address-file", bound],
                                    stdout=log, stderr=subprocess.STDOUT)

    def _log_of(self, name):
        return (self._folder / f"{name}.log").read_text(encoding="utf-8")[-2000:]

    def _list(self):
        new = self._folder / "workers.new"
        new.write_text("".join(f"{worker.role} {worker.addresses[0]}\n" for worker in self._workers if worker.addresses),
                       encoding="utf-8")
        os.replace(new, self._file)
        self.on_change()

    def _wait_for(self, done):
        """Polls, as nothing announces a state of a process."""
        end = time.monotonic() + PATIENCE_S
        while not done():
            self.tick()
            if time.monotonic() > end:
                raise RuntimeError(f"a start takes more than {PATIENCE_S} s; the router: {self._log_of('router')}")
            time.sleep(0.02)
