"""Exchange plain values through the key-value store of a run.

Whoever reaches the store can read and write it. What is read is therefore data: JSON, never unpickled, without control
characters, and of the kind that its reader expects. With a secret that all processes of the run share (secret.py), each
value is signed together with its path, so that only they can post. Counters are not signed: a stranger who changes one
can end a run, but not choose what it does. Nor are the keys of torch's process group.
"""

import contextlib
import hashlib
import hmac
import json
import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from torch.distributed import PrefixStore, Store  # pyright: ignore[reportPrivateImportUsage]

from imagenet_ddp.distributed import secret
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.text import printable

_SIGNED = "hmac-sha256:"  # begins a signed value; the signature, a space and the JSON follow
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # but for tab and newline


@dataclass(frozen=True)
class Messages:
    """A part of the store. key: the secret of the run; None: nothing is signed. path: what is signed with each value,
    besides its key."""

    store: Store
    key: bytes | None = field(default=None, repr=False)
    path: str = ""

    def under(self, name: str) -> "Messages":
        return replace(self, store=PrefixStore(name, self.store), path=f"{self.path}/{name}")

    def among(self, nonces: Sequence[str]) -> "Messages":
        """Return the same part for members that have met. Their nonces, which each draws at random, are signed with
        each value, so that a recorded message of another run does not count."""
        return replace(self, path=f"{self.path}#{hashlib.sha256(json.dumps(nonces).encode()).hexdigest()}")

    def set(self, name: str, value: Any) -> None:
        self.store.set(name, self._sign(name, value))

    def set_first(self, name: str, value: Any) -> Any:
        """Set the value unless there is one, and return the one that is set."""
        posted: Any = self.store.compare_set(name, "", self._sign(name, value))  # torch's type stubs do not say bytes
        return self._read(name, posted)

    def append(self, name: str, values: Sequence[Any]) -> None:
        lines = "".join(f"{self._sign(name, value)}\n" for value in values)
        cast(Any, self.store).append(name, lines)  # torch's type stubs do not have append

    def add(self, name: str, amount: int) -> int:
        return int(self.store.add(name, amount))

    def has(self, *names: str) -> bool:
        return self.store.check(list(names))

    def get(self, name: str) -> Any:
        """Return a value, and wait for it. Raises ConfigError if it is not signed with the secret of this process, or
        is no JSON."""
        return self._read(name, self.store.get(name))

    def get_many(self, names: Sequence[str]) -> list[Any]:
        return [self._read(name, posted) for name, posted in zip(names, self.store.multi_get(list(names)), strict=True)]

    def get_lines(self, name: str) -> list[Any]:
        """Return all values that were appended."""
        return [self._read(name, line) for line in self.store.get(name).splitlines()]

    def _sign(self, name: str, value: Any) -> str:
        text = json.dumps(value)
        return text if self.key is None else f"{self._signature(self.key, name, text)} {text}"

    def _signature(self, key: bytes, name: str, text: str) -> str:
        return _SIGNED + hmac.new(key, json.dumps([self.path, name, text]).encode(), "sha256").hexdigest()

    def _read(self, name: str, posted: bytes) -> Any:
        text, signature = posted.decode("utf-8", "replace"), ""
        if text.startswith(_SIGNED):
            signature, _, text = text.partition(" ")
        if self.key is not None and not hmac.compare_digest(signature, self._signature(self.key, name, text)):
            how = "is signed with another secret" if signature else "is not signed"
            raise ConfigError(
                f"messages between the nodes must be signed with the secret of this command, but `{name}` {how}. "
                f"Hint: {secret.SAME_EVERYWHERE}; if it is, another program writes to the rendezvous store."
            )
        if self.key is None and signature:
            raise ConfigError(
                f"the other nodes sign their messages, but this command has no secret. Hint: {secret.SAME_EVERYWHERE}."
            )
        with as_posted(name):
            return _without_control_characters(json.loads(text))


def _without_control_characters(value: Any) -> Any:
    """Escape the characters with which a text could steer a terminal."""
    if isinstance(value, str):
        return _CONTROL.sub(lambda found: printable(found.group()), value)
    if isinstance(value, dict):
        of_keys = cast("dict[str, Any]", value)
        return {_without_control_characters(key): _without_control_characters(of_keys[key]) for key in of_keys}
    return [*map(_without_control_characters, cast("list[Any]", value))] if isinstance(value, list) else value


@contextlib.contextmanager
def as_posted(what: str) -> Generator[None]:
    """Raise ConfigError if the block finds that a message is not what this version of the code posts."""
    try:
        yield
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"`{what}` in the rendezvous store is not what a process of this run posts. Hint: use the same version of "
            "the code on every node, and an address that no other program uses."
        ) from error
