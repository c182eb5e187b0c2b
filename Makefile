# Two commands need nothing but Linux, Python 3.11 to 3.14 and make: make demo and make test. `make` lists all of them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
# The image's series first, python3 last (3.9 on a Mac); one only pyenv knows, or Debian has without venv, is skipped.
PYTHON ?= $(shell for one in python$(IMAGE_PYTHON) python3.11 python3.13 python3.14 python3; do "$$one" -c 'import ensurepip' >/dev/null 2>&1 && break; done; echo "$$one")
STACK ?= dev
$(if $(strip $(STACK)),,$(error STACK is empty: leave it out for dev, or name a stack, as in STACK=mine))
BUILDER ?= cloud-build
PROVIDER ?= emulator
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
# Of the Ray image (BASE in its Dockerfile): what runs there must resolve for it, whatever Python there is here.
IMAGE_PYTHON := 3.12
STAMP := $(VENV)/.installed
INSTALLING := $(VENV)/.installing
CLOUD_STAMP := $(VENV)/.installed-for-the-cloud
POLICIES := policies/.venv
# One run starts dozens of processes that import torch, Ray or Pulumi; without stored bytecode each compiles them anew.
unexport PYTHONDONTWRITEBYTECODE

.NOTPARALLEL:
.PHONY: help linux room packages demo down test test-fast test-long lint image-check plan forecast init image secret preflight up preview restart destroy dashboard prices policies pin figures clean

# 141 is the status of one whose reader has left, as that of `make plan | head` does: no error to tell of.
OR_UNREAD = status=$$?; test $$status = 141 || exit $$status

help:  ## list the commands
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST); $(OR_UNREAD)

define supported_python
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 14) else f"Python 3.11 to 3.14 is needed, $(PYTHON) is {v[0]}.{v[1]}: install one, or name it: make PYTHON=/path/to/python3.11 demo")'
endef

# One make installs at a time: who comes meanwhile waits for it, and finds it done (a Mac has no flock, and what Python
# locks stays locked while this shell has the file open). Pip takes a package whose installation was cut off for a whole
# one, so what did not come to its end starts over. A .venv without pyvenv.cfg, as one that was partly deleted, is no
# environment: its Python is the base one, into which nothing may be installed. What has none of make's own files is
# somebody else's; of what is deleted, the one that says so is left.
define environment
set -o pipefail; exec 9<Makefile; lock() { $(PYTHON) -c "import fcntl; fcntl.flock(9, fcntl.LOCK_EX | $$1)" 2>/dev/null; }; \
	if ! lock fcntl.LOCK_NB; then echo "another make installs into $(VENV): waiting for it"; lock 0; fi; \
	if test $@ -nt $<; then exit 0; fi; \
	if test -e $(VENV) && ! rmdir $(VENV) 2>/dev/null && ! compgen -G '$(VENV)/.install*' >/dev/null; then \
	    echo "$(VENV) was not made by make, which changes no other one: move it away or delete it, then run this again" >&2; exit 1; fi; \
	whole=; if test -e $(INSTALLING); then echo "an installation in $(VENV) was cut off: starting over"; \
	elif test -e $(VENV)/pyvenv.cfg && $(PY) -m pip --version >/dev/null 2>&1; then whole=yes; fi; \
	mkdir -p $(VENV) && touch $(INSTALLING) \
	    && { test "$$whole" || find $(VENV) -mindepth 1 ! -path $(INSTALLING) -delete; } \
	    && { test -x $(PY) || { echo "making the Python environment $(VENV)" && $(PYTHON) -m venv $(VENV); }; }
endef
# Of pip's lines, those of the wheels that take a while, which are the large ones.
define install
{ echo "installing the locked Python packages into $(VENV) (once: $(1))" \
	    && $(PY) -m pip install --require-virtualenv --disable-pip-version-check --progress-bar off --no-compile --require-hashes -r $< \
	    | sed -nuE -e 's/^ *(Downloading|Using cached) ([^-]+)-([^-]+)-.*\.whl \(([0-9]{3,}(\.[0-9]+)? MB|.* GB)\)$$/  \2 \3, \4/p' \
	        -e 's/^Installing collected packages.*/  all packages are here; unpacking them takes most of the time/p' \
	    && echo "installed in $$SECONDS s"; }
endef

# What `pulumi up` and the commands around it need: no torch, no Ray.
$(CLOUD_STAMP): requirements.txt
	$(supported_python)
	@$(environment) && { test $(STAMP) -nt $< || $(call install,0.4 GB); } && rm $(INSTALLING) && touch $@

