"""Which slice of a weight a process holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from mxgemm.arguments import as_int, shown


@dataclass(frozen=True, slots=True, eq=False)
class Ranks:
    """The processes that share a layer, and this one's place among them.

    Attributes:
        rank: of this process, from 0.
        size: how many there are.
        group: torch's process group; None for none, with which slices are made and nothing is sent.
    """

    rank: int
    size: int
    group: Any = None

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"group: got rank {self.rank} of {self.size}, want one from 0 to {self.size - 1}")

    def part(self, name: str, length: int, unit: int = 1) -> slice:
        """Return this process's slice of ``length`` elements, whole units of them.

        Raises:
            ValueError: it cannot be divided evenly; ``name`` says what of.
        """
        want = unit * self.size
        if length % want:
            units = f" in blocks of {unit}" if unit > 1 else ""
            raise ValueError(f"{name}: got {length}, want a multiple of {want} for {self.size} ranks{units}")
        own = length // self.size
        return slice(self.rank * own, (self.rank + 1) * own)

    def __deepcopy__(self, memo: dict[int, Any]) -> Ranks:
        return self  # a copy of a layer belongs to the same processes

    def __reduce__(self) -> str:
        raise TypeError("a layer that processes share is not pickled: save its state_dict()")


def ranks_of(group: Any = None) -> Ranks:
    """Return a group's processes.

    Args:
        group: a ``ProcessGroup``; a ``DeviceMesh`` of one dimension; None for all processes; or :class:`Ranks`.

    Raises:
        TypeError: something else.
        ValueError: a mesh of several dimensions, or a group that this process is not in.
        RuntimeError: torch.distributed is not there or not initialised.
    """
    if isinstance(group, Ranks):
        return group
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError(
            "group: torch.distributed is not initialised, want torch.distributed.init_process_group first"
        )
    if hasattr(group, "get_group") and hasattr(group, "ndim"):
        if group.ndim != 1:
            raise ValueError(f"group: got a mesh of {group.ndim} dimensions, want one of them: mesh['name']")
        group = group.get_group()
    if group is not None and not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"group: got {shown(group)}, want a ProcessGroup, a DeviceMesh or None")
    rank = as_int("group", dist.get_rank(group))
    if rank < 0:
        raise ValueError("group: this process is not in it")
    return Ranks(rank, dist.get_world_size(group), dist.group.WORLD if group is None else group)
