"""Run the test suite's GPU part and keep what it said.

python bench/gpu_tests.py [-o bench/results/gpu_tests_<device>.json] [further pytest arguments]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path

import torch

from mxgemm.device import default_device, machine_of
from mxgemm.measure import output
from mxgemm.triton.support import triton_version


def main() -> None:
    """Run pytest in a process of its own; exit with its status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    output.add_options(parser)
    arguments, rest = parser.parse_known_args()
    keep = output.json_file(arguments, "mxgemm-gpu-tests")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "junit.xml"
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", f"--junitxml={report}", *rest]
        status = subprocess.run(command, check=False).returncode
        suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    per_file: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    failed = []
    for case in suite.iter("testcase"):
        skip = case.find("skipped")
        if skip is not None:
            skipped[skip.get("message", "")] += 1
        elif case.find("failure") is not None or case.find("error") is not None:
            failed.append(f"{case.get('classname')}::{case.get('name')}")
        else:
            per_file[str(case.get("classname"))] += 1
    machine = machine_of(default_device())
    document = {
        "kind": "mxgemm-gpu-tests",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": machine.name,
        "arch": machine.arch,
        "torch": torch.__version__,
        "triton": ".".join(map(str, triton_version() or ())),
        "method": "pytest -m gpu",
        "passed": dict(per_file),
        "passed_total": sum(per_file.values()),
        "failed": failed,
        "skipped": dict(skipped),
        "seconds": float(suite.get("time", "0")),
    }
    print(json.dumps({name: document[name] for name in ("device", "passed_total", "failed", "skipped")}, indent=1))
    keep(document)
    sys.exit(status)


if __name__ == "__main__":
    main()
