# Entry points for people and for CI. Everything that is built lands in $GRPO_CACHE (default ~/.cache/grpo-operator).
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help

ENV := source e2e/setup/env.sh
STATIC_TARGET := $(shell uname -m)-unknown-linux-gnu
# Two calls of cargo, not one: in one, the engine would be linked against the trainer's libtorch.
PLAIN := --workspace --exclude grpo-native --exclude grpo-trainer --exclude grpo-bench-trainer
TORCH := -p grpo-features -p grpo-native -p grpo-model -p grpo-trainer -p grpo-bench-trainer --features grpo-model/torch
# Without examples and documentation tests: there are none of the latter, and looking for them takes a minute.
TESTS := --lib --bins --tests
# Keeps the seconds of a stage for .ci/run.
TIMED := e2e/setup/timed.sh
# Whether this machine can have a cluster with nodes.
NODES := unshare --net --mount --pid --fork true 2> /dev/null || docker info > /dev/null 2>&1

# Each target is a name, not a file.
.PHONY: $(shell awk -F ':' '/^[a-z0-9-]+:/ { print $$1 }' Makefile)

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

setup: ## install what building and the local cluster need (idempotent)
	@e2e/setup/setup.sh

build: ## compile the six processes
	@e2e/setup/setup.sh build
	@$(ENV)
	cargo build $(PLAIN) --bins
	cargo build $(TORCH) --bins
	# It is mounted into every sandbox: small is worth a slower build. By environment, because other builds share the profile's name.
	CARGO_PROFILE_DEV_OPT_LEVEL=s CARGO_PROFILE_DEV_LTO=fat CARGO_PROFILE_DEV_CODEGEN_UNITS=1 CARGO_PROFILE_DEV_INCREMENTAL=false \
	  RUSTFLAGS='-C target-feature=+crt-static' cargo build -p sandboxd -p grpo-edit-tool --target $(STATIC_TARGET)

images: build cluster ## build the images and bring them into the cluster
	@e2e/cluster/images.sh build
	e2e/cluster/images.sh import

push: ## images and chart to a registry: make push REGISTRY=registry.example.com/grpo VERSION=0.1.0
	@e2e/release/push.sh "$${REGISTRY:-}" "$${VERSION:-}"

push-cuda: ## the CUDA trainer's image, with Docker: make push-cuda REGISTRY=registry.example.com/grpo VERSION=0.1.0
	@e2e/release/push-cuda.sh "$${REGISTRY:-}" "$${VERSION:-}"

cluster: ## a real Kubernetes on this machine (kind, where a container engine is)
	@e2e/cluster/up.sh

down: ## remove the cluster; images stay in the cache
	@e2e/cluster/down.sh

status: ## which parts of the cluster serve
	@e2e/cluster/status.sh

check: cluster ## show what the cluster can do, and how fast
	@e2e/cluster/check.sh

test: test-compiled test-unit test-api test-operator test-e2e ## every test, those on a real cluster included; test-chaos is apart

test-compiled: # what `make test` needs, before its first test runs, so that nothing is compiled beside tests
	@$(TIMED) "set up" e2e/setup/setup.sh build
	@$(ENV)
	# Kubernetes' parts beside the crates: on a bare machine either downloads, links or waits for one core at times.
	others() { e2e/setup/kubernetes.sh control-plane; if $(NODES); then e2e/setup/setup.sh; fi; }
	export -f others
	$(TIMED) "Kubernetes' parts, beside what compiles" nice bash -euo pipefail -c others & others=$$!
	status=0
	$(TIMED) "compiling tests" cargo test $(PLAIN) $(TESTS) --no-run &&
	  $(TIMED) "compiling tests that link libtorch" cargo test $(TORCH) $(TESTS) --no-run &&
	  $(TIMED) "compiling the six processes" make --no-print-directory build || status=$$?
	wait $$others || status=$$?
	exit $$status

test-unit: ## tests that need no cluster
	@e2e/setup/setup.sh build
	@$(ENV)
	$(TIMED) "unit tests" cargo test $(PLAIN) $(TESTS)
	$(TIMED) "unit tests of what links libtorch" cargo test $(TORCH) $(TESTS)

