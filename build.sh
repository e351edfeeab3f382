#!/usr/bin/env bash
# Runs every build, test and check of the repository; `./build.sh` lists the commands. It needs
# Debian 12 with rustc 1.95, cargo and build-essential, and it respects CARGO_TARGET_DIR.
set -euo pipefail
cd "$(dirname "$0")"

usage() {
    cat <<'USAGE'
usage: ./build.sh COMMAND [ARGUMENTS]

Do this first (you need Rust 1.95 or later; you need no GPU and no NIC):
  ./build.sh demo      runs two programs that check their results, and draws what their streams
                       executed. 2 to 5 minutes on 2 cores, most of it compiling
  ./build.sh doctor    prints which GPU and NIC of this machine the library would use
  Then read examples/README.md, which walks through the example programs.

commands:
  demo  [ARGS]   measures the latency of ping-pong between the streams of two ranks (mpbench
                 pingpong ARGS), then runs a stencil on four ranks (halo2d) and compares it with a
                 serial run, then draws the streams of two ranks in two steps of the stencil, as
                 text and as an SVG; the last line of each program says if its results are right
  test  [STEP..] runs every test, or the named steps: unit nic tcp warps cluster mutants
                 documents interop fuzz rdma vm asan
  test --long [STEP..]
                 runs the tests that take hours, or the named steps: matrix (the whole matrix of
                 messages) seeds soak
  check [STEP..] runs every check except tests, or the named steps: lock fmt clippy features
                 doc layers env licences kernels
  bench [ARGS]   runs the benchmark suite (mpbench suite ARGS); without ARGS, the results go to
                 benches/results/suite.json
  kernels        recompiles the kernels: for CUDA into the folders device/ptx, for HIP into device/hip
  doctor [ARGS]  prints what this machine offers, what the library would use, and what is missing
                 (--json: as JSON)
  hardware [DIR] builds the folder hardware/, which runs on machines without a toolchain, and runs
                 with it all trials for an NVIDIA GPU; logs and JSON go to DIR
  tsan  [PKG..]  runs the tests of threaded packages under the thread sanitizer
                 (default: gds-step gds-sim softgpu gdsync)
  asan           runs the virtual NIC's tests and the fuzzer's corpora under the address sanitizer
  packages [COMMAND [STEP..]]
                 installs the Debian packages that a command needs (default: test), and runs nothing
  help           prints this list

Commands install missing Debian packages, as root or by sudo.

examples:
  ./build.sh demo --sizes 8,64Ki      latency of messages of 8 bytes and 64 KiB
  ./build.sh check fmt clippy         format and lints, without the other checks
  ./build.sh check doc                words of texts, the list docs/errors.md, and rustdoc
USAGE
}

say() { printf '==> %s\n' "$*"; }
die() { printf 'build.sh: %s\n' "$*" >&2; exit 1; }
has() { command -v "$1" >/dev/null 2>&1; }

# Requirements of commands and steps beyond Rust, one a line: the command or step; a program, a
# file or a Python module; the Debian package that contains it. A command installs all its
# requirements before it builds anything, because build scripts and tests look for them. `build` is
# for every command that compiles; `virt` and `hip_headers` are for the steps unit and interop with
# these words in GDS_REQUIRE.
WANTS="
build     cc                                gcc
build     g++                               g++
kernels   g++                               g++
kernels   python3                           python3
kernels   python3:ensurepip                 python3-venv
kernels   clang-19                          clang-19
kernels   ld.lld-19                         lld-19
kernels   llvm-objcopy-19                   llvm-19
virt      /etc/libibverbs.d/mlx5.driver     ibverbs-providers
virt      /usr/include/infiniband/mlx5dv.h  libibverbs-dev
hip_headers /usr/include/hip/hip_runtime_api.h libamdhip64-dev
tcp       ip                                iproute2
cluster   /etc/libibverbs.d/mlx5.driver     ibverbs-providers
interop   readelf                           binutils
rdma      ib_write_bw                       perftest
rdma      ibv_devinfo                       ibverbs-utils
rdma      pgrep                             procps
rdma      /etc/libibverbs.d/mlx5.driver     ibverbs-providers
rdma      /usr/include/infiniband/mlx5dv.h  libibverbs-dev
vm        ib_write_lat                      perftest
vm        rdma                              iproute2
vm        xz                                xz-utils
vm        /etc/libibverbs.d/rxe.driver      ibverbs-providers
tsan      nm                                binutils
hardware  strip                             binutils
"

