# make demo    stock ibv_rc_pingpong through urxe, on this machine
# make test    every test; changes nothing on the machine but missing packages
# make help    the other targets

CARGO      ?= cargo
TARGET_DIR := $(abspath $(or $(CARGO_TARGET_DIR),target))
BIN_DIR    := $(TARGET_DIR)/release
VENV       := $(TARGET_DIR)/venv
PACKAGES   := $(TARGET_DIR)/packages
AARCH64    := aarch64-unknown-linux-gnu
SCAPY      := scapy==2.6.1
ZIGBUILD   := cargo-zigbuild==0.20.1 ziglang==0.14.1
TYPOS      := typos==1.52.0
CARGO_DENY := 0.20.2
SEMVER_CHECKS := 0.51.0
TOOLS      := $(TARGET_DIR)/tools
# The oldest compiler that builds urxe.
MSRV       := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
HOST       := $(shell uname -m)-unknown-linux-gnu
FUZZ_SECONDS ?= 30
FUZZ_ROUNDS  ?= 200
SOAK_SEEDS   ?= 1000000
DIFFERENTIAL_SEEDS ?= 1000
SUDO       := $(shell [ "$$(id -u)" -eq 0 ] || echo sudo)
# A choice of the caller's that sudo forgets: `make perftest URXE_DIRECT=1`.
DIRECT     := $(if $(URXE_DIRECT),env URXE_DIRECT=$(URXE_DIRECT))

# A linker for Rust, libibverbs, and the programs that the demo shows.
DEMO_PACKAGES  := gcc libc6-dev libibverbs1 ibverbs-providers ibverbs-utils
# A virtual machine with the kernel's rxe, and the programs that talk to it.
INTEROP_PACKAGES := ibverbs-utils perftest rdmacm-utils python3-pyverbs qemu-system-x86 busybox-static kmod iproute2 \
                  util-linux xz-utils gcc libc6-dev libibumad-dev infiniband-diags
# Programs that the tests run; headers and libclang to compare the bindings with.
TEST_PACKAGES  := $(DEMO_PACKAGES) perftest ucx-utils openmpi-bin python3-mpi4py iproute2 ethtool tshark python3 \
                  python3-venv pipx util-linux libibverbs-dev librdmacm-dev linux-libc-dev libclang-dev pkg-config g++ nftables $(INTEROP_PACKAGES) \
                  rdmacm-utils librdmacm1 qperf libfabric-bin dapl2-utils iperf iperf3 infiniband-diags libibumad-dev libibmad-dev opensm iputils-ping findutils binutils podman runc \
                  fio clang libclang-rt-dev afl++ valgrind gdb strace hwloc-nox
PYVERBS_PACKAGES := $(DEMO_PACKAGES) python3 python3-pyverbs iproute2 util-linux
DISTRIBUTION_PACKAGES := debootstrap git iproute2 python3 util-linux gcc libc6-dev libibverbs1 libibverbs-dev
AARCH64_PACKAGES := gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static
PACKAGING_PACKAGES := gcc libc6-dev binutils
UCX_PACKAGES   := $(DEMO_PACKAGES) ucx-utils python3 iproute2 util-linux
# libfabric is built: Debian's is older than its tests.
FABTESTS_PACKAGES := $(DEMO_PACKAGES) autoconf automake libtool make pkg-config libibverbs-dev librdmacm-dev python3 iproute2 \
                  util-linux
# Tools and headers that build nfs-ganesha and ntirpc.
NFS_BUILD_PACKAGES := cmake pkg-config flex bison liburcu-dev libcap-dev uuid-dev libacl1-dev libblkid-dev libattr1-dev libnsl-dev
# Programs that `make programs` takes from the distribution, and the tools that build the others.
PROGRAMS_PACKAGES := $(DEMO_PACKAGES) fio qemu-system-x86 qemu-utils qemu-block-extra tgt libiscsi-bin mpich dapl2-utils slurm-wlm munge \
                  make binutils g++ $(NFS_BUILD_PACKAGES) tcpdump ibutils ibacm infiniband-diags libibverbs-dev librdmacm-dev python3 python3-pip iproute2 util-linux
# Not every distribution has these; the cases of one that is missing fail, and say so.
PROGRAMS_LIBRARIES := libgloo-dev librpma-dev ceph-mon ceph-mgr ceph-osd ceph-common
# Storage over RDMA with the guest's kernel: tools and servers of both sides.
KERNEL_STORAGE_PACKAGES := $(DEMO_PACKAGES) librdmacm-dev libibverbs-dev qemu-system-x86 busybox-static kmod iproute2 rdmacm-utils util-linux \
                  xz-utils make python3 tgt libiscsi-bin qemu-utils qemu-block-extra open-iscsi cifs-utils nvme-cli \
                  nfs-kernel-server $(NFS_BUILD_PACKAGES)
