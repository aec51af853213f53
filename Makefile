# make demo   set up, profile a small two-rank training on this machine, analyse it, have HTA's own code check the
#             tables, say where the report is
# make test   set up and run the tests
# make check  before a commit, less than a minute: lint, types, and the quickest tests of what changed since main
# make format have ruff write the code as `make lint` wants it
# make docs   build the documentation site into site/, without a network once its packages are there
# make figures   measure what docs/evidence.md says of speed, and write it there: some minutes on a quiet machine
# make explore   properties on ten times as many examples, drawn at random: TIMES=10, SEED=, PYTEST_ARGS=tests/hangs
#
# All set up .venv from constraints.txt the first time, and again when it, pyproject.toml or the C code changes.
#
#   PYTHON=python3.12   another Python, 3.10 to 3.13; .venv is made anew for it
#   VENV=.venv-3.12     another folder, to keep several
#   TORCH=0             leave torch out: `make test TORCH=0` runs the tests that are not marked as needing it
#
# On Linux, PyPI's torch carries CUDA: several GB. Without a GPU, the CPU build (200 MB) is chosen with
#   PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make demo

PYTHON ?= python3
VENV ?= .venv
TORCH ?= 1
WORKERS ?= 3
CHECK_S ?= 40
PYTEST_ARGS ?=
TIMES ?= 10

# pip would compile 17,000 files, of which we load a tenth: the first import compiles what it loads, and keeps it.
unexport PYTHONDONTWRITEBYTECODE

BIN := $(VENV)/bin
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
INSTALLED := $(VENV)/.installed-$(VERSION)-
NATIVE := $(wildcard traceops/traces/native/* traceops/across/replay/native/* traceops/capture/*/native/*)
ifeq ($(TORCH),0)
SETUP := $(INSTALLED)hta,test
SELECT := -m "not torch"
else
SETUP := $(INSTALLED)run,hf,runners,hta,test
endif

.PHONY: help demo test check check-code check-tests docs explore figures format lint browser wheel tools constraints clean setup

help:
	@sed -n '/^$$/q;s/^# \{0,1\}//p' Makefile
	@echo "make lint, make wheel, make browser (playwright, for the tests of the report in a browser), make clean"

setup: $(SETUP)

# One GPU cannot hold two ranks: the demo then has one. Two GPUs or none: two.
demo: $(SETUP)
	ranks=$$($(BIN)/python -c 'import torch; print(1 if torch.cuda.device_count() == 1 else 2)') && \
	$(BIN)/traceops run --strategy pytorch_ddp --nproc $$ranks --name demo --overwrite
	$(BIN)/traceops analyze profile/demo
	@test -s reports/demo/summary.html
	@printf '\n'; COLUMNS=400 $(BIN)/traceops analyze profile/demo --hta --format json -o reports/demo/by_hta | grep "^HTA's own code"
	@printf '\nA run of four GPUs, from the tests:\n'; \
	  $(BIN)/traceops analyze tests/data/ddp4 --hta --format json -o reports/demo/ddp4_by_hta \
	  | grep "^HTA agrees: "
	@printf '\nThe report: %s\n' '$(CURDIR)/reports/demo/summary.html'

test: $(SETUP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(SELECT) $(PYTEST_ARGS)

# What hypothesis finds becomes a fixed case: an @example, or a parameter. SEED repeats a search.
explore: SEED := $(or $(SEED),$(shell date +%s))
explore: $(SETUP)
	@echo 'SEED=$(SEED)'
	TIMES=$(TIMES) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --hypothesis-profile=explore \
	  --hypothesis-seed=$(SEED) -o faulthandler_timeout=0 -m hypothesis $(PYTEST_ARGS)

docs: $(INSTALLED)docs
	$(BIN)/python -m mkdocs build --strict --quiet

figures: $(SETUP)
	$(BIN)/python -m benchmarks.figures

check: $(SETUP) $(INSTALLED)run,lint
	@$(MAKE) --no-print-directory -j2 check-code check-tests

check-code:
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --quiet --check .
	$(BIN)/lint-imports --no-cache >/dev/null || $(BIN)/lint-imports
	$(BIN)/mypy --strict

# Of these tests the quickest, which took CHECK_S together when they last ran: the others are for `make test`.
check-tests:
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --within $(CHECK_S) -m $(if $(SELECT),"not torch and not slow","not slow") $$($(BIN)/python tests/of_what_changed.py)

format: $(INSTALLED)run,lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lint: $(INSTALLED)run,lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/lint-imports --no-cache

# The tests drive a Chromium that is already on the machine.
browser: $(INSTALLED)browser

# What lint, browser and wheel install one by one, at once.
tools: $(SETUP)
	@$(BIN)/python -m pip install --disable-pip-version-check -qq --no-compile -c constraints.txt -e '.[run,lint,browser,build]'
	@touch '$(INSTALLED)run,lint' $(INSTALLED)browser $(INSTALLED)build

wheel: $(INSTALLED)build
	rm -rf build dist
	$(BIN)/python -m build

# Newest releases that suit Python 3.10 to 3.13 at once; torch and what its builds bring stay as they are.
constraints: $(INSTALLED)lock
	( sed '/^[^#]/,$$d' constraints.txt && sed -n '/^torch==/p' constraints.txt > $(VENV)/torch.txt && \
	  $(BIN)/uv pip compile -q --universal --python-version 3.10 --no-header --no-annotate --upgrade \
	    --extra run --extra hf --extra runners --extra hta --extra traceinsight --extra remote --extra test --extra browser --extra lint --extra build --extra docs \
	    -c $(VENV)/torch.txt pyproject.toml | grep -vE '^(nvidia-|cuda-|triton)' \
	) > $(VENV)/constraints.txt && mv $(VENV)/constraints.txt constraints.txt

clean:
	@if [ -d $(VENV) ] && [ ! -e $(VENV)/.made-by-make ]; then echo "$(VENV) was not made by make: left alone"; \
	else rm -rf $(VENV); fi
	rm -rf build dist site *.egg-info traceops/traces/*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(INSTALLED)%: pyproject.toml setup.py $(NATIVE) constraints.txt $(VENV)/.python-$(VERSION)
	@echo 'Installing traceops[$*] into $(VENV): a minute or two'
	@$(BIN)/python -m pip install --disable-pip-version-check -qq --no-compile -c constraints.txt -e '.[$*]'
	@touch $@

$(VENV)/.python-$(VERSION):
	@if [ -z "$(VERSION)" ]; then echo "$(PYTHON) does not run; name a Python: PYTHON=python3.12 make ..." >&2; exit 1; fi
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "$(PYTHON) is Python $(VERSION) and traceops needs 3.10 or newer: PYTHON=python3.12 make ..." >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments: install its venv module" \
	    "(Debian, Ubuntu: apt-get install python3-venv) or name another Python: PYTHON=python3.12 make ..." >&2; exit 1; }
	@if [ -e $(VENV) ] && [ ! -e $(VENV)/.made-by-make ]; then \
	  echo "$(VENV) is there and was not made by make; remove it, or choose another: VENV=.venv-make make ..." >&2; exit 1; fi
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $(VENV)/.made-by-make $@
