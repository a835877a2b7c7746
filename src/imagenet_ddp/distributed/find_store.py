"""Find the store at which the commands of a run meet, at a port or through a file, or serve it."""

import contextlib

from imagenet_ddp.distributed import store
from imagenet_ddp.distributed.network import interfaces
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.distributed.store import FoundStore
from imagenet_ddp.distributed.store_file import find_by_file
from imagenet_ddp.errors import ConfigError


def find(place: Place, timeout_s: float, who: str) -> FoundStore:
    """Serve the store if this command is node 0 or rank 0; otherwise wait up to timeout_s seconds for it.

    who: name of this process, for messages. Raises ConfigError if the store cannot be served or reached.
    """
    address, number = place.address, place.number
    assert address is not None
    if address.file is not None:
        return find_by_file(address.file, number, place.job_id, timeout_s, who)
    assert address.host
    host, port, is_served = address.host, address.port, place.store_is_served
    if not is_served and (number == 0 or (number is None and interfaces.is_local(store.resolve(host)))):
        try:
            return FoundStore(store.serve(host, port), host, port, is_server=True)
        except store.PortInUseError:
            if number == 0:
                raise
            # with two nodes on one machine, the other node was first; or another program uses the port
            with contextlib.suppress(ConfigError):
                return FoundStore(store.client(host, port, store.BUSY_S, who), host, port)
            raise
    return FoundStore(store.client(host, port, timeout_s, who, ours=not is_served), host, port)