# Debian 12 has these. Without them SMB Direct is skipped.
SMB_DIRECT_PACKAGES := linux-source-6.1 samba
OPENMPI_PACKAGES := $(UCX_PACKAGES) openmpi-bin python3-mpi4py
# The crate ibverbs builds rdma-core to make its bindings.
CRATES_PACKAGES := $(DEMO_PACKAGES) g++ make cmake pkg-config libclang-dev libibverbs-dev librdmacm-dev libnl-3-dev \
                   libnl-route-3-dev python3 iproute2 util-linux
VPP_PACKAGES   := $(DEMO_PACKAGES) cmake ninja-build git libssl-dev libibverbs-dev python3 python3-ply iproute2 iputils-ping \
                  ethtool iperf3 util-linux
BENCH_PACKAGES := $(DEMO_PACKAGES) perftest iperf3 ucx-utils libfabric-bin

STRESS_SECONDS := 60
TEST_JOBS ?= 3
ROUNDS   ?= 1
JOBS     ?= 6
SPINNERS ?= 20
HOSTS    ?= 64

# Paths by which the tests find the build and scapy.
export URXE_BIN_DIR := $(BIN_DIR)
export URXE_VENV    := $(VENV)
# Folder of the kernel of conformance/kernel-rxe.
export URXE_KERNEL_DIR := $(TARGET_DIR)/conformance/kernel

.PHONY: help
help:
	@sed -n 's/^\([a-z0-9-]*\):.*## /make \1\t/p' Makefile | expand -t 22

# First of all: an older compiler fails late, and with many lines.
.PHONY: rust
rust:
	@scripts/check-rust $(CARGO)

.PHONY: build
build: rust ## target/release/urxe and target/release/liburxe.so
	$(CARGO) build --release -p urxe-cli -p urxe-provider

.PHONY: demo
demo: rust ## installs urxe and shows ibv_rc_pingpong
	@scripts/install-packages $(DEMO_PACKAGES)
	$(MAKE) build
	@scripts/demo $(BIN_DIR)

.PHONY: setup
setup: packages $(VENV)/.$(SCAPY) ## installs packages and Python modules of the tests

.PHONY: packages
packages:
	@scripts/install-packages $(TEST_PACKAGES)
	@# Opens the pages of urxe trace. Ubuntu has it as a snap only; its runners have google-chrome.
	@for browser in chromium chromium-browser google-chrome google-chrome-stable; do \
	    command -v $$browser >/dev/null && exit; done; scripts/install-packages chromium || echo 'no browser' >&2

$(VENV)/.$(SCAPY): | packages
	python3 -m venv $(VENV)
	@# Without scapy its own tests fail and say so; the others can still run.
	$(VENV)/bin/pip install --quiet --disable-pip-version-check $(SCAPY) && touch '$@' || echo 'no scapy' >&2

# A command that runs the tests of several users, or with --no-run builds them: only root can be all of the users.
several-users = if [ "$$(id -u)" -eq 0 ]; then \
	    $(CARGO) test $(1) -p urxe-tests --test status_processes --test run_folder --test last_ack --test other_users --test raw_ethernet --test raw_xdp -- --ignored && \
	    $(CARGO) test $(1) -p urxe-net --test ports -- --ignored --skip processes::child --skip loopback::forking; \
	else echo "not run: tests of several users, which need root." >&2; fi

# Several test programs at a time: most of them wait more than they compute.
.PHONY: test
test: rust setup build ## every test but those of cm, matrix, shared-link and cargo-install; TEST_JOBS (3) programs of them at a time
	scripts/test-binaries --jobs $(TEST_JOBS)
	$(CARGO) test --workspace --doc
	@$(call several-users)
	@if [ "$$(ulimit -Hn)" = unlimited ] || [ "$$(ulimit -Hn)" -ge 80000 ]; then \
	    $(CARGO) test -p urxe-tests --test verbs_descriptors -- --ignored; \
	else echo "not run: descriptors_above_65535. The hard limit is $$(ulimit -Hn) descriptors; it needs 80000." >&2; fi
	$(MAKE) loom
	$(MAKE) no-std
	$(MAKE) device-plugin
	scripts/fuzz $(FUZZ_SECONDS)

