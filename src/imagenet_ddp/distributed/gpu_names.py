"""Which physical GPU each rank has, in words for the log. Plain values only: no torch, no GPU needed."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Gpu:
    """One GPU of a process. number: torch's, within `visible`; visible: CUDA_VISIBLE_DEVICES, None where not set."""

    number: int
    model: str
    uuid: str  # as nvidia-smi -L shows it
    bus: str  # PCI, "1B:00.0" as in nvidia-smi; "" where torch does not say
    visible: str | None = None

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def words(self) -> str:
        """cuda:1 = GPU 3 (GPU-8c5f1f2a, bus 1B:00.0). Eight digits of a UUID are what CUDA_VISIBLE_DEVICES needs of
        it."""
        entries = [part.strip() for part in (self.visible or "").split(",") if part.strip()]
        entry = entries[self.number] if self.number < len(entries) else None
        if self.visible is None:
            name = f"GPU {self.number}"
        elif entry is not None and entry.isdecimal():
            name = f"cuda:{self.number} = GPU {entry}"
        else:  # named by a UUID: what number it has, nobody said
            name = f"cuda:{self.number}"
        bus = f", bus {self.bus}" if self.bus else ""
        return f"{name} ({self.uuid if self.uuid.startswith('MIG') else self.uuid[:12]}{bus})"


def gpu(properties: Any, number: int, environ: Mapping[str, str]) -> Gpu:
    """properties: of torch.cuda.get_device_properties(number)."""
    uuid = str(properties.uuid)
    uuid = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    bus, domain = getattr(properties, "pci_bus_id", None), getattr(properties, "pci_domain_id", 0)
    where = "" if bus is None else f"{bus:02X}:{properties.pci_device_id:02X}.0"
    where = f"{domain:04X}:{where}" if where and domain else where
    return Gpu(number, str(properties.name), uuid, where, environ.get("CUDA_VISIBLE_DEVICES"))


def lines(ranks: Mapping[int, Sequence[Gpu]], hosts: Mapping[int, str], per_node: int) -> list[str]:
    """One line per node. ranks: the GPUs of each rank; hosts: each rank's machine; per_node: ranks of a node. Nothing
    where no rank has one."""
    found = []
    for node in sorted({rank // per_node for rank in ranks}):
        own = {rank: gpus for rank, gpus in sorted(ranks.items()) if rank // per_node == node and gpus}
        if not own:
            continue
        all_gpus = [gpu for gpus in own.values() for gpu in gpus]
        models, seen = {gpu.model for gpu in all_gpus}, {gpu.visible for gpu in all_gpus}
        head = ["GPUs" if len(all_gpus) > 1 else "GPU"]
        if len(hosts) > per_node:
            head[0] += f" of node {node} ({hosts[min(own)]})"
        head += models if len(models) == 1 else ()
        head += [f"CUDA_VISIBLE_DEVICES={visible}" for visible in seen if visible is not None and len(seen) == 1]
        each = [
            ("" if len(hosts) == 1 else f"rank {rank} ")
            + " and ".join(f"{gpu.model + ' ' if len(models) > 1 else ''}{gpu.words}" for gpu in gpus)
            for rank, gpus in own.items()
        ]
        found.append(f"{', '.join(head)}: {', '.join(each)}.")
    return found


def unseen(accelerator: str, kind: str, environ: Mapping[str, str]) -> list[str]:
    """A line where CUDA_VISIBLE_DEVICES names GPUs and torch finds none. accelerator: as asked, kind: what it is."""
    named = environ.get("CUDA_VISIBLE_DEVICES", "").strip()
    if kind != "cpu" or accelerator == "cpu" or named in ("", "-1", "NoDevFiles"):
        return []
    return [
        f"Warning: CUDA_VISIBLE_DEVICES={named} is set, but torch finds no GPU: training on the CPU. Hint: nvidia-smi "
        "shows what the driver finds; trainer.accelerator=gpu refuses to go on without."
    ]
