//! Streams of the application on CUDA, by a stand-in for libcuda: the state that the library keeps
//! of a stream after the application has dropped its handles and destroyed it.

#[path = "../../libgdsync/tests/common/application.rs"]
mod application;
#[path = "../../libgdsync/tests/standin/mod.rs"]
mod standin;

use std::time::Duration;

use application::{driver, make_current, ok, retained};
use gdsync::Gpu;
use gdsync::gpu::{Condition, MemoryKind, Stream};
use gdsync::rdma::Device;
use gdsync_sys::cuda::consts;
use gdsync_sys::cuda::types::CUstream;
use mp::bootstrap::Local;
use mp::{Context, Memory, Progress, Request, SendOp, Source};
use standin::{Control, Variant, inside};

const LIMIT: Duration = Duration::from_secs(60);
/// More than the eager limit.
const LARGE: usize = 64 << 10;

/// Two ranks on one GPU; the test does their background work.
struct Rig {
    ranks: [Context; 2],
    memory: [Memory; 2],
}

impl Rig {
    fn new() -> Rig {
        let gpu = Gpu::cuda(0).unwrap();
        make_current(retained());
        let mut ranks = Local::ranks(2).into_iter().map(|bootstrap| {
            let builder = Context::builder().bootstrap(bootstrap).gpu(&gpu);
            let builder = builder.device(&Device::emulated(&gpu).unwrap());
            builder.progress(Progress::Manual).build().unwrap()
        });
        let ranks = [ranks.next().unwrap(), ranks.next().unwrap()];
        let memory = [&ranks[0], &ranks[1]].map(|c| c.alloc(MemoryKind::Pinned, LARGE).unwrap());
        Rig { ranks, memory }
    }

    fn progress(&self) {
        for ctx in &self.ranks {
            ctx.progress();
        }
    }