# Built before the processors are taken. The printed seed repeats a failure: SEED=. Several test programs at a
# time: one alone would mostly wait for its turn.
.PHONY: test-under-load
test-under-load: setup build ## every test program of the workspace, JOBS (6) at a time, beside SPINNERS (20) programs that want the processors, ROUNDS (1) times
	$(CARGO) test --workspace --no-run
	$(call several-users,--no-run)
	@# A round that fails does not end the others, nor do failed tests keep a round from those of several users.
	failed=; for round in $$(seq $(ROUNDS)); do echo "round $$round of $(ROUNDS)"; \
	    scripts/under-load --spinners $(SPINNERS) $(if $(SEED),--seed $(SEED)) \
	        sh -c 'failed=0; scripts/test-binaries --jobs $(JOBS) || failed=1; { $(several-users); } || failed=1; exit $$failed' || \
	    failed="$$failed $$round"; done; \
	    [ -z "$$failed" ] || { echo "rounds that failed:$$failed of $(ROUNDS)" >&2; exit 1; }

.PHONY: test-subnet
test-subnet: setup build ## opensm sweeps a subnet of HOSTS (64) hosts, each in a network namespace of its own
	URXE_SUBNET_HOSTS=$(HOSTS) $(CARGO) test -p urxe-tests --test infiniband_opensm opensm_sweeps_many_hosts

.PHONY: loom
loom: ## models of lock-free code (rings of shared memory, sleep and deadlines), in every interleaving of at most three preemptions
	cd loom && CARGO_TARGET_DIR=$(TARGET_DIR)/loom RUSTFLAGS='--cfg loom' $(CARGO) test --locked

.PHONY: no-std
no-std: ## two queue pairs in a C program, without Rust's std
	CARGO_TARGET_DIR=$(TARGET_DIR)/no-std $(CARGO) build --locked --release --manifest-path conformance/no-std/Cargo.toml
	$(CC) -o $(TARGET_DIR)/no-std/two_queue_pairs conformance/no-std/main.c $(TARGET_DIR)/no-std/release/liburxe_no_std.a
	$(TARGET_DIR)/no-std/two_queue_pairs

# Into a folder of its own: it is not of the workspace.
.PHONY: device-plugin-build
device-plugin-build: rust
	CARGO_TARGET_DIR=$(TARGET_DIR)/device-plugin $(CARGO) build --locked --release --manifest-path device-plugin/Cargo.toml

.PHONY: device-plugin
device-plugin: build ## the Kubernetes device plugin against a fake kubelet
	CARGO_TARGET_DIR=$(TARGET_DIR)/device-plugin $(CARGO) test --locked --manifest-path device-plugin/Cargo.toml

.PHONY: cargo-install
cargo-install: setup build ## cargo install --path cli --features embedded, then the command without the checkout; minutes
	$(CARGO) test -p urxe-tests --test cargo_install -- --ignored

.PHONY: sanitize
sanitize: setup ## tests that call libibverbs, against a provider with AddressSanitizer: verbs_*, direct, last_ack, …
	scripts/sanitize

.PHONY: soak
soak: setup build ## SOAK_SEEDS (a million) simulated schedules, 200 deaths at random moments, 2000 exits, 10 000 cycles of everything
	URXE_SIM_SEEDS=$(SOAK_SEEDS) $(CARGO) test --release -p urxe-sim --test schedules -- --nocapture schedules
	URXE_KILLS=200 $(CARGO) test -p urxe-tests --test kills -- --nocapture
	URXE_EXITS=2000 $(CARGO) test -p urxe-tests --test last_ack -- --nocapture $$([ "$$(id -u)" -ne 0 ] || echo --include-ignored)
	URXE_CYCLES=10000 $(CARGO) test -p urxe-tests --test cycles -- --nocapture

.PHONY: lossy-network
lossy-network: setup build ## goodput over networks that lose or reorder packets; a quarter of an hour; URXE_GOODPUT (5) rounds
	URXE_GOODPUT=$${URXE_GOODPUT:-5} $(CARGO) test -p urxe-tests --test lossy_network -- --nocapture --test-threads 1 goodput

.PHONY: shared-link
shared-link: setup build ## three senders on a link of 50 Mbit/s, with DCQCN and without
	$(CARGO) test -p urxe-tests --test congestion -- --ignored --nocapture three_senders

.PHONY: fuzz
fuzz: setup ## every fuzz target for FUZZ_SECONDS (30), each in a network namespace of its own
	scripts/fuzz $(FUZZ_SECONDS)

.PHONY: requirements
requirements: ## the rules of spec/, each with the code that keeps it and the tests that show it
	@$(CARGO) test --quiet -p urxe-tests --test requirements -- --nocapture

