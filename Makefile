# make setup             set up .venv
# make demo              generate data, train a detector, evaluate it, write a report, draw its predictions
# make demo-seg          the same for segmentation
# make demo-cls          the same for classification
# make demo-finetune     train on three classes, fine-tune on two new ones with few images, compare with random weights
# make demo-dino         train without labels, test the features, start a segmentor, compare with random weights
# make test              the quick tests
# make test-integration  tests that start tools as users do, build the package or need another environment
# make test-slow         tests that take more than a second, more cases of quick ones; a third: ARGS="--part 1/3"
# make test-full         all tests: those three together
# make test-onedl        the quick tests with the maintained forks, in .venv-onedl
# make mutants           plant 200 small mistakes, one at a time, and count those that the tests catch: 40 minutes
# make lint              check the code with ruff
# make figures           measure and draw all figures of README and docs: 100 minutes; NUCLEI=DIR as in docs/figures.py
# make docs              build the documentation into docs/_build/html; warnings are errors (Python 3.11 or later)
# make docs-links        check the links to other sites in the documentation; needs the network
# make clean             remove environments and builds
#
# TESTS=tests/models: only the tests of a folder. ARGS="-k frozen": more arguments for pytest, or for the mutants.
# A target sets up the environment that it needs. Another Python: make PYTHON=python3.12 demo. Without a GPU, the CPU
# build of torch is smaller: make TORCH=cpu demo

PYTHON ?= python3
TORCH :=
VENV := .venv
FORKS :=
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs-ready
DEMO := work_dirs/demo
CONFIG := configs/maskrcnn_xcit_n12_p16_small.py
TESTS := tests
ARGS :=
# in several processes, pytest does not name a path that is not there
CHECK_TESTS = $(foreach path,$(TESTS),$(if $(wildcard $(firstword $(subst ::, ,$(path)))),,$(error there is no $(path))))
# files whole, so that their fixtures are made once, and in the order of tests/helpers/suite.py
PYTEST = $(CHECK_TESTS)$(PY) -m pytest $(TESTS) -n 2 --dist loadfile --no-loadscope-reorder --durations=15 -rs
METRIC := coco/bbox_mAP_50=0.5
IMAGES := val2017
DATA = $(DEMO)/data
SHOW = --show-dir $(DEMO)/side_by_side
# options for a run of $(1) epochs with $(2) iterations of warm-up
LENGTH = train_cfg.max_epochs=$(1) train_cfg.val_interval=$(1) param_scheduler.0.end=$(2) param_scheduler.1.end=$(1)
PREDICT = predict.py $(CONFIG) $(DEMO) $(DATA)/$(IMAGES) --out $(DEMO)/predictions

.PHONY: help setup demo demo-seg demo-cls demo-finetune demo-dino test test-integration test-slow test-full test-onedl mutants lint docs figures docs-links clean
.DELETE_ON_ERROR:

help:
	@sed -n '/^#/!q; s/^# \?//p' Makefile

setup: $(READY)

