#!/usr/bin/env bash
# One entry to everything: `./build.sh` lists the commands. Works on Debian 12 with
# rustc 1.95, cargo and build-essential; respects CARGO_TARGET_DIR.
set -euo pipefail
cd "$(dirname "$0")"

usage() {
    cat <<'USAGE'
usage: ./build.sh COMMAND [ARGUMENTS]

  demo  [ARGS]   two ranks play ping-pong on their streams (mpbench pingpong ARGS), four compute a
                 stencil (halo2d) and compare with the serial run
  test  [STEP..] every test; steps: unit mutants interop fuzz rdma vm asan
  test --long [STEP..]
                 what takes too long for every change; steps: matrix (of messages, whole) seeds soak
  check [STEP..] what needs no test run; steps: lock fmt clippy doc env licences kernels
  bench [ARGS]   the benchmark suite (mpbench suite ARGS), results in benches/results/
  kernels        regenerates the kernels for CUDA: the folders device/ptx
  doctor [ARGS]  what this machine offers, what would be used, what is missing (--json)
  hardware [DIR] builds the folder hardware/, which needs no toolchain, and runs all trials for
                 a GPU of NVIDIA with it; logs and JSON go to DIR
  tsan  [PKG..]  the threaded packages' tests under the thread sanitizer
  asan           the virtual NIC's tests and the fuzzer's corpora under the address sanitizer
  help           this list
USAGE
}

say() { printf '==> %s\n' "$*"; }
die() { printf 'build.sh: %s\n' "$*" >&2; exit 1; }
has() { command -v "$1" >/dev/null 2>&1; }

# need PROGRAM PACKAGE: PROGRAM is there, or Debian's PACKAGE brings it, or we say so.
need() {
    has "$1" || bring "$1" "$2"
    has "$1" || die "$1 is still missing after installing $2"
}

# bring WHAT PACKAGE: installs Debian's PACKAGE for the sake of WHAT.
bring() {
    local root=""
    if [ "$(id -u)" -ne 0 ]; then
        root=sudo
        # Without a terminal there is nobody to type a password.
        if ! has sudo || { [ ! -t 0 ] && ! sudo -n true 2>/dev/null; }; then
            die "$1 is missing; install it with: apt-get install $2 (as root)"
        fi
    fi
    has apt-get || die "$1 is missing; install what Debian calls $2"
    say "installing $2, which brings $1"
    $root apt-get update -q || say "apt-get update failed; trying with the lists at hand"
    $root apt-get install -q -y --no-install-recommends "$2" ||
        die "$1 is missing and could not be installed; install what Debian calls $2"
    hash -r
}

need_toolchain() {
    has cargo || die "cargo is missing; install Rust 1.95 or later from https://rustup.rs"
    need cc gcc
    need g++ g++ # kernels of the software GPU are C++
}

# Not linked but loaded: libmlx5 is a driver of libibverbs'. It comes with that.
need_mlx5() {
    [ -e /etc/libibverbs.d/mlx5.driver ] || bring libmlx5 ibverbs-providers
}

# nvcc comes as Python wheels, with pip as the only client; it preprocesses by g++.
need_nvcc() {
    need g++ g++
    need python3 python3
    python3 -c 'import ensurepip' 2>/dev/null || bring "python3's venv" python3-venv
}

need_component() {
    cargo "$1" --version >/dev/null 2>&1 ||
        die "cargo $1 is missing; install it with: rustup component add $2"
}

# run_steps "ALL STEPS" [STEP..]: the named steps, or all of them, in the order given.
run_steps() {
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
    for step in "$@"; do
        "step_$step"
    done
}

# Folders of kernels, each with the module that is made of them in its folder ptx.
KERNELS="libgdsync/device libmp/device benches/device examples/device"

# --- check -------------------------------------------------------------------------------