.PHONY: matrix
matrix: setup build ## ibv_rc_pingpong with every combination of options; minutes
	$(CARGO) test -p urxe-tests --test pingpong -- --ignored --nocapture

.PHONY: stress
stress: setup build ## threads that share queue pairs and a completion queue, for a minute; STRESS_SECONDS=90
	URXE_STRESS_SECONDS=$(STRESS_SECONDS) $(CARGO) test -p urxe-tests --test verbs_stress

.PHONY: cm
cm: setup build ## rdma_cm at length: every program of perftest and qperf, a thousand connections; minutes
	$(CARGO) test -p urxe-tests --test rdmacm --test rdmacm_programs --test rdmacm_ends -- --ignored --test-threads=2

.PHONY: tsan
tsan: setup ## stress under ThreadSanitizer; builds the standard library for it, takes minutes
	scripts/tsan $(TARGET_DIR) $(STRESS_SECONDS)

# RDMA_CORE: another release than this machine's, in the tree of a distribution that has it.
.PHONY: pyverbs
ifdef RDMA_CORE
pyverbs: build
	@scripts/install-packages $(DISTRIBUTION_PACKAGES)
	$(SUDO) $(DIRECT) conformance/pyverbs/run --rdma-core $(RDMA_CORE) --trees $(TARGET_DIR)/distributions --bin $(BIN_DIR) \
	    --sources $(TARGET_DIR)/conformance/rdma-core --out $(TARGET_DIR)/conformance/pyverbs-$(RDMA_CORE).tsv
else
pyverbs: build ## rdma-core's own tests, from its source package (PYVERBS_TESTS=.../tests takes a copy you have); RDMA_CORE=56 or 65
	@scripts/install-packages $(PYVERBS_PACKAGES)
	tests=$$(conformance/pyverbs/fetch-tests $(TARGET_DIR)/conformance/rdma-core) && \
	    conformance/machine $(BIN_DIR) conformance/own-sysfs conformance/pyverbs/run --tests "$$tests" --out $(TARGET_DIR)/conformance/pyverbs.tsv && \
	    conformance/machine $(BIN_DIR) conformance/own-sysfs conformance/pyverbs/run --tests "$$tests" --link-layer infiniband \
	        --out $(TARGET_DIR)/conformance/pyverbs-infiniband.tsv
endif

.PHONY: interop
interop: build ## urxe and the Linux kernel's rxe, in both roles: every case as a table
	@scripts/install-packages $(DEMO_PACKAGES) $(INTEROP_PACKAGES)
	conformance/kernel-rxe/fetch $(URXE_KERNEL_DIR)
	conformance/machine $(BIN_DIR) conformance/kernel-rxe/boot \
	    conformance/interop/run --out $(TARGET_DIR)/conformance/interop.tsv

.PHONY: differential
differential: build ## DIFFERENTIAL_SEEDS (1000) random programs of verbs, over urxe and over the Linux kernel's rxe
	@scripts/install-packages $(DEMO_PACKAGES) libibverbs-dev $(INTEROP_PACKAGES)
	conformance/kernel-rxe/fetch $(URXE_KERNEL_DIR)
	conformance/differential/build $(TARGET_DIR)/conformance/differential
	conformance/machine $(BIN_DIR) conformance/kernel-rxe/boot conformance/differential/run --rxe \
	    --program $(TARGET_DIR)/conformance/differential --seeds $(DIFFERENTIAL_SEEDS) \
	    --out $(TARGET_DIR)/conformance/differential.tsv

# KERNEL: an image that has all built in, with KASAN for example. Images are told apart by their folders' names.
.PHONY: fuzz-rxe
fuzz-rxe: export URXE_KERNEL_IMAGE := $(abspath $(KERNEL))
fuzz-rxe: export URXE_KERNEL_DIR := $(TARGET_DIR)/conformance/kernel$(subst /,-,$(abspath $(KERNEL)))
fuzz-rxe: build ## packets by seed (SEED) at the Linux kernel's rxe, FUZZ_ROUNDS (200) connections of each kind; the guest's log; KERNEL=bzImage
	@scripts/install-packages $(DEMO_PACKAGES) $(INTEROP_PACKAGES)
	conformance/kernel-rxe/fetch $(URXE_KERNEL_DIR)
	conformance/machine $(BIN_DIR) conformance/kernel-rxe/boot conformance/kernel-rxe/fuzz --rounds $(FUZZ_ROUNDS) \
	    $(if $(SEED),--seed $(SEED)) --out $(TARGET_DIR)/conformance/fuzz-rxe

