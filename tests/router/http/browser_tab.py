"""A headless Chromium for tests of pages. scripts/setup installs one."""
import json
import os
import select
import shutil
import subprocess
import time

BROWSER = shutil.which("chromium-headless-shell") or shutil.which("chromium")
PATIENCE_S = 60


class Tab:
    """A tab of a new browser, over the DevTools protocol: JSON messages that end with a zero byte."""

    def __init__(self, profile):
        from_browser, browser_writes = os.pipe()
        browser_reads, to_browser = os.pipe()
        self.process = subprocess.Popen(
            ["sh", "-c", f'exec "$@" 3<&{browser_reads} 4>&{browser_writes}', "sh", BROWSER, "--headless",
             "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
             "--window-size=1100,560", f"--user-data-dir={profile}"],
            pass_fds=(browser_reads, browser_writes), stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        os.close(browser_reads)
        os.close(browser_writes)
        self.read, self.write = from_browser, to_browser
        self.buffer = b""
        self.last_id = 0
        self.errors = []  # that the page has logged or thrown
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def close(self):
        self.process.terminate()
        self.process.wait(timeout=PATIENCE_S)
        os.close(self.read)
        os.close(self.write)

    def next_message(self, end):
        while b"\0" not in self.buffer:
            if not select.select([self.read], [], [], max(0, end - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            data = os.read(self.read, 1 << 16)
            if not data:
                raise EOFError("the browser has ended")
            self.buffer += data
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **parameters):
        self.last_id += 1
        message = {"id": self.last_id, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + PATIENCE_S
        while True:
            answer = self.next_message(end)
            if answer.get("id") == self.last_id:
                if "error" in answer:
                    raise RuntimeError(answer["error"])
                return answer["result"]
            event, of = answer.get("method"), answer.get("params", {})
            if (event == "Runtime.exceptionThrown"
                    or event == "Runtime.consoleAPICalled" and of["type"] in ("error", "warning")
                    or event == "Log.entryAdded" and of["entry"]["level"] in ("error", "warning")):
                self.errors.append(of)

    def evaluate(self, expression, by_user=False):
        """`by_user`: the page may do what it may only when a user has pressed something."""
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True,
                           userGesture=by_user)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"])
        return result["result"].get("value")

    def wait_for(self, condition):
        """Until a JavaScript expression is true, which it then returns."""
        return self.evaluate("new Promise(resolve => { const look = () => { const is = (" + condition +
                             "); is ? resolve(is) : requestAnimationFrame(look); }; look(); })")
