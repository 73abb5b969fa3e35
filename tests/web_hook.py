"""A web hook on loopback, to which alerts are sent."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.processes import wait_for

ALERT = {"run_id", "name", "night", "state", "kind", "message", "flow_run_id", "host", "time"}
SECRET = "hooks-token-5f3a"


class Hook:
    """A web hook on loopback that keeps what it was sent."""

    def __init__(self):
        self.alerts = []
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.alerts.append(json.loads(body))
                self.send_response(int(self.path.rpartition("=")[2]) if "status=" in self.path else 204)
                self.send_header("Location", "/elsewhere")
                self.end_headers()

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/{SECRET}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def wait(self, flow_run_id):
        """The one alert of a flow run, which comes after its last state."""
        wait_for(lambda: self.of(flow_run_id))
        (alert,) = self.of(flow_run_id)
        return alert

    def of(self, flow_run_id):
        return [alert for alert in self.alerts if alert["flow_run_id"] == flow_run_id]
