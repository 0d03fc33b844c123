"""A server that answers a page's requests as a test says: with what a demo model never writes, when the test wants it."""
import json
import queue
import select
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PATIENCE_S = 60
STATUS = {"model": "scripted", "ready": True, "workers": [], "requests_inflight": 0,
          "time_to_first_token": None, "inter_token_latency": None}


class ScriptedApi:
    """`page` returns the headers and the bytes of the page at /.

    Each chat request takes the next list of `answers`. Of its items a text is a delta of the content and a dictionary
    another delta or, with "usage" or "error", an event; an Event is waited for; a pair of a status and a message is the
    whole answer.
    """

    def __init__(self, page):
        self.page = page
        self.answers = queue.Queue()
        self.requests = []  # bodies of chat requests
        self.left = threading.Event()  # a client has gone before the end of its answer
        self.key = None  # that requests need
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def _handler(api):
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def reply(self, status, body, headers):
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def reply_json(self, status, value):
                self.reply(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

            def refused(self):
                if api.key is None or self.headers.get("Authorization") == f"Bearer {api.key}":
                    return False
                self.reply_json(401, {"error": {"message": "no such key"}})
                return True

            def do_GET(self):
                if self.path == "/":
                    headers, body = api.page()
                    self.reply(200, body, headers)
                elif self.path == "/blank":  # a page of this origin without a policy
                    self.reply(200, b"<!DOCTYPE html><title>blank</title><link rel=icon href=data:,>",
                               {"Content-Type": "text/html"})
                elif not self.refused():
                    self.reply_json(200, {"data": [{"id": "scripted"}]} if self.path == "/v1/models" else STATUS)

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.refused():
                    return
                api.requests.append(body)
                items = api.answers.get(timeout=PATIENCE_S)
                if items and isinstance(items[0], tuple):
                    status, message = items[0]
                    self.reply_json(status, {"error": {"message": message}})
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                for item in items:
                    if isinstance(item, threading.Event):
                        if not self.wait(item):
                            api.left.set()
                            return
                    elif isinstance(item, str):
                        self.event({"choices": [{"index": 0, "delta": {"content": item}, "finish_reason": None}]})
                    elif "usage" in item or "error" in item:
                        self.event({"choices": [], **item})
                        if "error" in item:
                            return
                    else:
                        self.event({"choices": [{"index": 0, "delta": item, "finish_reason": None}]})
                self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
                self.wfile.write(b"data: [DONE]\n\n")

            def event(self, value):
                self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
                self.wfile.flush()

            def wait(self, event):
                """False if the client has gone before the event."""
                while not event.wait(0.01):
                    if select.select([self.connection], [], [], 0)[0]:
                        try:
                            if not self.connection.recv(1, socket.MSG_PEEK):
                                return False
                        except ConnectionError:
                            return False
                return True

        return Handler
