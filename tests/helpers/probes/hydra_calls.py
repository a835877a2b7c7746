"""A callback of Hydra that notes when it is called."""

from typing import Any

from hydra.experimental.callback import Callback

CALLS: list[tuple[str, Any]] = []


class Calls(Callback):
    def on_run_start(self, config: Any, **kwargs: Any) -> None:
        CALLS.append(("on_run_start", None))

    def on_run_end(self, config: Any, **kwargs: Any) -> None:
        CALLS.append(("on_run_end", None))

    def on_job_start(self, config: Any, **kwargs: Any) -> None:
        CALLS.append(("on_job_start", None))

    def on_job_end(self, config: Any, job_return: Any, **kwargs: Any) -> None:
        CALLS.append(("on_job_end", job_return.status))
