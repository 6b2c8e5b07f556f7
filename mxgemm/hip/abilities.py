"""What of the HIP part works on this machine: a compiler, a driver, the kernels."""

from __future__ import annotations

from dataclasses import dataclass

from mxgemm.device import KNOWN_MACHINES, Machine
from mxgemm.errors import Refusal
from mxgemm.hip import build, compilers, runtime, shuffle


@dataclass(frozen=True, slots=True)
class Ability:
    """Something that HIP code needs or does.

    Attributes:
        name: in words.
        found: what serves, "" where it is missing.
        missing: what is missing, None where it works.
    """

    name: str
    found: str
    missing: Refusal | None

    @property
    def words(self) -> str:
        """What is missing, or what serves."""
        return str(self.missing or self.found)


def abilities(machine: Machine) -> tuple[Ability, ...]:
    """Examine a machine; without a GPU, what could be built for gfx950 is still told."""
    target = KNOWN_MACHINES["gfx950"] if machine.arch == "cpu" else machine
    compiler = compilers.find(target.arch)
    driver = runtime.driver_refusal()
    return (
        Ability(
            f"build kernels for {target.arch}",
            "" if isinstance(compiler, Refusal) else str(compiler),
            build.compiler_refusal(target.arch),
        ),
        Ability("load and launch them", "" if driver else runtime.driver().path, driver),
        Ability("shuffle scales and weights", "", shuffle.refusal(machine)),
    )
