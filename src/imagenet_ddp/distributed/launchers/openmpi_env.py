"""Read OpenMPI's variables, OMPI_COMM_WORLD_*. No torch."""

from collections.abc import Mapping

NAMES = {"RANK": "RANK", "WORLD_SIZE": "SIZE", "LOCAL_RANK": "LOCAL_RANK", "LOCAL_WORLD_SIZE": "LOCAL_SIZE"}


def read_ranks(environ: Mapping[str, str]) -> dict[str, int] | None:
    """Return RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE; None outside of OpenMPI, and for a single process."""
    values = {name: environ.get(f"OMPI_COMM_WORLD_{openmpi}", "") for name, openmpi in NAMES.items()}
    if not all(map(str.isdecimal, values.values())) or int(values["WORLD_SIZE"]) <= 1:
        return None
    return {name: int(value) for name, value in values.items()}
