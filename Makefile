# Every command of students, instructors and CI. It needs Python 3.11+ and make, nothing else:
# `make course` and `make test` set up .venv on first use.
#
# To choose another build of torch (CUDA, ROCm, CPU only), pass pip's arguments once:
#   make setup TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"
# Later calls read the choice from .venv/torch; `rm -rf .venv` forgets it.
#
# .ci/lock.txt names all other libraries, by version and hash. If the lock has no files for a system
# or a Python, `make` prints that, and installs by the pins of environment.yml. `make setup LOCK=no`
# does the same. `lock` keeps the versions in the lock if it can; with ALL=1 it uses the newest.
#
# `course` and `notebooks` run all weeks, or the weeks in ONLY: make course ONLY="week01 week02".
# `slides` and `minutes` take ONLY too.
# `test` runs what decides whether an installation works, ALL=1 every test and notebook, and ONLY
# all tests of some paths, with pytest's own options: make test ONLY="tests/comm -x".
# `quick` tests the changes since the last commit, or since another: make quick SINCE=main.
# `mutants` takes SINCE too, or files: make mutants ONLY=helpers/comm/mesh.py MOST=100.
# `lab` opens notebooks/, or the folder AT, and there START.ipynb: make lab AT=work. LAB passes on JupyterLab's own options:
# make lab LAB="--no-browser --port 8890".
# `student` leaves out the solutions; with them: make student SOLUTIONS=1.
# `grade` runs in a sandbox: make grade SUBMISSIONS=folder; without one, TRUST=1 runs code as you.
# JOBS=2 grades two exercises at a time; SECRET=number draws the inputs of an earlier run again;
# WEIGHTS=file has lines such as zero_1,3.
# `notebooks` skips unchanged notebooks; after a change in helpers/: make notebooks ALL=1.

PYTHON ?= python3# the Python that makes .venv
TORCH ?=
LOCK ?=
AT ?= notebooks
PY := .venv/bin/python
# Programs of .venv come first on PATH, for example for `!torchrun …` in a notebook.
RUN := PATH="$(CURDIR)/.venv/bin:$$PATH" $(PY)
SHELL := bash

# The environment of the caller's shell must not leak into .venv.  Without bytecode, each rank
# would compile `helpers` again.
unexport PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE VIRTUAL_ENV CONDA_PREFIX PIP_TARGET PIP_USER
export JUPYTER_PREFER_ENV_PATH := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help setup course test quick seeds durations lab slides student minutes handout grade bench sweep figures notebooks lint mutants elsewhere lock licences FORCE

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /  make \1#/p' Makefile | column -t -s '#'

setup: .venv/installed ## make .venv with all libraries (again only when the pins change)

course: setup ## execute every notebook, make the site: build/site/index.html
	@rm -rf build/executed
	@$(RUN) .ci/notebooks.py course $(ONLY)
	@$(RUN) .ci/site.py build/executed
	@echo "Read the course in build/site/index.html, or open JupyterLab to work on it: make lab"

test: setup ## run the quicker tests, and the quickest notebooks; ALL=1: everything
	@$(PY) -m helpers.parallel.libraries.deepspeed_extension || true  # or a rank tells of it
	@$(RUN) .ci/suite.py $(if $(ALL),--all) $(ONLY)

seeds: setup ## run the tests of properties with random examples; in `test` they are the same ones
	@HYPOTHESIS_SEEDS=random $(RUN) .ci/suite.py \
	    $(or $(ONLY),$$(grep -rl --include='test_*.py' 'import hypothesis\|from hypothesis' tests))

durations: setup ## run everything, and choose what `make test` runs: .ci/durations.json
	@$(RUN) .ci/suite.py --durations

quick: setup ## run lint, and the tests of the files that changed
	@$(RUN) .ci/quick.py $(SINCE)

# It serves the whole repository: notebooks link figures/, and students read helpers/.
lab: setup ## open JupyterLab at notebooks/
	@$(RUN) .ci/start.py '$(AT)'
	@$(RUN) .ci/lab.py --ServerApp.root_dir="$(CURDIR)" --LabApp.default_url=/lab/tree/$(AT)$$(test ! -e '$(AT)/START.ipynb' || echo /START.ipynb) $(LAB)

slides: setup ## write a deck for each notebook: build/slides/index.html
	@$(RUN) .ci/slides.py $(ONLY)

