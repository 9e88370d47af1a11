# fetchq: all work is done by scripts/; `make help` lists what there is.
.DEFAULT_GOAL := help
.PHONY: help docs run start start-pg stop reset init psql setup build production clean test test-run soak bench lint fmt hooks
SHELL := /bin/bash

FOLDER ?= /usr/share/doc
SUITE ?=
MINUTES ?= 30
PORT ?= 5432

help: ## list the targets and variables
	@awk -F ':.*## ' '/^##@ /{ printf "\n%s\n", substr($$0, 5) } /^#= /{ printf "  %s\n", substr($$0, 4) } \
	  /^[a-z-]+:.*## /{ printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ The dev server
run: ## set up, build, start the dev server, queue the files of a folder: make run FOLDER=/path
	@scripts/run.sh "$(FOLDER)"

start: ## build, start the dev server with the extension, say how to connect
	@scripts/setup.sh && scripts/build.sh && scripts/cluster.sh dev start && scripts/connect.sh

start-pg: ## start the dev server without the extension
	@scripts/setup.sh && scripts/cluster.sh dev start --bare && scripts/connect.sh

psql: ## psql in the database fetchq of the dev server
	@scripts/cluster.sh dev psql

init: ## drop and create the extension in the dev server; its data is lost
	@scripts/cluster.sh dev psql -X -v ON_ERROR_STOP=1 \
	  -c 'DROP EXTENSION IF EXISTS fetchq CASCADE' -c 'CREATE EXTENSION fetchq'

stop: ## stop the dev server
	@scripts/cluster.sh dev stop

reset: ## stop the dev server and remove its data
	@scripts/cluster.sh dev reset

##@ Tests
test: ## run all tests, or some suites: make test SUITE="regress client"
	@scripts/test.sh $(SUITE)

test-run: ## build, run the SQL suites on the dev server
	@scripts/test.sh --on dev regress isolation

docs: ## write the generated pages and pictures of docs/
	@scripts/setup.sh && scripts/build.sh && scripts/cluster.sh dev start && \
	  eval "$$(scripts/cluster.sh dev env)" && scripts/docs.sh

lint: ## check format, lints, structure, links and scripts
	@scripts/test.sh lint

fmt: ## format the code
	@cargo fmt --all

hooks: ## have git run the quick checks before each commit
	@git config core.hooksPath scripts/hooks && echo "git runs scripts/hooks/pre-commit from now on; 'git config --unset core.hooksPath' ends that"

soak: ## run the proofs of the engine for long: make soak MINUTES=30
	@scripts/setup.sh && scripts/build.sh && scripts/soak.sh "$(MINUTES)"

bench: ## run the benchmarks: make bench, make bench QUICK=1, make bench ONLY="push cycle*"
	@scripts/bench.sh

##@ Building
setup: ## install what is missing on this machine
	@scripts/setup.sh

build: ## build the extension and install it into PostgreSQL
	@scripts/setup.sh && scripts/build.sh

production: ## build the Docker image and run it: make production PORT=5432 POSTGRES_PASSWORD=…
	@PORT="$(PORT)" scripts/production.sh

clean: ## stop all servers of this checkout, remove their data and all that was built
	@scripts/clean.sh

##@ Variables
#= PG_CONFIG    another PostgreSQL, for any target: PG_CONFIG=/path/to/pg_config make test
#= SUITE        of test: lint unit regress docs isolation client npm python quickstart docker
#= JOBS         of test: servers that are used at once (2; 1 runs one suite after the other)
#= FOLDER       of run: the folder whose files are queued (/usr/share/doc)
#= MINUTES      of soak: how long it runs (30)
#= QUICK, ONLY  of bench: two minutes instead of 75; some scenarios
#= PORT         of production: the port of the server (5432), for this machine only unless BIND=0.0.0.0
