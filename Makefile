# The commands that people type. .ci/run is what must pass before a change lands; .ci/nightly has what
# takes longer.

.PHONY: help run test short check nightly metrics generate generate-clients accounts upgrade failover pooler proxies release deploy-check land mutants sim libraries typescript console bench torture soak dev

help: ## list these commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "%-17s %s\n", $$1, $$2}'

run: ## serve on http://127.0.0.1:8080
	go run ./cmd/mlsd

test: ## all tests
	go test ./...

short: ## formatting, vet, staticcheck and the fast tests: under 3 minutes
	.ci/run --short

check: ## everything that must pass before a change lands: under 20 minutes
	.ci/run

nightly: ## what takes longer: some hours
	.ci/nightly

metrics: ## check metrics and rules with promtool: needs it, or Debian's packages
	deploy/ops/check.sh

generate: ## write api/mlsapi from the lexicons
	go generate ./lexicons

generate-clients: ## generate clients with three generators, and call every method with them
	clientsim/generators/check.sh

accounts: ## follow the account events of a real PDS: needs node, npm
	cmd/mlsd/checkpds.sh

upgrade: ## replace the version before by this one under load, and go back
	cmd/mlsd/checkupgrade.sh

failover: ## promote a standby ten times under load: needs PostgreSQL with pg_rewind
	go run ./cmd/clientsim --scenario failover,failover-async --failovers 10

pooler: ## run mlsd behind a real PgBouncer: needs it, or Debian's packages
	cmd/mlsd/checkpgbouncer.sh

s3: ## run the tests of attachments against a real S3 server: builds it the first time
	features/attachments/s3store/check.sh

proxies: ## run mlsd behind nginx, HAProxy and Caddy: needs them, or Debian's packages
	deploy/ops/proxies/check.sh

release: ## build archives, packages and checksums into dist/
	deploy/release.sh

deploy-check: ## build a release, and try its packages, images and chart: needs root on Debian
	deploy/check.sh

land: generate ## record the lexicons as the landed contract
	go run ./internal/lexgen -land

mutants: ## put known bugs back, and see that tests notice
	go run ./internal/mutants

sim: ## play every scenario of the simulator
	go run ./cmd/clientsim

agents ?= $(HOME)/.cache/mlsd/agents
libraries: ## play groups of several MLS libraries: needs cargo, node, npm
	clientsim/agents/build.sh $(agents)
	go run ./cmd/clientsim --scenario mls-libraries --agents $(agents)

typescript: ## test the TypeScript client with mlsd-dev: needs node, npm
	clients/typescript/check.sh

console: ## visit the operator's console in a real browser: needs node, npm
	operator/console/check.sh

bench: ## measure sending to many convos
	go run ./cmd/clientsim bench send-spread

torture: ## let connections, servers and PostgreSQL fail for ten minutes, and check every write
	cmd/mlsd/pgbouncer.sh go run ./cmd/clientsim torture --for 10m --clocks

soak ?= 8h
soak: ## run everything for a night, or soak=2h, and look for what grows
	go run ./cmd/clientsim soak --for $(soak)

dev: ## serve for development: made-up people, faults, resets (docs/clients/DEV.md)
	go run ./cmd/mlsd-dev
