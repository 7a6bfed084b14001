"""A payment service that knows nothing of onceonly: whatever is posted to it is charged, as often as it is posted.

Behind the gateway a retry with the same Idempotency-Key is charged once:

    python3 payments.py 3000 ledger.txt
    onceonly gateway --upstream http://127.0.0.1:3000 --tenant shared
    curl -i -X POST http://127.0.0.1:8080/payments -H 'Idempotency-Key: order-42' -d '{"cents": 500}'
    curl -i -X POST http://127.0.0.1:8080/payments -H 'Idempotency-Key: order-42' -d '{"cents": 500}'
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT = int(sys.argv[1]) if len(sys.argv) > 1 else 3000
LEDGER = sys.argv[2] if len(sys.argv) > 2 else "ledger.txt"


class Payments(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            cents = json.loads(body)["cents"]
        except (ValueError, KeyError, TypeError):
            # Nothing was done: the client may send a better request with the same key.
            return self.answer(400, {"error": "cents is missing"}, {"Idempotency-Answer": "not-begun"})
        # The same key on every attempt; above 1, an earlier attempt may have got this far. A provider of yours that takes
        # an idempotency key should be handed this one.
        key, attempt = self.headers.get("Idempotency-Key"), self.headers.get("Idempotency-Attempt")
        with open(LEDGER, "a", encoding="utf-8") as ledger:
            ledger.write(f"{key} attempt {attempt}: {cents} cents\n")
        return self.answer(201, {"charged": cents})

    def answer(self, status, value, headers=None):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        # With a length the gateway can tell a whole answer from one that was cut off, and stores it.
        self.send_header("Content-Length", str(len(body)))
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", PORT), Payments)
print(f"http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
