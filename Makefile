# The commands of this project. CI runs the same commands (.ci/run).
#
# Every command builds the whole workspace with the same profile. Cargo then resolves the same features every time and builds
# nothing twice.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
TARGETS := help build check deny test quick test-deep test-touched soak bench bench-check bench-propagation demo docs charts charts-live image check-image debug-images clean prerequisites
.PHONY: $(TARGETS)

# `make quick roles`: the word after `quick` is the subject, and no target.
ifeq ($(firstword $(MAKECMDGOALS)),quick)
WORDS := $(wordlist 2,$(words $(MAKECMDGOALS)),$(MAKECMDGOALS))
SUBJECT ?= $(WORDS)
ifneq ($(filter $(TARGETS),$(WORDS)),)
$(error $(WORDS) is a target, too: write make quick SUBJECT=$(WORDS))
endif
$(eval $(WORDS):;@:)
endif

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' Makefile

build: prerequisites ## build the servers and the CLI into target/debug
	cargo build --workspace --bins

check: prerequisites ## check formatting, and clippy with warnings as errors
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

deny: prerequisites ## check licences, sources and versions of the crates that are used
	scripts/tools.sh deny
	.tools/bin/cargo-deny --locked check bans licenses sources

test: prerequisites ## run the tests that every change needs, with a real Envoy; the last line counts them
	scripts/tools.sh tests
	"$$(scripts/find-python.sh)" -B scripts/test.py fast

quick: prerequisites ## make quick roles: run the unit tests of changed crates, and the tests about a subject
	scripts/tools.sh tests
	"$$(scripts/find-python.sh)" -B scripts/test.py quick $(or $(SUBJECT),$(error name a subject: make quick roles))

test-deep: prerequisites ## run all other tests (PARTS="engines histories" selects some)
	scripts/tools.sh tests
	scripts/tools.sh envoys
	"$$(scripts/find-python.sh)" -B scripts/test.py deep $(PARTS)

test-touched: prerequisites ## run the parts of test-deep that the changes of the last day concern, and one more
	scripts/tools.sh tests
	scripts/tools.sh envoys
	"$$(scripts/find-python.sh)" -B scripts/test.py touched

soak: build ## repeat the tests with random input for SOAK_SECONDS (600), then run the faults at length
	scripts/tools.sh tests
	cargo build --workspace --bins --tests
	scripts/soak.sh

bench: prerequisites ## measure the speed beside its limits and write bench/report.md (BENCH_ROUNDS=10)
	scripts/tools.sh bench
	cargo build --release --workspace --bins --example bench
	mkdir -p bench
	target/release/examples/bench bench/report.json
	.tools/venv/bin/python -B scripts/bench-report.py bench

# The folder is inside of target, so that the report of the repository stays.
bench-check: prerequisites ## run every part of the benchmarks once and shortly, to see that they work (debug build)
	scripts/tools.sh bench
	cargo build --workspace --bins --examples
	scripts/bench-check.sh target/bench-check

bench-propagation: prerequisites ## measure the time from a revocation until sidecars refuse, at up to 10,000 sync streams (needs 200,000 open files)
	cargo build --release --workspace --bins --example propagation
	{ ulimit -n 262144 2>/dev/null || ulimit -n "$$(ulimit -Hn)"; } && target/release/examples/propagation

demo: build ## run all servers on this machine and show what they do (DEMO_KEEP=1 keeps them running)
	scripts/tools.sh envoy
	"$$(scripts/find-python.sh)" -B examples/demo/demo.py

docs: prerequisites ## build the documentation into target/book and check all links
	scripts/tools.sh docs
	.tools/bin/mdbook build
	"$$(scripts/find-python.sh)" -B scripts/check-docs.py target/book

charts: debug-images ## check the Helm charts and run their pods without a cluster (builds helm, needs Go)
	scripts/tools.sh charts
	scripts/charts.sh

charts-live: build ## apply the Helm charts to a real Kubernetes API server, with the Prometheus operator (builds them, needs Go)
	scripts/tools.sh charts
	scripts/tools.sh kubernetes
	.tools/venv/bin/python -B tests/charts/live.py
	.tools/venv/bin/python -B tests/charts/monitoring.py

image: prerequisites ## build the container images with buildah, or else only their contents; check and run them (optimized build)
	scripts/tools.sh image
	if command -v buildah >/dev/null; then scripts/image.sh images target/image; \
	else scripts/image.sh build && scripts/image.sh roots target/image; fi
	.tools/venv/bin/python -B scripts/check-image.py target/image 64
	.tools/venv/bin/python -B scripts/check-compose.py target/image

# The root file systems of the images, with the programs of the debug build.
debug-images: build
	scripts/tools.sh image
	BINARIES=target/debug scripts/image.sh roots target/image-debug

check-image: debug-images ## check the contents of the images, and run the compose file without a container engine (debug build)
	.tools/venv/bin/python -B scripts/check-image.py target/image-debug
	.tools/venv/bin/python -B scripts/check-compose.py target/image-debug

clean: ## delete all build outputs and downloaded tools
	rm -rf target .tools

prerequisites:
	@scripts/prerequisites.sh