.PHONY: kernel-coexistence
kernel-coexistence: build ## urxe run where the kernel has an RDMA device of its own
	@scripts/install-packages $(DEMO_PACKAGES) $(INTEROP_PACKAGES) infiniband-diags
	conformance/kernel-rxe/fetch $(URXE_KERNEL_DIR)
	conformance/machine $(BIN_DIR) conformance/kernel-rxe/boot \
	    conformance/interop/run --out $(TARGET_DIR)/conformance/kernel-coexistence.tsv 'kernel-coexistence/*'

.PHONY: captures
captures: build ## records urxe and the kernel's rxe anew; every packet must be read, and written again as it was
	@scripts/install-packages $(DEMO_PACKAGES) $(INTEROP_PACKAGES) tshark
	conformance/kernel-rxe/fetch $(URXE_KERNEL_DIR)
	rm -rf $(TARGET_DIR)/conformance/captures
	conformance/machine $(BIN_DIR) conformance/kernel-rxe/boot \
	    conformance/captures/record $(TARGET_DIR)/conformance/captures
	URXE_CAPTURES=$(TARGET_DIR)/conformance/captures \
	    $(CARGO) test -p urxe-wire --test golden -- --ignored --nocapture

.PHONY: perftest
perftest: build ## every perftest program with many options; TREE=debian-sid takes that distribution's programs
	@scripts/install-packages $(DEMO_PACKAGES) perftest python3 iproute2 util-linux tshark $(if $(TREE),$(DISTRIBUTION_PACKAGES))
ifdef TREE
	$(SUDO) conformance/distributions/prepare --trees $(TARGET_DIR)/distributions $(TREE)
	$(SUDO) $(DIRECT) conformance/perftest/run --tree $(TREE) --trees $(TARGET_DIR)/distributions --bin $(BIN_DIR) \
	    --out $(TARGET_DIR)/conformance/perftest-$(TREE).tsv
else
	conformance/machine $(BIN_DIR) conformance/perftest/run --out $(TARGET_DIR)/conformance/perftest.tsv
	$(SUDO) $(DIRECT) conformance/machine $(BIN_DIR) conformance/perftest/raw --out $(TARGET_DIR)/conformance/perftest-raw.tsv
endif

.PHONY: fabtests
fabtests: build ## libfabric's own tests over verbs and verbs;ofi_rxm; FABTESTS_SOURCE=... takes libfabric's sources that you have
	@scripts/install-packages $(FABTESTS_PACKAGES)
	source=$$(conformance/fabtests/fetch $(TARGET_DIR)/conformance/fabtests) && \
	    installed=$$(conformance/fabtests/build "$$source" $(TARGET_DIR)/conformance/fabtests) && \
	    conformance/machine $(BIN_DIR) conformance/fabtests/run --source "$$source" --installed "$$installed" \
	        --out $(TARGET_DIR)/conformance/fabtests.tsv

.PHONY: distributions
distributions: deb ## the library inside other distributions and releases of rdma-core; downloads them. TREES='debian-*'
	@scripts/install-packages $(DISTRIBUTION_PACKAGES)
	@# A tree that cannot be made fails in the table.
	-$(SUDO) env URXE_RDMA_CORE="$$URXE_RDMA_CORE" \
	    conformance/distributions/prepare --trees $(TARGET_DIR)/distributions $(TREES)
	$(SUDO) conformance/distributions/run --trees $(TARGET_DIR)/distributions --package "$$(ls -t $(PACKAGES)/*.deb | head -n 1)" \
	    --bin $(BIN_DIR) --out $(TARGET_DIR)/conformance/distributions.tsv $(TREES)

.PHONY: containers
containers: build ## containers of other distributions with the device of `urxe cdi`, by Podman and runc, and Docker; downloads them. TREES='debian-*'
	@scripts/install-packages $(DISTRIBUTION_PACKAGES) podman runc
	-$(SUDO) conformance/distributions/prepare --trees $(TARGET_DIR)/distributions $(or $(TREES),debian-12 debian-13 debian-sid 'ubuntu-*')
	$(SUDO) conformance/distributions/containers --trees $(TARGET_DIR)/distributions --bin $(BIN_DIR) \
	    --out $(TARGET_DIR)/conformance/containers.tsv $(TREES)
	$(if $(TREES),,$(SUDO) conformance/distributions/docker $(TARGET_DIR)/distributions $(BIN_DIR))

