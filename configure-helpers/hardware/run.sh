#!/bin/sh
# Runs every trial for an NVIDIA GPU, on a machine that needs no toolchain: the programs are beside
# this script, where `./build.sh hardware` writes them.
#
#   sh run [RESULTS]     RESULTS: a folder for logs and JSON (default: ./hardware-results)
#
# Prints each step with its outcome, and a summary; the exit code is 0 if all passed. Without a
# GPU it runs nothing and exits with 0, or with 1 if GDS_REQUIRE names cuda.
set -u
here=$(cd "$(dirname "$0")" && pwd)
results=${1:-hardware-results}
mkdir -p "$results" || exit 1
results=$(cd "$results" && pwd)
summary=$results/summary.txt
: >"$summary"
failed=0
number=0

say() { printf '%s\n' "$*" | tee -a "$summary"; }

# step NAME SECONDS COMMAND..: runs the command with a time limit; its output goes into a log.
step() {
    name=$1 limit=$2
    shift 2
    number=$((number + 1))
    log=$results/$(printf '%02d-%s.log' "$number" "$name")
    printf '==> %s\n' "$name"
    start=$(date +%s)
    timeout -k 5 "$limit" "$@" >"$log" 2>&1 </dev/null
    rc=$?
    took=$(($(date +%s) - start))
    case $rc in
    0) outcome=ok ;;
    124 | 137) outcome="FAILED: did not end within $limit s" ;;
    *) outcome="FAILED: exit code $rc" ;;
    esac
    if [ "$rc" -ne 0 ]; then
        failed=$((failed + 1))
        # The failed trials, and the end of the log.
        grep -E 'FAILED|^error|panicked' "$log" | head -n 20
        tail -n 25 "$log"
    fi
    say "$(printf '%-32s %4s s  %s' "$name" "$took" "$outcome")"
}

# A step that cannot run here: it is reported as a failure, because it was requested.
lacking() {
    failed=$((failed + 1))
    number=$((number + 1))
    say "$(printf '%-32s          FAILED: %s' "$1" "$2")"
}

trials() { "$here/conformance" --color never "$@"; }

absent=$(trials --list 2>/dev/null | grep '^cuda (needs cuda' | head -n 1)
if [ -n "$absent" ]; then
    say "nothing was run: ${absent%: test}"
    case ",${GDS_REQUIRE:-}," in
    *,cuda,*) exit 1 ;;
    *) exit 0 ;;
    esac
fi
GDS_REQUIRE=cuda
GDS_GPU=cuda
export GDS_REQUIRE GDS_GPU
unset CUDA_DEVICE_MAX_CONNECTIONS GDS_LOWER GDS_PROVIDER GDS_DOORBELL GDS_ENDPOINT GDS_LAPS MP_PATH

say "$(cd "$here" && sha256sum conformance mpbench gdsync-doctor)"
say "$(uname -sr), $(nproc) CPUs, $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1)"
say ""

# --- the machine --------------------------------------------------------------------------

step doctor 30 "$here/gdsync-doctor"
step doctor-json 30 sh -c '"$1" --json >"$2"' - "$here/gdsync-doctor" "$results/doctor.json"

# --- conformance --------------------------------------------------------------------------

conformance() { # NAME SECONDS FILTER..
    name=$1 limit=$2
    shift 2
    step "$name" "$limit" "$here/conformance" --color never "$@"
}

conformance programs 150 'cuda program'
# Two trials, each in a process that is killed after a minute; the error names its last step.
conformance waiting-streams 150 'waiting streams' --skip 'soft '
conformance killed-peer 60 'cuda a killed peer'
conformance kernels 30 'cuda kernel'
# Two processes on one GPU, and on two where the machine has them; memory of one process.
conformance shared-memory 60 'cuda shared memory'
conformance failures-and-memory 60 'cuda ' --skip program --skip 'waiting streams' \
    --skip killed --skip 'cuda kernel' --skip 'shared memory'
# Messages: cells that cover the values of their matrix; the ranks are threads that share the GPU,
# and processes, of which one is killed under messages of each length. By the path that the ranks
# choose, which is mapped memory, and by the NIC.
step messages 400 "$here/conformance" mp --gpu cuda --color never
step messages-nic 400 env MP_PATH=nic "$here/conformance" mp --gpu cuda --color never

# --- speed --------------------------------------------------------------------------------