$(STAMP): requirements-dev.txt
	$(supported_python)
	@$(PYTHON) -m emulator.programs.free_space packages
	@$(environment) && $(call install,6 GB in 2 to 4 minutes) && rm $(INSTALLING) && touch $@

linux:
	@test "$$(uname -s)" = Linux || { echo "This needs Linux, and this machine runs $$(uname -s): run it on a Linux machine, or in a \
	virtual machine or container with Linux. The commands for Google Cloud work here: docs/cloud.md." >&2; exit 1; }

# What is needed minutes later is looked at first, too.
room: linux
	$(supported_python)
	@test -e $(STAMP) || $(PYTHON) -m emulator.programs.free_space packages programs

packages: $(STAMP)  ## all Python packages, Ray and torch too (6 GB): what `python -m workloads` and the tests need

demo: room $(STAMP)  ## the whole platform on this machine: deploy, train, benchmark; stays up until `make down`
	@$(PY) -m emulator demo --provider $(PROVIDER)

# `down` works with the environment as it is: after a pull it must not first install what is new.
down:  ## end what `make demo` started; runs, data and results stay
	@if test -e $(STAMP); then $(PY) -m emulator down; $(OR_UNREAD); \
	elif test -e .oasis/processes; then echo "ending what runs here needs the Python packages: make $(STAMP) down" >&2; exit 1; \
	else echo "nothing was started here: $(STAMP) is missing"; fi

# Two processes whose tests start servers take up to 14 GB.
SERVERS = $(shell awk '/^MemAvailable/ { print ($$2 < 14e6 ? 1 : 2) }' /proc/meminfo)

# One more than there are processors, as some of their time is waiting (on two: 243 s where two processes took 281 s).
SIDE_BY_SIDE = --numprocesses $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) + 1 ))) --dist worksteal

# First what tests of all kinds need, as a compiler beside them would take their time; then those that any number of
# processes can run side by side; then those that start servers (tests/conftest.py groups them, which takes the pytest
# that pyproject.toml names).
IN_GROUPS = --numprocesses $(SERVERS) --dist loadgroup --no-loadscope-reorder --durations 10
test: room $(STAMP) $(POLICIES)/.installed lint image-check  ## every test but the long ones
	@$(PY) -m emulator build
	@$(PY) -m pytest -m "not long and not emulated and not ray" $(SIDE_BY_SIDE) --durations 10
	@$(PY) -m pytest -m "not long and (emulated or ray)" $(IN_GROUPS)

# Those beside which Ray would not keep the times that it gives itself come last, each by itself.
test-long: room $(STAMP)  ## the slowest tests, which `make test` leaves out
	@$(PY) -m emulator build
	@$(PY) -m pytest -m "long and not alone" $(IN_GROUPS)
	@$(PY) -m pytest -m alone

test-fast: linux $(STAMP)  ## the tests for daily work, about two minutes
	@$(PY) -m pytest -m "not long and not emulated and not ray and not thorough" $(SIDE_BY_SIDE)

lint: $(STAMP)  ## ruff, pyright, and hadolint for the Dockerfile
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/pyright
	@$(BIN)/hadolint workloads/image/Dockerfile

# Nothing is downloaded but the packages' metadata, so hashes are there but not compared: pip does that while it builds.
# The base image's glibc is newer than 2.28, which is of 2018.
image-check: $(STAMP)  ## check that what the Ray image installs is pinned and has wheels, for a Mac too
	@$(BIN)/uv pip install --dry-run --quiet --target $(VENV)/image-check --python-version $(IMAGE_PYTHON) \
	    --python-platform x86_64-manylinux_2_28 --only-binary :all: --require-hashes \
	    -r requirements-workloads.txt -r workloads/image/requirements-index.txt
	@MACOSX_DEPLOYMENT_TARGET=14.0 $(BIN)/uv pip install --dry-run --quiet --target $(VENV)/image-check --python-version $(IMAGE_PYTHON) \
	    --python-platform aarch64-apple-darwin --only-binary :all: --require-hashes -r requirements-dev.txt

plan: $(CLOUD_STAMP)  ## what a stack file means, without any cloud: settings to destroy order (STACK=dev)
	@$(PY) -m oasis_stack plan --stack $(STACK); $(OR_UNREAD)

forecast: $(CLOUD_STAMP)  ## whether the ladder's nodes are likely to come, and at which price (STACK=dev)
	@$(PY) -m oasis_stack forecast --stack $(STACK); $(OR_UNREAD)

