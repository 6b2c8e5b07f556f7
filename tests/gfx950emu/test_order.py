"""Strict mode: what a wave reads of another wave's stores must have been made visible to it, step by step."""

import numpy as np
import pytest

from gfx950emu import OrderError, run_code_object
from gfx950emu.launch import MAX_WAVES
from tests.emulator import compile_hip
from tests.gfx950emu.conftest import HIP

SOURCE = HIP / "order.hip"
STEPS = ("STORE_WAIT", "BARRIER", "WRITE_BACK", "WRITE_BACK_WAIT", "INVALIDATE")


def without(*steps: str) -> list[str]:
    return [f'-D{step}="s_nop 0"' for step in steps]


def launch(kernel: str, grid: int, block: int, arrays: dict, scalars=(), flags=(), strict: bool = True):
    after, _ = run_code_object(
        compile_hip(SOURCE, *flags), kernel, (grid,), (block,), [*arrays, *scalars], arrays, strict=strict
    )
    return after


def sum_of_team(teams: int, members: int, flags=(), strict: bool = True) -> None:
    groups = teams * members
    x = np.random.default_rng(groups).integers(0, 1000, (members, teams, 128), dtype=np.uint32)
    arrays = {
        "x": x.reshape(-1),
        "parts": np.full(groups * 128, 0xA5A5A5A5, np.uint32),
        "counters": np.zeros(teams, np.uint32),
        "o": np.zeros(teams * 128, np.uint32),
    }
    after = launch("sum_of_team", groups, 128, arrays, (teams, members), flags, strict)
    expected = x.sum(0)[:, np.arange(128) ^ 64]
    assert (after["o"].reshape(teams, 128) == expected).all()


@pytest.mark.parametrize("teams, members", [(1, 2), (1, 5), (3, 7), (8, 3), (2, 150)])
def test_all_steps_taken(teams: int, members: int) -> None:
    sum_of_team(teams, members)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("teams, members", [(1, 2), (3, 7), (2, 150)])
def test_a_step_left_out_between_xcds(step: str, teams: int, members: int) -> None:
    """Also where batches of workgroups run one after the other (300 of them), so that luck would hide it."""
    sum_of_team(teams, members, without(step), strict=False)
    with pytest.raises(OrderError, match="release, acquire and cache invalidation have made visible") as raised:
        sum_of_team(teams, members, without(step))
    assert "of workgroup number" in str(raised.value)
    assert "load_dword" in str(raised.value)


@pytest.mark.parametrize("step", STEPS)
def test_one_xcd_needs_no_write_back(step: str) -> None:
    """Workgroups 0, 8 and 16 share an L2."""
    if step.startswith("WRITE_BACK"):
        sum_of_team(8, 3, without("WRITE_BACK", "WRITE_BACK_WAIT"))
    else:
        with pytest.raises(OrderError, match="which no wait, release, acquire and cache invalidation"):
            sum_of_team(8, 3, without(step))


def test_only_device_scope_reaches_other_xcds() -> None:
    for step, narrow in (("WRITE_BACK", "buffer_wbl2 sc0"), ("INVALIDATE", "buffer_inv sc0")):
        with pytest.raises(OrderError):
            sum_of_team(1, 2, [f'-D{step}="{narrow}"'])


@pytest.mark.parametrize(
    "flags",
    [without("WRITE_BACK"), without("WRITE_BACK_WAIT"), without("INVALIDATE"), ['-DFLAG_STORE=""'], ['-DFLAG_LOAD=""']],
    ids=["no write-back", "no wait", "no invalidation", "plain store of the flag", "plain load of the flag"],
)
def test_flags(flags: list[str]) -> None:
    def run(*flags: str, strict: bool = True):
        arrays = {"data": np.zeros(64, np.uint32), "flag": np.zeros(1, np.uint32), "o": np.zeros(64, np.uint32)}
        last = MAX_WAVES  # of another batch, so it runs when the flag is up; and of another XCD than workgroup 1
        return launch("flag", last + 1, 64, arrays, (last,), flags, strict)["o"]

    assert (run() == np.arange(1, 65)).all()
    assert (run(*flags, strict=False) == np.arange(1, 65)).all()
    with pytest.raises(OrderError):
        run(*flags)


@pytest.mark.parametrize("step", ["STORE_WAIT", "BARRIER"])
def test_within_a_workgroup(step: str) -> None:
    def run(*flags: str):
        arrays = {"data": np.zeros(128, np.uint32), "o": np.zeros(128, np.uint32)}
        return launch("within", 1, 128, arrays, flags=flags)["o"]

    assert (run() == np.arange(128) ^ 64).all()
    with pytest.raises(OrderError, match="which no wait before a barrier has made visible"):
        run(*without(step))


def test_scalar_loads() -> None:
    arrays = {"data": np.zeros(64, np.uint32), "o": np.zeros(128, np.uint32)}
    with pytest.raises(OrderError, match="through the scalar cache"):
        launch("scalar", 1, 128, arrays)


def test_a_launch_sees_the_launches_before() -> None:
    first = {"data": np.zeros(128, np.uint32), "o": np.zeros(128, np.uint32)}
    after = launch("within", 1, 128, first)
    again = launch("scalar", 1, 64, {"data": after["data"], "o": after["o"]}, strict=False)
    assert (again["o"][:64] == after["data"][0]).all()
