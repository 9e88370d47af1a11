# fetchq: all work is done by scripts/; `make help` lists what there is.
# PG_CONFIG=/path/to/pg_config picks another PostgreSQL for any target.
.DEFAULT_GOAL := help
.PHONY: help run test docs soak bench setup build start start-pg stop reset init test-run production psql lint fmt clean
SHELL := /bin/bash

FOLDER ?= /usr/share/doc
SUITE ?=
MINUTES ?= 30
PORT ?= 5432

help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

run: ## set up, build, start the dev server, queue a folder: make run FOLDER=/path
	@scripts/run.sh "$(FOLDER)"

test: ## run all tests, or some: make test SUITE="regress client"
	@scripts/test.sh $(SUITE)

docs: ## write the generated parts of docs/ (see scripts/docs.sh)
	@scripts/setup.sh && scripts/build.sh && scripts/cluster.sh dev start && \
	  eval "$$(scripts/cluster.sh dev env)" && scripts/docs.sh

bench: ## benchmark the installed build: make bench, make bench QUICK=1, make bench ONLY="push cycle*"
	@scripts/bench.sh

soak: ## run the proofs of the engine for long: make soak MINUTES=30
	@scripts/setup.sh && scripts/build.sh && scripts/soak.sh "$(MINUTES)"

setup: ## install what is missing on this machine
	@scripts/setup.sh

build: ## build the extension and install it into PostgreSQL
	@scripts/setup.sh && scripts/build.sh

start: ## start the dev server with the extension, say how to connect
	@scripts/setup.sh && scripts/build.sh && scripts/cluster.sh dev start && scripts/connect.sh

start-pg: ## start the dev server without creating the extension
	@scripts/setup.sh && scripts/cluster.sh dev start --bare && scripts/connect.sh

stop: ## stop the dev server
	@scripts/cluster.sh dev stop

reset: ## stop the dev server and wipe its data
	@scripts/cluster.sh dev reset

init: ## drop and create the extension in the running dev server (its data goes)
	@scripts/cluster.sh dev psql -X -v ON_ERROR_STOP=1 \
	  -c 'DROP EXTENSION IF EXISTS fetchq CASCADE' -c 'CREATE EXTENSION fetchq'

test-run: ## build, then run the SQL suites on the dev server
	@scripts/test.sh --on dev regress isolation

production: ## build the Docker image and run it: make production PORT=5432 POSTGRES_PASSWORD=…
	@PORT="$(PORT)" scripts/production.sh

psql: ## psql in the dev server's database fetchq
	@scripts/cluster.sh dev psql

lint: ## check format and lints
	@scripts/test.sh lint

fmt: ## format the code
	@cargo fmt --all

clean: ## stop and wipe all servers, remove all that was built
	@scripts/clean.sh