test-api: ## rules, bounds and chart on an API server without nodes; stores in buckets of a real server, resumed from too
	@e2e/setup/setup.sh build
	e2e/setup/kubernetes.sh control-plane
	$(ENV)
	$(TIMED) "API tests" cargo test $(PLAIN) --test e2e -- --ignored --test-threads=1 --nocapture judges:: chart::
	# Each starts a server of its own.
	$(TIMED) "stores in buckets" cargo test $(PLAIN) --test e2e -- --ignored --test-threads=2 --nocapture stores::
	$(TIMED) "a trainer resumed from a bucket" cargo test $(TORCH) --test processes -- --ignored --test-threads=1 --nocapture resumed::

test-operator: ## the operator on a control plane without nodes: bad input, refused fields, faults of runs and of sandboxes, requests at rest, outages, capacity, nodes added and replaced, gateways killed and misled; in small
	@e2e/setup/setup.sh build
	e2e/setup/kubernetes.sh control-plane
	$(ENV)
	cargo build $(PLAIN) --bin grpo-operator --bin grpo-gateway --bin sandboxd
	# Each has a control plane of its own, and waits most of the time.
	$(TIMED) "operator, two tests at a time" cargo test $(PLAIN) --test e2e -- --ignored --test-threads=2 --nocapture operator::bad_input:: operator::ownership:: operator::refusals:: operator::rest:: operator::waits:: faults::
	$(TIMED) "operator and gateway, three at a time" cargo test $(PLAIN) --test e2e -- --ignored --test-threads=3 --nocapture operator::bench:: operator::colocation:: operator::nodes:: gateway::

test-e2e: ## tests on a real cluster
	@if ! { $(NODES); }; then
	  echo "THE END-TO-END TESTS WERE LEFT OUT: this machine has no Docker, and its user may not make namespaces (be root)" >&2
	  exit 0
	fi
	e2e/setup/kubernetes.sh control-plane
	$(TIMED) "cluster, images, operator" demo/prepare.sh
	$(TIMED) "the model of two manifests" e2e/cluster/images.sh long-model
	$(ENV)
	$(TIMED) "end-to-end tests" cargo test $(PLAIN) --test e2e -- --ignored --test-threads=1 --nocapture tools:: cluster:: colocated::a_trainer gpus:: isolation:: clients::a_listed examples:: seeds::tools_of_8b seeds::supervised_training_of_8b

test-chaos: ## the same cluster, with parts taken away: each process once; then 20 random kills, with a judge, rows of turns, dynamic sampling and overlap
	@demo/prepare.sh
	$(ENV)
	GRPO_CHAOS_EVERYTHING=$${GRPO_CHAOS_EVERYTHING:-1} cargo test $(PLAIN) --test e2e -- --ignored --test-threads=1 --nocapture chaos::

test-chaos-long: ## 10 campaigns of 100 random kills, the API server and images away for 10 min each; those that succeeded are in bench/results/campaigns.jsonl and not run again
	@demo/prepare.sh
	$(ENV)
	for seed in $$(seq 1 10); do
	  GRPO_CHAOS_RECORD=1 GRPO_CHAOS_OUTAGE_SECONDS=$${GRPO_CHAOS_OUTAGE_SECONDS:-600} GRPO_CHAOS_KILLS=100 GRPO_CHAOS_SEED=$$seed cargo test $(PLAIN) --test e2e -- --ignored --nocapture chaos::random::
	done

test-chaos-bucket: ## a campaign of 50 random kills with the run's store in a bucket, whose server is killed too, and rows and model from a hub
	@demo/prepare.sh
	e2e/setup/kubernetes.sh control-plane
	$(ENV)
	GRPO_CHAOS_BUCKET=1 GRPO_CHAOS_KILLS=50 cargo test $(PLAIN) --test e2e -- --ignored --nocapture chaos::random::

bench-servers: ## the demo on a volume, then with its store in a bucket, rows and model from a hub; 36 minutes
	@demo/prepare.sh
	e2e/setup/kubernetes.sh control-plane
	$(ENV)
	cargo test $(PLAIN) --test e2e -- --ignored --nocapture demo_on_servers::

test-histories: ## episodes that are longer than their context on the real cluster, trained turn by turn
	@demo/prepare.sh
	$(ENV)
	cargo test $(PLAIN) --test e2e -- --ignored --test-threads=1 --nocapture histories::

