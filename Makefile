# make demo   set up .venv and run the main job: make data, train, evaluate, draw
# make test   set up .venv and run the tests
# make lint   ruff
# Another Python: make PYTHON=python3.12 demo

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
READY := $(VENV)/.ready
DEMO := work_dirs/demo
CONFIG := configs/maskrcnn_xcit_n12_p16_small.py

.PHONY: setup demo test test-slow lint clean
.DELETE_ON_ERROR:

setup: $(READY)

# .ready is written last, so a set-up that was cut off is taken up again. One that was cut off in the middle of a file
# fails the first or the last check and is made anew.
$(READY): requirements.txt setup.py
	@$(PYTHON) -c 'import sys; sys.exit("error: Python 3.10 or later is needed, this is %s; use another with: make PYTHON=python3.12 ..." % sys.version.split()[0] if sys.version_info < (3, 10) else 0)'
	@[ ! -e $(VENV) ] || $(PIP) --version > /dev/null 2>&1 || rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "error: $(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv"; exit 1; }
	$(PIP) install $$(grep -E '^torch(vision)?==' requirements.txt)
	$(PIP) install --no-deps -r requirements.txt
	$(PIP) install --no-deps --no-build-isolation --quiet --config-settings editable_mode=compat -e .
	@$(PY) -c 'import cv2, mmdet, mmseg, pycocotools, torchvision, xcit_dense' || { [ -z "$(ANEW)" ] && rm -rf $(VENV) && echo "the environment is damaged; making it anew" && $(MAKE) $@ ANEW=1; }
	@touch $@

demo: setup
	$(PY) tools/make_demo_data.py $(DEMO)/data
	$(PY) tools/train.py $(CONFIG) --data-root $(DEMO)/data --work-dir $(DEMO) --cfg-options randomness.seed=0
	$(PY) tools/test.py $(CONFIG) $(DEMO) --data-root $(DEMO)/data --work-dir $(DEMO) --show-dir $(DEMO)/side_by_side --at-least coco/bbox_mAP_50=0.5
	$(PY) tools/predict.py $(CONFIG) $(DEMO) $(DEMO)/data/val2017 --out $(DEMO)/predictions
	$(PY) tools/plot_curves.py $(DEMO)

test: setup
	$(PY) -m pytest

test-slow: setup
	$(PY) -m pytest -m slow

lint: setup
	$(PY) -m ruff check .

clean:
	rm -rf $(VENV) build dist *.egg-info
