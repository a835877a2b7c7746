"""The key-value store all ranks share before, beside and below the process group."""

import functools
import sys
import time
from datetime import timedelta

from torch.distributed import PrefixStore, Store, TCPStore

from imagenet_ddp.distributed.rendezvous import Place
from imagenet_ddp.schema import ConfigError


def connect(place: Place, timeout_s: float) -> Store:
    """Keys are this attempt's own, where a launcher starts the workers anew after a failure. A connection of its own
    at each call: a client that waits blocks every other user of it. Where no launcher serves the store, rank 0's
    process does, from the first call to its end."""
    assert place.address and place.port
    try:
        if not place.store_is_served and place.rank == 0:
            _serve(place.address, place.port, place.world_size)
        client = TCPStore(
            place.address,
            place.port,
            place.world_size,
            is_master=False,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
        )
        return PrefixStore(f"imagenet_ddp/{place.attempt}", client)
    except Exception as error:  # torch raises DistNetworkError, DistStoreError or plain RuntimeError, by the cause
        raise ConfigError(
            f"rank {place.rank} of {place.world_size} expects to meet the others at {place.address}:{place.port} "
            f"({place.source}), but within {timeout_s:g} s: {str(error).splitlines()[0]} "
            "HINT: is MASTER_ADDR the address of rank 0's machine, its port free there and open from here?"
        ) from error


@functools.cache
def _serve(address: str, port: int, world_size: int) -> TCPStore:
    return TCPStore(address, port, world_size, is_master=True, wait_for_workers=False)


def meet(store: Store, place: Place, timeout_s: float) -> None:
    """Wait until every rank is here, and no rank twice. Raises ConfigError that names those who are missing."""
    if store.add(f"claimed/{place.rank}", 1) > 1:
        raise ConfigError(
            f"rank {place.rank} is expected to be given once, but another process has it too ({place.source}). "
            "HINT: RANK, or torchrun's node rank, must differ on each."
        )
    store.set(f"here/{place.rank}", "")
    missing = list(range(place.world_size))
    begin = said = time.monotonic()
    while missing := [rank for rank in missing if not store.check([f"here/{rank}"])]:
        now = time.monotonic()
        joined = f"{place.world_size - len(missing)} of {place.world_size} ranks joined after {now - begin:.0f} s."
        names = ", ".join(f"rank {rank}" for rank in missing[:10]) + (", ..." if len(missing) > 10 else "")
        if now - begin > timeout_s:
            raise ConfigError(
                f"{joined} Missing: {names}. HINT: start them too; cluster.timeout_s sets how long is waited."
            )
        if now - said > 10:
            said = now
            print(f"rank {place.rank}: {joined} Waiting for {names}.", file=sys.stderr, flush=True)
        time.sleep(0.05)


def exchange(store: Store, place: Place, key: str, value: str | None, timeout_s: float) -> str:
    """What rank 0 gave as value, on every rank."""
    if place.rank == 0:
        assert value is not None
        store.set(key, value)
        return value
    try:
        store.wait([key], timedelta(seconds=timeout_s))
    except Exception as error:
        raise ConfigError(
            f"rank {place.rank} of {place.world_size} waited {timeout_s:g} s for rank 0's word on {key}, in vain. "
            "HINT: look at rank 0's own message; cluster.timeout_s sets how long is waited."
        ) from error
    return store.get(key).decode()
