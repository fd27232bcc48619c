# make verify   sets everything up and runs the main job: 8 ranks against the golden
# make test     makes what is missing and passes all tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CACHE := .cache
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest -q
DEEPSEEK := $(CACHE)/fixtures/deepseek

.PHONY: setup verify test test-quick docs releases zoo mutants mutation bench clean

setup: $(VENV)/.installed

# With a GPU the engine comes whole, CUDA kernels included; without one, only what the CPU path needs.
$(VENV)/.installed: pyproject.toml $(wildcard requirements/*.txt)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "specwire needs Python 3.11 or newer: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing torch, SGLang and specwire into $(VENV) (several GB, some minutes)"
	$(PIP) -r requirements/torch.txt
	if nvidia-smi -L >/dev/null 2>&1; then $(PIP) -r requirements/engine-cuda.txt; \
	else $(PIP) --no-deps -r requirements/engine-cpu.txt; fi
	$(PIP) --no-deps -r requirements/dev.txt
	$(PIP) --no-deps -e .
	touch $@

$(CACHE)/fixtures/%/.made: fixtures/make.py | setup
	$(BIN)/python fixtures/make.py $* $(CACHE)/fixtures/$* --dtype float32
	touch $@

verify: setup $(DEEPSEEK)/.made
	$(BIN)/specwire verify installed --target $(DEEPSEEK)/target --draft $(DEEPSEEK)/draft \
	    --golden golden/deepseek/float32.safetensors --tp 8

# The crash tests fork at every point, which is quick only in a process that holds little else. The engine's tests
# come one at a time: a boot takes both cores, and memory, for itself.
test: test-quick
	$(PYTEST) -n 2 -m slow tests/test_crash.py
	$(PYTEST) -n 2 --dist worksteal -m "(release or slow) and not engine" --ignore tests/test_crash.py
	$(PYTEST) -m engine

test-quick: setup
	$(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check .
	$(BIN)/mypy
	$(PYTEST) -n 2 --dist worksteal -m "not engine and not release and not slow"

# A page for every cause and probe, from their docstrings.
docs: setup
	$(BIN)/python docs/write_pages.py

releases: setup
	$(BIN)/python tests/run_releases.py

zoo: setup
	$(BIN)/python fixtures/zoo/run.py

mutants: setup
	$(BIN)/python fixtures/mutants/hunt.py

# Small changes to specwire itself, by seed: the quick tests must notice. Takes hours on two cores, and goes on where it was.
mutation: setup
	$(BIN)/python tests/run_mutation.py

bench: setup
	for each in benchmarks/bench_*.py; do $(BIN)/python $$each || exit 1; done

clean:
	rm -rf $(VENV) $(CACHE) .mypy_cache build *.egg-info
