# The commands of this project. CI runs the same ones (.ci/run).
#
# Always the whole workspace and one profile: features then unify the same way in every command, and
# nothing is built twice.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help build check test soak demo docs charts clean prerequisites

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

build: prerequisites ## the servers and the command line, into target/debug
	cargo build --workspace --bins

check: prerequisites ## format, clippy with warnings denied, layers, dependencies and their licences
	scripts/tools.sh deny
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo test --workspace --test layers
	.tools/bin/cargo-deny --locked check bans licenses sources

test: prerequisites ## every test, with the real Envoy; the last line counts them
	scripts/tools.sh tests
	cargo build --workspace --all-targets
	scripts/test.sh

# Whatever is generated anew at each run, again and again, until SOAK_SECONDS are over or something fails.
soak: build ## the generated tests and histories, many times over, for SOAK_SECONDS (600)
	scripts/tools.sh tests
	cargo test --workspace --no-run
	end=$$((SECONDS + $${SOAK_SECONDS:-600})); while ((SECONDS < end)); do \
		PROPTEST_CASES=$${SOAK_CASES:-4096} HISTORIES=$${SOAK_HISTORIES:-600} \
		cargo test --workspace --lib --test edge --test histories -- fuzz whatever_happens; done

demo: build ## the whole thing on this machine, step by step (DEMO_KEEP=1 keeps it up)
	scripts/tools.sh envoy
	"$$(scripts/find-python.sh)" -B examples/demo/demo.py

docs: prerequisites ## the documentation as a site, into target/book, with all links checked
	scripts/tools.sh docs
	.tools/bin/mdbook build
	"$$(scripts/find-python.sh)" -B scripts/check-docs.py target/book

charts: ## lints and renders the Helm charts (builds helm, so it needs Go)
	scripts/tools.sh helm
	scripts/charts.sh

clean: ## everything built or fetched here
	rm -rf target .tools

prerequisites:
	@scripts/prerequisites.sh
