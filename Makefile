# Everything starts here: `make run` and `make test` work from a fresh clone with nothing before them.
.PHONY: setup run test check format bench soak interop agent screenshots lock clean

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

setup: $(READY)  ## create .venv with everything the project needs

$(READY): requirements/dev.txt pyproject.toml scripts/setup
	PYTHON="$(PYTHON)" scripts/setup $(VENV)
	@touch $@

run: setup  ## the service with an example fleet, ready in seconds
	@mkdir -p .venv/run; [ ! -e .venv/run/forewarn.db ] || $(BIN)/forewarn db migrate --store sqlite:.venv/run/forewarn.db
	exec $(BIN)/forewarn serve --config examples/serve.toml

check: setup  ## format, lint, types, architecture
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: setup  ## every check and test, with the time each part took
	scripts/test_tools
	$(BIN)/python scripts/test_parts.py

soak: setup  ## the long-running tests with ten times the budget
	scripts/test_tools
	$(BIN)/python scripts/test_parts.py --soak

interop: setup  ## curl, Python 2.7, C# and Node against a real service
	scripts/interop

agent: setup  ## dist/forewarn-agent.pyz: the agent as one file, for any Python from 3.9
	$(BIN)/python scripts/build_agent.py

screenshots: setup  ## docs/images/portal: every page of the portal, as Chromium shows it
	$(BIN)/python -m scripts.screenshots

bench: setup  ## every figure the documentation states, as ratios against a peer
	$(BIN)/python -m bench

lock: setup  ## pin the development environment again (hashes, no registry host)
	$(BIN)/uv pip compile pyproject.toml --extra dev --generate-hashes --python-version 3.11 \
	    --no-emit-index-url --no-header --quiet -o requirements/dev.txt

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
