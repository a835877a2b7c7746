"""Let the commands of a run, one per node or one per rank, join. Afterwards, each command knows all ranks."""

import atexit
import shutil
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from imagenet_ddp.config.schema.commands import CommonConfig
from imagenet_ddp.distributed import roster, store
from imagenet_ddp.distributed.launchers.world_info import LaunchInfo, WorldInfo
from imagenet_ddp.distributed.meet import Meeting, explain_lost_store, meet, post_failure
from imagenet_ddp.distributed.network import interfaces
from imagenet_ddp.system.bounded_wait import run_bounded
from imagenet_ddp.system.files import sha256

ABORT_S = 2.0  # longest wait for a store that may not answer any more
CHUNK_BYTES = 4 * 2**20  # torch's store refuses values above 8 MiB


@dataclass(frozen=True)
class Rendezvous:
    """The commands that have met. world_info: ranks of this process, or of the first worker that this command
    starts."""

    meeting: Meeting
    world_info: WorldInfo
    starts_workers: bool

    def leave(self, timeout_s: float = 10.0) -> None:
        """Leave. Node 0, whose command may serve the store, waits up to timeout_s until all others have left."""
        meeting = self.meeting

        def leave() -> None:
            meeting.store.add("num_left", 1)
            while meeting.number == 0 and int(meeting.store.add("num_left", 0)) < meeting.size:
                time.sleep(0.05)

        if self.starts_workers:
            run_bounded(leave, timeout_s)

    def abort(self, code: int, reason: str) -> None:
        """End the workers of the other nodes, which may still be waiting for the workers of this node."""
        run_bounded(lambda: post_failure(self.meeting.root, code, [reason]), ABORT_S)


def join_commands(launch_info: LaunchInfo, config: CommonConfig, num_local: int) -> Rendezvous:
    """Wait for the other commands, and check that all agree.

    config: what is compared, the resolved config as typed on this machine. num_local: number of workers that this
    command starts if it is not itself a rank. Raises ConfigError, with the same error on all commands once they have
    joined.
    """
    world_info, timeout_s = launch_info.world_info, config.cluster.timeout_s
    number, size = launch_info.number, launch_info.size
    who = f"{launch_info.noun} {number} of {size}" if number is not None else f"one of {size} nodes"
    found = store.find(launch_info, timeout_s, who)
    root = store.of_attempt(found.store, world_info)
    hint = _hint(launch_info, found.host, found.port)
    expected = roster.Roster(size, launch_info.noun, launch_info.label, hint, launch_info.job_id)
    equal = roster.facts_of_command(config, None if world_info else num_local)
    meeting = meet(
        root, "commands", expected, number, timeout_s, equal=equal,
        leader=found.is_server if world_info is None else number == 0,
        local_rank=None if world_info is None else world_info.local_rank,
        find_mistakes=lambda members: [] if world_info is None else roster.layout_mistakes(world_info, members),
    )  # fmt: skip
    if world_info is not None:
        placed = replace(world_info, address=found.host, port=found.port)
        if not placed.local_world_size:
            placed = roster.infer_nodes(placed, meeting.members)
        return Rendezvous(meeting, placed, starts_workers=False)
    first_worker = WorldInfo(
        rank=meeting.number * num_local,
        node_rank=meeting.number,
        world_size=size * num_local,
        local_world_size=num_local,
        num_nodes=size,
        address=found.host,
        port=found.port,
        source=launch_info.source,
    )
    return Rendezvous(meeting, first_worker, starts_workers=True)


def _hint(launch_info: LaunchInfo, host: str, port: int) -> str:
    """Return a hint about the likely causes of a missing rank."""
    reach = f"Check that the missing machine reaches {host}:{port}."
    if launch_info.world_info is None and interfaces.is_loopback(host):
        reach = f"On every node, {host} is the node itself, so set the address at which the others reach node 0."
    return (
        "start the command on the missing machine, too, or read the message there. "
        f"{reach} To wait longer, set cluster.timeout_s."
    )


@explain_lost_store()
def share_file(meeting: Meeting, path: Path | None) -> Path | None:
    """Return the path of number 0's file on all members; None if number 0 has no file. The path is that of a local file
    with the same path and content, or else of a copy, which is sent through the store."""
    if meeting.size == 1:
        return path
    of_first = None
    if meeting.number == 0 and path is not None:
        of_first = {"path": str(path), "bytes": path.stat().st_size, "sha256": sha256(path)}
    of_first = meeting.broadcast("file", of_first)
    if of_first is None:
        return None
    path = Path(of_first["path"])
    same_size = meeting.number > 0 and path.is_file() and path.stat().st_size == of_first["bytes"]
    has_it = meeting.number == 0 or (same_size and sha256(path) == of_first["sha256"])
    who_has_it = meeting.check_all("who has the file", has_it, lambda _: [])
    chunks = [f"file/{begin}" for begin in range(0, of_first["bytes"], CHUNK_BYTES)]
    if meeting.number == 0 and not all(who_has_it):
        with path.open("rb") as file:
            for chunk in chunks:
                meeting.store.set(chunk, file.read(CHUNK_BYTES))  # type: ignore[arg-type]  # accepts bytes
    elif not has_it:
        folder = tempfile.mkdtemp(prefix="imagenet_ddp_")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)  # by then, this process's workers have read the file
        path = Path(folder) / path.name
        with path.open("wb") as file:
            for chunk in chunks:
                meeting.wait(lambda key=chunk: meeting.store.check([key]), meeting.timeout_s, lambda: [0], path.name)
                file.write(meeting.store.get(chunk))
    meeting.check_all("file has arrived", None, lambda _: [])
    if meeting.number == 0 and not all(who_has_it):
        for chunk in chunks:
            meeting.store.delete_key(chunk)
    return path
