"""Define the options that request nodes, devices and an address, for all launchers. Does not import torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from imagenet_ddp.distributed.launchers.address import Address, from_environment, parse
from imagenet_ddp.errors import ConfigError

FORMS = {"tcp": "tcp://HOST:29500", "file": "file:///PATH"}


@dataclass(frozen=True)
class LaunchRequest:
    """Requested number of nodes and devices, and requested address. A value that is not set is None."""

    num_nodes: int | None
    devices: int | None  # processes per node
    cluster: Mapping[str, Any]
    line: str  # the command as typed, for hints
    cpu: bool  # whether there is no GPU, or none is requested


def requested_address(cluster: Mapping[str, Any], environ: Mapping[str, str]) -> Address | None:
    """Return the address from cluster.address, else from MASTER_ADDR and MASTER_PORT, else None.

    Raises ConfigError if the address is invalid or does not match cluster.name.
    """
    name, text = cluster["name"], cluster["address"]
    if name == "env" and text is not None:
        raise ConfigError(
            f"cluster=env reads the address from MASTER_ADDR, but cluster.address is {text}. "
            "Hint: leave cluster=env out."
        )
    try:
        if text is None:
            if name in FORMS:
                raise ConfigError(f"cluster={name} needs an address. Hint: set cluster.address={FORMS[name]}.")
            return from_environment(environ)
        address = parse(text, "cluster.address", environ.get("MASTER_PORT"))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if name in FORMS and (name == "file") != (address.file is not None):
        raise ConfigError(
            f"cluster={name} does not match cluster.address={text}. Hint: leave cluster={name} out, because the "
            "address determines the kind of rendezvous."
        )
    return address


def num_devices(devices: Any) -> int | None:
    """Return the number of devices per node; None if trainer.devices does not determine the number."""
    if isinstance(devices, str) and devices not in ("auto", "-1"):
        return len(devices.strip(",").split(",")) if "," in devices else int(devices) if devices.isdecimal() else None
    if isinstance(devices, int) and not isinstance(devices, bool):
        return devices if devices >= 1 else None
    return len(devices) if isinstance(devices, Sequence) and not isinstance(devices, str) else None
