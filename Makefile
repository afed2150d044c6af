# Every target prepares what it needs: a virtual environment in .venv, jars of Apache Kafka and others in .cache.
# Nothing is installed outside this directory, except Java, Maven and Go by apt-get where that is allowed (Debian, root).

PYTHON     ?= python3
WORKERS    ?= 2
VENV       := .venv
BIN        := $(VENV)/bin
KAFKA_LIBS := .cache/kafka-libs
ZOOKEEPER  := .cache/zookeeper-libs
KAFKA39    := .cache/kafka39-libs
CONNECTOR  := .cache/spark-connector
CLASSES    := .cache/spark-classes.jsa
TESTS      ?=
BENCH      ?=
TARGET     ?=
FUZZ_RUNS  ?= 1000000
SEEDS      ?= 0..999

.DEFAULT_GOAL := help
.PHONY: help demo test quick check pytest bench soak fuzz ablations simulate states setup java go kafka kafka39 zookeeper connector clean

help:
	@echo "make demo    payments through Spark, the driver killed twice, and the proof that each arrived once"
	@echo "make test    make check, then every test (TESTS=path selects)"
	@echo "make quick   make check, then every test that needs no Java"
	@echo "make check   ruff, mypy --strict, and which room may import which"
	@echo "make bench   Semel beside Apache Kafka, ratios into bench/results (BENCH=name selects)"
	@echo "make soak    the long fault runs"
	@echo "make fuzz    hostile bytes by the million (TARGET=name selects, FUZZ_RUNS=number)"
	@echo "make simulate   the real broker and clients in a simulated world, seed after seed (SEEDS=first..last)"
	@echo "make ablations  each safeguard taken away in the simulation, and the seed that notices it"
	@echo "make states  write docs/states from the state tables in the code"
	@echo "make clean   remove what the targets above have made"

# The comparison with Spark's own sink needs its jars; without them the demo says so, and goes on.
demo: setup java
	@$(MAKE) --no-print-directory connector > /dev/null 2>&1 || true
	@$(MAKE) --no-print-directory $(CLASSES) || true
	@$(BIN)/python -u examples/demo.py

test: check pytest

# The inner loop. CI is unset: there a skipped test is a failure.
quick: check
	env -u CI SEMEL_TESTS_WITHOUT_JAVA=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -r fE \
		-m "not soak and not java and not spark" $(TESTS)

check: setup
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -p no:cacheprovider tests/test_imports.py

pytest: setup java kafka kafka39 zookeeper connector go
	@$(MAKE) --no-print-directory $(CLASSES) || true
ifeq ($(TESTS),)
	$(BIN)/python scripts/run_tests.py $(WORKERS)
else
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(TESTS)
endif

bench: setup java kafka zookeeper connector
	$(BIN)/python -m bench $(BENCH)

soak: setup java kafka kafka39 zookeeper connector
	@$(MAKE) --no-print-directory $(CLASSES) || true
	$(BIN)/python -m pytest -m soak -v -s --durations 0 --durations-min 1 $(TESTS)

# atheris is installed for this target alone: nothing else needs it.
fuzz: setup
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install --quiet \
		--disable-pip-version-check --editable '.[fuzz]'
	$(BIN)/python -m tests.fuzz $(TARGET) --runs $(FUZZ_RUNS)

# The order of sets of names is a part of a seed's story, so their hashes are fixed.
simulate: setup
	PYTHONHASHSEED=0 $(BIN)/semel simulate --seeds $(SEEDS) --coverage

ablations: setup
	PYTHONHASHSEED=0 $(BIN)/python -m semel.simulation.ablations --seeds 1000

states: setup
	@$(BIN)/python scripts/draw_states.py

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml setup.py $(wildcard src/semel/records/_speedups.pyx) scripts/make-venv
	@scripts/make-venv "$(PYTHON)" $(VENV)
	@touch $@

java:
	@scripts/need-java

go:
	@scripts/need-go

kafka: $(KAFKA_LIBS)/.complete $(KAFKA_LIBS)/.shared

$(KAFKA_LIBS)/.complete: tests/support/kafka-jars.xml scripts/fetch-jars
	@scripts/fetch-jars "Apache Kafka" tests/support/kafka-jars.xml $(KAFKA_LIBS)
	@touch $@

# For the tests of the cluster.
zookeeper: $(ZOOKEEPER)/.complete

$(ZOOKEEPER)/.complete: tests/support/zookeeper-jars.xml scripts/fetch-jars
	@scripts/fetch-jars "Apache ZooKeeper" tests/support/zookeeper-jars.xml $(ZOOKEEPER)
	@touch $@

# The last Apache Kafka that knows ZooKeeper: it judges what a cluster of ours leaves there.
kafka39: $(KAFKA39)/.complete

$(KAFKA39)/.complete: tests/support/kafka39-jars.xml scripts/fetch-jars
	@scripts/fetch-jars "Apache Kafka 3.9" tests/support/kafka39-jars.xml $(KAFKA39)
	@touch $@

# JVMs of the tests start in half the time with it, and work without it.
$(KAFKA_LIBS)/.shared: $(KAFKA_LIBS)/.complete tests/support/shared_classes.py | setup java
	@$(BIN)/python -m tests.support.shared_classes || echo "there is no archive of Kafka's classes: the tests are slower"
	@touch $@

# Spark's own Kafka connector, for the tests and the bench that put ours beside it.
connector: $(CONNECTOR)/.complete

$(CONNECTOR)/.complete: tests/support/spark-connector-jars.xml scripts/fetch-jars
	@scripts/fetch-jars "Spark's Kafka connector" tests/support/spark-connector-jars.xml $(CONNECTOR)
	@touch $@

# Spark's classes as loaded, so that its JVM starts in half the time. Nothing else depends on it.
$(CLASSES): scripts/archive_spark_classes.py | $(VENV)/.installed
	@$(BIN)/python scripts/archive_spark_classes.py $@
	@touch $@

clean:
	rm -rf $(VENV) .cache build dist src/*.egg-info src/semel/records/_speedups.c src/semel/records/*.so
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
