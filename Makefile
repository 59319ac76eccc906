# make demo   set up, then the whole story offline, on photos that come with it
# make test   set up, then ruff, mypy, import-linter, eslint and the tests
# make docs   set up, then the pages of docs/ as a site in site/, with search and no network
# make pictures   set up, then the pictures of the page anew in docs/pictures/; needs Chromium and RETRIEVAL_SHARED
# make test-all   all tests: those of `make test`, then (`make test-rest`) browsers, servers, attacks, deep draws and kills of a writer
# make test-cluster   what talks to a real Milvus server, a Ray cluster and processes of torchrun, which it starts on loopback
# make dist   wheel and source distribution in dist/, which the slow tests install and run without the clone
PYTHON ?= python3
BIN := .venv/bin
ACCELERATOR := $(shell nvidia-smi >/dev/null 2>&1 && echo gpu || echo cpu)
STAMP := .venv/installed-$(ACCELERATOR)
# Spinning OpenMP threads starve small machines; set before any library is imported.
export OMP_WAIT_POLICY := PASSIVE
# What is compiled is kept, or each of the tests' many processes would compile it again.
unexport PYTHONDONTWRITEBYTECODE
SEED := $(or $(SEED),$(shell date +%s))

.PHONY: demo test docs pictures dist test-all test-rest test-cluster lint setup clean

demo: $(STAMP)
	$(BIN)/retrieval demo --out demo-out --no-serve

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --ignore tests/e2e -m "not slow and not gpu and not cluster"

docs: $(STAMP)
	$(BIN)/python -m sphinx -q -W --keep-going -d .sphinx docs site
	@echo "open site/index.html"

pictures: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.pictures

dist: $(STAMP)
	rm -rf build dist
	$(BIN)/python -c 'from setuptools.build_meta import build_sdist; build_sdist("dist")'
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist dist/*.tar.gz

test-all: test test-rest

# In another order every time, which SEED=… repeats; by four, as servers and browsers are waited for.
test-rest: $(STAMP)
	DEEP=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder --shuffle $(SEED) -m "(slow or deep) and not gpu and not cluster"

test-cluster: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m cluster

# The two that take longest side by side.
lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python -m tests.page_scripts & scripts=$$!; $(BIN)/mypy --num-workers 2; types=$$?; wait $$scripts && exit $$types

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; point to one: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$(ACCELERATOR),train,ui,test,docs]'
	touch $@

clean:
	rm -rf .venv demo-out site .sphinx build dist *.egg-info