.PHONY: clean-install
clean-install: ## make demo on a Debian 12 that has never seen urxe; COMMAND='make test'
	@scripts/install-packages debootstrap git util-linux
	$(SUDO) env CARGO_HOME="$${CARGO_HOME:-$$HOME/.cargo}" RUSTUP_HOME="$${RUSTUP_HOME:-$$HOME/.rustup}" \
	    conformance/clean-install $(TARGET_DIR)/clean-install $(or $(COMMAND),make demo)

.PHONY: ucx
ucx: build ## every kind of operation of UCX over urxe0
	@scripts/install-packages $(UCX_PACKAGES)
	conformance/machine $(BIN_DIR) conformance/ucx/run --out $(TARGET_DIR)/conformance/ucx.tsv

.PHONY: openmpi
openmpi: build ## Open MPI programs over UCX over urxe0
	@scripts/install-packages $(OPENMPI_PACKAGES)
	conformance/machine $(BIN_DIR) conformance/openmpi/run --out $(TARGET_DIR)/conformance/openmpi.tsv

# VALKEY_SOURCE: a source tree of valkey, in the place of Debian's.
.PHONY: programs
programs: build ## programs that people use (fio, QEMU, tgt, valkey, MPI, UCX, NIXL, Mooncake, NCCL, gloo, librpma, uDAPL, Slurm, Ceph, tcpdump, ibdiagnet, ibacm), two to four hosts; NAMES="fio valkey"
	@scripts/install-packages $(PROGRAMS_PACKAGES)
	@for package in $(PROGRAMS_LIBRARIES); do scripts/install-packages $$package || echo "programs: without $$package" >&2; done
	conformance/programs/run --bin $(BIN_DIR) --cache $(TARGET_DIR)/programs --out $(TARGET_DIR)/conformance/programs.tsv \
	    --results docs/results/programs.md $(NAMES)

# NAMES: as of `programs`. The modules' headers have to be those of the guest's kernel.
.PHONY: kernel-storage
kernel-storage: build ## NVMe, SMB Direct, iSER and NFS over RDMA with the Linux kernel as the other end; NAMES="nvmet ksmbd"
	@scripts/install-packages $(KERNEL_STORAGE_PACKAGES)
	conformance/kernel-rxe/fetch $(URXE_KERNEL_DIR)
	@scripts/install-packages $(SMB_DIRECT_PACKAGES) linux-headers-$$(ls $(URXE_KERNEL_DIR)/root/lib/modules) || \
	    echo "kernel-storage: without SMB Direct" >&2
	conformance/kernel-storage/run --bin $(BIN_DIR) --kernel $(URXE_KERNEL_DIR) --folder $(TARGET_DIR)/kernel-storage \
	    --cache $(TARGET_DIR)/programs --out $(TARGET_DIR)/conformance/kernel-storage.tsv --results docs/results/kernel-storage.md $(NAMES)

# Its namespaces need a sysfs of their own, so root.
.PHONY: vpp
vpp: build ## FD.io VPP over raw packet queue pairs; builds it first, 20 minutes; VPP_SOURCE=... takes sources that you have
	@scripts/install-packages $(VPP_PACKAGES)
	@mkdir -p $(TARGET_DIR)/conformance/vpp
	source=$$(conformance/vpp/fetch $(TARGET_DIR)/conformance/vpp) && \
	    built=$$(conformance/vpp/build "$$source" $(TARGET_DIR)/conformance/vpp) && \
	    $(SUDO) conformance/vpp/run --vpp "$$built" --bin $(BIN_DIR) --out $(TARGET_DIR)/conformance/vpp.tsv --results docs/results/vpp.md

.PHONY: crates
crates: build ## tests and examples of the crates ibverbs and sideway
	@scripts/install-packages $(CRATES_PACKAGES)
	@mkdir -p $(TARGET_DIR)/conformance/crates
	CARGO='$(CARGO)' conformance/crates/build $(TARGET_DIR)/conformance/crates >$(TARGET_DIR)/conformance/crates/programs
	conformance/machine $(BIN_DIR) conformance/own-sysfs conformance/crates/run --programs $(TARGET_DIR)/conformance/crates/programs \
	    --out $(TARGET_DIR)/conformance/crates.tsv

.PHONY: bench
bench: build ## latency and bandwidth beside plain UDP and TCP; BENCH_ARGS='--rounds 9'
	@scripts/install-packages $(BENCH_PACKAGES)
	$(CARGO) build --release -p urxe-tests -p urxe-benches --bins
	@$(BIN_DIR)/side-by-side --out $(TARGET_DIR)/bench $(BENCH_ARGS)

