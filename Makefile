# make quickstart     trains the small model and draws its report
# make test           lint, format and every test
# make test-tpu-aot   compiles the TPU kernels; needs no TPU, but 0.7 GB of packages
# make test-cuda-aot  compiles the GPU kernels; needs no GPU, but 4 GB of packages
#
# The first two build .venv. PYTHON=python3.12 builds .venv-3.12 beside it. The
# others build .venv-tpu and .venv-cuda likewise.

SEED ?= 0
WORKDIR ?= runs/quickstart

# One word about the interpreter $(1): fit, old, bare (no venv) or broken.
state = $(or $(shell $(1) -c 'import sys; from importlib import util; \
  print("old" if sys.version_info < (3, 11) else \
  "fit" if util.find_spec("ensurepip") else "bare")' 2>/dev/null),broken)

broken = does not run
old = is older than Python 3.11
bare = has no venv module (Debian and Ubuntu: apt install python3-venv)

ifdef PYTHON
  ifneq ($(call state,$(PYTHON)),fit)
    $(error PYTHON=$(PYTHON) $($(call state,$(PYTHON))))
  endif
  VENV := .venv-$(shell $(PYTHON) -c \
    'import sys; print("%d.%d" % sys.version_info[:2])')
else
  VENV := .venv
endif

# Looked for only when there is something to build.
candidates = $(or $(PYTHON),python3.11 python3.12 python3 python)
found = $(firstword $(foreach python,$(candidates),\
  $(if $(filter fit,$(call state,$(python))),$(python))))
tried = $(foreach python,$(candidates),$(python) $($(call state,$(python)));)

.PHONY: quickstart test test-tpu-aot test-cuda-aot

quickstart: $(VENV)/installed
	$(VENV)/bin/python -m experiments.train --experiment=quickstart \
	  --workdir='$(WORKDIR)' --seed='$(SEED)'

test: $(VENV)/installed
	@$(VENV)/bin/ruff check --quiet
	@$(VENV)/bin/ruff format --check
	@$(VENV)/bin/python -m pytest

test-tpu-aot: $(VENV)-tpu/installed
	@$(VENV)-tpu/bin/python -m pytest tests_aot/tpu

test-cuda-aot: $(VENV)-cuda/installed
	@$(VENV)-cuda/bin/python -m pytest tests_aot/cuda

VENVS := $(VENV)/installed $(VENV)-tpu/installed $(VENV)-cuda/installed
$(VENV)/installed: EXTRAS = notebooks
$(VENV)-tpu/installed: EXTRAS = tpu-aot
$(VENV)-cuda/installed: EXTRAS = cuda-aot

$(VENVS): setup.cfg pyproject.toml
	@$(if $(found),,$(error Python 3.11 or newer is needed: $(tried) \
	  name one by make PYTHON=path))
	@echo 'Building $(@D) with $(found), once; this takes a few minutes ...'
	@$(found) -m venv $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check \
	  --editable '.[$(EXTRAS)]'
	@touch $@
