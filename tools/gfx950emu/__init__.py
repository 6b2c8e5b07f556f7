"""gfx950emu: functional emulator for AMD gfx950 code objects (numpy, lock-step waves)."""

from .api import run_code_object
from .mem import Memory, MemoryFault
from .wave import CodeObject, EmuError, Stats, launch, load_code_object, pack_kernarg

__all__ = [
    "CodeObject",
    "EmuError",
    "Memory",
    "MemoryFault",
    "Stats",
    "launch",
    "load_code_object",
    "pack_kernarg",
    "run_code_object",
]
