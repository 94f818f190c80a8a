# Everything starts here: `make run` and `make test` work from a fresh clone with nothing before them.
.PHONY: setup run demo-kvm screenshots test quick flaky check format bench soak interop agent dist image audit lock clean

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
AUDIT  := $(VENV)-audit

setup: $(READY)  ## create .venv with everything the project needs

$(READY): requirements/dev.txt pyproject.toml scripts/setup
	PYTHON="$(PYTHON)" scripts/setup $(VENV)
	@touch $@

run: setup  ## the service with an example fleet, ready in seconds; PORT=9000 for other ports than 8169 and 8170
	@exec $(BIN)/forewarn demo $(if $(PORT),--port $(PORT))

demo-kvm: setup  ## two KVM hosts and four tiny guests on this machine, with the portal; needs root; PORT=9000 for another port
	@scripts/test_tools
	@exec $(BIN)/python -m scripts.demo_kvm $(if $(PORT),--port $(PORT))

screenshots: setup  ## draw the pictures of the documentation again
	$(BIN)/python -m scripts.screenshots
	$(BIN)/python -m scripts.terminal

check: setup  ## format, lint, types, architecture
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --platform win32 --cache-dir .mypy_cache/windows src/forewarn/guest
	$(BIN)/lint-imports --no-cache

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: setup  ## every check and test, with the time each part took
	$(BIN)/python scripts/test_parts.py --tools

quick: setup  ## format, lint, types, core, stories, store on SQLite and memory, guest, endpoint: about a minute
	$(BIN)/python scripts/test_parts.py --quick

flaky: setup  ## run parts N times, five at a time and with pauses, report which tests failed how often: make flaky N=20 PART="guest nodes"
	scripts/test_tools
	$(BIN)/python scripts/flaky.py --runs $(or $(N),20) $(PART)

soak: setup  ## the long-running tests with ten times the budget, and 50,000 fresh seeds of the simulation
	scripts/test_tools
	$(BIN)/python scripts/test_parts.py --soak

interop: setup  ## curl, Python 2.7, C# and Node against a real service; the test programs of examples/ against an emulator
	scripts/interop

agent: setup  ## dist/forewarn-agent.pyz: the agent as one file, for any Python from 3.9
	$(BIN)/python scripts/build_agent.py

bench: setup  ## every figure the documentation states, as ratios against a peer
	$(BIN)/python -m bench

dist: setup  ## dist/*.whl and dist/*.tar.gz: what is published
	$(BIN)/python scripts/build_dist.py dist

image: dist  ## build the container image, and try it (podman and runc; installs them)
	scripts/image

audit: dist agent  ## known vulnerabilities, bill of materials (dist/forewarn.cdx.json), secrets, reproducible builds
	$(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/pip install -qq --disable-pip-version-check --require-hashes -r requirements/audit.txt
	$(AUDIT)/bin/python scripts/audit.py

lock: setup  ## pin the development environment and the image's again (hashes, no registry host)
	@for extra in dev server libvirt audit; do $(BIN)/uv pip compile pyproject.toml --extra $$extra --generate-hashes --python-version 3.11 \
	    --no-emit-index-url --no-header --quiet -o requirements/$$extra.txt || exit 1; done

clean:
	rm -rf $(VENV) $(AUDIT) .mypy_cache .ruff_cache .pytest_cache .hypothesis .kvm-guest dist