    /// Runs `body` beside the background work of both ranks.
    fn with_progress<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let body = scope.spawn(|| {
                make_current(retained());
                body()
            });
            while !body.is_finished() {
                self.progress();
            }
            body.join().unwrap()
        })
    }

    /// A stream of the application, and the library's handle on it.
    fn stream(&self) -> (CUstream, Stream) {
        let mut raw = std::ptr::null_mut();
        // SAFETY: makes a stream of the current context.
        ok(unsafe { (driver().cuStreamCreate)(&mut raw, consts::CU_STREAM_NON_BLOCKING) });
        // SAFETY: a live stream, destroyed by `Rig::finish` after its handles.
        (
            raw,
            unsafe { self.ranks[0].gpu().cuda_stream(raw.cast()) }.unwrap(),
        )
    }

    /// Follows the contract of `Gpu::cuda_stream`: synchronise, drop all handles, destroy; then the
    /// background work continues.
    fn finish(&self, raw: CUstream, stream: Stream, requests: Vec<Request>) {
        let done = self.with_progress(|| stream.synchronize(LIMIT).unwrap());
        assert!(done);
        drop(requests);
        drop(stream);
        // SAFETY: its handles are gone.
        ok(unsafe { (driver().cuStreamDestroy_v2)(raw) });
        for _ in 0..100 {
            self.progress();
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Work that is enqueued on a stream of rank 0.
#[derive(Clone, Copy, Debug)]
enum Work {
    Send(usize),
    /// Source, length, and whether the stream waits for the receive (else the request is dropped).
    Receive(Source, usize, bool),
    PreparedSend,
}

const WORK: [Work; 9] = [
    Work::Send(64),
    Work::Send(LARGE),
    Work::Receive(Source::Rank(1), 64, true),
    Work::Receive(Source::Rank(1), LARGE, true),
    Work::Receive(Source::Rank(1), 64, false),
    Work::Receive(Source::Rank(1), LARGE, false),
    Work::Receive(Source::Any, 64, true),
    Work::Receive(Source::Any, 64, false),
    Work::PreparedSend,
];

/// Enqueues the work, and the matching work of rank 1; returns the requests.
fn enqueue(rig: &Rig, stream: &Stream, work: Work) -> Vec<Request> {
    let [a, b] = &rig.ranks;
    let slices = |len| [0, 1].map(|rank| rig.memory[rank].slice(0, len).unwrap());
    rig.with_progress(|| match work {
        Work::Send(len) => {
            let [from, into] = slices(len);
            let receive = b.irecv(0, 1, &into).unwrap();
            vec![receive, a.isend_on(stream, 1, 1, &from).unwrap()]
        }
        Work::Receive(source, len, waits) => {
            let [into, data] = slices(len);
            let receive = a.irecv_on(stream, source, 1, &into).unwrap();
            let send = b.isend(0, 1, &data).unwrap();
            if waits {
                receive.wait_on(stream).unwrap();
            }
            vec![receive, send]
        }
        Work::PreparedSend => {
            let [from, _] = slices(64);
            let send = SendOp::new(1, 1, std::slice::from_ref(&from)).on(stream);
            vec![a.prepare_send(&send).unwrap()]
        }
    })
}

#[test]
fn destroyed_stream_is_never_passed_to_the_driver() {
    inside!(Variant::default());
    let control = Control::open();
    let mut wrong = Vec::new();
    for work in WORK {
        let rig = Rig::new();
        let (raw, stream) = rig.stream();
        let requests = enqueue(&rig, &stream, work);
        rig.finish(raw, stream, requests);
        drop(rig);
        for stray in control.strays() {
            wrong.push(format!("{work:?}: {stray}"));
        }
    }
    assert_eq!(wrong, [""; 0]);
}

/// A call of rank 0 that enqueues on a stream; `Ok` if it succeeded.
type Call = fn(&Rig, &Stream) -> mp::Result<()>;

fn on_stream(rig: &Rig, stream: &Stream, len: usize) -> mp::Result<()> {
    let from = rig.memory[0].slice(0, len)?;
    rig.ranks[0].isend_on(stream, 1, 7, &from).map(drop)
}

fn received(rig: &Rig, stream: &Stream, from: Source, len: usize) -> mp::Result<()> {
    let into = rig.memory[0].slice(0, len)?;
    rig.ranks[0].irecv_on(stream, from, 8, &into).map(drop)
}

/// Waits on `stream` for a receive that the CPU or another stream posted.
fn waited(rig: &Rig, stream: &Stream, len: usize, poster: Option<&Stream>) -> mp::Result<()> {
    let into = rig.memory[0].slice(0, len)?;
    let request = match poster {
        None => rig.ranks[0].irecv(1, 9, &into)?,
        Some(poster) => rig.ranks[0].irecv_on(poster, 1, 9, &into)?,
    };
    let waited = request.wait_on(stream);
    request.cancel().ok();
    let data = rig.memory[1].slice(0, len)?;
    if request.test().is_ok() {
        // Not cancelled: its message arrives.
        let send = rig.ranks[1].isend(0, 9, &data)?;
        request.wait(LIMIT)?;
        send.wait(LIMIT)?;
    }
    waited
}

const CALLS: &[(&str, Call)] = &[
    ("isend_on to itself, short", |rig, stream| {
        let from = rig.memory[0].slice(0, 64)?;
        rig.ranks[0].isend_on(stream, 0, 7, &from).map(drop)
    }),
    ("isend_on to itself, long", |rig, stream| {
        let from = rig.memory[0].slice(0, LARGE)?;
        rig.ranks[0].isend_on(stream, 0, 7, &from).map(drop)
    }),
    ("isend_on, short", |rig, stream| on_stream(rig, stream, 64)),
    ("isend_on, long", |rig, stream| {
        on_stream(rig, stream, LARGE)
    }),
    ("isend_on, its length in a word", |rig, stream| {
        let from = rig.memory[0].slice(0, 64)?;
        let word = rig.memory[0].region().word64(1024)?;
        word.store(8)?;
        let size = mp::SizeSource::Word {
            len: &word,
            offset: None,
        };
        let send = SendOp::new(1, 7, std::slice::from_ref(&from));
        rig.ranks[0]
            .post_send(&send.size(size).on(stream))
            .map(drop)
    }),
    ("irecv_on, short", |rig, stream| {
        received(rig, stream, Source::Rank(1), 64)
    }),
    ("irecv_on, long", |rig, stream| {
        received(rig, stream, Source::Rank(1), LARGE)
    }),
    ("irecv_on from any rank", |rig, stream| {
        received(rig, stream, Source::Any, 64)
    }),
    ("wait_on of a short receive", |rig, stream| {
        waited(rig, stream, 64, None)
    }),
    ("wait_on of a long receive", |rig, stream| {
        waited(rig, stream, LARGE, None)
    }),
    ("wait_on of another stream's receive", |rig, stream| {
        let other = rig.ranks[0].gpu().stream()?;
        waited(rig, stream, 64, Some(&other))
    }),
    ("wait_on of a send by the CPU", |rig, stream| {
        let from = rig.memory[0].slice(0, 64)?;
        let request = rig.ranks[0].isend(1, 7, &from)?;
        let waited = request.wait_on(stream);
        request.wait(LIMIT)?;
        waited
    }),
    ("wait_on of a send that has ended", |rig, stream| {
        let from = rig.memory[0].slice(0, 64)?;
        let request = rig.ranks[0].isend(1, 7, &from)?;
        request.wait(LIMIT)?;
        request.wait_on(stream)
    }),
    ("wait for a word", |rig, stream| {
        let word = rig.memory[0].slice(0, 8)?;
        rig.ranks[0].wait_value_on(stream, None, &word, Condition::Geq, 0)
    }),
    ("store of a word", |rig, stream| {
        let word = rig.memory[0].slice(0, 4)?;
        rig.ranks[0].write_value_on(stream, &word, 1)
    }),
    ("wait for a ready word", |rig, stream| {
        rig.ranks[0].wait_ready_on(stream, 1)
    }),
    ("ready word", |rig, stream| {
        rig.ranks[0].send_ready_on(stream, 1)
    }),
];

/// Every call of messages on a stream that is being captured, short and long, is refused. Nothing
/// is added to the graph, and the peers are unchanged.
#[test]
fn captured_streams_are_refused() {
    inside!(Variant::default());
    let rig = Rig::new();
    let (raw, stream) = rig.stream();
    let cuda = driver();
    // All connections are open and used.
    drop(enqueue(&rig, &stream, Work::Send(64)));
    let mut wrong = Vec::new();
    for (what, call) in CALLS {
        // SAFETY: a live stream of the current context.
        let began = unsafe { (cuda.cuStreamBeginCapture_v2)(raw, 2) };
        assert!(began.is_success());
        match rig.with_progress(|| call(&rig, &stream)) {
            Ok(()) => wrong.push(format!("{what} was not refused")),
            Err(e) if e.kind() != mp::Kind::Unsupported => wrong.push(format!("{what}: {e:?}")),
            Err(_) => {}
        }
        let mut graph: *mut u64 = std::ptr::null_mut();
        // SAFETY: the capture begun above; a graph of the stand-in is the number of its commands.
        let held = unsafe {
            ok((cuda.cuStreamEndCapture)(raw, (&raw mut graph).cast()));
            *graph
        };
        if held != 0 {
            wrong.push(format!("{what}: {held} commands are in the graph"));
        }
    }
    assert_eq!(wrong, [""; 0]);
    rig.finish(raw, stream, Vec::new());
}
