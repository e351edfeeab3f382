# Common functions of the scripts here, sourced from the repository's root with a script's own
# arguments: the build, programs that run as a pair or alone, and a line for each with its time.
# Needs perftest, ibverbs-utils and gcc. `options` are those of `vmlx5 run`, and `faults` are the
# faults of frames and ports at both ends of a pair.
# shellcheck shell=bash

build=${1:-}
if [ -z "$build" ]; then
    cargo build --release -q -p vmlx5-preload -p vmlx5-cli || exit 1
    build=${CARGO_TARGET_DIR:-target}/release
fi
vmlx5=$(realpath "$build/vmlx5") || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
export VMLX5_DIR=
failed=0 count=0 faults=

for tool in ibv_devinfo ib_write_bw cc; do
    command -v $tool >/dev/null || { echo "$tool is not installed: ibverbs-utils, perftest, gcc"; exit 1; }
done

say() { # status, what, since, file...
    local status=$1 what=$2 since=$3; shift 3
    count=$((count + 1))
    local took=$(( ($(date +%s%N) - since) / 1000000 ))
    if [ "$status" = ok ]; then
        printf '%6d ms  ok      %s\n' $took "$what"
    else
        failed=$((failed + 1))
        printf '%6d ms  FAILED  %s: %s\n' $took "$what" "$status"
        for file in "$@"; do echo "--- ${file##*/}"; tail -n 15 "$file"; done
    fi
}

# A port below those that the kernel gives to clients (32768 and above). Pairs run one after the
# other, so there are enough ports.
port=$((20000 + RANDOM % 12000))

listens() { # port: whether a process listens on it
    local hex; hex=$(printf ':%04X ' "$1")
    grep -q "$hex.* 0A " /proc/net/tcp /proc/net/tcp6 2>/dev/null
}

# Starts "$@" as a server with its output in $work/server, and waits until it listens.
serve() {
    port=$((port + 1))
    "$vmlx5" run "${options[@]}" -- timeout 60 "$@" -p $port >"$work/server" 2>&1 &
    server=$!
    for _ in $(seq 400); do
        listens $port && return
        kill -0 $server 2>/dev/null || return
        sleep 0.02
    done
}

# Builds programs of emulator/programs into $work.
compile() {
    local program
    for program in "$@"; do
        cc -O2 -Wall -Wextra -Werror -std=gnu11 -o "$work/$program" \
            emulator/programs/$program.c -libverbs -lmlx5 || exit 1
    done
}

pair() { # program and arguments
    local since; since=$(date +%s%N)
    options=(--fabric "ci-$$-$count" --link "$link" --uar "$uar" ${faults:+--faults "$faults"})
    serve "$@"
    "$vmlx5" run "${options[@]}" -- timeout 60 "$@" -p $port localhost >"$work/client" 2>&1
    local client=$?
    wait $server
    local server=$?
    local status=ok
    [ $server = 0 ] && [ $client = 0 ] || status="server $server, client $client"
    say "$status" "$link $uar: $*${faults:+ ($faults)}" "$since" "$work/server" "$work/client"
}

single() { # what, expected status, command
    local since; since=$(date +%s%N)
    local what=$1 expected=$2; shift 2
    timeout 60 "$@" >"$work/output" 2>&1
    local status=$?
    if [ $status = "$expected" ]; then status=ok; else status="exit status $status"; fi
    say "$status" "$what" "$since" "$work/output"
}