test-elastic: ## 50 engines start and about as many end in a run that works: its pool is scaled, a pod is lost, a process is killed; 15 minutes
	@demo/prepare.sh
	$(ENV)
	cargo test $(PLAIN) --test e2e -- --ignored --test-threads=1 --nocapture elastic::

test-engines: ## runs on a real vLLM, its CPU build, on the real cluster: adapters and full weights (5 GB to install, 25 GB of disk)
	@demo/prepare.sh
	e2e/engines/files.sh
	e2e/cluster/images.sh engines
	$(ENV)
	cargo test $(PLAIN) --test e2e -- --ignored --test-threads=1 --nocapture engines::a_run

check-trackers: ## curves of a run at MLflow's own server, at a simulated W&B server that wandb's own SDK uses too, and in a file, on the real cluster (1.2 GB to install); 5 minutes
	@e2e/trackers/install.sh
	demo/prepare.sh
	$(ENV)
	cargo test $(PLAIN) --test e2e -- --ignored --nocapture trackers::

check-monitoring: ## the chart's PodMonitors, rules and dashboards with a real Prometheus and its operator: every panel and alert, during a run on the real cluster (builds both from Go modules)
	@e2e/monitoring/check.sh
	demo/prepare.sh
	$(ENV)
	cargo test $(PLAIN) --test e2e -- --ignored --test-threads=1 --nocapture monitoring::
	# The chart as the other tests expect it. The test has written the operator's role, which helm would not take back.
	helm --kubeconfig "$$KUBECONFIG" upgrade grpo-operator charts/grpo-operator --namespace grpo-system --reset-values --force-conflicts --wait --timeout 120s

test-kueue: ## runs with queueName beside the real Kueue, on a control plane without nodes: quota, preemption, deactivation (builds Kueue from its Go module); 3 minutes
	@e2e/setup/setup.sh build
	e2e/setup/kubernetes.sh control-plane
	e2e/kueue/install.sh
	$(ENV)
	cargo build $(PLAIN) --bin grpo-operator
	cargo test $(PLAIN) --test e2e -- --ignored --test-threads=1 --nocapture kueue::

test-tenants: ## a user of another namespace tries to reach a run: by the API server, by the network with her own tokens, at a viewer, by manifests; 3 minutes
	@demo/prepare.sh
	$(ENV)
	cargo test $(PLAIN) --test e2e -- --ignored --nocapture tenants::a_user

test-operations: ## an upgrade, a rollback and a new installation while runs work, and stores that move between volumes and a bucket; compiles the version of e2e/upgrade/from once (40 minutes), then 15 minutes
	@e2e/upgrade/before.sh build
	demo/prepare.sh
	e2e/upgrade/before.sh import
	$(ENV)
	cargo test $(PLAIN) --test e2e -- --ignored --test-threads=1 --nocapture operations::
	# The chart as the other tests expect it.
	helm --kubeconfig "$$KUBECONFIG" upgrade --install grpo-operator charts/grpo-operator --namespace grpo-system --create-namespace --reset-values --wait --timeout 120s

test-release: ## images and chart pushed to a registry on this machine, installed from there alone, and a run with them
	@e2e/release/test.sh

test-kind: ## a kind cluster with two nodes that claim GPUs, the chart, a run, and pods placed on the GPUs; without Docker, as root, engine and node image are made too (600 MB to download, 25 GB of disk meanwhile); 20 minutes
	@e2e/kind/test.sh

test-book: ## the commands of the book's quickstart and of its pages on the viewer, on installing and on a first run on GPUs, run as they are printed; 40 minutes
	@e2e/book/test.sh

test-overlap: ## dynamic sampling, rollouts beside steps and shaped rewards on the real cluster, with a judge too
	@demo/prepare.sh
	$(ENV)
	cargo test $(PLAIN) --test e2e -- --ignored --test-threads=1 --nocapture overlap::

test-finetune: ## supervised training on the real cluster, and a GRPO run that continues with its weights
	@demo/prepare.sh
	$(ENV)
	cargo test $(PLAIN) --test e2e -- --ignored --test-threads=1 --nocapture finetune::

