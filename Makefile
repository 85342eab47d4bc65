# Thin on purpose: each target is one script that can be called alone.
SHELL := /bin/bash
.DEFAULT_GOAL := help
SUDO := $(shell [ "$$(id -u)" -eq 0 ] || echo sudo --preserve-env=STASIS_CACHE,STASIS_MIRROR,STASIS_SECURITY_MIRROR)
VENV := .venv/bin

.PHONY: help run image samples check vm-test test bench fuzz clean

help: ## this list
	@printf 'Stasis: a read-only rescue image for AI storage nodes\n\n'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

run: ## build the image and boot it in QEMU with demonstration disks, the TUI in this terminal
	@scripts/setup image run
	@$(SUDO) scripts/build_image --if-needed
	@$(SUDO) scripts/make_samples
	@$(SUDO) scripts/run_vm $(RUN)

image: ## build the image: build/stasis.efi, stasis.vmlinuz + stasis.initrd, stasis.usb.raw
	@scripts/setup image
	@$(SUDO) scripts/build_image

samples: ## make the demonstration disks in build/demo
	@scripts/setup image run
	@$(SUDO) scripts/make_samples

check: ## linters, types, contracts, unit, UI and loop device tests; no VM
	@scripts/setup test
	@$(SUDO) $(VENV)/python -m pytest -q tests --ignore=tests/vm --ignore=tests/bench $(PYTEST)

vm-test: ## build the image and test it in QEMU
	@scripts/setup image run test
	@$(SUDO) scripts/build_image --if-needed
	@$(SUDO) $(VENV)/python -m pytest -q tests/vm $(PYTEST)

test: ## everything: install what is needed, check, build, test in QEMU
	@scripts/setup
	@$(SUDO) scripts/build_image --if-needed
	@$(SUDO) $(VENV)/python -m pytest -q tests --ignore=tests/bench $(PYTEST)

bench: ## figures as ratios to a peer in the same run: build/bench.json (BENCH=name for one)
	@scripts/setup
	@$(SUDO) scripts/build_image --if-needed
	@$(SUDO) env PYTHONPATH=scripts $(VENV)/python -m tests.bench $(BENCH)

fuzz: ## all checkpoint readers on a million mutated saves; inputs that fail are kept in build/fuzz (FUZZ="--seed 2")
	@scripts/setup test
	@env PYTHONPATH=scripts $(VENV)/python -m tests.fuzz $(FUZZ)

clean: ## remove build/ (the cache outside the clone stays)
	@$(SUDO) rm -rf build
