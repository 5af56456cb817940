# Each target makes its environment first, with pip alone. A second run starts at once, an interrupted one goes on.
#   STACK=original  the original OpenMMLab line instead of the maintained one (onedl)
#   TORCH=2.6.0     another torch than the environment has or requirements.txt pins
#   VENV=dir        where the environment is; its torch is kept
#   PYTHON=python   the Python that makes it, 3.10 to 3.13
#   CONFIG=file     what `make demo` trains
SHELL := bash
STACK ?= onedl
ifeq ($(STACK),classic) # its former name
  override STACK := original
endif
PYTHON ?= python3
CONFIG ?= configs/retinanet_soft_pp_small_1x_coco.py
VENV := $(or $(VENV),.venv$(if $(filter original,$(STACK)),-original)$(if $(TORCH),-torch$(TORCH)))
PY := $(VENV)/bin/python
USED := $(or $(wildcard $(PY)),$(PYTHON))
STAMP := $(VENV)/.stamp-$(STACK)$(if $(TORCH),-torch$(TORCH))
EXTRAS := openmmlab$(if $(filter original,$(STACK)),-original),export,deploy,serve,openvino,docs,dev
PRESENT := $(shell $(PY) -c "import importlib.metadata as m; print(m.version('torch'))" 2>/dev/null)
PINNED := $(shell sed -n 's/^torch==//p' requirements.txt)
CHOSEN := $(or $(TORCH),$(PRESENT),$(PINNED))
MINOR := $(word 2,$(subst ., ,$(CHOSEN)))
# torchvision 0.29 is the first that fits every newer torch
VISION := $(if $(filter 6 7 8 9 10 11 12 13,$(MINOR)),==0.$(shell expr $(MINOR) + 15).*,>=0.29)

.PHONY: install test check demo lint docs dist
install: $(STAMP)

$(STAMP): pyproject.toml requirements.txt setup.py
	@case '$(STACK)' in onedl|original) ;; *) echo 'STACK is onedl or original; got $(or $(STACK),nothing)' >&2; exit 1;; esac
	@case '$(CHOSEN)' in 2.[6-9]|2.[6-9].*|2.[1-9][0-9]*) ;; \
	  *) echo 'TORCH is 2.6.0 or newer, such as $(PINNED); got $(CHOSEN)' >&2; exit 1;; esac
	@[ $(words $(VENV)) = 1 ] || { echo 'VENV is a directory without blanks in its name; got $(VENV)' >&2; exit 1; }
	@$(USED) -c "import sys; (3, 10) <= sys.version_info < (3, 14) or sys.exit('mmsoft needs Python 3.10 to 3.13, and $(USED) \
	is %d.%d; name another with PYTHON=, and a new directory with VENV=' % sys.version_info[:2])"
	@old='$(filter-out $(STAMP),$(wildcard $(VENV)/.stamp-*))'; [ -z "$$old" ] || \
	  { echo "$(VENV) holds another set of libraries ($$old); name another directory with VENV=" >&2; exit 1; }
	@$(PY) -m pip -V >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	grep -v '^torch' requirements.txt | $(PY) -m pip install -c /dev/stdin \
	  'torch==$(CHOSEN)' 'torchvision$(VISION)' -e '.[$(EXTRAS)]'
	@# servers lack what OpenCV's windows need
	$(PY) -c 'import cv2' || $(PY) -m pip install --force-reinstall --no-deps 'opencv-python-headless<4.13'
	$(PY) -m mmsoft.env
	@touch $@

test: install # a process a core, of one thread each
	OMP_NUM_THREADS=1 $(PY) -m pytest -n auto --maxprocesses 4 --dist worksteal

check: lint # and the tests that take no training: what to run while working
	OMP_NUM_THREADS=1 $(PY) -m pytest -n auto --maxprocesses 4 --dist worksteal -m 'not slow'

demo: install
	$(PY) tools/train.py $(CONFIG) --demo

lint: install
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/basedpyright -p . --pythonpath $(PY)

docs: install # a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

dist: install
	$(PY) -m pip install -q build twine
	rm -rf dist build
	$(PY) -m build --outdir dist
	$(PY) -m twine check --strict dist/*