test-validate: ## mode Validate on the real cluster: ten broken tasks beside the demo's first 60
	@demo/prepare.sh
	$(ENV)
	cargo test $(PLAIN) --test e2e -- --ignored --test-threads=1 --nocapture validate::

test-seeds: ## manifests of the reference systems, scaled down, on the real cluster (200 MB to download)
	@demo/prepare.sh
	e2e/agents/files.sh
	e2e/cluster/images.sh agents
	e2e/cluster/images.sh long-model
	$(ENV)
	cargo test $(PLAIN) --test e2e -- --ignored --test-threads=1 --nocapture seeds::

test-clients: ## OpenAI's library, unmodified mini-swe-agent and a run whose server speaks only text sample from a pool, on the real cluster (400 MB to install)
	@e2e/clients/install.sh mini-swe-agent
	demo/prepare.sh
	$(ENV)
	cargo test $(PLAIN) --test e2e -- --ignored --test-threads=1 --nocapture clients::openais clients::text::

test-agents: ## unmodified mini-swe-agent in sandboxes of the real cluster, trained on what was sampled for it (200 MB to download)
	@demo/prepare.sh
	e2e/agents/files.sh
	e2e/cluster/images.sh agents
	$(ENV)
	cargo test $(PLAIN) --test e2e -- --ignored --test-threads=1 --nocapture agents::

# For `make test-harnesses`: names in e2e/tests/harnesses.rs. Claude Code's prompt may not fit into the model's context.
GRPO_HARNESSES ?= qwen-code,mini-swe-agent,mini-swe-agent-tools,codex,gemini-cli,opencode,aider,pi,gptme

test-harnesses: ## unmodified agents on twenty tasks each in sandboxes of the real cluster, with a sampled policy, trained on what was sampled for them (GRPO_HARNESSES=a,b; default all but claude-code); 17 minutes (1 GB to download)
	@demo/prepare.sh
	export GRPO_HARNESSES='$(GRPO_HARNESSES)'
	# Both classes of mini-swe-agent have one image.
	agents=$$(tr , '\n' <<< "$$GRPO_HARNESSES" | sed 's/-tools$$//' | sort -u)
	e2e/agents/files.sh $$agents
	e2e/cluster/images.sh agents $$agents
	e2e/cluster/images.sh long-model
	$(ENV)
	cargo test $(PLAIN) --test e2e -- --ignored --test-threads=1 --nocapture harnesses::

test-sandboxes: ## 86 attacks, real losses and 50 resets of sandboxes on the real cluster; a fork bomb is among them
	@demo/prepare.sh
	$(ENV)
	cargo test $(PLAIN) --test e2e -- --ignored --test-threads=1 --nocapture sandboxes::

test-sandbox-faults: ## over 200 faults of sandboxes, simulated before a gateway and made on the real cluster, the API server away for a minute
	@e2e/setup/setup.sh build
	e2e/setup/kubernetes.sh control-plane
	demo/prepare.sh
	$(ENV)
	GRPO_FAULT_ROUNDS=8 GRPO_OUTAGE_SECONDS=60 cargo test $(PLAIN) --test e2e -- --ignored --nocapture sandbox_faults::
	GRPO_LOSS_ROUNDS=4 cargo test $(PLAIN) --test e2e -- --ignored --nocapture sandboxes::losses::

test-sandbox-resets: ## 1,000 resets of sandboxes under a hostile workload, on the real cluster
	@demo/prepare.sh
	$(ENV)
	GRPO_RESET_CYCLES=1000 cargo test $(PLAIN) --test e2e -- --ignored --nocapture sandboxes::resets::

test-prefixes: ## how many prompt tokens eight replicas have in their prefix caches, and how evenly they work, on a machine that does nothing else
	@e2e/setup/setup.sh build
	$(ENV)
	cargo test $(PLAIN) --test driver -- --ignored --nocapture prefixes::

test-trainer-kills: ## a trainer of two ranks, killed 200 times: the same losses, the same weights, no half checkpoint
	@e2e/setup/setup.sh build
	$(ENV)
	GRPO_KILLS=200 cargo test $(TORCH) --test processes -- --nocapture kills::

