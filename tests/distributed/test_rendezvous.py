"""Environments as launchers make them -> the place of a process."""

import pytest

from imagenet_ddp.distributed.rendezvous import OWN_RUN_ID, Meeting, Place, launched_place, meeting

TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1",
    "MASTER_ADDR": "node-a", "MASTER_PORT": "29511", "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}  # fmt: skip
BY_HAND = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({}, None),
        ({"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}, None),
        ({"LOCAL_RANK": "1"}, None),
        (TORCHRUN, Place(3, 1, 1, 4, 2, 2, "node-a", 29511, True, "torchrun")),
        (
            TORCHRUN | {"TORCHELASTIC_RUN_ID": OWN_RUN_ID},
            Place(3, 1, 1, 4, 2, 2, "node-a", 29511, True, "own workers"),
        ),
        (
            TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "False"},
            Place(3, 1, 1, 4, 2, 2, "node-a", 29511, False, "torchrun"),
        ),
        (BY_HAND, Place(1, 1, 0, 2, 2, 1, "10.0.0.1", 29500, False, "environment variables")),
        (
            BY_HAND | {"RANK": "0", "LOCAL_RANK": "0"},
            Place(0, 0, 0, 2, 2, 1, "10.0.0.1", 29500, False, "environment variables"),
        ),
        # one process on each of two machines: told apart by a local rank that is not the rank
        (BY_HAND | {"LOCAL_RANK": "0"}, Place(1, 0, 1, 2, 1, 2, "10.0.0.1", 29500, False, "environment variables")),
        (
            BY_HAND | {"LOCAL_RANK": "0", "NODE_RANK": "1", "LOCAL_WORLD_SIZE": "1"},
            Place(1, 0, 1, 2, 1, 2, "10.0.0.1", 29500, False, "environment variables"),
        ),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, Place(source="a launcher's single process")),
    ],
)  # fmt: skip
def test_launched_place(environ: dict[str, str], place: Place | None) -> None:
    assert launched_place(environ) == place


@pytest.mark.parametrize(
    ("cluster", "environ", "expected"),
    [
        ({}, {}, None),
        ({"address": "10.0.0.1"}, {}, None),
        ({}, {"MASTER_ADDR": "a", "NODE_RANK": "1"}, Meeting("a", 29500, 1)),
        ({}, {"MASTER_ADDR": "a", "MASTER_PORT": "1234", "GROUP_RANK": "0"}, Meeting("a", 1234, 0)),
        ({"address": "b", "node_rank": 0}, {"MASTER_ADDR": "a", "NODE_RANK": "1"}, Meeting("b", 29500, 0)),
        ({"address": "tcp://b:77", "node_rank": 2}, {"MASTER_PORT": "1234"}, Meeting("b", 77, 2)),
    ],
)
def test_meeting(cluster: dict, environ: dict[str, str], expected: Meeting | None) -> None:
    assert meeting({"address": None, "node_rank": None} | cluster, environ) == expected


def test_the_sentence_names_everything() -> None:
    place = launched_place(TORCHRUN)
    assert place is not None
    assert place.sentence() == (
        "Rendezvous: torchrun at node-a:29511, rank 3 of 4, local rank 1 of 2, node 1 of 2."
    )  # fmt: skip
    assert Place().sentence() == "Rendezvous: none needed, one process."
