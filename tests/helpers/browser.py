"""Drive a headless Chromium by the DevTools protocol, for pages that people use."""

import json
import shutil
import subprocess
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
TIME_LIMIT_S = 300  # of a browser; it ends then, and the test fails


class Browser(AbstractContextManager["Browser"]):
    """One page. profile: an empty folder. addresses: what the page has requested."""

    def __init__(self, profile: Path) -> None:
        # the protocol uses the file descriptors 3 and 4
        words = ["bash", "-c", 'exec "$@" 3<&0 4>&1 </dev/null >/dev/null', "bash", str(CHROMIUM), "--headless"]
        words += ["--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._limit = threading.Timer(TIME_LIMIT_S, self._process.kill)
        self._limit.start()
        self._number, self._session, self.addresses = 0, "", list[str]()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime"):
            self.call(f"{domain}.enable")

    def __exit__(self, *_: object) -> None:
        self._limit.cancel()
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the result of a method of the protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\0")
        self._process.stdin.flush()
        while (answer := self._read()).get("id") != self._number:
            if answer.get("method") == "Network.requestWillBeSent":
                self.addresses.append(answer["params"]["request"]["url"])
        assert "error" not in answer, answer
        return answer["result"]

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        parts = bytearray()
        while (byte := self._process.stdout.read(1)) not in (b"\0", b""):
            parts += byte
        assert byte, f"the browser has ended, or has taken more than {TIME_LIMIT_S} s"
        return json.loads(parts)

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)
        self.evaluate("new Promise((done) => document.readyState === 'complete' ? done() : onload = () => done())")

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression, or of its promise."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def drop(self, *files: Path) -> None:
        """Drop files on the page."""
        data = {"items": [], "files": [str(file) for file in files], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, x=100, y=200, data=data)

    def resize(self, width: int, *, scheme: str = "light") -> None:
        """Show the page on a screen of this width in pixels. scheme: light or dark."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
