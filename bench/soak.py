"""A small model served for minutes by eight threads: wrong logits, memory, latencies, tokens a second.

    PYTHONPATH=. python bench/soak.py [-o soak_h200.json] [--seconds 300] [--plain-seconds 20] [--device cuda]

A decoder with random weights in MXFP4 (``quantize_``, activations in e2m1, prepared) answers requests of 1, 2, 4, 8,
16 and 32 sequences with prompts of some lengths: the prompt is read in one eager call, then tokens are made
one at a time, on CUDA by replays of a graph that was captured for this thread and this number of sequences, each
thread on a stream of its own. Whoever asks waits for each token, so that latencies are those of a step on the host.
Every thread draws its requests at random. The logits of every token are compared on the device with those of a serial
run before anything was served; one bit that differs is a wrong one. Memory is read after each of the windows, when no
request is in flight, and ten times a second in between. The same model in bf16 is served in the same way by as many
threads at intervals, and what it takes is kept apart. Latencies are counted in bins of one per cent.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import queue
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

import mxgemm
from bench.soak_model import Decoder, Sizes
from mxgemm.measure import output
from mxgemm.measure.environment import clocks, describe_environment
from mxgemm.nn.config import ModelReport

KIND: Final = "mxgemm-soak"
BATCHES: Final = (1, 2, 4, 8, 16, 32)
WARM_UP: Final = 3
WINDOWS: Final = 10
SETTLED: Final = 3
"""Windows after which every kind of request was seen: what is in use is compared from there on."""
BIN: Final = math.log(1.01)


GPU: Final = Sizes(width=2048, inner=8192, layers=8, words=8192, tokens=64, prompts=(16, 33, 100))
CPU: Final = Sizes(width=256, inner=512, layers=2, words=512, tokens=4, prompts=(3, 7))


class Slot:
    """What one thread needs for requests of one number of sequences: cache, inputs in place, a graph on CUDA."""

    def __init__(self, model: Decoder, batch: int, device: torch.device) -> None:
        self.model, self.batch, self.device = model, batch, device
        self.cache = model.cache(batch, device)
        self.ids = torch.zeros(batch, 1, dtype=torch.long, device=device)
        self.at = torch.zeros(1, dtype=torch.long, device=device)
        self.logits = torch.zeros(batch, model.sizes.words, dtype=torch.bfloat16, device=device)
        self.run: Callable[[], object] = self.step
        if device.type == "cuda":
            self.capture()

    def step(self) -> None:
        """Make one token in place."""
        self.logits.copy_(self.model(self.ids, self.at, self.cache))
        self.ids.copy_(self.logits.argmax(-1, keepdim=True))
        self.at.add_(1)

    def capture(self) -> None:
        """Record a step."""
        for _ in range(WARM_UP):
            self.step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            self.step()
        self.run = graph.replay

    def answer(self, prompt: Tensor, wait: Callable[[], object], times: list[float] | None) -> Tensor:
        """Return the logits of every token of an answer, ``[tokens, batch, words]``; seconds of each step in times."""
        count = prompt.shape[1]
        kept = torch.empty(self.model.sizes.tokens, *self.logits.shape, dtype=self.logits.dtype, device=self.device)
        start = time.perf_counter()
        first = self.model(prompt, torch.arange(count, device=self.device), self.cache)
        kept[0] = first
        self.ids.copy_(first.argmax(-1, keepdim=True))
        self.at.fill_(count)
        wait()
        for i in range(1, len(kept)):
            begun = time.perf_counter()
            if times is not None:
                times.append(begun - start)
            self.run()
            wait()
            kept[i].copy_(self.logits)
            start = begun
        if times is not None:
            times.append(time.perf_counter() - start)
        return kept


@dataclass
class Tally:
    """What one kind of model did."""

    steps: defaultdict[int, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    prompts: defaultdict[int, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    tokens: int = 0
    requests: int = 0
    wrong: int = 0
    seconds: float = 0.0


class Crew:
    """Threads that stay, as a server's do: torch keeps a workspace of cuBLAS for each thread and stream that it saw."""

    def __init__(self, count: int) -> None:
        self.work: list[queue.SimpleQueue[Callable[[int], None] | None]] = [queue.SimpleQueue() for _ in range(count)]
        self.done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self.threads = [threading.Thread(target=self.live, args=(index,), daemon=True) for index in range(count)]
        for thread in self.threads:
            thread.start()

    def live(self, index: int) -> None:
        """Do what comes until None does."""
        while (work := self.work[index].get()) is not None:
            try:
                work(index)
                self.done.put(None)
            except BaseException as error:
                self.done.put(error)

    def run(self, work: Callable[[int], None]) -> None:
        """Have every thread do it, and wait; raises what one of them raised."""
        for own in self.work:
            own.put(work)
        errors = [error for error in [self.done.get() for _ in self.threads] if error is not None]
        if errors:
            raise errors[0]


