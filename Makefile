# `make` alone lists the targets. Every target that needs the environment makes it first.

SHELL := /bin/sh
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BOOTSTRAP := .venv-bootstrap
PIP_QUIET := -qq --disable-pip-version-check

# PYTHON=/some/python chooses the interpreter; otherwise the first of these that is new enough.
PYTHON ?=
CANDIDATES := python3.13 python3.12 python3.11 python3 python

# Set when the environment's interpreter is gone, whatever its stamp says.
STALE := $(shell $(BIN)/python -c '' 2>/dev/null || echo stale)

# The other versions of Spark that pipelines run on, each as its newest release. `VERSIONS=` leaves
# them out.
VERSIONS ?= 4.0.5 4.1.4 4.2.1
SPARKS := $(VERSIONS:%=.venv-spark-%/.installed)

.PHONY: help setup browser proxy jars archive check quick test versions matrix long docs demo kafka dashboard barrier sim bench race clean stale

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP) browser proxy ## Make .venv with everything in it; does nothing when it is up to date
	@echo "$(VENV) is up to date"

# Where this is not possible, the tests of the dashboard say what is missing.
browser: ## Install Chromium for the tests of the dashboard, if it is missing and we are root
	@for one in chromium chromium-browser google-chrome chrome; do \
		if command -v $$one >/dev/null 2>&1; then exit 0; fi; \
	done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
		echo "Installing Chromium for the tests of the dashboard"; \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
			apt-get install -y -qq --no-install-recommends chromium; } >/dev/null 2>&1 \
			|| echo "Chromium could not be installed; name one in CUTWATER_CHROMIUM" >&2; \
	fi

# The same for the tests of the TLS proxy, which are left out where it is missing.
proxy: ## Install nginx for the tests of the TLS proxy, if it is missing and we are root
	@if command -v nginx >/dev/null 2>&1 || [ -x /usr/sbin/nginx ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
		echo "Installing nginx for the tests of the TLS proxy"; \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
			apt-get install -y -qq --no-install-recommends nginx-light openssl; } >/dev/null 2>&1 \
			|| echo "nginx could not be installed; its tests are left out" >&2; \
	fi

# The same for the tests on a Kafka broker. They are skipped with the reason where Maven is missing
# or its repository cannot be reached. The jars are kept in the user's cache, not in the repository.
jars: $(STAMP) ## Fetch Kafka's broker and Spark's Kafka connectors with Maven, once, for the tests
	@if ! command -v mvn >/dev/null 2>&1 && [ "$$(id -u)" = 0 ] \
			&& command -v apt-get >/dev/null 2>&1; then \
		echo "Installing Maven for the tests on Kafka"; \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
			apt-get install -y -qq --no-install-recommends maven; } >/dev/null 2>&1 \
			|| echo "Maven could not be installed; the tests on Kafka are skipped" >&2; \
	fi; \
	$(BIN)/python -m tests.servers.jars

check: $(STAMP) ## Lint, format check, types and import contracts
	@echo "Lint";             $(BIN)/ruff check
	@echo "Format";           $(BIN)/ruff format --check
	@echo "Types";            $(BIN)/mypy
	@echo "Import contracts"; $(BIN)/lint-imports --no-logo

# What needs Spark, a server or a browser is left to `make test`, and so is coverage.
quick: check ## While working: check, the tests without Spark and servers, 40 seeds; under 2 minutes on 2 cores
	@CUTWATER_HYPOTHESIS=quick $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder \
		tests/unit tests/property tests/tidy tests/golden
	@$(BIN)/python -m cutwater.testing.simulation --seeds 40

# Java keeps the classes that Spark loads: every start of a JVM in the tests is a third shorter.
archive: $(STAMP) ## Keep Spark's classes in an archive in the user's cache, once, so that it starts faster
	@$(BIN)/cutwater warm-up --if-missing || echo "Spark starts without an archive of classes" >&2

# The tests that cover every branch of protocol and store by themselves. Coverage slows the others
# down, and whether they reach a branch may be a matter of chance.
COVERED := tests/unit tests/property tests/golden tests/contract

test: check browser proxy jars archive ## Everything CI runs: check, all tests, 100 % branch coverage of protocol and store, versions
	@$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(COVERED) \
		--cov=cutwater.protocol --cov=cutwater.store --cov-branch \
		--cov-report=term-missing:skip-covered --cov-fail-under=100
	@$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder \
		$(COVERED:%=--ignore=%) tests
	@$(MAKE) --no-print-directory versions

versions: $(SPARKS) jars ## The tests that every version of Spark must pass, on each but the newest
	@for version in $(VERSIONS); do echo "Spark $$version"; \
		.venv-spark-$$version/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder \
			-m matrix tests/spark tests/cli/test_make.py || exit 1; done

