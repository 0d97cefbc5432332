# make setup             set up .venv
# make demo              run the main job: make data, train, evaluate, draw
# make demo-seg          the same for segmentation
# make demo-cls          the same for classification
# make demo-finetune     learn three classes, then two new ones from few images, and the same from random weights
# make test              the quick tests
# make test-integration  the tests that need processes or environments of their own
# make test-slow         the tests that take minutes
# make test-onedl        the quick tests with the maintained forks, in .venv-onedl
# make mutants           plant 200 small mistakes, one at a time, and see which the tests catch: 40 minutes
# make lint              ruff
# make clean             take environments and builds away
#
# TESTS=tests/models: only the tests of a folder. ARGS="-k frozen": more arguments for pytest, or for the mutants.
# What needs an environment sets it up first, unless it is there. Another Python: make PYTHON=python3.12 demo

PYTHON ?= python3
VENV := .venv
FORKS :=
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
READY := $(VENV)/.ready
DEMO := work_dirs/demo
CONFIG := configs/maskrcnn_xcit_n12_p16_small.py
TESTS := tests
ARGS :=
METRIC := coco/bbox_mAP_50=0.5
IMAGES := val2017
DATA = $(DEMO)/data
SHOW := side_by_side
# options for a run of some epochs and iterations of warm-up
LENGTH = train_cfg.max_epochs=$(1) train_cfg.val_interval=$(1) param_scheduler.0.end=$(2) param_scheduler.1.end=$(1)
PREDICT = predict.py $(CONFIG) $(DEMO) $(DATA)/$(IMAGES) --out $(DEMO)/predictions

.PHONY: help setup demo demo-seg demo-cls demo-finetune test test-integration test-slow test-onedl mutants lint clean
.DELETE_ON_ERROR:

help:
	@sed -n '/^#/!q; s/^# \?//p' Makefile

setup: $(READY)

# .ready says that the environment is whole: taken away first, written last. Without it the environment was cut off,
# maybe in the middle of a file, and is made anew; what was fetched before comes from pip's cache.
# Forks take the place of the originals: the names in requirements.txt that start with mm (mmpretrain needs those).
$(READY): requirements.txt $(FORKS) setup.py
	@$(PYTHON) -c 'import sys; sys.exit("error: Python 3.10 or later is needed, this is %s; use another with: make PYTHON=python3.12 ..." % sys.version.split()[0] if sys.version_info < (3, 10) else 0)'
	@rm $@ 2> /dev/null && $(PIP) --version > /dev/null 2>&1 || rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "error: $(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv"; exit 1; }
	$(PIP) install $$(grep -E '^torch(vision)?==' requirements.txt)
	grep $(if $(FORKS),-v ^mm,'') requirements.txt | $(PIP) install --no-deps -r /dev/stdin $(FORKS:%=-r %)
	$(PIP) install --no-deps --no-build-isolation --quiet --config-settings editable_mode=compat -e .
	@$(PY) -c 'import cv2, mmdet, mmseg, pycocotools, torchvision, xcit_dense' || { echo "error: $(VENV) does not work, for the reason above. Once that is mended, make setup makes it anew."; exit 1; }
	@touch $@

demo: setup
	$(PY) tools/make_demo_data.py $(DEMO)/data
	$(PY) tools/train.py $(CONFIG) --data-root $(DATA) --work-dir $(DEMO) --overwrite --cfg-options randomness.seed=0
	$(PY) tools/test.py $(CONFIG) $(DEMO) --data-root $(DATA) --work-dir $(DEMO) --show-dir $(DEMO)/$(SHOW) --at-least $(METRIC)
	$(PY) tools/$(PREDICT)
	$(PY) tools/plot_curves.py $(DEMO)

demo-seg:
	$(MAKE) demo DEMO=work_dirs/demo_seg CONFIG=configs/semfpn_xcit_n12_p16_small.py METRIC=mIoU=60 IMAGES=images/validation

demo-cls:
	$(MAKE) demo DEMO=work_dirs/demo_cls CONFIG=configs/xcit_n12_p8_small.py METRIC=accuracy/top1=90 IMAGES=val SHOW=report \
		DATA='$$(DEMO)/data/classes' PREDICT='classify.py $$(DEMO) $$(DATA)/$$(IMAGES) --out $$(DEMO)/classified.json'

# the schedules are those of so few images; tests/train/test_finetune_demo.py runs the same and says what must come out
demo-finetune: DEMO := work_dirs/demo_finetune
demo-finetune: METRIC := coco/bbox_mAP_50=0.35
demo-finetune: setup
	$(PY) tools/make_demo_data.py $(DEMO)/three --classes disc square triangle --train 160 --val 20 --size 128
	$(PY) tools/make_demo_data.py $(DEMO)/two --classes star cross --train 24 --val 40 --size 128 --seed 1
	$(PY) tools/train.py $(CONFIG) --data-root $(DEMO)/three --work-dir $(DEMO)/before --overwrite \
		--cfg-options randomness.seed=0 $(call LENGTH,4,20)
	$(PY) tools/train.py $(CONFIG) --data-root $(DEMO)/two --work-dir $(DEMO)/tuned --overwrite \
		--init-from $(DEMO)/before --cfg-options randomness.seed=0 $(call LENGTH,10,5)
	$(PY) tools/train.py $(CONFIG) --data-root $(DEMO)/two --work-dir $(DEMO)/from_random --overwrite \
		--cfg-options randomness.seed=0 $(call LENGTH,10,5)
	$(PY) tools/test.py $(CONFIG) $(DEMO)/tuned --data-root $(DEMO)/two --work-dir $(DEMO)/tuned --at-least $(METRIC)

test: setup
	$(PY) -m pytest $(TESTS) -n 2 --dist loadgroup --durations=15 $(ARGS)

test-integration: setup
	$(PY) -m pytest $(TESTS) -m 'integration and not slow' --durations=15 $(ARGS)

test-slow: setup
	$(PY) -m pytest $(TESTS) -m slow --durations=15 $(ARGS)

test-onedl:
	$(MAKE) test VENV=.venv-onedl FORKS=requirements-onedl.txt

mutants: setup
	$(PY) tests/mutants $(ARGS)

lint: setup
	$(PY) -m ruff check .

clean:
	rm -rf .venv .venv-onedl build dist *.egg-info
