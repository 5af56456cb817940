# Each target sets up what it needs first; a second run reinstalls nothing.
#   STACK=classic   the original OpenMMLab line instead of the maintained one
#   VENV=dir        where the virtual environment goes
#   PYTHON=python   the Python that makes it
#   CONFIG=file     what `make demo` trains
STACK ?= onedl
VENV ?= .venv$(if $(filter classic,$(STACK)),-classic)
CONFIG ?= configs/retinanet_soft_pp_small_1x_coco.py
export PYTHON

.PHONY: install test demo lint

install:
	@bash tools/install.sh --venv "$(VENV)" --stack "$(STACK)"

test: install
	"$(VENV)/bin/python" -m pytest

demo: install
	"$(VENV)/bin/python" tools/train.py "$(CONFIG)" --demo

lint: install
	"$(VENV)/bin/ruff" check .
	"$(VENV)/bin/ruff" format --check .
