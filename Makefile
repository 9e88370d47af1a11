# The scripts in scripts/ do all the work. `make help` lists the targets.
.DEFAULT_GOAL := help
.PHONY: help site console docs run start start-pg stop reset init psql setup build production clean ha move-test test test-run soak bench bench-peers lint fmt hooks matrix all install deb release version
SHELL := /bin/bash

FOLDER ?= /usr/share/doc
SUITE ?=
MINUTES ?= 30
ROUNDS ?= 1
HA ?=
DOCS ?= 1000000
WORKERS ?= 16
MOVE ?=
PORT ?= 5432
SITE ?=
CONSOLE_PORT ?= 8090
ACTIONS ?= 0
PG_CONFIGS ?=
DESTDIR ?=

help: ## list the targets and variables
	@awk -F ':.*## ' '/^##@ /{ printf "\n%s\n", substr($$0, 5) } /^#= /{ printf "  %s\n", substr($$0, 4) } \
	  /^[a-z-]+:.*## /{ printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ The dev server
run: ## set up, build, start the dev server and the console, process a folder: make run FOLDER=/path
	@scripts/run.sh "$(FOLDER)"

start: ## build, start the dev server with the extension, show how to connect
	@scripts/setup.sh && scripts/build.sh && scripts/cluster.sh dev start && scripts/connect.sh

start-pg: ## start the dev server without the extension
	@scripts/setup.sh && scripts/cluster.sh dev start --bare && scripts/connect.sh

psql: ## psql in the database fetchq of the dev server
	@scripts/cluster.sh dev psql

init: ## drop and create the extension in the dev server; the data is lost
	@scripts/cluster.sh dev psql -X -v ON_ERROR_STOP=1 \
	  -c 'DROP EXTENSION IF EXISTS fetchq CASCADE' -c 'CREATE EXTENSION fetchq'

console: ## start the dev server, and the console in the background: make console ACTIONS=1
	@scripts/setup.sh && scripts/build.sh && scripts/cluster.sh dev start && \
	  CONSOLE_PORT="$(CONSOLE_PORT)" ACTIONS="$(ACTIONS)" scripts/console.sh start

stop: ## stop the dev server and the console
	@scripts/console.sh stop && scripts/cluster.sh dev stop

reset: ## stop the dev server and remove its data
	@scripts/console.sh stop && scripts/cluster.sh dev reset

##@ Tests
test: ## run all tests, or some suites: make test SUITE="regress client"
	@scripts/test.sh $(SUITE)

matrix: ## run the suites on every PostgreSQL that is here: make matrix SUITE="regress isolation"
	@PG_CONFIGS="$(PG_CONFIGS)" scripts/matrix.sh $(SUITE)

test-run: ## build, run the SQL suites on the dev server
	@scripts/test.sh --on dev regress isolation

docs: ## write the generated pages and pictures of docs/
	@scripts/setup.sh && scripts/build.sh && scripts/cluster.sh dev start && \
	  eval "$$(scripts/cluster.sh dev env)" && scripts/docs.sh

site: ## build the documentation as a site with search; SITE=--serve shows it
	@scripts/book.sh $(SITE)

lint: ## check format, lints, structure, links and scripts
	@scripts/test.sh lint

fmt: ## format the code
	@cargo fmt --all

hooks: ## have git run the quick checks before each commit
	@git config core.hooksPath scripts/hooks && echo "git now runs scripts/hooks/pre-commit before each commit; 'git config --unset core.hooksPath' undoes this"

soak: ## run the stress tests of the engine for a long time: make soak MINUTES=30
	@scripts/setup.sh --tests && scripts/build.sh && scripts/soak.sh "$(MINUTES)"

ha: ## kill, freeze and cut off the primary of a cluster of three under load, as root: make ha ROUNDS=10
	@scripts/setup.sh && scripts/ha/setup.sh && scripts/build.sh && scripts/ha.sh --rounds "$(ROUNDS)" $(HA)