test-syncs: ## 500 syncs of weights to three replicas, each disturbed: cut transfers, killed agents and engines, joiners, wrong orders; 9 minutes
	@e2e/setup/setup.sh build
	$(ENV)
	GRPO_SYNCS=500 cargo test $(PLAIN) --test engine-agent -- --nocapture disturbed::

fuzz-sandboxes: ## spoilt requests at every door of sandboxd and of its gateway, ten minutes each
	@e2e/setup/setup.sh build
	$(ENV)
	cargo build $(PLAIN) --bin sandboxd
	GRPO_FUZZ_SECONDS=600 cargo test $(PLAIN) --test sandboxd --test compat -- garbage:: --nocapture --test-threads=4

demo: ## a policy learns to fix bugs, before your eyes
	@demo/demo.sh

record-demo: ## run the demo and record it for the book: docs/src/recorded
	@demo/record.sh

verify-demo: ## recompute what the demo claims, from its records
	@demo/verify.sh

bench-learning: ## learning over several seeds, with controls; a third longer than the demo, whose time is short
	@demo/learning.sh --iterations 16

# For `make bench-arms`.
ARM ?= dynamic
SEED ?= 0,1,2

bench-arms: ## plain runs of the demo, and runs with dynamic sampling (ARM=dynamic), rollouts beside steps (ARM=overlap) or a judge of turns (ARM=judge), seeds SEED=0,1,2: half an hour for each seed; finished runs are not repeated
	@demo/learning.sh --arm $(ARM) --seeds $(SEED) --iterations 12

# For `make bench-agents`.
AGENT ?= EditTool Pdb QwenCode

bench-agents: ## GRPO through unmodified qwen-code, the tools with pdb, and bash with the edit tool (AGENT=..., default all), each warmed up by a recorded script; hours; finished runs are not repeated (200 MB to download)
	@demo/prepare.sh
	e2e/cluster/images.sh long-model
	case " $(AGENT) " in *" QwenCode "*) e2e/agents/files.sh; e2e/cluster/images.sh agents ;; esac
	missed=
	for agent in $(AGENT); do demo/learning.sh --agent $$agent --iterations 16 || missed="$$missed $$agent"; done
	[ -z "$$missed" ] || { echo "failed, or a bar is not met:$$missed" >&2; exit 1; }

bench-sync: ## a version of 1.2 GB to four replicas over links of 1 Gb/s, whole, passed on and as a delta; 14 GB of memory, 8 minutes, as root
	@e2e/setup/setup.sh build
	$(ENV)
	cargo build $(PLAIN) --bin grpo-engine-agent
	cargo test $(PLAIN) --test e2e --no-run
	# In namespaces of its own: links and their limits are not this machine's.
	unshare --net --mount --propagation private bash -c 'mkdir -p /run/netns && mount -t tmpfs tmpfs /run/netns && mount -t sysfs sysfs /sys && mount -t tmpfs -o size=14g tmpfs /dev/shm && "$$@"' bash \
	  cargo test $(PLAIN) --test e2e -- --ignored --nocapture weights_sync::

bench-engines: ## six iterations of the demo on a real vLLM, with adapters and with full weights, beside the embedded engine; over an hour
	@demo/prepare.sh
	e2e/engines/files.sh
	e2e/cluster/images.sh engines
	$(ENV)
	cargo test $(PLAIN) --test e2e -- --ignored --nocapture engines::bench

bench-colocated: ## peak memory of a run whose trainer and engine take turns, beside a run whose do not, on the real cluster; 15 minutes
	@demo/prepare.sh
	e2e/cluster/images.sh long-model
	$(ENV)
	cargo test $(PLAIN) --test e2e -- --ignored --nocapture colocated::bench

bench-operator: ## 1,000 runs at rest and at work, outages, 1,000 random capacity scenarios; 45 minutes
	@e2e/setup/setup.sh build
	e2e/setup/kubernetes.sh control-plane
	$(ENV)
	cargo build $(PLAIN) --bin grpo-operator --bin grpo-bench-operator
	"$$CARGO_TARGET_DIR/debug/grpo-bench-operator"

