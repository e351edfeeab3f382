//! Observation that needs libraries of the vendor, by stand-ins: the timeline of CUDA's streams, and
//! the ranges of NVTX. And the spans of `tracing`.

#[path = "../../libgdsync/tests/standin/mod.rs"]
mod standin;

use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gdsync::gpu::MemoryKind;
use gdsync::rdma::Device;
use gdsync::{Gpu, Stream};
use mp::Context;
use mp::bootstrap::Local;
use serde_json::Value;
use standin::{Variant, child, inside};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

const LIMIT: Duration = Duration::from_secs(60);

/// A context of one rank, which sends itself a message on a stream and waits for it.
fn message(gpu: &Gpu, set: impl FnOnce(mp::Builder) -> mp::Builder) -> (Context, Stream) {
    let builder = Context::builder()
        .bootstrap(Local::ranks(1).remove(0))
        .gpu(gpu);
    let builder = builder.device(&Device::emulated(gpu).unwrap());
    let ctx = set(builder).build().unwrap();
    let stream = gpu.stream().unwrap();
    let memory = ctx.alloc(MemoryKind::Device, 64).unwrap();
    let recv = ctx
        .irecv_on(&stream, 0, 7, &memory.slice(0, 8).unwrap())
        .unwrap();
    let send = ctx
        .isend_on(&stream, 0, 7, &memory.slice(32, 8).unwrap())
        .unwrap();
    recv.wait_on(&stream).unwrap();
    send.wait_on(&stream).unwrap();
    ctx.synchronize(&stream, LIMIT).unwrap();
    (ctx, stream)
}

#[test]
fn timeline_of_cuda_has_the_times_of_events() {
    inside!(Variant::default());
    let file = std::env::temp_dir().join(format!("mp-trace-cuda-{}.json", std::process::id()));
    let (ctx, _stream) = message(&Gpu::cuda(0).unwrap(), |b| b.trace(&file));
    ctx.close(LIMIT).unwrap();
    let file = file.with_extension("0.json");
    let timeline: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let _ = std::fs::remove_file(file);
    let events = timeline["traceEvents"].as_array().unwrap();
    let of_stream = |e: &&Value| e["ph"] == "X" && e["tid"].as_u64().unwrap() >= 1000;
    let streams: Vec<&Value> = events.iter().filter(of_stream).collect();
    let named = |name: &str| streams.iter().filter(|e| e["name"] == name).count();
    assert!(
        named("isend_on") >= 1 && named("wait_on") >= 1,
        "{streams:#?}"
    );
    let call = |e: &&Value| e["ph"] == "X" && e["name"] == "isend_on" && e["tid"] == 0;
    let posted = events.iter().find(call).unwrap()["ts"].as_f64().unwrap();
    for shown in streams {
        let (at, dur) = (
            shown["ts"].as_f64().unwrap(),
            shown["dur"].as_f64().unwrap(),
        );
        assert!(dur >= 0.0 && at >= posted && at < posted + 60e6, "{shown}");
    }
}

/// Counts the ranges, and ends the process if a pop has no push.
const NVTX: &str = r#"
#include <stdio.h>
#include <stdlib.h>
static __thread int depth;
int nvtxRangePushA(const char* name) {
    FILE* file = fopen(getenv("NVTX_RECORD"), "a");
    fprintf(file, "%d %s\n", depth, name);
    fclose(file);
    return depth++;
}
int nvtxRangePop(void) {
    if (depth == 0) abort();
    return --depth;
}
"#;

#[test]
fn calls_are_ranges_of_nvtx_where_the_library_is() {
    const CHILD: &str = "NVTX_CHILD";
    let name = child::test_name!();
    if child::is(CHILD, name) {
        let (ctx, _stream) = message(&Gpu::soft().unwrap(), |b| b);
        ctx.close(LIMIT).unwrap();
        return;
    }
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let at = |end: &str| folder.join(format!("nvtx-{}.{end}", std::process::id()));
    let [source, library, record] = ["c", "so", "txt"].map(at);
    std::fs::write(&source, NVTX).unwrap();
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let mut compile = Command::new(cc);
    compile
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source]);
    assert!(compile.status().unwrap().success());
    child::run(CHILD, name, |command| {
        command
            .env("GDS_NVTX_LIB", &library)
            .env("NVTX_RECORD", &record);
    });
    let found = std::fs::read_to_string(&record).unwrap();
    for file in [source, library, record] {
        let _ = std::fs::remove_file(file);
    }
    let calls = [
        "irecv_on",
        "isend_on",
        "wait_on",
        "wait_on",
        "synchronize",
        "close",
    ];
    let expected: String = calls.iter().map(|call| format!("0 {call}\n")).collect();
    assert_eq!(found, expected);
}

/// Keeps the spans of `mp::call` as text, with those that are entered.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<(Vec<String>, i32)>>);

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!(" {}={value:?}", field.name());
    }
}

impl Subscriber for Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "mp::call"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields(span.metadata().name().to_owned());
        span.record(&mut fields);
        let spans = &mut self.0.lock().unwrap().0;
        spans.push(fields.0);
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {
        self.0.lock().unwrap().1 += 1;
    }

    fn exit(&self, _: &Id) {
        self.0.lock().unwrap().1 -= 1;
    }
}

#[test]
fn calls_are_spans_of_tracing() {
    let spans = Spans::default();
    let stream = tracing::subscriber::with_default(spans.clone(), || {
        let (ctx, stream) = message(&Gpu::soft().unwrap(), |b| b);
        ctx.close(LIMIT).unwrap();
        stream.id()
    });
    let (spans, entered) = &*spans.0.lock().unwrap();
    assert_eq!(*entered, 0, "each span that was entered was left");
    let on =
        |name: &str| format!("call name=\"{name}\" rank=0 peer=0 tag=7 bytes=8 stream={stream}");
    let first: Vec<String> = ["irecv_on", "isend_on", "wait_on", "wait_on"]
        .map(on)
        .into();
    assert_eq!(spans[..4], first, "{spans:#?}");
    assert_eq!(spans.len(), 6, "{spans:#?}");
}