# .ready marks a complete environment: it is removed first and written last. Without it, set-up was interrupted, maybe in
# the middle of a file, and the environment is created again; downloads come from pip's cache.
# Forks replace the originals: the names in requirements.txt that start with mm (mmpretrain needs the originals).
$(READY): requirements.txt $(FORKS) setup.py
	@$(PYTHON) -c 'import sys; sys.exit("error: this is Python %s, and 3.10 or later is needed. To use another: make PYTHON=python3.12 ..." % sys.version.split()[0] if sys.version_info < (3, 10) else 0)'
	@rm $@ 2> /dev/null && $(PIP) --version > /dev/null 2>&1 || rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "error: $(PYTHON) cannot create a virtual environment. On Debian and Ubuntu: apt install python3-venv"; exit 1; }
	$(PIP) install $(if $(filter cpu,$(TORCH)),--index-url https://download.pytorch.org/whl/cpu) $$(grep -E '^torch(vision)?==' requirements.txt)
	grep $(if $(FORKS),-v ^mm,'') requirements.txt | $(PIP) install --no-deps -r /dev/stdin $(FORKS:%=-r %)
	$(PIP) install --no-deps --no-build-isolation --quiet --config-settings editable_mode=compat -e .
	@$(PY) -c 'import cv2, mmdet, mmseg, pycocotools, torchvision, xcit_dense' || { echo "error: $(VENV) does not work, for the reason above. Fix that and run make setup again."; exit 1; }
	@touch $@
	@echo "$(VENV) is ready: . $(VENV)/bin/activate"

# --amp: mixed precision where the processor or the GPU has it; --no-fit: the data is made for the recipe
demo: setup
	$(PY) tools/make_demo_data.py $(DEMO)/data
	$(PY) tools/train.py $(CONFIG) --data-root $(DATA) --work-dir $(DEMO) --overwrite --amp --no-fit \
		--cfg-options randomness.seed=0
	$(PY) tools/test.py $(CONFIG) $(DEMO) --data-root $(DATA) --work-dir $(DEMO) --report $(DEMO)/report $(SHOW) \
		--at-least $(METRIC)
	$(PY) tools/$(PREDICT)
	$(PY) tools/plot_curves.py $(DEMO)
	@echo "done: $(DEMO)/report/report.html, side_by_side, predictions, curves.png; to compare: docs/measured.md#demos"

demo-seg:
	$(MAKE) demo DEMO=work_dirs/demo_seg CONFIG=configs/semfpn_xcit_n12_p16_small.py METRIC=mIoU=60 IMAGES=images/validation

demo-cls:
	$(MAKE) demo DEMO=work_dirs/demo_cls CONFIG=configs/xcit_n12_p8_small.py METRIC=accuracy/top1=90 IMAGES=val SHOW= \
		DATA='$$(DEMO)/data/classes' PREDICT='classify.py $$(DEMO) $$(DATA)/$$(IMAGES) --out $$(DEMO)/classified.json'

# the schedules are short, for few images; the test at the end checks the result
demo-finetune: DEMO := work_dirs/demo_finetune
demo-finetune: METRIC := coco/bbox_mAP_50=0.35
demo-finetune: setup
	$(PY) tools/make_demo_data.py $(DEMO)/three --classes disc square triangle --train 160 --val 20 --size 128
	$(PY) tools/make_demo_data.py $(DEMO)/two --classes star cross --train 24 --val 40 --size 128 --seed 1
	$(PY) tools/train.py $(CONFIG) --data-root $(DEMO)/three --work-dir $(DEMO)/before --overwrite --no-fit \
		--cfg-options randomness.seed=0 $(call LENGTH,4,20)
	$(PY) tools/train.py $(CONFIG) --data-root $(DEMO)/two --work-dir $(DEMO)/tuned --overwrite --no-fit \
		--init-from $(DEMO)/before --cfg-options randomness.seed=0 $(call LENGTH,10,5)
	$(PY) tools/train.py $(CONFIG) --data-root $(DEMO)/two --work-dir $(DEMO)/from_random --overwrite --no-fit \
		--cfg-options randomness.seed=0 $(call LENGTH,10,5)
	$(PY) tools/test.py $(CONFIG) $(DEMO)/tuned --data-root $(DEMO)/two --work-dir $(DEMO)/tuned --at-least $(METRIC)

# tests/ssl/test_judging_features.py does the first part with a smaller model
demo-dino: DEMO := work_dirs/demo_dino
demo-dino: CONFIG := configs/semfpn_xcit_n12_p16_small.py
demo-dino: setup
	$(PY) tools/make_demo_data.py $(DEMO)/data --grey
	$(PY) tools/train.py configs/xcit_n12_p16_dino_small.py --data-root $(DEMO)/data/classes --work-dir $(DEMO) \
		--overwrite --epochs 10 --cfg-options randomness.seed=0
	$(PY) tools/plot_curves.py $(DEMO)
	$(PY) tools/test.py configs/xcit_n12_p8_small.py $(DEMO) --data-root $(DEMO)/data/classes --work-dir $(DEMO)/knn \
		--knn --cfg-options model.backbone.arch=nano_12_p16
	$(PY) tools/train.py $(CONFIG) --data-root $(DEMO)/data --work-dir $(DEMO)/from_dino --overwrite --iterations 150 \
		--init-from $(DEMO) --cfg-options randomness.seed=0
	$(PY) tools/train.py $(CONFIG) --data-root $(DEMO)/data --work-dir $(DEMO)/from_random --overwrite --iterations 150 \
		--cfg-options randomness.seed=0

test: setup
	$(PYTEST) $(ARGS)

test-integration: setup
	$(PYTEST) -m 'integration and not slow' $(ARGS)

test-slow: setup
	$(PYTEST) -m slow $(ARGS)

test-full: setup
	$(PYTEST) -m 'not gpu' $(ARGS)

test-onedl:
	$(MAKE) test VENV=.venv-onedl FORKS=requirements-onedl.txt

mutants: setup
	$(PY) tests/mutants $(ARGS)

lint: setup
	$(PY) -m ruff check .

$(DOCS_READY): docs/requirements.txt $(READY)
	@$(PY) -c 'import sys; sys.exit("error: the documentation needs Python 3.11 or later, this is %s; set up .venv with another: make clean; make PYTHON=python3.12 docs" % sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PIP) install --no-deps -r $<
	@touch $@

# -E: all pages again, as Sphinx repeats no warning of a page that it has already built
docs: $(DOCS_READY)
	$(PY) docs/tools_page.py --check
	$(PY) -m sphinx -q -E -W --keep-going -b html docs docs/_build/html

figures: setup
	$(PY) docs/figures.py measure $(if $(NUCLEI),--nuclei $(NUCLEI))
	$(PY) docs/figures.py draw

docs-links: $(DOCS_READY)
	$(PY) -m sphinx -q -E -W --keep-going -b linkcheck docs docs/_build/links

clean:
	rm -rf .venv .venv-onedl build dist docs/_build docs/project *.egg-info
