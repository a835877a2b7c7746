"""A server of the Hugging Face hub's protocol on this machine, as far as huggingface_hub and timm use it here."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

COMMIT = "0" * 39 + "1"
TOKEN = "hf_a_token_that_may_write"


class Hub(BaseHTTPRequestHandler):
    """Answer what huggingface_hub asks. Files of which the client sends a checksum first (git LFS) come by PUT.

    repositories: OWNER/NAME -> file name -> content. requests: "METHOD path" of each, in order. commits: the number of
    commits to each repository. stored: SHA-256 -> content.
    """

    repositories: ClassVar[dict[str, dict[str, bytes]]] = {}
    private: ClassVar[set[str]] = set()
    requests: ClassVar[list[str]] = []
    commits: ClassVar[dict[str, int]] = {}
    stored: ClassVar[dict[str, bytes]] = {}
    gone: ClassVar[threading.Event] = threading.Event()  # ends a stalled answer
    address: ClassVar[str] = ""

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_PUT(self) -> None:
        content = self._content()
        assert hashlib.sha256(content).hexdigest() == self.path.rpartition("/")[2]
        self.stored[self.path.rpartition("/")[2]] = content
        self._send(200, {})

    def do_POST(self) -> None:
        content, path = self._content(), self.path.partition("?")[0]
        if path == "/api/validate-yaml":
            self._send(200, {"warnings": [], "errors": []})
        elif self.headers["Authorization"] != f"Bearer {TOKEN}":
            self._send(401, {"error": "Invalid username or password."})
        elif path == "/api/repos/create":
            asked = json.loads(content)
            name = f"{asked['organization']}/{asked['name']}"
            if asked["visibility"] == "private" and name not in self.repositories:
                self.private.add(name)
            code = 409 if name in self.repositories else 200
            self.repositories.setdefault(name, {})
            self._send(code, {"url": f"{self.address}/{name}"})
        elif path.endswith("/preupload/main"):
            names = [each["path"] for each in json.loads(content)["files"]]
            modes = {name: "lfs" if name.endswith(".safetensors") else "regular" for name in names}
            files = [{"path": name, "uploadMode": mode, "shouldIgnore": False} for name, mode in modes.items()]
            self._send(200, {"files": files})
        elif path.endswith("/info/lfs/objects/batch"):
            objects = [
                {**each, "actions": {"upload": {"href": f"{self.address}/lfs/{each['oid']}"}}}
                for each in json.loads(content)["objects"]
            ]
            self._send(200, {"transfer": "basic", "objects": objects})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", path):
            for line in map(json.loads, content.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    self.repositories[found[1]][value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    self.repositories[found[1]][value["path"]] = self.stored[value["oid"]]
            self.commits[found[1]] = self.commits.get(found[1], 0) + 1
            self._send(200, {"success": True, "commitOid": COMMIT, "commitUrl": f"{self.address}/{found[1]}/commit/1"})
        else:
            self._send(404, {"error": f"no {path}"})

    def log_message(self, format: str, *args: object) -> None:
        self.requests.append(f"{self.command} {self.path}")

    def _content(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"]))

    def _send(self, code: int, answer: object) -> None:
        body = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answer(self, *, with_body: bool) -> None:
        body: bytes | None = None
        if self.path.startswith(("/cut/", "/stalled/")):
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"begin")
            if self.path.startswith("/stalled/"):
                self.gone.wait(60)
            return
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/.*)?", self.path.partition("?")[0]):
            if (files := self.repositories.get(found[1])) is not None:
                listed = [{"rfilename": name} for name in files]
                body = json.dumps({"id": found[1], "sha": COMMIT, "siblings": listed}).encode()
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", self.path):
            body = self.repositories.get(found[1], {}).get(found[2])
        self.send_response(200 if body is not None else 404)
        if body is None:
            self.send_header(
                "X-Error-Code", "EntryNotFound" if found and found[1] in self.repositories else "RepoNotFound"
            )
            body = b""
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)


@contextmanager
def serving(repositories: dict[str, dict[str, bytes]] | None = None) -> Generator[type[Hub]]:
    """Serve these repositories, and yield the class of the server's answers, with its address and state."""
    state = {"repositories": repositories or {}, "private": set(), "requests": [], "commits": {}, "stored": {}}
    handler = type("Handler", (Hub,), {**state, "gone": threading.Event()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    handler.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield handler
    finally:
        handler.gone.set()
        server.shutdown()
        server.server_close()


def use(hub: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let huggingface_hub of this process ask that hub, and keep its files in the folder `cache`."""
    from huggingface_hub import constants, hf_api

    for name, value in {
        "ENDPOINT": hub, "HUGGINGFACE_CO_URL_TEMPLATE": f"{hub}/{{repo_id}}/resolve/{{revision}}/{{filename}}",
        "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True,
    }.items():  # fmt: skip
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setattr(hf_api.api, "endpoint", hub)
