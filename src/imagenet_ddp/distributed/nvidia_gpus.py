"""NVIDIA's cards of this machine as the driver numbers them, without making a CUDA context. No torch here."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

QUERY = ("index", "uuid", "name", "memory.total", "memory.used", "compute_cap")
BF16_CAPABILITY = 8.0  # Ampere; CUDA C++ Programming Guide, "Arithmetic Instructions"


@dataclass(frozen=True)
class Card:
    number: int  # physical: nvidia-smi's, in the order of the PCI bus
    uuid: str
    name: str
    memory_mib: int
    used_mib: int  # by all processes
    capability: float

    @property
    def has_bf16(self) -> bool:
        return self.capability >= BF16_CAPABILITY


def cards(timeout_s: float = 20.0) -> list[Card]:
    """All of them, whatever CUDA_VISIBLE_DEVICES says; [] where there is no nvidia-smi, or it does not answer."""
    command = ["nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"]
    environ = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=environ, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return read(done.stdout)


def read(text: str) -> list[Card]:
    """nvidia-smi's answer to QUERY. What a card does not say ("[N/A]", as with MIG) is 0."""
    found = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == len(QUERY) and parts[0].isdecimal():
            index, uuid, name, *numbers = parts
            memory, used, capability = (float(part) if _is_number(part) else 0.0 for part in numbers)
            found.append(Card(int(index), uuid, name, int(memory), int(used), capability))
    return found


def visible(all_cards: list[Card], environ: Mapping[str, str]) -> list[Card] | None:
    """Those that CUDA_VISIBLE_DEVICES leaves, in its order: torch's cuda:0 is the first. None: it names something else
    than cards (a MIG instance). CUDA stops reading at the first entry that fits no card."""
    text = environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return all_cards
    found: list[Card] = []
    for entry in (part.strip() for part in text.split(",")):
        if entry.startswith("MIG"):
            return None
        if entry.isdecimal():
            fits = [card for card in all_cards if card.number == int(entry)]
        else:
            fits = [card for card in all_cards if entry.startswith("GPU-") and card.uuid.startswith(entry)]
        if len(fits) != 1:
            break
        found += fits
    return found


def order_may_differ(all_cards: list[Card], environ: Mapping[str, str]) -> bool:
    """CUDA numbers the fastest card first unless it is told otherwise, the driver goes by the bus: with different cards
    in one machine the numbers of CUDA_VISIBLE_DEVICES may mean others than nvidia-smi's."""
    return len({card.name for card in all_cards}) > 1 and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()
