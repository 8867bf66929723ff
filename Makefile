# Everything here sets itself up: Debian packages (when root) and a .venv, only what is missing.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo quick quick-tests test test-suites test-full test-rest soak alone coverage check matrix chaos foreign fuzz fuzz-runs mutants bench pictures docs release clean root packages venv-demo venv-test venv-bench venv-docs

BIN := .venv/bin
# what the head and the lab need
DEBIAN := python3 python3-venv openssh-client openssh-server rsync iproute2 util-linux procps iputils-ping
# what the tests compare with and compile with, and what `make bench` runs side by side
DEBIAN_TEST := $(DEBIAN) pdsh sshpass dropbear-bin g++ python3-dev git zsh fish tcsh busybox sudo strace nftables slurm-wlm munge podman crun
DEBIAN_BENCH := $(DEBIAN_TEST) clustershell taktuk

help:  ## shows this
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: root venv-demo  ## four virtual hosts, from a password to a trained model (root)
	@tools/demo

# Tests of the lab mostly wait for hosts, so more of them run at once than there are cores; a file's tests share their
# labs. The files that take minutes go first, or the last worker would be alone with them.
PYTEST := $(BIN)/pytest --dist loadfile --no-loadscope-reorder --durations=20 --durations-min=5
SUITES := tests/lab tests/foreign tests/wheel tests/node tests/fuzz tests/rewording tests/tools tests/unit tests/golden tests/hints
# What takes long, or starts a real launcher, is test-full's: see `markers` in setup.cfg, and tests/conftest.py.
QUICK := -m "not slow and not real and not alone"
REST := -m "(slow or real) and not alone"

test: root venv-test  ## lint, types, and tests of every verb: what each change needs (8 minutes; root)
	@tools/timed 'make test' $(MAKE) --no-print-directory check test-suites

test-suites:
	FLEET_FUZZ=8 $(PYTEST) -n 6 $(QUICK) $(SUITES)

test-full: root venv-test  ## the rest: real launchers, foreign programs, fuzzers, rewording, two Pythons more (root)
	@tools/timed 'make test-full' $(MAKE) --no-print-directory test-rest matrix ARGS=--ends

test-rest:
	$(PYTEST) -n 4 $(REST) $(SUITES)

soak: chaos fuzz fuzz-runs alone  ## all of chaos, fuzz, fuzz-runs, alone, each for S seconds: before a release (root)

alone: root venv-test  ## tests of the lab that need the processors for themselves, one at a time (7 minutes; root)
	$(PYTEST) -m alone tests/lab

# The fuzzers draw 8 cases of the forty that `make test` tries.
quick: venv-test  ## the short loop: check, unit and golden tests but those marked slow
	@$(MAKE) --no-print-directory -j 2 -O check quick-tests

quick-tests:
	FLEET_FUZZ=8 $(BIN)/pytest -q -n 4 --dist loadfile $(QUICK) tests/unit tests/golden tests/hints

# The tests are judged by `make test`; here, where they run slower, they are only measured.
coverage: venv-test  ## how much of fleet/ the fast tests run, on the head and on nodes; .coverage/report has it by file
	rm -rf .coverage && mkdir .coverage
	-FLEET_FUZZ=8 FLEET_COVERAGE=$(CURDIR)/.coverage $(BIN)/pytest -q -n 4 --dist loadfile tests/node tests/unit tests/golden tests/hints
	@$(BIN)/python -m tests.measure .coverage

check: venv-test  ## lint, types, import directions
	$(BIN)/ruff check fleet tests examples tools tools/matrix tools/timed
	$(BIN)/ruff format --check fleet tests examples tools tools/matrix tools/timed
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	@# a docstring is a sentence: its verb says what the thing does or returns
	! grep -rnE --include='*.py' '"""(As|Of|Those|What|Where|Whether|Which|Who)\b' fleet

matrix: packages  ## the fast suites under each Python at hand, with the lowest and the newest dependencies (ARGS=--ends)
	tools/matrix $(ARGS)

chaos: root venv-test  ## faults of every kind in a lab, as a table of what was expected and seen (root; ONLY=name)
	$(BIN)/python -m tests.chaos $(if $(ONLY),--only "$(ONLY)")

foreign: root venv-test  ## programs of others, each by hand with its own launcher and by fleet, as a table (root; ONLY=name)
	$(BIN)/python -m tests.foreign $(if $(ONLY),--only "$(ONLY)")

fuzz: root venv-test  ## syncs, gets, nodes that lie, neighbours, handed folders by chance, for S seconds [600] from SEED on (root)
	$(BIN)/python -m tests.fuzz --seconds $(or $(S),600) $(if $(SEED),--seed $(SEED))

fuzz-runs: root venv-test  ## runs, and what befalls heads, nodes and links, for S seconds [600] from SEED on, a fifth more in a lab, a fifth of the rule alone (root)
	$(BIN)/python -m tests.fuzz.rule --seconds $$(( $(or $(S),600) / 5 )) $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.fuzz.runs --seconds $(or $(S),600) $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.fuzz.runs --lab --seconds $$(( $(or $(S),600) / 5 )) $(if $(SEED),--seed $(SEED))

mutants: venv-test  ## takes mends back, one at a time, and has the fuzzers look for up to S seconds (ONLY=name)
	$(BIN)/python -m tests.fuzz.mutants --seconds $(or $(S),600) $(if $(ONLY),--only "$(ONLY)")

pictures: root venv-test  ## draws docs/pictures/ anew: plays what they show in a lab (root; ONLY=name)
	$(BIN)/python -m tools.pictures $(ONLY)

docs: venv-docs  ## the pages as a site in build/site, with search; no link leads nowhere
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -f tools/mkdocs.yml && echo build/site/index.html

release:  ## builds and checks sdist and wheel of VERSION=1.0.0, and writes its changelog; uploads nothing
	@python3 -m tools.release $(VERSION)

bench: venv-bench  ## fleet beside its peers, as tables of ratios (root; RUNS=n, ONLY=exec,runs)
	$(BIN)/python -m tests.bench $(if $(RUNS),--runs $(RUNS)) $(if $(ONLY),--only $(ONLY))

clean:  ## removes .venv, runs and caches
	rm -rf .venv .provision.log runs build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# before minutes of installing, not behind them
root:
	@[ "$$(id -u)" = 0 ] || { printf 'error: the lab needs root: it makes namespaces and mounts\n  hint: sudo -H make %s\n' '$(MAKECMDGOALS)' >&2; exit 1; }

venv-demo:
	@tools/provision system $(DEBIAN)
	@tools/provision python demo

packages:
	@tools/provision system $(DEBIAN_TEST)

venv-test: packages
	@tools/provision python test

venv-bench:
	@tools/provision system $(DEBIAN_BENCH)
	@tools/provision python bench

venv-docs:
	@tools/provision system python3 python3-venv
	@tools/provision python docs
