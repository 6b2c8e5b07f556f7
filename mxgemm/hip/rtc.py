"""Compile in this process: hiprtc and NVRTC, which have the same functions under two prefixes."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from mxgemm.hip import libraries


class RtcError(RuntimeError):
    """A run-time compiler refused; the message has its log."""


@dataclass(frozen=True, slots=True)
class Api:
    """A run-time compiler's names.

    Attributes:
        prefix: of its functions.
        library: stem of its shared library.
        versions: of the library's soname, the newest first.
        code: what it calls its result, as in ``nvrtcGetCUBIN``.
    """

    prefix: str
    library: str
    versions: tuple[str, ...]
    code: str


HIPRTC: Final = Api("hiprtc", "libhiprtc", ("7", "6", "5"), "Code")
NVRTC: Final = Api("nvrtc", "libnvrtc", ("13", "12"), "CUBIN")


class Rtc:
    """An opened run-time compiler.

    Attributes:
        api: its names.
        path: what it was opened by.
        version: "major.minor" as it says.
    """

    def __init__(self, api: Api, library: ctypes.CDLL, path: str) -> None:
        self.api, self.path, self._library = api, path, library
        handle, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int)
        texts, size = ctypes.POINTER(ctypes.c_char_p), ctypes.POINTER(ctypes.c_size_t)
        signatures: dict[str, tuple[Any, ...]] = {
            "CreateProgram": (ctypes.POINTER(handle), text, text, ctypes.c_int, texts, texts),
            "CompileProgram": (handle, ctypes.c_int, texts),
            "GetProgramLogSize": (handle, size),
            "GetProgramLog": (handle, text),
            f"Get{api.code}Size": (handle, size),
            f"Get{api.code}": (handle, text),
            "DestroyProgram": (ctypes.POINTER(handle),),
            "Version": (number, number),
        }
        for name, types in signatures.items():
            function = getattr(library, api.prefix + name)
            function.argtypes, function.restype = types, ctypes.c_int
        words = getattr(library, f"{api.prefix}GetErrorString")
        words.argtypes, words.restype = (ctypes.c_int,), text
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("Version", ctypes.byref(major), ctypes.byref(minor))
        self.version = f"{major.value}.{minor.value}"

    def compile(self, source: str, name: str, headers: Mapping[str, str], options: Sequence[str]) -> bytes:
        """Compile a source text.

        Args:
            source: the text.
            name: how messages call it.
            headers: what ``#include`` finds, by name.
            options: of the compiler.

        Raises:
            RtcError: it does not compile; the message has the compiler's log.
        """
        program = ctypes.c_void_p()
        texts = (ctypes.c_char_p * len(headers))(*(text.encode() for text in headers.values()))
        names = (ctypes.c_char_p * len(headers))(*(header.encode() for header in headers))
        self._call("CreateProgram", ctypes.byref(program), source.encode(), name.encode(), len(headers), texts, names)
        try:
            flags = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            status = self._status("CompileProgram", program, len(options), flags)
            if status:
                log = self._bytes("ProgramLog", program).rstrip(b"\0").decode(errors="replace").strip()
                raise RtcError(f"{self._words(status)}\n{log}")
            return self._bytes(self.api.code, program)
        finally:
            self._call("DestroyProgram", ctypes.byref(program))

    def _bytes(self, what: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"Get{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(f"Get{what}", program, buffer)
        return buffer.raw

    def _call(self, name: str, *arguments: Any) -> None:
        status = self._status(name, *arguments)
        if status:
            raise RtcError(f"{self.api.prefix}{name}: {self._words(status)}")

    def _status(self, name: str, *arguments: Any) -> int:
        return int(getattr(self._library, self.api.prefix + name)(*arguments))

    def _words(self, status: int) -> str:
        text = getattr(self._library, f"{self.api.prefix}GetErrorString")(status)
        return text.decode(errors="replace") if text else f"error {status}"


@cache
def find(api: Api) -> Rtc | str:
    """Return a run-time compiler, or why there is none."""
    folders: list[Path] = libraries.torch_folders()
    folders += [libraries.rocm_folder() / "lib"] if api is HIPRTC else [libraries.cuda_folder() / "lib64"]
    try:
        library, path = libraries.open_library(api.library, folders, api.versions)
        if api is NVRTC:
            _open_builtins(Path(path))
        return Rtc(api, library, path)
    except (OSError, AttributeError, RtcError) as error:
        return str(error)


def _open_builtins(library: Path) -> None:
    """Open what NVRTC opens by its bare name when it first compiles, and would not find in a wheel's folder."""
    if library.is_absolute():
        for file in sorted(library.parent.glob("libnvrtc-builtins.so.*")):
            ctypes.CDLL(str(file))