preflight: $(CLOUD_STAMP)  ## what the project lacks for a stack, asked of Google before anything is made (STACK=dev)
	@$(PY) -m oasis_stack preflight --stack $(STACK); $(OR_UNREAD)

# Of its own, since what Pulumi's policy SDK wants cannot stand beside the rest: policies/requirements.in says why.
$(POLICIES)/.installed: policies/requirements.txt
	$(supported_python)
	@rm -rf $(POLICIES) && $(PYTHON) -m venv $(POLICIES) \
	    && echo "installing the locked Python packages of the policies into $(POLICIES) (once)" \
	    && $(POLICIES)/bin/python -m pip install --disable-pip-version-check --quiet --require-hashes -r $< && touch $@

policies: $(POLICIES)/.installed  ## install what the policies in policies/ need, for `pulumi up --policy-pack policies`

prices: $(CLOUD_STAMP)  ## read today's list prices of what the stack runs into oasis_stack/facts/prices.csv (STACK=dev)
	@$(PY) -m oasis_stack prices --stack $(STACK)

init: $(CLOUD_STAMP)  ## state bucket, key and project into an existing stack file (STACK=dev)
	@$(PY) -m oasis_stack init --stack $(STACK)

preview: $(CLOUD_STAMP)  ## check the settings, then `pulumi preview` (STACK=dev)
	@$(PY) -m oasis_stack preview --stack $(STACK); $(OR_UNREAD)

up: $(CLOUD_STAMP)  ## check the settings, then `pulumi up` (STACK=dev)
	@$(PY) -m oasis_stack up --stack $(STACK)

destroy: $(CLOUD_STAMP)  ## list what runs and what will stay, then `pulumi destroy` (STACK=dev)
	@$(PY) -m oasis_stack destroy --stack $(STACK)

image: $(CLOUD_STAMP)  ## build workloads/image, push it, write its digest into the stack file (STACK=dev, BUILDER=docker)
	@$(PY) -m oasis_stack image --stack $(STACK) --builder $(BUILDER)

restart: $(CLOUD_STAMP)  ## new Ray pods, after the image changed: lists the jobs that would end, and asks (STACK=dev)
	@$(PY) -m oasis_stack restart --stack $(STACK)

secret: $(CLOUD_STAMP)  ## store the W&B key in Secret Manager, read from the terminal (STACK=dev)
	@$(PY) -m oasis_stack secret --stack $(STACK)

dashboard: $(CLOUD_STAMP)  ## port-forward the Ray dashboard until Ctrl-C (STACK=dev)
	@$(PY) -m oasis_stack dashboard --stack $(STACK)

# An hour and more; each command goes on where it was cut short. benchmarks.gpu and `platform --demo --first` are apart.
figures: linux $(STAMP)  ## measure what docs/figures.md reports; results go to benchmarks/
	@$(PY) -m benchmarks.platform
	@$(PY) -m benchmarks.checkpoints kill
	@$(PY) -m benchmarks.checkpoints faults
	@$(PY) -m benchmarks.checkpoints notice
	@$(PY) -m benchmarks.kills
	@$(PY) -m benchmarks.digits
	@$(PY) -m benchmarks.step_time
	@$(PY) -m benchmarks.loader
	@$(PY) -m benchmarks.kernels
	@$(PY) -m benchmarks.collectives
	@$(PY) -m benchmarks.scaling
	@$(PY) -m benchmarks.tracking
	@$(PY) -m benchmarks.ladders
	@$(PY) -m benchmarks.lifecycles
	@$(PY) -m benchmarks.model
	@$(PY) -m benchmarks.gangs
	@$(PY) -m benchmarks.interruptions --lives 20

LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header pyproject.toml
pin: $(STAMP)  ## resolve the ranges of pyproject.toml into the lock files
	@$(LOCK) --upgrade -o requirements.txt
	@$(LOCK) --upgrade --group workloads -c requirements.txt -o requirements-workloads.txt
	@$(LOCK) --upgrade --group workloads --group emulator --group dev -c requirements-workloads.txt -o requirements-dev.txt
	@$(BIN)/uv pip compile --quiet --universal --python-version $(IMAGE_PYTHON) --generate-hashes --no-emit-index-url --no-header \
	    workloads/image/requirements-index.in -c requirements-workloads.txt -o workloads/image/requirements-index.txt
	@$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	    policies/requirements.in -o policies/requirements.txt

clean:  ## delete the environment and .oasis, runs and data included: lists them and asks (YES=1: does not ask)
	@$(PYTHON) -m emulator.machine.clean $(if $(filter 1,$(YES)),--yes)