move-test: ## move queues to another server and back under load, with every kill: make move-test DOCS=1000000 WORKERS=16
	@scripts/setup.sh --tests && scripts/build.sh && DOCS="$(DOCS)" WORKERS="$(WORKERS)" MOVE="--fsync --all $(MOVE)" bash scripts/suites/move.sh

bench: ## run the benchmarks: make bench, make bench QUICK=1, make bench ONLY="push cycle*"
	@scripts/bench.sh

bench-peers: ## compare with other queues through their own workers: make bench-peers, make bench-peers QUICK=1
	@scripts/bench-peers.sh

##@ Building
setup: ## install the packages that are missing on this machine, also those of the tests
	@scripts/setup.sh --tests

build: ## build the extension, and install it into the server of this checkout
	@scripts/setup.sh && scripts/build.sh

all: ## build the extension, and install nothing
	@scripts/install.sh --compile

install: ## install the extension into PostgreSQL, or below a folder: make install DESTDIR=/path
	@DESTDIR="$(DESTDIR)" scripts/install.sh

deb: ## build a Debian package for the PostgreSQL of PG_CONFIG, into target/deb
	@scripts/deb.sh

release: ## build all packages into dist/, install each into an empty environment, run its quick start
	@scripts/release.sh $(ONLY)

version: ## show the version, or write it into every file: make version V=5.0.1
	@scripts/version.py $(if $(V),--set "$(V)")

production: ## build the image and run it with Docker or podman: make production PORT=5432 POSTGRES_PASSWORD=…
	@PORT="$(PORT)" scripts/production.sh

clean: ## stop all servers of this checkout, remove their data and everything that was built
	@scripts/clean.sh

##@ Variables
#= PG_CONFIG    another PostgreSQL, for any target: PG_CONFIG=/path/to/pg_config make test
#= SUITE        for test: lint unit regress docs isolation client conformance npm typescript python
#=              python_client rust_client console monitoring move quickstart docker versions recovery; and
#=              upgrade and image, which run only when they are named
#= DOCKER       for production and SUITE=image: podman, or another command in place of docker
#= IMAGE_MAJOR  for SUITE=image: the major version of the image; by default that of PG_CONFIG
#= OLD_PG_CONFIG, NEW_PG_CONFIG
#=              for SUITE=upgrade: the PostgreSQL that pg_upgrade upgrades from, and to
#= JOBS         for test: number of servers that run at once (2; 1 runs the suites one by one)
#= PG_CONFIGS   for matrix: the pg_config of each installation (those in /usr/lib/postgresql and
#=              /opt/pg*)
#= DESTDIR      for install: the folder that takes the place of /
#= FOLDER       for run: the folder whose files are processed (/usr/share/doc)
#= SITE         for site: --serve shows the site on http://localhost:8091/
#= CONSOLE_PORT for console: its port (8090; another one if that is taken)
#= ACTIONS      for console: 1 allows actions; otherwise it is read-only
#= MINUTES      for soak: how long it runs (30)
#= ROUNDS       for ha: how often each of the three happens (1)
#= HA           for ha: more options: --async, --kinds kill,cut, --dsn hosts, --synchronous-leases
#= DOCS, WORKERS
#=              for move-test: documents that are there before, and worker processes (1000000, 16)
#= MOVE         for move-test: more options: --only undisturbed, --report FILE
#= V            for version: the version to write
#= QUICK, ONLY  for bench: two minutes instead of 75; only the named scenarios. For bench-peers: three
#=              minutes instead of 28; only systems whose names contain one of these. For release:
#=              only these of source pgxn deb program npm python rust image; the others in dist/ stay.
#=              DOCKER names the engine of its images, too
#= LATE         for bench: how late leases are written, such as 2s
#= PROCESSES    for bench-peers: worker processes of each client (1)
#= PORT         for production: the port of the server (5432); only this machine can reach it
#=              unless BIND=0.0.0.0