class Served:
    """A model with its slots and what a serial run answered."""

    def __init__(self, model: Decoder, threads: int, device: torch.device) -> None:
        self.model, self.device, self.tally = model, device, Tally()
        self.streams: list[Any] = [torch.cuda.Stream() if device.type == "cuda" else None for _ in range(threads)]  # type: ignore[no-untyped-call]
        self.slots = []
        for stream in self.streams:
            with on(stream):
                self.slots.append({batch: Slot(model, batch, device) for batch in BATCHES})
        self.wanted: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        generator = torch.Generator().manual_seed(1)
        for batch in BATCHES:
            for count in model.sizes.prompts:
                prompt = torch.randint(0, model.sizes.words, (batch, count), generator=generator).to(device)
                first = self.streams[0]
                with on(first):
                    self.wanted[batch, count] = prompt, self.slots[0][batch].answer(prompt, waiter(first), None)
        self.lock = threading.Lock()

    def serve(self, crew: Crew, seconds: float, seed: int) -> None:
        """Let every thread answer requests for a while."""
        begun = time.monotonic()

        def work(index: int) -> None:
            draw, mine = random.Random(seed * 1000 + index), Tally()
            with torch.inference_mode(), on(self.streams[index]):
                while time.monotonic() < begun + seconds:
                    self.request(index, draw.choice(BATCHES), draw.choice(self.model.sizes.prompts), mine)
            with self.lock:
                self.add(mine)

        crew.run(work)
        self.tally.seconds += time.monotonic() - begun

    def request(self, index: int, batch: int, count: int, tally: Tally) -> None:
        """Answer one, and compare every bit of its logits."""
        prompt, wanted = self.wanted[batch, count]
        times: list[float] = []
        got = self.slots[index][batch].answer(prompt, waiter(self.streams[index]), times)
        same = (got.view(torch.int16) == wanted.view(torch.int16)).flatten(1).all(1)
        tally.wrong += len(same) - int(same.sum())
        tally.prompts[count][binned(times[0])] += 1
        tally.steps[batch].update(map(binned, times[1:]))
        tally.tokens += batch * len(got)
        tally.requests += 1

    def add(self, mine: Tally) -> None:
        """Add a thread's share."""
        total = self.tally
        for kept, own in ((total.steps, mine.steps), (total.prompts, mine.prompts)):
            for size, times in own.items():
                kept[size].update(times)
        total.tokens, total.requests = total.tokens + mine.tokens, total.requests + mine.requests
        total.wrong += mine.wrong

    def summary(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        t = self.tally
        return {
            "seconds": round(t.seconds, 2),
            "requests": t.requests,
            "tokens": t.tokens,
            "tokens_per_second": round(t.tokens / t.seconds, 1),
            "wrong_logits": t.wrong,
            "step_us": {str(batch): quantiles(t.steps[batch]) for batch in BATCHES},
            "prompt_us": {str(count): quantiles(t.prompts[count]) for count in self.model.sizes.prompts},
        }


def on(stream: Any) -> Any:
    """Return the context in which a stream is the current one."""
    return nullcontext() if stream is None else torch.cuda.stream(stream)


def waiter(stream: Any) -> Callable[[], object]:
    """Return what waits for a stream."""
    return (lambda: None) if stream is None else stream.synchronize


def binned(seconds: float) -> int:
    """Return the bin of a latency: what is kept of it takes no memory that grows."""
    return math.floor(math.log(seconds * 1e6) / BIN)


def quantiles(bins: Counter[int]) -> dict[str, float]:
    """Return microseconds that half, and that 99 of 100, stay below."""
    count, seen, found = sum(bins.values()), 0, {"count": sum(bins.values())}
    for place in sorted(bins):
        seen += bins[place]
        for name, part in (("p50", 0.5), ("p99", 0.99)):
            if name not in found and seen >= part * count:
                found[name] = round(math.exp((place + 1) * BIN), 1)  # type: ignore[assignment]
    return found  # type: ignore[return-value]


class Memory:
    """Reads how much is in use, from a thread of its own."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.start = device, time.monotonic()
        self.rows: list[dict[str, float]] = []
        self.between: list[dict[str, float]] = []
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)

    def watch(self) -> None:
        """Read until the end."""
        while not self.ended.wait(0.1):
            self.rows.append(self.read())

    def read(self) -> dict[str, float]:
        """Return megabytes: of the process, of torch's allocator, and of the device as its driver sees it."""
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        row = {"s": round(time.monotonic() - self.start, 2), "process": pages * os.sysconf("SC_PAGE_SIZE") / 2**20}
        if self.device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self.device)
            row |= {
                "allocated": torch.cuda.memory_allocated(self.device) / 2**20,
                "reserved": torch.cuda.memory_reserved(self.device) / 2**20,
                "device": (total - free) / 2**20,
            }
        return row

    def idle(self) -> None:
        """Read once more, while nothing is served."""
        self.between.append(self.read())

    def summary(self) -> dict[str, Any]:
        """Return what was in use between windows, and forty samples."""
        step = max(1, len(self.rows) // 40)
        return {
            "between_windows_mb": [rounded(row) for row in self.between],
            "samples_mb": [rounded(row) for row in self.rows[::step]],
        }

    def growth(self) -> dict[str, float]:
        """Return megabytes that were added from when it had settled to the end."""
        last, rows = self.between[-1], len(self.between)
        first = {name: self.between[min(settled(name), rows) - 1][name] for name in last if name != "s"}
        return {name: round(last[name] - value, 2) for name, value in first.items()}


def settled(name: str) -> int:
    """Return after how many windows this memory should have settled.

    What torch's allocator keeps for each stream grows to the most that requests happened to need at once, which half
    of the windows may take to meet; a leak would go on in the other half, and show in what is allocated.
    """
    return WINDOWS // 2 if name in ("reserved", "device") else SETTLED


def rounded(row: dict[str, float]) -> dict[str, float]:
    """Return a row as a document holds it."""
    return {name: round(value, 2) for name, value in row.items()}


def main() -> None:
    """Serve, write, and exit with status 1 if a logit was wrong or memory grew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    output.add_options(parser)
    parser.add_argument("--seconds", type=float, default=300.0, help="that MXFP4 is served")
    parser.add_argument("--plain-seconds", type=float, default=20.0, help="that bf16 is served, in between")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true", help="the model of the CPU")
    parser.add_argument("--note", default="", help="kept in the document, such as what else the machine did")
    options = parser.parse_args()
    keep = output.json_file(options, KIND)
    device = torch.device(options.device)
    document = run(device, CPU if options.small or device.type == "cpu" else GPU, options, keep)
    print(json.dumps({name: document[name] for name in ("mxfp4", "bf16", "wrong_total", "grew_mb")}, indent=1))
    raise SystemExit(1 if document["wrong_total"] or document["grew"] else 0)


def run(
    device: torch.device, sizes: Sizes, options: argparse.Namespace, keep: Callable[[dict[str, Any]], object]
) -> dict[str, Any]:
    """Serve; return the document, which is kept after each window from the settled ones on, lest a kill lose it all."""
    torch.manual_seed(0)
    began = time.monotonic()
    plain = Decoder(sizes).to(device, torch.bfloat16).requires_grad_(False).eval()
    packed = Decoder(sizes).to(device, torch.bfloat16).requires_grad_(False).eval()
    packed.load_state_dict(plain.state_dict())
    report = mxgemm.quantize_(packed, mxgemm.MXConfig("e2m1", prepare="fast"))
    with torch.inference_mode():
        served = {"mxfp4": Served(packed, options.threads, device), "bf16": Served(plain, options.threads, device)}
    gc.collect()
    crew, memory = Crew(options.threads), Memory(device)
    memory.thread.start()
    print(f"ready after {time.monotonic() - began:.0f} s", flush=True)
    for window in range(1, WINDOWS + 1):
        served["mxfp4"].serve(crew, options.seconds / WINDOWS, window)
        served["bf16"].serve(crew, options.plain_seconds / WINDOWS, window)
        memory.idle()
        if window == WINDOWS:
            memory.ended.set()
            memory.thread.join()
        if window >= SETTLED:
            document = described(device, sizes, options, report, served, memory)
            keep(document)
        print(f"window {window} of {WINDOWS} after {time.monotonic() - began:.0f} s", flush=True)
    return document


def described(
    device: torch.device,
    sizes: Sizes,
    options: argparse.Namespace,
    report: ModelReport,
    served: dict[str, Served],
    memory: Memory,
) -> dict[str, Any]:
    """Return the document of what was served so far."""
    grew = memory.growth()
    results = {name: one.summary() for name, one in served.items()}
    return {
        "kind": KIND,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "environment": describe_environment(device),
        "clocks": clocks(device),
        "method": " ".join((__doc__ or "").split("\n\n", 2)[2].split()),
        "note": options.note,
        "threads": options.threads,
        "windows": [len(memory.between), WINDOWS],
        "model": {
            **{name: getattr(sizes, name) for name in ("width", "inner", "layers", "words", "tokens", "prompts")},
            "batches": BATCHES,
            "weights_bytes_bf16": report.bytes_before,
            "weights_bytes_mxfp4": report.bytes_after,
        },
        **results,
        "memory": memory.summary(),
        "grew_mb": grew,
        "grew": any(value > limit(name) for name, value in grew.items()),
        "wrong_total": sum(result["wrong_logits"] for result in results.values()),
    }


def limit(name: str) -> float:
    """Return how many megabytes of growth are noise: what is live on the device is the same, heaps vary."""
    return {"allocated": 1.0, "process": 32.0}.get(name, 256.0)


if __name__ == "__main__":
    main()