.PHONY: bench-load
bench-load: build ## programs while spinners want the processors, beside UCX through shared memory; 20 rounds take hours: LOAD_ARGS='--rounds 3 --limit-total 3600'
	@scripts/install-packages $(BENCH_PACKAGES) openmpi-bin python3-mpi4py
	$(CARGO) build --release -p urxe-tests -p urxe-benches --bins
	@$(BIN_DIR)/under-load $(LOAD_ARGS)

# The flag has every crate compiled anew: a folder of its own keeps the other build.
.PHONY: cost
cost: build ## overhead of the disabled diagnostics hooks; COST_ARGS='--rounds 15'
	@scripts/install-packages $(BENCH_PACKAGES)
	CARGO_TARGET_DIR=$(TARGET_DIR)/unobserved RUSTFLAGS='--cfg urxe_unobserved' $(CARGO) build --release -p urxe-provider
	$(CARGO) build --release -p urxe-tests -p urxe-benches --bins
	@$(BIN_DIR)/cost --without $(TARGET_DIR)/unobserved/release/liburxe.so --out $(TARGET_DIR)/bench $(COST_ARGS)

.PHONY: curves
curves: build ## draws docs/results/curves: bandwidth, latencies, goodput over losses, cost of scale; CURVES_ARGS='--only rate-over-threads'
	@scripts/install-packages $(BENCH_PACKAGES)
	$(CARGO) build --release -p urxe-tests -p urxe-benches --bins
	@$(BIN_DIR)/curves --out docs/results/curves $(CURVES_ARGS)

.PHONY: bench-rxe
bench-rxe: build ## urxe against the kernel's rxe, both inside the virtual machine; minutes
	@scripts/install-packages $(DEMO_PACKAGES) $(INTEROP_PACKAGES)
	conformance/kernel-rxe/fetch $(URXE_KERNEL_DIR)
	conformance/machine $(BIN_DIR) conformance/kernel-rxe/boot \
	    conformance/kernel-rxe/compare --out $(TARGET_DIR)/bench/rxe.tsv $(BENCH_ARGS)

.PHONY: microbench
microbench: ## criterion: parsing and building of packets in wire
	$(CARGO) bench -p urxe-benches --bench wire

.PHONY: aarch64
aarch64: ## compiles everything, tests included, for aarch64, and runs stock programs there in an emulator
	@scripts/install-packages $(DISTRIBUTION_PACKAGES) $(AARCH64_PACKAGES)
	rustup target add $(AARCH64)
	$(CARGO) check --workspace --all-targets --target $(AARCH64)
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
	    $(CARGO) build --release --target $(AARCH64) -p urxe-cli -p urxe-provider
	$(SUDO) conformance/distributions/prepare --trees $(TARGET_DIR)/distributions debian-12-arm64
	$(SUDO) conformance/distributions/run --trees $(TARGET_DIR)/distributions --bin $(TARGET_DIR)/$(AARCH64)/release \
	    --out $(TARGET_DIR)/conformance/aarch64.tsv debian-12-arm64

.PHONY: fmt
fmt: ## formats the sources
	$(CARGO) fmt --all
	$(CARGO) fmt --manifest-path device-plugin/Cargo.toml

.PHONY: lint
lint: ## format and clippy, without warnings, before a commit
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path device-plugin/Cargo.toml --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	CARGO_TARGET_DIR=$(TARGET_DIR)/device-plugin $(CARGO) clippy --locked --manifest-path device-plugin/Cargo.toml --all-targets -- -D warnings

.PHONY: doc
doc: ## documentation of all crates, without warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps

# RUSTUP=install fetches the toolchain by rustup; without it the toolchain must be there.
.PHONY: msrv
msrv: ## checks everything with the oldest compiler that is supported; RUSTUP=install fetches it
ifeq ($(RUSTUP),install)
	rustup toolchain install $(MSRV) --profile minimal --no-self-update
endif
	CARGO_TARGET_DIR=$(TARGET_DIR)/msrv cargo +$(MSRV) check --locked --workspace --all-targets

.PHONY: miri
miri: ## wire and engine under Miri; RUSTUP=install fetches it
ifeq ($(RUSTUP),install)
	rustup toolchain install nightly --profile minimal --component miri,rust-src --no-self-update
endif
	CARGO_TARGET_DIR=$(TARGET_DIR)/miri MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=1 \
	    cargo +nightly miri test --locked -p urxe-wire -p urxe-engine --lib

.PHONY: deny
deny: $(TOOLS)/bin/cargo-deny ## licences, duplicates, sources and advisories of the dependencies; DENY='licenses bans sources' needs crates.io only
	$(TOOLS)/bin/cargo-deny --locked check $(DENY)
	cd device-plugin && $(TOOLS)/bin/cargo-deny --locked check $(DENY)

