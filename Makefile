# Everything a fresh clone needs: Python >= 3.11, make and a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Where the system can: what make starts ends with make, also when make is killed.
BOUND := $(shell setpriv --pdeathsig TERM true 2>/dev/null && echo setpriv --pdeathsig TERM)

.PHONY: demo check test nightly test-widths mutants lint docs follow packages bench paper lock sbom clean

# Each installation has a file of its own: what the tests need; what a demo needs, without torch and
# linters; what the documentation and the linters need, without torch and Ray.
INSTALLED := $(addprefix $(VENV)/,.installed .demo .light)
$(VENV)/.installed: EXTRAS := dev
$(VENV)/.installed: SIZE := 2.7 GB
$(VENV)/.demo: EXTRAS := simulation,report
$(VENV)/.demo: SIZE := 1.2 GB
$(VENV)/.light: EXTRAS := docs,lint
$(VENV)/.light: SIZE := 1.2 GB
$(INSTALLED): pyproject.toml constraints.txt
	@echo "Installing [$(EXTRAS)] into $(VENV): $(SIZE), some minutes"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -c constraints.txt -e '.[$(EXTRAS)]'
	touch $@

LIGHT := $(if $(wildcard $(VENV)/.installed),$(VENV)/.installed,$(VENV)/.light)

# The federated job on the embedded synthetic EHR: six sites in Flower's simulation.
demo: $(if $(wildcard $(VENV)/.installed),$(VENV)/.installed,$(VENV)/.demo)
	@echo "Six simulated hospitals learn phenotypes together, with noise: minutes"
	rm -rf runs/demo runs/demo.sites
	$(BOUND) $(BIN)/dpfact simulate --out runs/demo
	@echo "Open that report in a browser; docs/tutorial.md goes through it, docs/gallery.md has real patients'."
	@echo "Next: . $(BIN)/activate, then dpfact --help"

# A file's tests stay together, for they share what takes long to set up.
PYTEST := $(BOUND) $(BIN)/python -m pytest --maxprocesses 4 --dist loadfile --no-loadscope-reorder
PYTEST += --durations=25

# The tests that start no process and take no time: an answer in under three minutes on two cores.
check: $(VENV)/.installed
	$(PYTEST) -n logical -q -m "not (process or ray or deployment or slow or nightly)"

# And what takes longer: one deployment, one simulation in Ray, the docs' commands, pages in a browser.
test: $(VENV)/.installed
	$(PYTEST) -n auto -m "not nightly"

# What takes hours: everything else that is started, and the laboratory.
nightly: $(VENV)/.installed
	$(PYTEST) -n auto -m nightly
	$(BIN)/python -m pytest tests/hostile --hypothesis-profile long
	$(BOUND) $(BIN)/python -m laboratory.campaign --scenarios 300 --seed $$(date +%j)
	$(BOUND) $(BIN)/python -m laboratory.campaign --real 18 --seed $$(date +%j)
	$(BOUND) $(BIN)/python -m laboratory.endurance --nodes 8 --minutes 30
	$(MAKE) test-widths bench packages follow
	$(MAKE) mutants SEED=$$(date +%j)

# The kernels' tests with the processor's own width of registers, and as if for older processors.
test-widths: $(VENV)/.installed
	$(BIN)/python -m tests.solver.widths

# Whether the tests notice mutants (one token changed) of privacy, site and server: SAMPLE of them,
# drawn by SEED. Fails if less than 95 % are noticed. Works in a copy; a quarter of an hour or more.
mutants: $(VENV)/.installed
	$(BIN)/python -m laboratory.mutants --sample $(or $(SAMPLE),60) --seed $(or $(SEED),0)

lint: $(LIGHT)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation site, into build/docs; every warning is an error.
docs: $(LIGHT)
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs
	@echo "Open build/docs/index.html. Its search shows excerpts on a server alone, as browsers demand:"
	@echo "$(BIN)/python -m http.server --bind 127.0.0.1 --directory build/docs"

# README and docs as a newcomer would type them, from a fresh clone of the last commit: what ran, what
# failed, what cannot run here and why, minutes. It takes long; PAGES=docs/tutorial.md for one.
follow: $(VENV)/.installed
	$(BOUND) $(BIN)/python -u -m laboratory.follow $(PAGES)

# Wheel and source archive: what they hold, and whether each installs and works without the checkout,
# on every Python that is at hand. Minutes for each; they are left in dist.
PYTHONS ?= $(shell for v in 3.11 3.12 3.13; do python$$v -c '' 2>/dev/null && echo python$$v; done)
packages:
	$(PYTHON) -m laboratory.packages --keep dist $(addprefix --python ,$(PYTHONS))

bench: $(VENV)/.installed
	$(BOUND) $(BIN)/python -m benchmarks $(if $(QUICK),--scale quick)

# The paper's evaluation. QUICK=1: minutes, into runs/paper-quick. THOROUGH=1: most of a day, into
# runs/paper-thorough. Without: under an hour, and the page of docs/ (which has STARTS=3: four hours).
# JOBS=2: two fits at a time.
# Interrupted, it goes on where it was.
paper: $(VENV)/.installed
	$(BOUND) $(BIN)/python -m simulation.paper --processes $(or $(JOBS),1) --starts $(or $(STARTS),1) \
		$(if $(QUICK),--quick,$(if $(THOROUGH),--thorough,--page docs/evaluation.md))

# The very versions that the tests ran with, for whom newer ones break something.
lock: $(VENV)/.installed
	{ echo "# Made by make lock: what the tests ran with, on Python $$($(BIN)/python -c 'import platform; print(platform.python_version())')."; \
	  echo "# pip install -c tested.txt -e '.[all]'"; \
	  $(BIN)/pip freeze --exclude-editable; } > tested.txt

# What a deployment's parts are made of, in the versions of tested.txt: a CycloneDX file. In an
# environment of its own, without Opacus and torch, which no part of a deployment installs.
sbom:
	rm -rf build/sbom
	$(PYTHON) -m venv build/sbom/installed
	$(PYTHON) -m venv build/sbom/tools
	build/sbom/installed/bin/pip install --quiet -c tested.txt '.[simulation,data,postgres,report]'
	build/sbom/tools/bin/pip install --quiet 'cyclonedx-bom>=7'
	build/sbom/tools/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
		--output-file build/sbom/dpfact-flower.cdx.json build/sbom/installed

clean:
	rm -rf $(VENV) runs build dist *.egg-info