# is_installed WANTED: succeeds if a program, a file or PYTHON:MODULE is on this machine.
is_installed() {
    case "$1" in
    /*) [ -e "$1" ] ;;
    *:*) "${1%:*}" -c "import ${1#*:}" 2>/dev/null ;;
    *) PATH="$PATH:/usr/sbin:/sbin" has "$1" ;;
    esac
}

# lacking NAME..: prints the requirements of these commands and steps that this machine lacks, as
# lines of WANTED PACKAGE.
lacking() {
    local user wanted package
    while read -r user wanted package; do
        case " $* " in *" $user "*) ;; *) continue ;; esac
        is_installed "$wanted" || printf '%s %s\n' "$wanted" "$package"
    done <<<"$WANTS"
}

# prepare NAME..: installs the requirements of these commands and steps; fails if it cannot.
prepare() {
    local missing names packages word
    for word in virt hip_headers; do
        case " $* ,${GDS_REQUIRE:-}," in *" unit "*,"$word",* | *" interop "*,"$word",*) set -- "$@" "$word" ;; esac
    done
    missing=$(lacking "$@")
    [ -n "$missing" ] || return 0
    names=$(cut -d ' ' -f 1 <<<"$missing" | sort -u | xargs)
    packages=$(cut -d ' ' -f 2 <<<"$missing" | sort -u | xargs)
    install_packages "$names" "$packages"
    missing=$(lacking "$@" | cut -d ' ' -f 1 | xargs)
    [ -z "$missing" ] || die "still missing after installing $packages: $missing"
}

# install_packages WHAT PACKAGES: installs the Debian packages PACKAGES, which contain WHAT.
install_packages() {
    local root=""
    if [ "$(id -u)" -ne 0 ]; then
        root=sudo
        # Without a terminal sudo cannot ask for a password.
        if ! has sudo || { [ ! -t 0 ] && ! sudo -n true 2>/dev/null; }; then
            die "missing: $1; install with: apt-get install $2 (as root)"
        fi
    fi
    has apt-get || die "missing: $1; install the packages that Debian calls $2"
    say "installing $2, for: $1"
    $root apt-get update -q || say "apt-get update failed; trying with the package lists of this machine"
    # Unquoted on purpose: a list of plain words.
    # shellcheck disable=SC2086
    $root apt-get install -q -y --no-install-recommends $2 ||
        die "missing, and could not be installed: $1; install the packages that Debian calls $2"
    hash -r
}

need_component() {
    cargo "$1" --version >/dev/null 2>&1 ||
        die "cargo $1 is missing; install it with: rustup component add $2"
}

CHECK_STEPS="lock fmt clippy features doc layers env licences kernels"
TEST_STEPS="unit nic tcp warps cluster mutants documents interop fuzz rdma vm asan"
LONG_STEPS="matrix seeds soak"

# chosen "ALL STEPS" [STEP..]: the named steps, or all of them, in the order given.
chosen() {
    local all="$1" step
    shift
    # Unquoted on purpose: a list of plain words.
    # shellcheck disable=SC2086
    [ $# -gt 0 ] || set -- $all
    for step in "$@"; do
        case " $all " in
        *" $step "*) ;;
        *) die "no step $step; steps are: $all" ;;
        esac
    done
    echo "$@"
}

# run_steps: runs the steps in $steps.
run_steps() {
    local step
    for step in $steps; do
        "step_$step"
    done
}

# steps_of COMMAND [ARGUMENTS]: prints the steps that the command runs, if it has any.
steps_of() {
    local command="$1"
    shift
    case "$command ${1:-}" in
    "check "*) chosen "$CHECK_STEPS" "$@" ;;
    "test --long") chosen "$LONG_STEPS" "${@:2}" ;;
    "test "*) chosen "$TEST_STEPS" "$@" ;;
    esac
}

# prepare_for COMMAND [STEP..]: installs the requirements of the command and its steps.
prepare_for() {
    case "$1" in
    help | -h | --help) ;;
    kernels) prepare kernels ;;
    demo | test | check | bench | doctor | hardware | tsan | asan)
        has cargo || die "cargo is missing; install Rust 1.95 or later from https://rustup.rs"
        prepare build "$@"
        ;;
    *)
        usage >&2
        die "no command $1"
        ;;
    esac
}

# Folders with the sources of kernels; the folders ptx and hip of each contain the compiled module.
KERNELS="libgdsync/device libmp/device benches/device examples/device examples/own-kernel/device
    examples/particles/device examples/halo3d/device"

# --- check -------------------------------------------------------------------------------

step_lock() {
    say "lock: Cargo.lock matches every Cargo.toml"
    cargo metadata --locked --format-version 1 >/dev/null
}

step_fmt() {
    say "fmt: cargo fmt --all --check"
    need_component fmt rustfmt
    cargo fmt --all --check
}

step_clippy() {
    say "clippy: all targets of the workspace, warnings are errors"
    need_component clippy clippy
    cargo clippy --workspace --all-targets -- -D warnings
}

# The build of a cluster. `CXX=false` makes a build script fail that calls a C++ compiler.
step_features() {
    say "features: libraries, examples and benchmarks without soft and emulated: no emulator, no C++"
    local lean="-p gdsync -p libmp -p mp-examples -p halo2d -p particles -p mpbench --no-default-features" features tree
    # Unquoted on purpose: a list of plain words.
    # shellcheck disable=SC2086
    CXX=false cargo clippy $lean -- -D warnings
    # shellcheck disable=SC2086
    tree=$(cargo tree $lean -e normal,build --prefix none)
    ! grep -E '^(softgpu|vmlx5)' <<<"$tree" ||
        die "features: a build without soft and emulated contains the packages above"
    for features in soft emulated,serde; do
        say "features: gdsync with only $features"
        cargo clippy -p gdsync --no-default-features --features $features -- -D warnings
    done
}

# Words that the section Style of CONTRIBUTING.md avoids, in documents and comments.
AVOIDED='who|nobody|(is|are)? ?told of|stands? still|lies? in|comes? again|makes? no sense'

# texts: prints the lines of documents, of comments and of the packages' descriptions, as
# FILE:LINE:TEXT, without placeholders and what is in backticks.
texts() {
    # The table of the style page quotes the words.
    local skip="--exclude-dir=.git --exclude-dir=target*"
    # Unquoted on purpose: a list of plain words.
    # shellcheck disable=SC2086
    {
        grep -rn '' $skip --include='*.md' --exclude=CONTRIBUTING.md .
        grep -rnoE '//.*' $skip --include='*.rs' --include='*.cu' --include='*.c' --include='*.cpp' \
            --include='*.h' --include='*.hpp' .
        grep -rnoE '(^|[[:space:]])#[[:space:]].*' $skip --include='*.sh' .
        grep -rn '^description' $skip --include=Cargo.toml .
    } | sed 's/`[^`]*`//g; s/{[^}]*}//g'
}

step_doc() {
    say "doc: words of documents and comments; the list of errors; documentation, warnings are errors"
    ! texts | grep -wiE "$AVOIDED" || die "words that CONTRIBUTING.md, section Style, avoids"
    cargo run -q -p errors -- docs/errors.md
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps
}

step_layers() {
    say "layers: folders depend on each other in one direction, and docs/architecture.md lists them"
    cargo run -q -p layers -- docs/architecture.md
}

step_env() {
    say "env: every GDS_, MP_ and VMLX5_ variable that the sources read has a row in docs/env.md"
    local name missing=""
    # A variable is read by its name in quotes, in Rust as in C++.
    for name in $(grep -rhoE --exclude-dir=.git --exclude-dir='target*' \
        --include='*.rs' --include='*.c' --include='*.cpp' --include='*.h' --include='*.hpp' \
        '"(GDS|MP|VMLX5)_[A-Z0-9_]+"' . | tr -d '"' | sort -u); do
        grep -q "^| [^|]*\`$name\`" docs/env.md || missing="$missing $name"
    done
    [ -z "$missing" ] || die "not in the table of docs/env.md:$missing"
}

step_licences() {
    say "licences: every dependency's licence and source against deny.toml"
    cargo run -q -p licences
    if cargo deny --version >/dev/null 2>&1; then
        say "licences: cargo-deny is installed and checks bans, licences and sources too"
        cargo deny check bans licenses sources
    fi
}

step_kernels() {
    say "kernels: nvcc compiles the sources to the committed PTX, clang to the committed code objects"
    local fresh kernels
    fresh=$(mktemp -d)
    for kernels in $KERNELS; do
        configure-helpers/kernels/generate "$fresh/$kernels" "$kernels"
        { diff -ur "$kernels/ptx" "$fresh/$kernels/ptx" && diff -r "$kernels/hip" "$fresh/$kernels/hip"; } \
            >"$fresh/diff" || {
            head -n 40 "$fresh/diff"
            rm -rf "$fresh"
            die "$kernels/ptx or $kernels/hip is out of date; run: ./build.sh kernels"
        }
    done
    rm -rf "$fresh"
}

# --- test --------------------------------------------------------------------------------

# Cargo runs test binaries one after the other, and a test that starts processes has a separate
# binary: so such tests never compete with others for the machine.
step_unit() {
    say "unit: unit, integration, property and doc tests of the workspace"
    cargo test --workspace --no-run
    local ahead=""
    if [ "${AHEAD:-}" ]; then
        build_ahead >/dev/null 2>&1 &
        ahead=$!
        # Unquoted on purpose: the number as it is now.
        # shellcheck disable=SC2064
        trap "kill $ahead 2>/dev/null || true" EXIT
    fi
    cargo test --workspace
    [ -z "$ahead" ] || wait "$ahead" || true
}

# Builds the binaries of later steps, in their own target folders, while tests that wait leave a
# processor idle. It ignores failures: the step itself builds again and reports them.
build_ahead() {
    local target workspace
    target="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
    renice -n 19 -p "$BASHPID"
    build_cluster || true
    for workspace in interop fuzz; do
        (
            cd $workspace
            export CARGO_TARGET_DIR="$target/$workspace"
            cargo clippy --locked --workspace --all-targets -- -D warnings
            cargo test --locked --workspace --no-run
        ) || true
    done
    asan cargo test --locked --lib --tests --no-run -p vmlx5 -p vmlx5-uverbs
    asan cargo test --locked --no-run -p libmp --test memory
}

# Tests of `mp` that select no path: in the step unit their ranks map memory, here they use the NIC.
# The workspace is named so that its builds are used again.
PATHLESS="agree allocations asleep claims collectives* deaths edges errors failures* lanes
    late_binding memory messages neighbourhood neighbourhood_failures
    neighbourhood_lifetime never_ends one_submission* porting stats
    stencil strided to_itself trace* traps window* words mp_seeds mp_faults mp_matrix"

step_nic() {
    say "nic: tests of mp that select no path, by the NIC (MP_PATH=nic)"
    local tests=() name
    # Not expanded as files: cargo matches the names.
    set -f
    for name in $PATHLESS; do tests+=(--test "$name"); done
    set +f
    MP_PATH=nic cargo test --workspace "${tests[@]}"
}

# Those of PATHLESS whose ranks are not simulated, because a socket has no virtual time; without
# asleep and allocations, which are about what the CPU does for a NIC.
BY_TCP="collectives_live deaths failures_live memory messages never_ends
    one_submission_live porting stencil strided to_itself trace_loaded window_live"

step_tcp() {
    say "tcp: tests of mp that select no path, by TCP (MP_PATH=tcp), and the matrix of messages"
    local tests=() name
    for name in $BY_TCP; do tests+=(--test "$name"); done
    MP_PATH=tcp cargo test --workspace "${tests[@]}"
    MP_PATH=tcp GDS_PROVIDER=tcp cargo test -p conformance --test mp_matrix
    say "tcp: messages of device memory that kernels pack (MP_TCP_PACK=1)"
    MP_PATH=tcp MP_TCP_PACK=1 cargo test -p libmp --test messages --test memory --test strided
    MP_PATH=tcp MP_TCP_PACK=1 GDS_PROVIDER=tcp cargo test -p conformance --test mp_matrix
    say "tcp: examples, and the matrix of messages, on two hosts that are network namespaces"
    local target outcome=0
    target="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
    cargo build --profile test -p mprun -p halo2d -p particles
    examples/ci/hosts "$target/debug" || outcome=$?
    [ "$outcome" -ne 0 ] || MP_PATH=tcp GDS_PROVIDER=tcp MP_TCP_SOCKETS=3 examples/ci/hosts "$target/debug" \
        cargo test -p conformance --test mp_matrix -- --whole processes || outcome=$?
    # 77: this system allows no namespaces, as printed.
    [ "$outcome" -eq 0 ] || [ "$outcome" -eq 77 ] || die "tcp: failed with exit code $outcome"
}

# Tests of kernels, of each lowering and path, and of the examples.
step_warps() {
    say "warps: kernels, matrices and examples with warps of 64 threads (GDS_SOFT_WARP=64)"
    GDS_SOFT_WARP=64 cargo test --workspace --lib -- kernels::
    GDS_SOFT_WARP=64 cargo test --workspace --test matrix --test mp_matrix --test programs --test stencil \
        --test fluid
}

step_cluster() {
    say "cluster: the examples without soft and emulated, on the stand-in for CUDA and on rdma-core"
    local target
    target="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
    cargo build --profile test -p vmlx5-preload -p vmlx5-cli
    build_cluster
    examples/ci/cluster "$target/debug" "$target/cluster/debug"
}

build_cluster() {
    CARGO_TARGET_DIR="$(realpath -m "${CARGO_TARGET_DIR:-target}")/cluster" CXX=false \
        cargo build --profile test -p mp-examples -p halo2d -p particles -p mprun --no-default-features
}

step_mutants() {
    if [ ! -e conformance/Cargo.toml ]; then
        say "mutants: NOT RUN, there is no package conformance"
        return
    fi
    say "mutants: each committed mutant must fail at least one seed or test"
    cargo test -p conformance --features mutants --test mutants --test mp_mutants
    cargo test -p vmlx5 --features mutants --test mutants
}

# Builds with the profile of tests; so does `demo`, by DEMO_PROFILE.
step_documents() {
    say "documents: the commands of README.md and all other documents, with what they print"
    configure-helpers/documents/test
    configure-helpers/documents/run
}

# interop/ is a separate workspace, because its patch of cust must not affect the main workspace.
step_interop() {
    say "interop: format, lints, licences and tests of the workspace interop"
    local target
    target="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
    need_component fmt rustfmt
    need_component clippy clippy
    (
        cd interop
        export CARGO_TARGET_DIR="$target/interop"
        cargo fmt --check
        cargo clippy --locked --workspace --all-targets -- -D warnings
        cargo test --locked --workspace
        cargo metadata --locked --format-version 1 >"$CARGO_TARGET_DIR/metadata.json"
        cd cust-patch/generate
        cargo fmt --check
        cargo run -q --locked -- --check
    )
    # The libraries are path dependencies on the main workspace, which is allowed.
    ! { cargo run -q -p licences -- deny.toml "$target/interop/metadata.json" || true; } 2>&1 |
        grep -vE '^licences: [0-9]+ (packages|offences)|: source a path outside the workspace' ||
        die "interop: deny.toml does not allow the packages above"
}

# fuzz/ is a separate workspace too. This step does not need the fuzzer; fuzz/run does.
step_fuzz() {
    say "fuzz: format, lints and licences of the workspace fuzz; replay of every input of its corpora"
    local target
    target="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
    need_component fmt rustfmt
    need_component clippy clippy
    (
        cd fuzz
        export CARGO_TARGET_DIR="$target/fuzz"
        cargo fmt --check
        cargo clippy --locked --all-targets -- -D warnings
        cargo test --locked
        cargo metadata --locked --all-features --format-version 1 >"$CARGO_TARGET_DIR/metadata.json"
    )
    # The libraries are path dependencies on the main workspace, which is allowed.
    ! { cargo run -q -p licences -- fuzz/deny.toml "$target/fuzz/metadata.json" || true; } 2>&1 |
        grep -vE '^licences: [0-9]+ (packages|offences)|: source a path outside the workspace' ||
        die "fuzz: fuzz/deny.toml does not allow the packages above"
}

# Runs unmodified libibverbs, libmlx5 and programs that use them, on virtual devices.
step_rdma() {
    say "rdma: programs of rdma-core and perftest on libvmlx5.so"
    emulator/ci/run
}

# Runs the test `verbs` on the kernel's soft-RoCE in a virtual machine, and messages between two.
step_vm() {
    say "vm: verbs on soft-RoCE in a virtual machine, and between two"
    local built output verbs
    configure-helpers/rdma-vm/rdma-vm --install || {
        # This updates the package lists first.
        install_packages qemu-system-x86_64 qemu-system-x86
        configure-helpers/rdma-vm/rdma-vm --install
    } || die "no virtual machine: see above"
    # The step unit builds with the same command, so cargo builds nothing twice.
    output=$(cargo test --workspace --no-run 2>&1) || die "$output"
    verbs=$(sed -n 's/^ *Executable tests.verbs\.rs (\(.*\))$/\1/p' <<<"$output")
    [ -x "$verbs" ] || die "vm: cargo does not print the path of gdsync's test verbs"
    built="$(realpath -m "${CARGO_TARGET_DIR:-target}")/debug"
    configure-helpers/rdma-vm/ci "$built" "$(realpath "$verbs")"
}

# --- test --long -------------------------------------------------------------------------

# within HOURS COMMAND..: runs the command and fails if it takes longer.
within() {
    local hours="$1" outcome=0
    shift
    timeout -k 30 "${hours}h" "$@" || outcome=$?
    [ "$outcome" -ne 124 ] || die "not done within $hours h: $*"
    [ "$outcome" -eq 0 ] || die "failed with exit code $outcome: $*"
}

step_matrix() {
    say "matrix: every cell of the matrix of messages, on every GPU runtime of this machine"
    within 4 cargo test --release -p conformance --test mp_matrix -- --whole --color never
}

step_seeds() {
    say "seeds: more random schedules than the tests of a change run"
    GDS_SEEDS="${GDS_SEEDS:-4000}" within 3 cargo test --release -p conformance \
        --test seeds --test faults --test mp_seeds --test mp_faults
}

step_soak() {
    say "soak: ten million requests without a CPU that waits, and a thousand killed ranks; memory must not grow"
    GDS_SOAK="${GDS_SOAK:-10000000}" within 1 cargo test --release -p libmp --test soak
    GDS_DEATHS="${GDS_DEATHS:-1000}" within 1 cargo test --release -p libmp --test deaths
}

# --- tsan --------------------------------------------------------------------------------

# tsan_wrap NAME PATTERN: adds to FLAGS and DEFINES the options that redirect the function of the
# standard library that matches PATTERN to configure-helpers/tsan/std-locks.c, under the name NAME.
tsan_wrap() {
    local symbol
    symbol=$(printf '%s\n' "$STD_SYMBOLS" | grep -E "3std$2\$") ||
        die "tsan: this rustc's standard library has no $1 ($2)"
    case "$symbol" in *[!A-Za-z0-9_]*) die "tsan: $1 is ambiguous: $symbol" ;; esac
    FLAGS="$FLAGS -Clink-arg=-Wl,--wrap=$symbol"
    DEFINES="$DEFINES -D$1=$symbol"
}

# run_tsan PACKAGE..: runs the tests of the packages under the thread sanitizer.
run_tsan() {
    local target=x86_64-unknown-linux-gnu helpers="$PWD/configure-helpers/tsan"
    local STD_SYMBOLS FLAGS DEFINES=""
    FLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer"
    # The compiled code differs from that of other commands, so it has a separate folder.
    CARGO_TARGET_DIR="$(realpath -m "${CARGO_TARGET_DIR:-target}")/tsan"
    mkdir -p "$CARGO_TARGET_DIR"

    STD_SYMBOLS=$(nm -D --defined-only "$(rustc --print target-libdir --target $target)"/libstd-*.so |
        awk '{ print $3 }')
    tsan_wrap MUTEX_LOCK '3sys4sync5mutex.*14lock_contended'
    tsan_wrap RWLOCK_READ '3sys4sync6rwlock.*14read_contended'
    tsan_wrap RWLOCK_WRITE '3sys4sync6rwlock.*15write_contended'
    tsan_wrap CONDVAR_WAIT '3sys4sync7condvar.*4wait'
    tsan_wrap CONDVAR_WAIT_TIMEOUT '3sys4sync7condvar.*12wait_timeout'
    tsan_wrap ONCE_CALL '3sys4sync4once.*4Once4call'
    tsan_wrap SCOPED_THREAD_ENDS '6thread6scoped.*29decrement_num_running_threads'
    # Unquoted on purpose: a list of plain words.
    # shellcheck disable=SC2086
    cc -O1 -Wall -Werror $DEFINES -c "$helpers/std-locks.c" -o "$CARGO_TARGET_DIR/std-locks.o"

    export CARGO_TARGET_DIR
    # RUSTC_BOOTSTRAP lets a stable compiler take the -Z option. std prints a backtrace under a
    # private lock, so the sanitizer would report the panics that a test expects.
    RUSTC_BOOTSTRAP=1 RUST_BACKTRACE=0 \
        RUSTFLAGS="$FLAGS -Clink-arg=$CARGO_TARGET_DIR/std-locks.o" \
        TSAN_OPTIONS="suppressions=$helpers/suppressions ${TSAN_OPTIONS:-}" \
        cargo test --target $target --lib --tests "${@/#/--package=}" \
        -- --skip model:: --skip moves_between_threads
}

# --- asan --------------------------------------------------------------------------------

# asan COMMAND..: runs a cargo command under the address sanitizer, in a separate target folder,
# because the compiled code differs from that of other commands.
asan() {
    (
        CARGO_TARGET_DIR="$(realpath -m "${CARGO_TARGET_DIR:-target}")/asan"
        export CARGO_TARGET_DIR
        export RUSTC_BOOTSTRAP=1
        export RUSTFLAGS="-Zsanitizer=address -Cunsafe-allow-abi-mismatch=sanitizer"
        # The cases of property tests take ten times as long.
        export GDS_CASES="${GDS_CASES:-12}"
        "$@" --target x86_64-unknown-linux-gnu
    )
}

# Tests the code that reads rings, frames and commands. The tests step it by hand, without the
# preloaded library: the sanitizer would replace the library's handler of SIGSEGV with its own
# (VMLX5_GUARD=syscall works with the sanitizer).
step_asan() {
    say "asan: tests of vmlx5, vmlx5-uverbs and libmp's memory, under the address sanitizer"
    asan cargo test --locked --lib --tests -p vmlx5 -p vmlx5-uverbs
    asan cargo test --locked -p libmp --test memory
}

# replay_with_asan: replays the fuzzer's corpora under the address sanitizer.
replay_with_asan() {
    asan cargo test --locked --manifest-path fuzz/Cargo.toml --test replay
}

# --- hardware ----------------------------------------------------------------------------

# build_hardware FOLDER: builds what a machine with a GPU and without a toolchain needs.
build_hardware() {
    local program target
    target="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
    cargo build --release --locked -p conformance -p mpbench -p gdsync-doctor
    mkdir -p "$1"
    for program in conformance mpbench gdsync-doctor; do
        strip -o "$1/$program" "$target/release/$program"
    done
    cp configure-helpers/hardware/run.sh "$1/run"
    say "hardware: $1 has $(du -sh "$1" | cut -f 1); run it on any machine with: sh hardware/run"
}

# --- commands ----------------------------------------------------------------------------

only_packages=""
if [ "${1:-}" = packages ]; then
    only_packages=yes
    shift
    [ $# -gt 0 ] || set -- test
fi
command="${1:-help}"
[ $# -eq 0 ] || shift
steps=$(steps_of "$command" "$@")
# On standard error, because a program may read the standard output of doctor.
# shellcheck disable=SC2086 # a list of plain words
prepare_for "$command" $steps >&2
[ -z "$only_packages" ] || exit 0
case "$command" in
demo)
    say "demo: two ranks play ping-pong on their streams"
    profile="${DEMO_PROFILE:-release}"
    cargo build --profile "$profile" -p mpbench -p halo2d -p mprun
    built="$(realpath -m "${CARGO_TARGET_DIR:-target}")/${profile/#test/debug}"
    "$built/mpbench" pingpong "$@"
    say "demo: four ranks exchange the borders of a stencil and compare with the serial run"
    "$built/mprun" -n 4 "$built/halo2d"
    # A larger field: its kernels take longer than the messages.
    say "demo: the streams of two ranks in two steps of the stencil: messages under the computation"
    rm -f "$built"/halo2d-trace.*.json
    MP_TRACE="$built/halo2d-trace.json" "$built/mprun" -n 2 "$built/halo2d" --size 512x384
    "$built/mpbench" timeline "$built"/halo2d-trace.*.json --step interior --steps 2 \
        --svg "$built/halo2d-step.svg"
    ;;
test)
    if [ "${1:-}" = --long ]; then
        say "test --long: tests that take hours"
    else
        say "test: every test of the workspace (required to be present: ${GDS_REQUIRE:-nothing})"
        # All steps run, so later steps can be built ahead.
        [ $# -gt 0 ] || AHEAD=yes
    fi
    run_steps
    ;;
check)
    say "check: formatting, lints, documentation, licences; runs no test"
    run_steps
    ;;
bench)
    say "bench: runs the benchmark suite on this machine"
    [ $# -gt 0 ] || set -- --json benches/results/suite.json
    cargo run --release -p mpbench -- suite "$@"
    ;;
kernels)
    say "kernels: compiles the kernels in $KERNELS to PTX"
    for kernels in $KERNELS; do
        configure-helpers/kernels/generate "" "$kernels"
    done
    ;;
doctor)
    cargo run -q -p gdsync-doctor -- "$@"
    ;;
hardware)
    say "hardware: builds the trials for an NVIDIA GPU, and runs them if this machine has one"
    folder="$(realpath -m "${CARGO_TARGET_DIR:-target}")/hardware"
    build_hardware "$folder"
    sh "$folder/run" "$@"
    ;;
tsan)
    [ $# -gt 0 ] || set -- gds-step gds-sim softgpu gdsync
    say "tsan: tests of $* under the thread sanitizer, except model:: and moves_between_threads"
    run_tsan "$@"
    ;;
asan)
    say "asan: the virtual NIC's tests and the fuzzer's corpora under the address sanitizer"
    step_asan
    replay_with_asan
    ;;
help | -h | --help)
    usage
    ;;
esac
