"""The process of the S3 server: prints its port when it answers, and ends when its stdin does.

    python -m tests.servers.s3_process PORT

Moto looks whether an object is there and writes it in two steps, where S3 does both in one; here
no two requests that change something run at the same time.
"""

import os
import sys
import threading
from typing import Any

from moto.moto_server.werkzeug_app import create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server


def serve(port: int) -> None:
    """Serve until stdin ends, which is when the parent does."""
    app: Any = create_backend_app("s3")
    turn = threading.Lock()

    def one_at_a_time(environ: dict[str, Any], start_response: Any) -> Any:  # noqa: ANN401
        if environ["REQUEST_METHOD"] in {"GET", "HEAD"}:
            return app(environ, start_response)
        with turn:
            return app(environ, start_response)

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_request(self, *_: object) -> None:
            """Say nothing."""

    server = make_server("127.0.0.1", port, one_at_a_time, threaded=True, request_handler=Quiet)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
