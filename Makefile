# Every target prepares what it needs: a virtual environment in .venv, and Apache Kafka's jars in .cache.
# Nothing is installed outside this directory, except Java and Maven by apt-get where that is allowed (Debian, as root).

PYTHON     ?= python3
WORKERS    ?= 2
VENV       := .venv
BIN        := $(VENV)/bin
KAFKA_LIBS := .cache/kafka-libs
TESTS      ?=
BENCH      ?=

.DEFAULT_GOAL := help
.PHONY: help demo test quick check pytest bench soak states setup java kafka clean

help:
	@echo "make demo    payments through Spark, the driver killed twice, and the proof that each arrived once"
	@echo "make test    make check, then every test (TESTS=path selects)"
	@echo "make quick   make check, then every test that needs no Java"
	@echo "make check   ruff, mypy --strict, and which room may import which"
	@echo "make bench   Semel beside Apache Kafka, ratios into bench/results (BENCH=name selects)"
	@echo "make soak    the long fault runs"
	@echo "make states  write docs/states from the state tables in the code"
	@echo "make clean   remove what the targets above have made"

demo: setup java
	@$(BIN)/python examples/demo.py

test: check pytest

# The inner loop. CI is unset: there a skipped test is a failure.
quick: check
	env -u CI SEMEL_TESTS_WITHOUT_JAVA=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -r fE \
		-m "not soak and not java and not spark" $(TESTS)

check: setup
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -p no:cacheprovider tests/test_imports.py

# Spark's tests get processes of their own: a JVM's callbacks do not share one with thousands of other tests.
pytest: setup java kafka
ifeq ($(TESTS),)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --ignore tests/spark
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile tests/spark
else
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(TESTS)
endif

bench: setup java kafka
	$(BIN)/python -m bench $(BENCH)

soak: setup java kafka
	$(BIN)/python -m pytest -m soak -rP --timeout 3600 $(TESTS)

states: setup
	@$(BIN)/python scripts/draw_states.py

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml setup.py $(wildcard src/semel/records/_speedups.pyx) scripts/make-venv
	@scripts/make-venv "$(PYTHON)" $(VENV)
	@touch $@

java:
	@scripts/need-java

kafka: $(KAFKA_LIBS)/.complete

$(KAFKA_LIBS)/.complete: tests/support/kafka-jars.xml scripts/fetch-kafka
	@scripts/fetch-kafka tests/support/kafka-jars.xml $(KAFKA_LIBS)
	@touch $@

clean:
	rm -rf $(VENV) .cache build dist src/*.egg-info src/semel/records/_speedups.c src/semel/records/*.so
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
