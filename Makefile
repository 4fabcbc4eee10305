# Tollgate's commands. `make` alone lists them. Every target sets up what it needs, once: `make serve` what serving needs,
# the others what tests and linters need beside it, into one .venv.
#
# Variables, given on the command line (make serve PORT=9000):
#   PYTHON       the Python (3.11 or later) to build .venv with     default: the first one found
#   HOST, PORT   where `make serve` listens                         default: 127.0.0.1, 8000
#   POLICIES     the policy folder                                  default: policies
#   WORKERS      gateway worker processes                           default: 1
#   ENGINE_MODEL what the engine serves: demo, a name that scripts/models.py lists (it is fetched), or your file or folder
#   PYTEST_ARGS  what `make test` and `test-all` hand to pytest     default: -n 4 --dist worksteal
#   ATTACKS      what `make attack` tries: names, or points     default: all of them
#   TOLLGATE_AGENT_MODEL     a GGUF file or a model's folder: `test-all` lets coding agents work with it (docs/clients.md)
#   TOLLGATE_AGENT_PATIENCE  the seconds that each of them may take   default: 1500
#   TORCH_INDEX  a package index with CPU builds of torch, used only where there is no NVIDIA GPU: the one
#                pytorch.org prints for pip, Linux, CPU. Without it torch is the CUDA build, several GB.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help setup serve test test-all clients attack lint lock clean

# Not taken from the environment: some shells put the machine's name into HOST. TOLLGATE_HOST and the like are.
HOST =
PORT =
POLICIES =
WORKERS =
ENGINE_MODEL ?=
# Four processes also on two cores, as tests wait more than they compute.
PYTEST_ARGS ?= -n 4 --dist worksteal
ATTACKS =
TORCH_INDEX ?=
ifndef PYTHON
PYTHON := $(shell for python in python3 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& echo "$$python" && break; done)
endif
export TORCH_INDEX
# Tests start hundreds of processes, each of which would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE
# One that is named is tried, too.
USABLE = "$(PYTHON)" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || { \
	echo "PYTHON=$(PYTHON) is no Python 3.11 or later with its venv module: name another, as make PYTHON=/path/to/python3.12" >&2; \
	exit 1; }
# How much of the environment is set up (scripts/environment.py).
STAGE = serve
test clients attack lint: STAGE = dev

help:
	@echo "make serve   install what is missing, start the gateway and its engine, print how to call them"
	@echo "make setup   install what is missing for serving, and no more"
	@echo "make test    install what is missing, run the tests but the slow ones: 7 minutes"
	@echo "make test-all  make test, then the slow ones, and the numerics once more as on older processors"
	@echo "make clients  install the client libraries of others that test-all tries (npm and pip, 1.5 GB)"
	@echo "make attack  attack a running gateway in every way that has worked once, print what happened"
	@echo "make lint    ruff and mypy"
	@echo "make lock    resolve the dependencies afresh into constraints.txt"
	@echo "make clean   remove .venv, caches and build outputs"
	@echo
	@echo "Variables are described at the top of the Makefile: PYTHON HOST PORT POLICIES WORKERS ENGINE_MODEL PYTEST_ARGS ATTACKS TORCH_INDEX"

setup:
	@if [ -z "$(PYTHON)" ]; then \
		echo "No usable Python found: Tollgate needs Python 3.11 or later with its venv module." >&2; \
		echo "Debian, Ubuntu: apt-get install python3 python3-venv. Elsewhere: install it, or name one: make PYTHON=/path/to/python3.12" >&2; \
		exit 1; \
	fi
	@$(USABLE)
	@exec "$(PYTHON)" scripts/environment.py $(STAGE)

# A model that is named is called what it is: the policy reads ENGINE_NAME.
serve: setup
	@if [ -n "$(ENGINE_MODEL)" ]; then \
		ENGINE_NAME="$${ENGINE_NAME:-$$(.venv/bin/python scripts/models.py --name "$(ENGINE_MODEL)")}" && \
		ENGINE_MODEL="$$(.venv/bin/python scripts/models.py "$(ENGINE_MODEL)")" || exit 1; \
		export ENGINE_NAME ENGINE_MODEL; \
	fi; \
	exec .venv/bin/tollgate serve $(if $(POLICIES),--policies "$(POLICIES)") $(if $(HOST),--host "$(HOST)") \
		$(if $(PORT),--port "$(PORT)") $(if $(WORKERS),--workers "$(WORKERS)")

test: setup
	@for program in redis-server prometheus; do \
		if ! command -v $$program >/dev/null 2>&1; then \
			echo "$$program is not on PATH: the tests that need it are skipped. (Debian, Ubuntu: apt-get install $$program)" >&2; \
			if [ -n "$$CI" ]; then echo "CI is set, and CI must run them all." >&2; exit 1; fi; \
		fi; \
	done
	@exec .venv/bin/python -m pytest $(PYTEST_ARGS)

# After `make test`: what is marked slow, with six random stories of what limits promise, and all examples of property
# tests. Then layers, worker and kernels as on processors without AMX, without AVX-512 (libraries and compiler alike), and
# where MKL has no AVX-512; each with a cache of compiled C of its own. Kernels compiled ahead of time are the same there.
# A line here is a run of its own. Then the kernels with Triton 3.6, which many GPU machines have, fetched into a folder of
# its own. Last the published shapes of answers; the outside suites, which need a package index, run without `shapes`.
NUMERICS = .venv/bin/python -m pytest $(PYTEST_ARGS) -m "slow or not slow" --ignore tests/kernels/test_compile.py \
	tests/engine/layers tests/engine/worker tests/kernels
test-all: test
	TOLLGATE_PROMISES=6 .venv/bin/python -m pytest $(PYTEST_ARGS) --hypothesis-profile=thorough -m "slow or hypothesis"
	ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 $(NUMERICS)
	ONEDNN_MAX_CPU_ISA=AVX2 $(NUMERICS)
	ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 ATEN_CPU_CAPABILITY=avx2 CC="cc -mno-avx512f" $(NUMERICS)
	.venv/bin/python scripts/other_triton.py
	.venv/bin/python -m benchmarks.conformance shapes

clients: setup
	@.venv/bin/python -m benchmarks.conformance.clients install

attack: setup
	@exec .venv/bin/python -m benchmarks.attacks $(ATTACKS)

lint: setup
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy

lock:
	@$(USABLE)
	@exec "$(PYTHON)" scripts/environment.py lock

clean:
	rm -rf .venv .pytest_cache .ruff_cache .mypy_cache .hypothesis build dist *.egg-info
	find gateway engine kernels tests scripts training -name __pycache__ -prune -exec rm -rf {} +