bench-sandbox: ## leases, commands, refills and restarts of the sandbox gateway, beside bare clients and swe-rex; 30 minutes
	@demo/prepare.sh
	e2e/setup/kubernetes.sh control-plane
	e2e/setup/swerex.sh
	$(ENV)
	cargo build $(PLAIN) --bin grpo-gateway --bin sandboxd --bin grpo-bench-sandbox
	"$$CARGO_TARGET_DIR/debug/grpo-bench-sandbox"

bench-trainer: ## a GRPO step beside TRL's and a plain packed PyTorch one's, and several ranks beside one (6 GB to install); 40 minutes
	@e2e/setup/setup.sh build
	e2e/setup/trl.sh
	$(ENV)
	cargo build $(TORCH) --bin grpo-bench-trainer
	"$$CARGO_TARGET_DIR/debug/grpo-bench-trainer" bench --figures 1,2,5,6,7,9

bench-delta: ## deltas of published weights between optimizer steps, beside XOR and zstd, and a publication beside cp; 16 GB of memory, 5 minutes
	@e2e/setup/setup.sh build
	$(ENV)
	cargo build $(TORCH) --bin grpo-bench-trainer
	"$$CARGO_TARGET_DIR/debug/grpo-bench-trainer" delta
	"$$CARGO_TARGET_DIR/debug/grpo-bench-trainer" publish

bench-hub: ## downloads from a hub beside huggingface_hub and curl: faults, kills, 8 GB over loopback; 16 GB of disk, 15 minutes
	@e2e/setup/setup.sh build
	e2e/setup/hub-client.sh
	$(ENV)
	cargo build $(PLAIN) --bin grpo-engine-agent --bin grpo-bench-hub
	"$$CARGO_TARGET_DIR/debug/grpo-bench-hub" --ours "$$CARGO_TARGET_DIR/debug/grpo-engine-agent" \
	  --python "$$GRPO_CACHE/venv-hub/bin/python" --work "$$GRPO_CACHE/bench-hub"

bench-endpoint: ## the recording endpoint beside an axum passthrough and LiteLLM's proxy (700 MB to install); 4 minutes
	@e2e/setup/setup.sh build
	e2e/setup/agent-peers.sh
	$(ENV)
	cargo build $(PLAIN) --bin grpo-driver --bin grpo-bench-driver
	"$$CARGO_TARGET_DIR/debug/grpo-bench-driver" endpoint --python "$$GRPO_CACHE/venv-agent-peers/bin/python" --model "$$GRPO_CACHE/qwen3-tokenizer"

bench-loop: ## the bash loop beside mini-swe-agent, and the memory of 2,000 live episodes (700 MB to install); 4 minutes
	@e2e/setup/setup.sh build
	e2e/setup/agent-peers.sh
	$(ENV)
	cargo build $(PLAIN) --bin grpo-driver --bin grpo-bench-driver
	"$$CARGO_TARGET_DIR/debug/grpo-bench-driver" loop --python "$$GRPO_CACHE/venv-agent-peers/bin/python" --model "$$GRPO_CACHE/qwen3-tokenizer"

bench-long: ## a run of 2,000 iterations and 100,000 episodes, and the restart of its driver; 8 GB of memory, 15 minutes
	@e2e/setup/setup.sh build
	e2e/setup/agent-peers.sh
	$(ENV)
	cargo build $(PLAIN) --bin grpo-driver --bin grpo-bench-driver
	"$$CARGO_TARGET_DIR/debug/grpo-bench-driver" long --python "$$GRPO_CACHE/venv-agent-peers/bin/python" --model "$$GRPO_CACHE/qwen3-tokenizer"

bench-viewer: ## the viewer of a run with 2,000 iterations and 100,000 episodes; 5 GB of disk, 10 minutes
	@e2e/setup/setup.sh build
	$(ENV)
	cargo build $(PLAIN) --bin kubectl-grpo --bin grpo-bench-viewer
	work=$$(mktemp -d -p "$$GRPO_CACHE")
	"$$CARGO_TARGET_DIR/debug/grpo-bench-viewer" measure --viewer "$$CARGO_TARGET_DIR/debug/kubectl-grpo" --work "$$work"

choose-rate: ## the learning rate with the largest gain on the validation split
	@demo/learning.sh --rates 1e-4,2e-4,4e-4 --iterations 8