# The figures of docs/performance.md are of the virtual NIC, unless they say otherwise.
MP_PATH=nic
export MP_PATH
bench() { # NAME SECONDS COMMAND OPTIONS..
    name=$1 limit=$2
    shift 2
    if ! "$here/mpbench" "$1" --help >/dev/null 2>&1; then
        lacking "$name" "this mpbench has no command $1"
        return
    fi
    step "$name" "$limit" "$here/mpbench" "$@" --json "$results/$name.json"
}

for lowering in memops kernel; do
    bench "loopback-$lowering" 30 loopback --gpu cuda --lowering "$lowering"
    bench "pingpong-threads-$lowering" 45 pingpong --gpu cuda --threads --lowering "$lowering"
done
bench pingpong-memops 45 pingpong --gpu cuda --lowering memops
# If the kernels of two processes wait, the processes share the GPU in time slices of milliseconds.
bench pingpong-kernel 45 pingpong --gpu cuda --lowering kernel --sizes 8,1Ki --iterations 200
bench post 30 post --gpu cuda
bench gds_poll_lat 30 gds_poll_lat --gpu cuda
bench gds_kernel_latency 30 gds_kernel_latency --gpu cuda
bench gds_sanity 30 gds_sanity --gpu cuda
bench soak 90 soak --gpu cuda
# Messages of mp and the verbs that carry them, which alternate in one run.
bench mp-pingpong 90 pingpong --gpu cuda --threads --layer both
bench mp-write_bw 90 write_bw --gpu cuda --layer both
bench mp-write_bw-stream 90 write_bw --gpu cuda --layer both --threads --poster stream
bench mp-post 60 post --gpu cuda --layer both
# Messages beside one-sided operations, which alternate in one run.
ops=send,put,get,put-signal
bench latency 90 latency --gpu cuda --threads --op $ops --poster stream,cpu -m 8:1Mi -i 200 -x 5
bench bandwidth 90 bandwidth --gpu cuda --threads --op $ops --poster stream,cpu -m 4Ki:1Mi -i 10 -W 16
bench bibw 90 bibw --gpu cuda --threads --op $ops --poster stream,cpu -m 4Ki:1Mi -i 10 -W 16
bench messages-random-nic 90 messages --gpu cuda --threads --messages 20000 -d D
MP_PATH=ipc
bench latency-ipc 60 latency --gpu cuda --threads --poster stream -m 8:1Mi -i 200 -x 5 -d D
bench messages-random 90 messages --gpu cuda --threads --messages 1000000 -d D
MP_PATH=nic
bench rate 60 rate --gpu cuda --threads --op $ops --poster stream,cpu -m 8:8 -i 100
bench pingpong_all 45 pingpong_all --gpu cuda --threads -n 3
bench producer_consumer 45 producer_consumer --gpu cuda --threads
bench neighbours 60 neighbours --gpu cuda --threads

# --- the sanitizer ------------------------------------------------------------------------

sanitizer=$(command -v compute-sanitizer ||
    ls /usr/local/cuda*/bin/compute-sanitizer /opt/cuda/bin/compute-sanitizer 2>/dev/null | head -n 1)

# sanitize TOOL SECONDS FILTER..: runs one lap of each program, and the kernels alone. Errors of
# CUDA calls are not counted: the library makes some calls to detect what the driver supports.
sanitize() {
    tool=$1 limit=$2
    shift 2
    if [ -z "$sanitizer" ]; then
        lacking "$tool" "compute-sanitizer is not on the PATH"
        return
    fi
    GDS_LAPS=1
    export GDS_LAPS
    step "$tool" "$limit" "$sanitizer" --tool "$tool" --report-api-errors no --error-exitcode 99 \
        "$here/conformance" --color never "$@"
    unset GDS_LAPS
    grep 'SUMMARY' "$log" | tail -n 1 | tee -a "$summary"
    # An exit code of 0 proves nothing if the tool did not observe the run.
    if ! grep -q 'SUMMARY: 0 ' "$log"; then
        failed=$((failed + 1))
        say "$tool: no clean summary in the log"
    fi
}

# The skipped trials start processes, and the tool would observe only a part of them.
sanitize memcheck 90 'cuda ' --skip killed --skip 'waiting streams' --skip 'two processes'
sanitize racecheck 60 'cuda ' --skip killed --skip 'waiting streams' --skip 'full stream' \
    --skip 'two processes'
sanitize synccheck 60 'cuda kernel'

# --- the end ------------------------------------------------------------------------------

say ""
if [ "$failed" -eq 0 ]; then
    say "all $number steps passed"
else
    say "$failed of $number steps failed; logs in $results"
    exit 1
fi
