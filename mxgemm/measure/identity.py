"""Who a record is about: what makes one contender another in tables, pictures and comparisons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Identity(NamedTuple):
    """One contender of a document, whatever the size.

    Attributes:
        kind: "route" or "peer".
        name: of the route or peer.
        a_format: what A is rounded to, "" for a peer: its statement says it.
        form: of the weight, "" for a peer.
    """

    kind: str
    name: str
    a_format: str
    form: str


def identity(record: Mapping[str, Any]) -> Identity:
    """Return whom a result, refusal or failure is about."""
    return Identity(record["kind"], record["name"], record["a_format"] or "", record["form"] or "")


def names(records: Iterable[Mapping[str, Any]]) -> dict[Identity, str]:
    """Name contenders in order of appearance; the format of A and the form of the weight are said where they differ."""
    found = dict.fromkeys(identity(record) for record in records)
    return {each: " ".join([each.name, *_differences(each, found)]) for each in found}


def _differences(one: Identity, every: Iterable[Identity]) -> list[str]:
    namesakes = [each for each in every if (each.kind, each.name) == (one.kind, one.name)]
    formats, forms = ({getattr(each, field) for each in namesakes} for field in ("a_format", "form"))
    return [one.a_format] * (len(formats) > 1) + [one.form] * (len(forms) > 1)