student: setup ## make work/, your own notebooks without outputs, or add what is new
	@$(RUN) .ci/student.py $(if $(SOLUTIONS),--solutions)
	@$(RUN) .ci/start.py work

minutes: setup ## print the minutes that each notebook needs, counted by rule
	@$(PY) .ci/minutes.py $(ONLY)

handout: setup ## write build/handout, for a class: no outputs, no solutions
	@$(RUN) .ci/handout.py

grade: setup ## grade the notebooks in SUBMISSIONS in a sandbox, write tables and feedback
	@test -n '$(SUBMISSIONS)' || { echo "name the folder: make grade SUBMISSIONS=folder"; exit 2; }
	@$(RUN) -P -m helpers.check.grading.grade '$(SUBMISSIONS)' $(if $(TRUST),--trust) \
	    $(if $(JOBS),--jobs $(JOBS)) $(if $(WEIGHTS),--weights '$(WEIGHTS)') $(if $(SECRET),--secret $(SECRET))

bench: setup ## measure side by side with other libraries, print the table
	@$(RUN) -m tests.bench

sweep: setup ## train the models of week 2, or the missing ones, into helpers/scaling/sweep.csv
	@$(RUN) -m helpers.scaling.sweep

figures: setup ## draw figures/ anew
	@$(RUN) figures/draw.py

notebooks: setup ## execute the changed notebooks in place, strip this machine's traces
	@$(RUN) -m ruff format --quiet notebooks
	@$(PY) -m helpers.parallel.libraries.deepspeed_extension  # or week 7b's outputs tell of it
	@$(RUN) .ci/notebooks.py execute $(if $(ALL),--all) $(ONLY)

lint: setup ## ruff, notebooks included
	@$(RUN) -m ruff check
	@$(RUN) -m ruff format --check

mutants: setup build/tools/installed ## plant mistakes in the changed files, or in ONLY's, and list those no test finds
	@build/tools/bin/python .ci/mutants.py $(if $(MOST),--most $(MOST)) $(or $(ONLY),$(SINCE))

elsewhere: build/elsewhere/installed ## install what more tests of the files to submit run: build/elsewhere

build/elsewhere/installed: .ci/lock-elsewhere.txt
	@$(PYTHON) -m venv --clear build/elsewhere
	@build/elsewhere/bin/pip install --quiet --require-hashes --no-deps -r .ci/lock-elsewhere.txt
	@touch $@

lock: build/tools/installed ## choose the versions of all libraries anew, into .ci/lock.txt
	@PATH="$(CURDIR)/build/tools/bin:$$PATH" $(PYTHON) .ci/lock.py $(if $(ALL),--upgrade)

build/tools/installed: .ci/lock-tools.txt
	@$(PYTHON) -m venv --clear build/tools
	@build/tools/bin/pip install --quiet --require-hashes --no-deps --only-binary :all: -r .ci/lock-tools.txt
	@touch $@

licences: setup ## write the table of the libraries' licences, .ci/licences.md
	@$(RUN) .ci/licences.py

# .venv/installed is written last and contains the name of its folder. `make` makes it anew if the
# pins are newer, if it or its Python is gone, if the folder was moved (scripts in .venv and the
# project's own entry name it), or if another torch is chosen.
ifneq ($(CURDIR),$(shell test -x $(PY) && cat .venv/installed 2>/dev/null))
.venv/installed: FORCE
endif
ifneq ($(TORCH),)
ifneq ($(TORCH),$(shell cat .venv/torch 2>/dev/null))
.venv/installed: FORCE
endif
endif

.venv/installed: pyproject.toml environment.yml .ci/lock.txt .ci/lock-late.txt .ci/install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "This needs Python 3.11 or newer, and '$(PYTHON)' is not; name one: make PYTHON=python3.12 …" >&2; \
	    exit 1; }
	@if test -e .venv/installed && ! { test -x $(PY) && test "$$(cat .venv/installed)" = "$(CURDIR)"; }; \
	    then echo "the folder or its Python has moved: making .venv anew"; \
	    find .venv -mindepth 1 -maxdepth 1 ! -name torch -exec rm -rf {} +; fi
	@test -x $(PY) || echo "making .venv"
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv .venv
	@rm -f .venv/installed
	@if test -n '$(TORCH)'; then echo '$(TORCH)' > .venv/torch; fi
	@echo "installing the course and its libraries into .venv (about 2 minutes, once)"
	@LOCK='$(LOCK)' .ci/install
	@echo "$(CURDIR)" > .venv/installed
