# Two commands set everything up on a fresh machine: `make demo` and `make test`.
#
# `make check`, two minutes on two cores, is `make test` without the tests marked slow: those marked where they are, which
# take longest with all their parameters, and whatever is in the folders that tests/conftest.py names, which compile
# machine code or execute it.
#
#   TORCH        the torch requirement; the default is the CPU build on machines that offer one under that version
#   TORCH_INDEX  a package index to take torch from, e.g. https://download.pytorch.org/whl/cpu
#   PYTHON       the interpreter to make the virtual environment with (3.10 or newer)
#   VENV         where to put it
#   VLLM_VENV    where `make test-vllm` puts vLLM, on top of VENV, whose torch must be 2.13.0 and whose Python 3.11 to 3.14
#
# On a GPU machine:  make demo TORCH=torch TORCH_INDEX=https://download.pytorch.org/whl/rocm7.0

TORCH ?= torch==2.13.0
TORCH_INDEX ?=
PYTHON ?= python3
VENV ?= .venv
VLLM_VENV ?= .venv-vllm

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# One thread a worker: torch's and numpy's own would wait for each other on the same cores.
PYTEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal
TORCH_FROM := $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))

.PHONY: demo test test-all test-vllm check lint clean

demo: $(VENV)/demo.stamp  ## the six leaderboard shapes, then MiniLM with every linear layer in MXFP4
	$(BIN)/mxgemm bench --peers
	$(BIN)/python examples/minilm.py

test: lint  ## lint, types, tests
	$(PYTEST) -m 'not exhaustive'

test-all: lint test-vllm  ## the exhaustive tests too, and vLLM's
	$(PYTEST)

test-vllm: $(VLLM_VENV)/vllm.stamp  ## vLLM on a CPU, in an environment of its own: two to four minutes, once
	OMP_NUM_THREADS=1 $(VLLM_VENV)/bin/python -m pytest tests/integrations/test_vllm.py

check: lint  ## lint, types, the quick tests
	$(PYTEST) -m 'not slow'

lint: $(VENV)/test.stamp  ## lint, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) $(VLLM_VENV) .cache

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "mxgemm needs Python 3.10 or newer as '$(PYTHON)' (PYTHON=... names another)"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
	  || { echo "python has no venv module; on Debian and Ubuntu: apt install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/torch.stamp: $(BIN)/python
	$(PIP) install --quiet '$(TORCH)' $(TORCH_FROM)
	@touch $@

$(VENV)/demo.stamp: $(VENV)/torch.stamp pyproject.toml
	$(PIP) install --quiet --editable '.[cli,examples]'
	@touch $@

$(VENV)/test.stamp: $(VENV)/torch.stamp pyproject.toml
	@command -v c++ >/dev/null || command -v g++ >/dev/null \
	  || { echo "the inductor test needs a C++ compiler; on Debian and Ubuntu: apt install g++"; exit 1; }
	$(PIP) install --quiet --editable '.[test]'
	$(PIP) install --quiet --target .cache/triton36 --no-deps triton==3.6.0  # compile-only, for the machine-code tests
	@touch $@

# The packages of VENV, mxgemm and its entry point among them, are seen from there; vLLM's own go before them.
$(VLLM_VENV)/vllm.stamp: $(VENV)/test.stamp tests/integrations/vllm-requirements.txt
	$(BIN)/python -m venv $(VLLM_VENV)
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	  > "$$($(VLLM_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth"
	$(VLLM_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps -r tests/integrations/vllm-requirements.txt
	@touch $@