check-vllm: ## vLLM and SGLang read our command lines, and a real vLLM serves behind the agent on the CPU (5 GB to install); not part of make test
	@e2e/engines/vllm.sh

check-python: ## the Python client: types, wheel, and its tests with the real plugin on a made store and on an API server (400 MB to install); not part of make test
	@e2e/setup/setup.sh build
	e2e/setup/kubernetes.sh control-plane
	$(ENV)
	cargo build $(PLAIN) --bin kubectl-grpo --bin grpo-bench-viewer
	e2e/python-client/check.sh "$$CARGO_TARGET_DIR/debug/kubectl-grpo" "$$CARGO_TARGET_DIR/debug/grpo-bench-viewer"

check-inspect: ## an exported evaluation, read by Inspect's own reader (330 MB to install); not part of make test
	@e2e/setup/setup.sh build
	$(ENV)
	cargo build $(PLAIN) --bin kubectl-grpo --bin grpo-bench-viewer
	e2e/inspect/check.sh "$$CARGO_TARGET_DIR/debug/kubectl-grpo" "$$CARGO_TARGET_DIR/debug/grpo-bench-viewer"

check-clients: ## mini-swe-agent, SWE-ReX and schemathesis against a gateway (900 MB to install); not part of make test
	@e2e/clients/check.sh

agent-images: cluster ## images of qwen-code and mini-swe-agent from registry packages, brought into the cluster (200 MB to download)
	@e2e/agents/files.sh
	e2e/cluster/images.sh agents

check-agents: ## qwen-code and mini-swe-agent by the presets' command lines, in a root without a C library (200 MB to download); not part of make test
	@e2e/setup/setup.sh build
	e2e/agents/check.sh

check-viewer: ## every view of the viewer in a headless Chromium, from the server and as a bundle, and the page built anew (400 MB to install); not part of make test
	@e2e/setup/setup.sh build
	$(ENV)
	cargo build $(PLAIN) --bin kubectl-grpo --bin grpo-bench-viewer
	e2e/viewer/check.sh "$$CARGO_TARGET_DIR/debug/kubectl-grpo" "$$CARGO_TARGET_DIR/debug/grpo-bench-viewer"

viewer: ## build the viewer's page (operator/viewer/dist) from its sources, with npm
	cd operator/viewer && npm ci --no-audit --no-fund --ignore-scripts && npm run --silent check && npm run --silent build

viewer-pictures: ## pictures of the viewer for the book: docs/src/images/viewer (400 MB to install)
	@e2e/setup/setup.sh build
	$(ENV)
	cargo build $(PLAIN) --bin kubectl-grpo --bin grpo-bench-viewer
	e2e/viewer/check.sh "$$CARGO_TARGET_DIR/debug/kubectl-grpo" "$$CARGO_TARGET_DIR/debug/grpo-bench-viewer" docs/src/images/viewer

check-histories: ## 100,000 random histories of an agent through the recording endpoint's rows; not part of make test
	@e2e/setup/setup.sh build
	$(ENV)
	GRPO_HISTORIES=100000 cargo test -p grpo-features -p grpo-driver --lib -- --nocapture every_history_keeps_the_invariants_of_rows

check-harnesses: ## nine unmodified agents on twenty tasks each through the driver, with a scripted policy (1 GB to download); not part of make test
	@e2e/setup/setup.sh build
	e2e/agents/harnesses.sh

check-stores: ## a run's store, a model and rows on emulators of Azure and Google, and 100,000 objects on a volume and on S3 (200 MB to install); not part of make test
	@e2e/setup/setup.sh build
	e2e/setup/kubernetes.sh control-plane
	e2e/setup/emulators.sh
	$(ENV)
	cargo test $(PLAIN) --test e2e -- --ignored --test-threads=2 --nocapture emulators::
	GRPO_STORE_OBJECTS=100000 cargo test $(PLAIN) --test e2e -- --ignored --nocapture stores::of_many_names_every_one_is_listed
	GRPO_STORE_OBJECTS=100000 cargo test -p grpo-records -p grpo-features --lib on_a_volume::of_many_names_every_one_is_listed

check-exports: ## our models and exports against transformers, PEFT and vLLM (10 GB to install); not part of make test
	@e2e/exports/check.sh