step_lock() {
    say "lock: Cargo.lock fits every Cargo.toml"
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

step_doc() {
    say "doc: documentation of the workspace, warnings are errors"
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps
}

step_env() {
    say "env: every GDS_, MP_ and VMLX5_ variable that the sources read has its row in docs/env.md"
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
        say "licences: cargo-deny is here, so bans, licences and sources once more by it"
        cargo deny check bans licenses sources
    fi
}

step_kernels() {
    say "kernels: the committed PTX is what nvcc makes of the sources today"
    need_nvcc
    local fresh kernels ptx
    fresh=$(mktemp -d)
    for kernels in $KERNELS; do
        for ptx in "$kernels"/ptx/*.ptx; do
            configure-helpers/kernels/generate "$fresh/${ptx##*/}" "$kernels"
            diff -u "$ptx" "$fresh/${ptx##*/}" >"$fresh/diff" || {
                head -n 40 "$fresh/diff"
                rm -rf "$fresh"
                die "$ptx is out of date; run: ./build.sh kernels"
            }
        done
    done
    rm -rf "$fresh"
}

# --- test --------------------------------------------------------------------------------

# Cargo runs test binaries one after the other, so tests that start processes of their own
# (each in a binary of its own) never compete with others for the machine.
step_unit() {
    say "unit: unit, integration, property and doc tests of the workspace"
    # Tests that want it are ignored without, which GDS_REQUIRE=virt does not let pass.
    case ",${GDS_REQUIRE:-}," in *,virt,*) need_mlx5 ;; esac
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

# What later steps want, in their own folders, while tests that wait leave a processor idle. What
# goes wrong here is told by the step itself.
build_ahead() {
    local target workspace
    target="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
    renice -n 19 -p "$BASHPID"
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

step_mutants() {
    if [ ! -e conformance/Cargo.toml ]; then
        say "mutants: NOT RUN, there is no package conformance"
        return
    fi
    say "mutants: each committed mutant must fail at least one seed or test"
    cargo test -p conformance --features mutants --test mutants --test mp_mutants
    cargo test -p vmlx5 --features mutants --test mutants
}

# interop/ is a workspace of its own: its patch for cust must not reach this one.
step_interop() {
    say "interop: format, lints, licences and tests of the workspace interop"
    local target
    target="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
    need_component fmt rustfmt
    need_component clippy clippy
    need readelf binutils
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
    # The libraries come by path from the workspace beside it, which is no offence.
    ! { cargo run -q -p licences -- deny.toml "$target/interop/metadata.json" || true; } 2>&1 |
        grep -vE '^licences: [0-9]+ (packages|offences)|: source a path outside the workspace' ||
        die "interop: the above is not allowed by deny.toml"
}

# fuzz/ is a workspace of its own too; fuzz/run, not this, needs its fuzzer.
step_fuzz() {
    say "fuzz: format, lints and licences of the workspace fuzz; every input of its corpora again"
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
    # The libraries come by path from the workspace beside it, which is no offence.
    ! { cargo run -q -p licences -- fuzz/deny.toml "$target/fuzz/metadata.json" || true; } 2>&1 |
        grep -vE '^licences: [0-9]+ (packages|offences)|: source a path outside the workspace' ||
        die "fuzz: the above is not allowed by fuzz/deny.toml"
}

# Unmodified libibverbs, libmlx5 and programs on top of them, on virtual devices.
step_rdma() {
    say "rdma: programs of rdma-core and perftest on libvmlx5.so"
    need ib_write_bw perftest
    need ibv_devinfo ibverbs-utils
    [ -e /usr/include/infiniband/mlx5dv.h ] || bring mlx5dv.h libibverbs-dev
    need_mlx5
    emulator/ci/run
}

# The kernel's soft-RoCE, in virtual machines: the proxy's tests there, and messages between two.
step_vm() {
    say "vm: the proxy on soft-RoCE in a virtual machine, and between two"
    local built said proxy
    PATH="$PATH:/usr/sbin:/sbin" need rdma iproute2
    need ib_write_lat perftest
    # The driver of soft-RoCE is libibverbs'.
    [ -e /etc/libibverbs.d/rxe.driver ] || bring librxe ibverbs-providers
    configure-helpers/rdma-vm/rdma-vm --install || {
        # With fresh lists of packages.
        bring qemu-system-x86_64 qemu-system-x86
        configure-helpers/rdma-vm/rdma-vm --install
    } || die "no virtual machine: see above"
    # As the step unit builds everything, so nothing is built again.
    said=$(cargo test --workspace --no-run 2>&1) || die "$said"
    proxy=$(sed -n 's/^ *Executable tests.proxy\.rs (\(.*\))$/\1/p' <<<"$said")
    [ -x "$proxy" ] || die "vm: cargo does not say where gdsync's test proxy is"
    built="$(realpath -m "${CARGO_TARGET_DIR:-target}")/debug"
    configure-helpers/rdma-vm/ci "$built" "$(realpath "$proxy")"
}

# --- test --long -------------------------------------------------------------------------

# within HOURS COMMAND..: nothing hangs for ever.
within() {
    local hours="$1" outcome=0
    shift
    timeout -k 30 "${hours}h" "$@" || outcome=$?
    [ "$outcome" -ne 124 ] || die "not done within $hours h: $*"
    [ "$outcome" -eq 0 ] || die "failed with exit code $outcome: $*"
}

step_matrix() {
    say "matrix: every cell of the matrix of messages, on every GPU runtime that is here"
    within 4 cargo test --release -p conformance --test mp_matrix -- --whole --color never
}

step_seeds() {
    say "seeds: so many random schedules as no change has time for"
    GDS_SEEDS="${GDS_SEEDS:-4000}" within 3 cargo test --release -p conformance \
        --test seeds --test faults --test mp_seeds --test mp_faults
}

step_soak() {
    say "soak: ten million requests that no CPU waits for, and a thousand deaths, in memory that does not grow"
    GDS_SOAK="${GDS_SOAK:-10000000}" within 1 cargo test --release -p libmp --test soak
    GDS_DEATHS="${GDS_DEATHS:-1000}" within 1 cargo test --release -p libmp --test deaths
}

# --- tsan --------------------------------------------------------------------------------

# Adds to FLAGS and DEFINES what routes a function of the standard library through
# configure-helpers/tsan/std-locks.c, where it goes by the name $1.
tsan_wrap() {
    local symbol
    symbol=$(printf '%s\n' "$STD_SYMBOLS" | grep -E "3std$2\$") ||
        die "tsan: this rustc's standard library has no $1 ($2)"
    case "$symbol" in *[!A-Za-z0-9_]*) die "tsan: $1 is ambiguous: $symbol" ;; esac
    FLAGS="$FLAGS -Clink-arg=-Wl,--wrap=$symbol"
    DEFINES="$DEFINES -D$1=$symbol"
}

