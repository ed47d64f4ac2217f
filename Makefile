# Skein: build, test and measure. `make help` lists the targets.

GO          ?= go
BIN         := bin/skein
VERSION     ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS     := -s -w -X github.com/skeinmesh/skein/node.Version=$(VERSION)
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

# Modules of their own, for the sake of libraries that only they need.
MODULES := testnet/bench testnet/deploy/kubernetes

# Packages whose tests are worth running under the race detector and fast enough for it: those with goroutines.
RACE     := ./flow/... ./gossip/... ./transport/... ./node/... ./cmd/... ./testnet/check
FUZZTIME ?= 10s
BENCH    ?= .
# The testnet runs on containers: compose project, image, first digits of the published ports (84: 8400, 8410, …).
TESTNET_PROJECT ?= skein-testnet
TESTNET_PORTS   ?= 84
TESTNET_IMAGE   ?= skein:testnet
TESTNET_INPUT   ?= $(INPUT)
ifneq ($(SKEIN_TESTDATA),)
TESTNET_INPUT   := $(or $(INPUT),$(wildcard $(SKEIN_TESTDATA)/hdfs_2k.log))
endif
COMPOSE          = $$(docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose) -p $(TESTNET_PROJECT) -f testnet/compose.yaml
PAIRS    ?= 5
ROWS     ?= .

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

.PHONY: build
build: ## build the static binary ./bin/skein
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN) ./cmd/skein

.PHONY: test
test: ## run all tests
	$(GO) test -timeout 20m $$($(GO) list ./... | grep -v /testnet/containers$$)
	$(GO) test -timeout 20m ./testnet/containers # by themselves, for five nodes each want the machine
	@set -ex; for m in $(MODULES); do (cd $$m && $(GO) test ./...); done

.PHONY: race
race: ## run the concurrent packages' tests under the race detector
	@if command -v $${CC:-cc} >/dev/null; then set -x; CGO_ENABLED=1 $(GO) test -race -timeout 20m $(RACE); \
	else echo "race: skipped, for the race detector needs a C compiler and there is none"; fi

.PHONY: sim
sim: ## replica groups and whole meshes under trouble in virtual time; SEED=n replays one seed, N=k runs k others
	SEED=$(SEED) N=$(N) $(GO) test -count=1 ./flow/replica -run TestNothingAcknowledgedIsLostUnderTrouble
	SEED=$(SEED) N=$(N) $(GO) test -count=1 -timeout 30m ./testnet/sim

.PHONY: planted
planted: ## plant bugs one by one, and have the simulation's checkers catch each by name
	$(GO) test -tags skeinplanted -count=1 -v -run Planted ./testnet/sim

