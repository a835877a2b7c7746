"""Implement post-local SGD (Lin et al. 2020, arXiv:1808.07217).

The ranks average gradients at first, and later only the weights, every few steps. torch's PostLocalSGDOptimizer wraps
another optimizer, which Lightning would wrap again, and its averager replaces the memory of the parameters. Neither
class is needed, because DistributedDataParallel without synchronisation only calls the net.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, distributed
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer


class LocalSGD:
    """Choose by the number of optimizer steps when ranks stop averaging gradients, and then average their weights.

    start_step: number of steps with averaged gradients. every: number of steps between two averages of the weights.
    """

    def __init__(self, start_step: int, every: int):
        self.start_step, self.every = start_step, every
        self._weights_differ = self._states_differ = False

    def before_step(self, model: DistributedDataParallel, steps: int) -> None:
        """Set whether the next backward pass averages gradients.

        steps: number of optimizer steps of the whole run so far.
        """
        model.require_backward_grad_sync = steps < self.start_step

    def after_step(self, model: torch.nn.Module, steps: int) -> None:
        """Average the weights if they are due after this step.

        steps: number of optimizer steps of the whole run, including this step.
        """
        if steps > self.start_step:
            self._weights_differ = self._states_differ = True
            if (steps - self.start_step) % self.every == 0:
                self.average(model, ())

    def average(self, model: torch.nn.Module, optimizers: Sequence[Optimizer]) -> None:
        """Give all ranks the mean of weights, batch-norm statistics and states of the optimizers, if these may differ.

        This is a collective operation. Ranks with equal numbers of steps make the same calls.
        """
        tensors: list[Tensor] = []
        if self._weights_differ:
            tensors += [*model.parameters(), *model.buffers()]
            self._weights_differ = False
        if optimizers and self._states_differ:
            tensors += (value for optimizer in optimizers for value in _state(optimizer))
            self._states_differ = False
        average([each for each in tensors if each.is_floating_point()])


def _state(optimizer: Optimizer) -> Iterator[Tensor]:
    """Yield the tensors of the optimizer's state in the order of the parameters.

    The step counters are left out, because they are equal on all ranks.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            yield from (state[key] for key in sorted(state) if isinstance(state[key], Tensor) and state[key].dim())


@torch.no_grad()
def average(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor by its mean over the ranks, with one all-reduce per dtype, and keep memory formats."""
    kinds: dict[torch.dtype, list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        kinds[tensor.dtype].append(tensor)
    for same in kinds.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in same]).div_(distributed.get_world_size())
        distributed.all_reduce(flat)
        for tensor, mean in zip(same, flat.split([tensor.numel() for tensor in same]), strict=True):
            tensor.copy_(mean.view(tensor.shape))