# run_tsan PACKAGE..
run_tsan() {
    local target=x86_64-unknown-linux-gnu helpers="$PWD/configure-helpers/tsan"
    local STD_SYMBOLS FLAGS DEFINES=""
    FLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer"
    # Compiled code differs from the other commands': a folder of its own.
    CARGO_TARGET_DIR="$(realpath -m "${CARGO_TARGET_DIR:-target}")/tsan"
    mkdir -p "$CARGO_TARGET_DIR"

    need nm binutils
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
    # RUSTC_BOOTSTRAP lets a stable compiler take the -Z option. Printing a backtrace works
    # behind a lock that is std's own, so panics that a test expects would be reported.
    RUSTC_BOOTSTRAP=1 RUST_BACKTRACE=0 \
        RUSTFLAGS="$FLAGS -Clink-arg=$CARGO_TARGET_DIR/std-locks.o" \
        TSAN_OPTIONS="suppressions=$helpers/suppressions ${TSAN_OPTIONS:-}" \
        cargo test --target $target --lib --tests "${@/#/--package=}" \
        -- --skip model:: --skip moves_between_threads
}

# --- asan --------------------------------------------------------------------------------

# asan COMMAND..: with every access of memory checked, in a folder of its own, since compiled code
# differs from the other commands'.
asan() {
    (
        CARGO_TARGET_DIR="$(realpath -m "${CARGO_TARGET_DIR:-target}")/asan"
        export CARGO_TARGET_DIR
        export RUSTC_BOOTSTRAP=1
        export RUSTFLAGS="-Zsanitizer=address -Cunsafe-allow-abi-mismatch=sanitizer"
        # Cases of properties take ten times as long.
        export GDS_CASES="${GDS_CASES:-12}"
        "$@" --target x86_64-unknown-linux-gnu
    )
}