matrix: $(STAMP) $(SPARKS) jars ## All tests of pipelines on Spark and of killed processes, on every version
	@for environment in $(VERSIONS:%=.venv-spark-%) $(VENV); do echo "$$environment"; \
		$$environment/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder \
			-m 'matrix or not long' tests/spark tests/crash || exit 1; done

long: $(STAMP) jars ## The exhaustive variants: one kill after another at every durable write
	@$(BIN)/python -m pytest -m long

docs: $(STAMP) ## Write the documents that are made from the source
	@for one in state_diagrams errors_reference config_reference cli_reference; do \
		$(BIN)/python scripts/$$one.py; done

demo: $(STAMP) ## Run the auction pipeline on Spark, kill it halfway, go on, check every row
	@$(BIN)/python examples/demo.py

kafka: jars ## Run orders from Kafka to Kafka and Delta, kill it during a commit, resume, check every row
	@PYTHONPATH=. $(BIN)/python examples/kafka_demo.py

# Goes on where it was stopped; `make clean` forgets what it has written.
dashboard: $(STAMP) ## Run the auction pipeline until Ctrl-C and show its dashboard on this machine
	@$(BIN)/cutwater run examples/auctions.py:create --interval 5s --master 'local[2]' \
		--store out/dashboard/store --param tables=out/dashboard/tables \
		--param total=endless --param rate=1000

barrier: $(STAMP) ## Show one barrier flow through a simulated pipeline, step by step
	@$(BIN)/python -m cutwater.testing.simulation --demo

sim: $(STAMP) ## Run 5,000 seeds of the fault simulator
	@$(BIN)/python -m cutwater.testing.simulation --seeds 5000

bench: $(STAMP) ## Measure the cost of alignment
	@$(BIN)/python benchmarks/alignment.py

# Hours with its defaults: RACE='--repeats 1 --rows 920000' is a short one. Flink is installed into
# .venv-flink the first time; where that is impossible it is left out, and the reason is printed.
race: $(STAMP) ## Race six queries on Cutwater, plain Spark, Flink, batch Spark and DuckDB
	@$(BIN)/python -m benchmarks.peers $(RACE)

clean: ## Remove caches, reports and build output; keeps .venv
	@rm -rf build dist htmlcov out src/cutwater.egg-info .coverage .coverage.* $(BOOTSTRAP) \
		.hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find . \( -path ./$(VENV) -o -path ./.git \) -prune -o -type d -name __pycache__ \
		-exec rm -rf {} +

# A virtual environment that lost its interpreter, or never got its pip, is made anew. Debian ships
# venv without ensurepip; there virtualenv, installed into a directory of its own, does the same.
$(STAMP): pyproject.toml constraints.txt $(STALE)
	@set -e; \
	new_enough() { "$$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }; \
	if ! { new_enough $(BIN)/python && $(BIN)/python -m pip --version >/dev/null 2>&1; }; then \
		found=; \
		for candidate in $(or $(PYTHON),$(CANDIDATES)); do \
			if new_enough "$$candidate"; then found=$$candidate; break; fi; \
		done; \
		if [ -z "$$found" ]; then \
			echo "Cutwater needs Python 3.11 or newer, and none of these is one:" \
				"$(or $(PYTHON),$(CANDIDATES)); install it or name it with PYTHON=." >&2; \
			exit 1; \
		fi; \
		echo "Making $(VENV) with $$found ($$("$$found" --version))"; \
		rm -rf $(VENV); \
		if ! "$$found" -m venv $(VENV) >/dev/null 2>&1; then \
			echo "This Python cannot make a complete venv; using virtualenv instead"; \
			rm -rf $(VENV) $(BOOTSTRAP); \
			"$$found" -m pip install $(PIP_QUIET) --target $(BOOTSTRAP) virtualenv; \
			PYTHONPATH=$(BOOTSTRAP) "$$found" -m virtualenv -q $(VENV); \
			rm -rf $(BOOTSTRAP); \
		fi; \
	fi; \
	echo "Installing Cutwater and its tools into $(VENV)"; \
	$(BIN)/python -m pip install $(PIP_QUIET) -c constraints.txt -e '.[declarative,delta,java,kafka,objects,postgres,serve,dev]'; \
	touch $@

# Only pyspark is installed: everything else is taken from $(VENV).
.venv-spark-%/.installed: constraints.txt $(STAMP)
	@set -e; echo "Installing Spark $* into $(@D)"; rm -rf $(@D); \
	$(BIN)/python -m venv --without-pip $(@D); \
	$(BIN)/python -m pip --python $(@D)/bin/python install $(PIP_QUIET) --no-deps pyspark==$*; \
	shared=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	own=$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	echo "import site; site.addsitedir('$$shared')" > "$$own/shared.pth"; \
	touch $@