$(TOOLS)/bin/cargo-deny:
	$(CARGO) install --locked --root $(TOOLS) --target-dir $(TARGET_DIR)/tools-build cargo-deny@$(CARGO_DENY)

.PHONY: typos
typos: ## spelling, in sources and documents
	@scripts/install-packages python3-venv
	[ -x $(VENV)/bin/python3 ] || python3 -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check $(TYPOS)
	$(VENV)/bin/typos

# SINCE: a tag or commit with the API to compare with.
.PHONY: semver-checks
semver-checks: ## changes of the published crates' APIs against the newest tag, or SINCE=
	@since=$${SINCE:-$$(git describe --tags --abbrev=0 2>/dev/null)}; \
	    [ -n "$$since" ] || { echo 'no release to compare with'; exit 0; }; \
	    $(MAKE) $(TOOLS)/bin/cargo-semver-checks && \
	    $(TOOLS)/bin/cargo-semver-checks semver-checks --workspace --baseline-rev "$$since"

$(TOOLS)/bin/cargo-semver-checks:
	$(CARGO) install --locked --root $(TOOLS) --target-dir $(TARGET_DIR)/tools-build cargo-semver-checks@$(SEMVER_CHECKS)

.PHONY: package
package: ## packages the crates that are published, builds each from its package, prints their order
	@mkdir -p $(TARGET_DIR)
	@scripts/package

.PHONY: release-check
release-check: ## TAG, Cargo.toml and CHANGELOG.md name one version
	@scripts/release-check "$${TAG:?TAG=vVERSION}"

.PHONY: github-release
github-release: ## publishes target/packages on GitHub as the release of TAG; needs gh and GH_TOKEN; DRY_RUN=1 prints the command
	@DRY_RUN=$(DRY_RUN) scripts/github-release "$${TAG:?TAG=vVERSION}" $(PACKAGES)

.PHONY: install
install: build ## installs urxe for every program of this machine
	$(SUDO) $(BIN_DIR)/urxe install

.PHONY: uninstall
uninstall: build ## removes the installation
	$(SUDO) $(BIN_DIR)/urxe uninstall

# Before a build: it needs a linker.
.PHONY: packaging-packages
packaging-packages:
	@scripts/install-packages $(PACKAGING_PACKAGES)

.PHONY: deb
deb: packaging-packages $(if $(GLIBC),older-glibc,build) ## a Debian package, in target/packages; GLIBC=2.28 for older distributions
	packaging/deb $(if $(GLIBC),$(TARGET_DIR)/$(HOST)/release,$(BIN_DIR)) $(PACKAGES)

.PHONY: tarball
tarball: packaging-packages $(if $(GLIBC),older-glibc,build) ## urxe and liburxe.so for any folder of any distribution, in target/packages; GLIBC=2.28 for older ones
	packaging/tarball $(if $(GLIBC),$(TARGET_DIR)/$(HOST)/release,$(BIN_DIR)) $(PACKAGES)

.PHONY: wheel
wheel: packaging-packages $(if $(GLIBC),older-glibc,build) ## a Python wheel with urxe and liburxe.so, in target/packages; GLIBC=2.28 for manylinux_2_28
	@scripts/install-packages python3
	packaging/wheel $(if $(GLIBC),$(TARGET_DIR)/$(HOST)/release,$(BIN_DIR)) $(PACKAGES)

.PHONY: oci
oci: tarball ## an OCI image without a base, to COPY --from, in target/packages; GLIBC=2.28 for older images
	@scripts/install-packages python3
	packaging/oci $(PACKAGES) "$$(ls -t $(PACKAGES)/urxe-*-$$(uname -m)-linux-gnu.tar.gz | head -n 1)"

.PHONY: release
release: rust ## deb, tarball, wheel and OCI image, for aarch64 too where that can be built, checksums, bill of materials, licences; GLIBC=2.28
	@scripts/install-packages $(PACKAGING_PACKAGES) python3
	GLIBC=$(GLIBC) MAKE=$(MAKE) scripts/release $(PACKAGES)

# The linker of zig knows the symbols that each version of glibc had.
.PHONY: older-glibc
older-glibc: rust
	@scripts/install-packages $(DEMO_PACKAGES) python3-venv
	python3 -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check $(ZIGBUILD)
	PATH="$(VENV)/bin:$$PATH" $(CARGO) zigbuild --release --target $(HOST).$(GLIBC) -p urxe-cli -p urxe-provider

.PHONY: clean
clean: ## removes target/
	$(CARGO) clean