# What reads rings, frames and commands. All of it steps by hand, without the preloaded library,
# whose guard by signals the sanitizer's own handler of SIGSEGV would take the place of
# (VMLX5_GUARD=syscall goes with it).
step_asan() {
    say "asan: tests of vmlx5, vmlx5-uverbs and of memory that is handed over, under the address sanitizer"
    asan cargo test --locked --lib --tests -p vmlx5 -p vmlx5-uverbs
    asan cargo test --locked -p libmp --test memory
}

# replay_with_asan: the fuzzer's corpora too.
replay_with_asan() {
    asan cargo test --locked --manifest-path fuzz/Cargo.toml --test replay
}

# --- hardware ----------------------------------------------------------------------------

# build_hardware FOLDER: all that a machine with a GPU and without a toolchain needs.
build_hardware() {
    local program target
    target="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
    need strip binutils
    cargo build --release --locked -p conformance -p mpbench -p gdsync-doctor
    mkdir -p "$1"
    for program in conformance mpbench gdsync-doctor; do
        strip -o "$1/$program" "$target/release/$program"
    done
    cp configure-helpers/hardware/run.sh "$1/run"
    say "hardware: $1 holds $(du -sh "$1" | cut -f 1); run it anywhere with: sh hardware/run"
}

# --- commands ----------------------------------------------------------------------------

command="${1:-help}"
[ $# -eq 0 ] || shift
case "$command" in
demo)
    say "demo: two ranks play ping-pong on their streams"
    need_toolchain
    cargo build --release -p mpbench -p mp-examples -p mprun
    built="$(realpath -m "${CARGO_TARGET_DIR:-target}")/release"
    "$built/mpbench" pingpong "$@"
    say "demo: four ranks exchange the borders of a stencil and compare with the serial run"
    "$built/mprun" -n 4 "$built/halo2d"
    ;;
test)
    need_toolchain
    if [ "${1:-}" = --long ]; then
        shift
        say "test --long: what takes too long for every change"
        run_steps "matrix seeds soak" "$@"
    else
        say "test: every test of the workspace (required to be present: ${GDS_REQUIRE:-nothing})"
        # All of them: there are later ones.
        [ $# -gt 0 ] || AHEAD=yes
        run_steps "unit mutants interop fuzz rdma vm asan" "$@"
    fi
    ;;
check)
    say "check: formatting, lints, documentation, licences; runs no test"
    need_toolchain
    run_steps "lock fmt clippy doc env licences kernels" "$@"
    ;;
bench)
    say "bench: runs the benchmark suite on this machine"
    need_toolchain
    [ $# -gt 0 ] || set -- --json benches/results/suite.json
    cargo run --release -p mpbench -- suite "$@"
    ;;
kernels)
    say "kernels: compiles the kernels in $KERNELS to PTX"
    need_nvcc
    for kernels in $KERNELS; do
        configure-helpers/kernels/generate "" "$kernels"
    done
    ;;
doctor)
    need_toolchain >&2
    cargo run -q -p gdsync-doctor -- "$@"
    ;;
hardware)
    say "hardware: the trials for a GPU of NVIDIA, built here, run here if there is one"
    need_toolchain
    folder="$(realpath -m "${CARGO_TARGET_DIR:-target}")/hardware"
    build_hardware "$folder"
    sh "$folder/run" "$@"
    ;;
tsan)
    [ $# -gt 0 ] || set -- gds-step gds-driver softgpu gdsync
    say "tsan: tests of $* under the thread sanitizer, but for model:: and moves_between_threads"
    need_toolchain
    run_tsan "$@"
    ;;
asan)
    say "asan: the virtual NIC's tests and the fuzzer's corpora under the address sanitizer"
    need_toolchain
    step_asan
    replay_with_asan
    ;;
help | -h | --help)
    usage
    ;;
*)
    usage >&2
    die "no command $command"
    ;;
esac