.PHONY: bounds
bounds: ## slow readers, slow and failing disks, a copy of 1 GiB that catches up: for about half an hour, with figures
	SKEIN_BOUNDS=full $(GO) test -count=1 -timeout 90m -v ./testnet/bounds
	SKEIN_BOUNDS=full $(GO) test -count=1 -timeout 30m -v ./node -run NewReplicaCatches

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (default 10s) each
	@set -e; grep -rlE '^func Fuzz' --include='*_test.go' . | xargs -n1 dirname | sort -u | while read -r dir; do \
		grep -hoE '^func Fuzz[A-Za-z0-9_]*' "$$dir"/*_test.go | sed 's/^func //' | while read -r target; do \
			echo "$$dir $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$dir"; \
		done; \
	done

.PHONY: bench
bench: ## run the Go benchmarks that match BENCH (default: all)
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem ./...

.PHONY: bench-peers
bench-peers: build ## the same load on three Skein nodes and on three NATS servers; PAIRS=5 ROWS=regexp LIMIT=24m OUT=file.json
	cd testnet/bench && $(GO) build -o ../../bin/ ./cmd/...
	./bin/bench-peers -skein $(BIN) -natsd ./bin/natsd -pairs $(PAIRS) -rows '$(ROWS)' $(if $(LIMIT),-limit $(LIMIT)) $(if $(OUT),-out $(OUT))

.PHONY: chaos
chaos: build ## kill, cut off and heal real meshes, with figures; MINUTES=n lets faults of all kinds rain for so long; SEED=n repeats a run's choices
	SKEIN_CHAOS=long SKEIN_CHAOS_BINARY=$(CURDIR)/$(BIN) SKEIN_CHAOS_SEED=$(SEED) SKEIN_CHAOS_MINUTES=$(MINUTES) \
		$(GO) test -count=1 -timeout $(if $(MINUTES),$$(($(MINUTES) + 30))m -run TestStormOfFaults,30m) -v ./testnet/chaos

.PHONY: containers
containers: ## kill, pause, cut off and starve hosts on containers, for minutes where `make test` takes seconds
	SKEIN_CONTAINERS=long $(GO) test -count=1 -timeout 60m -v ./testnet/containers

.PHONY: demo
demo: build ## three nodes, keyed orders, the busiest owner killed in the middle, a verdict; INPUT=file KEY_REGEX=re for your own lines
	$(GO) run ./testnet/demo -skein ./$(BIN)

.PHONY: testnet-image
testnet-image: build ## the container image of the testnet, from ./bin/skein
	docker build -q -f testnet/Dockerfile -t $(TESTNET_IMAGE) .
	@docker image prune -f --filter label=org.opencontainers.image.title=Skein >/dev/null # the one before

testnet/secret.env: | build
	umask 077; echo "SKEIN_SECRET=$$($(BIN) keygen)" > $@

.PHONY: testnet-up
testnet-up: testnet-image testnet/secret.env ## five nodes in three zones on containers; TESTNET_PORTS=84 begins their ports (8400, 8410, …)
	SKEIN_TESTNET_PORTS=$(TESTNET_PORTS) SKEIN_TESTNET_IMAGE=$(TESTNET_IMAGE) $(COMPOSE) up -d --no-build
	@for i in 0 1 2 3 4; do tries=0; until $(BIN) health --server 127.0.0.1:$(TESTNET_PORTS)$${i}0 >/dev/null 2>&1; do \
		tries=$$((tries+1)); if [ $$tries -gt 240 ]; then $(BIN) health --server 127.0.0.1:$(TESTNET_PORTS)$${i}0; exit 1; fi; sleep 0.5; done; done
	@echo
	@echo "Five nodes are ready, at ports $(TESTNET_PORTS)00, $(TESTNET_PORTS)10, … $(TESTNET_PORTS)40. Publish through one, read through another:"
	@echo
	@echo "  curl -d 'hello' 'http://127.0.0.1:$(TESTNET_PORTS)00/v1/streams/greetings/events?key=me' -H 'Content-Type: text/plain' && curl 'http://127.0.0.1:$(TESTNET_PORTS)40/v1/streams/greetings/events?from=earliest&until=end' -H 'Accept: application/x-ndjson'"

.PHONY: testnet-demo
testnet-demo: ## on the running testnet: join, cut, heal, kill, drain under load, and a verdict; INPUT=file KEY_REGEX=re for your own lines
	SKEIN_TESTNET_IMAGE=$(TESTNET_IMAGE) INPUT='$(TESTNET_INPUT)' KEY_REGEX='$(or $(KEY_REGEX),$(if $(INPUT),,blk_-?[0-9]+))' $(GO) run ./testnet/demo -containers -rate 300 -project $(TESTNET_PROJECT) -ports $(TESTNET_PORTS)

.PHONY: testnet-down
testnet-down: ## stop the testnet and remove its containers, network and disks
	@secret='$(CURDIR)/testnet/secret.env'; [ -f "$$secret" ] || secret=$$(mktemp); \
	SKEIN_TESTNET_SECRET="$$secret" $(COMPOSE) --profile grow down -v

.PHONY: lint
lint: ## gofmt, go vet, go mod tidy -diff, staticcheck
	@out=$$(gofmt -l .); if [ -n "$$out" ]; then echo "not formatted: gofmt -w" $$out; exit 1; fi
	$(GO) vet ./...
	$(GO) mod tidy -diff
	$(GO) run $(STATICCHECK) ./...
	@set -ex; for m in $(MODULES); do (cd $$m && $(GO) vet ./... && $(GO) mod tidy -diff && $(GO) run $(STATICCHECK) ./...); done

.PHONY: check
check: lint build test race ## all that CI runs

.PHONY: clean
clean: ## remove what was built
	rm -rf bin