check-apis: ## OpenAI's and Anthropic's Python and JavaScript libraries against the recording endpoint's encoders (150 MB to install); not part of make test
	@e2e/setup/setup.sh build
	e2e/apis/check.sh

check-objective: ## 15,000 random advantages, losses and gradients against verl's and TRL's own functions (6 GB to install); not part of make test
	@e2e/setup/setup.sh build
	e2e/objective/check.sh

check-templates: ## 10,000 prompts with tools, rendered with Qwen's chat templates, against Jinja2's (2 MB to fetch); not part of make test
	@e2e/setup/setup.sh build
	e2e/templates/check.sh

check-judge: ## votes, prompts and step-wise advantages of a judge of turns, against OpenClaw-RL's own functions (100 kB to fetch); not part of make test
	@e2e/setup/setup.sh build
	e2e/judge/check.sh

check-cuda: ## compile and link the trainer's C++ for CUDA and NCCL, without a GPU and without running it (up to 1 GB to download); not part of make test
	@e2e/setup/setup.sh build
	e2e/setup/cuda-headers.sh
	$(ENV)
	GRPO_CUDA="$$GRPO_CACHE/cuda-headers/include" e2e/setup/check-cuda.sh

gpu-programs: ## the trainer's tests and bench built for CUDA, into $GRPO_CACHE/gpu; needs no GPU (up to 1 GB to download)
	@e2e/setup/setup.sh build
	e2e/setup/cuda-headers.sh
	$(ENV)
	GRPO_CUDA="$$GRPO_CACHE/cuda-headers/include" e2e/setup/gpu.sh build "$$GRPO_CACHE/gpu"

test-gpu: gpu-programs ## the trainer's kernels and steps on this machine's GPU beside the CPU's; python3 must have PyTorch 2.11.0 with CUDA
	@$(ENV)
	e2e/setup/gpu.sh run "$$GRPO_CACHE/gpu"

bench-gpu: ## seconds of steps of Qwen3's geometries on this machine's GPU (some minutes); without a GPU, an estimate of one H200
	@if nvidia-smi --list-gpus 2> /dev/null | grep -q .; then
		$(MAKE) --no-print-directory gpu-programs
		$(ENV)
		e2e/setup/gpu.sh bench "$$GRPO_CACHE/gpu"
	else
		e2e/setup/setup.sh build
		$(ENV)
		cargo run -p grpo-features -p grpo-model -p grpo-bench-trainer --features grpo-model/torch --bin grpo-bench-trainer -- gpu --estimate H200
	fi

crds: ## write the CRDs, the fields that name Secrets, the API's reference and the Python client's types anew, from the Rust types
	@$(ENV)
	cargo run --bin grpo-crdgen
	e2e/python-client/check.sh generate

golden: ## write docs/examples/golden, docs/src/values.md, the tables of docs/src/moving and docs/src/gateway-api.md anew: what the operator makes of every example, its values, and the gateway's calls
	@$(ENV)
	UPDATE_GOLDEN=1 cargo test -p grpo-operator-core -p grpo-crds -p grpo-gateway -p grpo-features golden
	git --no-pager diff --stat -- docs/examples/golden docs/src/values.md docs/src/moving docs/src/gateway-api.md operator/core/src/inference_pool/golden

book: ## build the book with mdBook: docs/book/index.html
	@e2e/setup/book.sh
	"$${GRPO_CACHE:-$$HOME/.cache/grpo-operator}/bin/mdbook" build docs

install-plugin: ## build kubectl-grpo and put it into BIN (default ~/.local/bin), where kubectl finds it
	@e2e/setup/setup.sh build
	$(ENV)
	cargo build $(PLAIN) --bin kubectl-grpo
	install -D -m 755 "$$CARGO_TARGET_DIR/debug/kubectl-grpo" "$${BIN:-$$HOME/.local/bin}/kubectl-grpo"
	echo "kubectl grpo is in $${BIN:-$$HOME/.local/bin}, which has to be on the PATH"

lint: ## formatting and clippy
	@e2e/setup/setup.sh build
	@$(ENV)
	cargo fmt --all --check
	cargo clippy $(PLAIN) --all-targets -- -D warnings
	cargo clippy $(TORCH) --all-targets -- -D warnings
