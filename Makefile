# `make` alone says what there is. Everything here works as root on a fresh Debian or Ubuntu with Go (it installs what is
# missing), and as an ordinary user (it says what to install).

export GO    ?= go
SQLC         := $(GO) tool -modfile=tools/go.mod sqlc
GOLANGCI     := $(GO) tool -modfile=tools/golangci-lint/go.mod golangci-lint

# Which packages to test, with which further flags, and for how long at most a package.
PACKAGES     ?= ./...
# How many packages are tested at once: more than there are processors in a small machine, for the longest ones wait for leases to lapse.
AT_ONCE      ?= 3
TESTFLAGS    ?=
TEST_TIMEOUT ?= 15m

# An example with a module of its own, so that nobody else downloads GORM.
GORM         := examples/gorm

# The benchmarks have a module of their own too, for the sake of what fencectl is compared with.
BENCH        := bench

# The majors of `make test-matrix`, and the packages that can tell one from another.
PG_MAJORS       ?= 14 15 16 17 18
MATRIX_PACKAGES ?= $(addsuffix /...,$(wildcard ./migrations ./fenced ./fencedtest ./internal ./cmd ./tokensrc/postgres))

# What `make demo`, `make bench` and `make test` need beside Go: see scripts/deps.
DEMO_DEPS ?= postgresql
DEMOFLAGS ?= --html bin/demo.html
BENCH_DEPS ?= postgresql redis zookeeper
TEST_DEPS ?= postgresql redis zookeeper pgbouncer

.DEFAULT_GOAL := help

.PHONY: help
help: ## Say what there is
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Show the failure scenarios live, without and with fencing
	@scripts/deps $(DEMO_DEPS)
	@mkdir -p bin
	@$(GO) run ./cmd/fencectl demo $(DEMOFLAGS)

# How long, and from which seed if not a random one: make torture DURATION=10m TORTUREFLAGS='--seed 7'.
DURATION     ?= 10m
TORTUREFLAGS ?=

.PHONY: torture
torture: build ## Break everything around workers on fenced tables, for ten minutes, and check (DURATION, TORTUREFLAGS)
	@scripts/deps postgresql pgbouncer
	bin/fencectl torture --duration $(DURATION) $(TORTUREFLAGS)

.PHONY: build
build: ## Build bin/fencectl
	$(GO) build -trimpath -o bin/fencectl ./cmd/fencectl

.PHONY: test
test: deps ## Run all tests (TESTFLAGS, PACKAGES)
	$(GO) test -p $(AT_ONCE) -timeout $(TEST_TIMEOUT) $(TESTFLAGS) $(PACKAGES)
	$(GO) -C $(GORM) test -timeout $(TEST_TIMEOUT) $(TESTFLAGS) ./...
	$(GO) -C $(BENCH) test -timeout $(TEST_TIMEOUT) $(TESTFLAGS) ./...

.PHONY: test-race
test-race: deps ## Run all tests under the race detector
	$(GO) test -race -timeout $(TEST_TIMEOUT) $(TESTFLAGS) $(PACKAGES)
	$(GO) -C $(GORM) test -race -timeout $(TEST_TIMEOUT) $(TESTFLAGS) ./...
	$(GO) -C $(BENCH) test -race -timeout $(TEST_TIMEOUT) $(TESTFLAGS) ./...

.PHONY: explore
explore: ## Run the orders of concurrent holders' steps, and the known wrong designs (EXPLOREFLAGS, -h for them)
	@scripts/deps postgresql
	$(GO) run ./internal/interleave/explore $(EXPLOREFLAGS)

.PHONY: fuzz
fuzz: ## Run each fuzz test for a while (FUZZTIME, 10s)
	@scripts/fuzz

.PHONY: test-matrix
test-matrix: deps ## Run the tests on each major version of PostgreSQL (PG_MAJORS, MATRIX_PACKAGES)
	@scripts/deps npm
	@failed=; for major in $(PG_MAJORS); do \
		bin=$$(scripts/postgresql-binaries $$major) || exit; \
		echo "PostgreSQL $$major, $$bin"; \
		FENCECTL_PG_BIN=$$bin $(GO) test -p $(AT_ONCE) -timeout $(TEST_TIMEOUT) $(TESTFLAGS) $(MATRIX_PACKAGES) || failed="$$failed $$major"; \
	done; \
	[ -z "$$failed" ] || { echo "Failed on PostgreSQL$$failed"; exit 1; }

.PHONY: bench
bench: ## Measure fencectl against what people write instead, in about ten minutes; replaces docs/benchmarks.md (BENCHFLAGS)
	@scripts/deps $(BENCH_DEPS)
	$(GO) -C $(BENCH) run . $(BENCHFLAGS)

.PHONY: bench-quick
bench-quick: ## The same with everything small, in about a minute; only prints (BENCHFLAGS)
	@scripts/deps $(BENCH_DEPS)
	$(GO) -C $(BENCH) run . -quick $(BENCHFLAGS)

.PHONY: lint
lint: ## Run the linters, and check formatting and go.mod
	$(GOLANGCI) run ./...
	$(GO) mod tidy -diff
	$(GO) -C $(GORM) mod tidy -diff
	$(GO) -C $(BENCH) mod tidy -diff

.PHONY: generate
generate: ## Generate the code that is generated (it needs PostgreSQL: the examples' migrations are applied)
	@scripts/deps postgresql
	$(SQLC) generate
	$(GO) generate ./...
	$(GO) -C $(BENCH) run ./render

.PHONY: check-generated
check-generated: ## Fail when generated code is out of date
	@scripts/check-generated

.PHONY: compose-check
compose-check: ## Check docker-compose.yml
	@scripts/deps docker-compose
	@if docker compose version >/dev/null 2>&1; then docker compose config --quiet; else docker-compose config --quiet; fi

.PHONY: deps
deps: ## Install what the tests need beside Go, or say what to install
	@scripts/deps $(TEST_DEPS)

.PHONY: tools
tools: ## Build the pinned tools now (sqlc, golangci-lint); otherwise their first use does
	$(SQLC) version
	$(GOLANGCI) version

.PHONY: clean
clean: ## Remove what was built here, and Go's test results
	rm -rf bin
	$(GO) clean -testcache
