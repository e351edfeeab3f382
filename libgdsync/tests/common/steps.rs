//! The steps of tests: requests prepared and posted at once, lists for a stream, bytes and words of
//! memory, and gates that hold streams.

use gdsync::gpu::{Condition, MemoryKind, Region, Stream, Word32, Word64};
use gdsync::rdma::{Descriptor, Mr, Pd, Qp, QpConfig, ReceiveRequest, SendRequest, Sge, Work};
use gdsync::{Error, Gpu, Kind};

/// Requests of a queue pair.
pub trait Steps {
    /// A receive, prepared and posted by the CPU.
    fn receive(&mut self, list: &[Sge<'_>]) -> ReceiveRequest;
    /// A receive, prepared as soon as there is room for one.
    fn receive_within(&mut self, list: &[Sge<'_>]) -> ReceiveRequest;
    /// A request that raises a completion, prepared.
    fn signaled(&mut self, work: &Work<'_>) -> SendRequest;
    /// A request that raises a completion, prepared and posted by the CPU.
    fn start(&mut self, work: &Work<'_>) -> SendRequest;
    /// As [`Steps::start`], and waited for.
    fn complete(&mut self, work: &Work<'_>);
    /// A request that a stream rings for and waits for.
    fn start_on(&mut self, stream: &Stream, work: &Work<'_>) -> SendRequest;
    /// A receive that a stream posts and waits for.
    fn receive_on(&mut self, stream: &Stream, list: &[Sge<'_>]) -> ReceiveRequest;
}

impl Steps for Qp {
    #[track_caller]
    fn receive(&mut self, list: &[Sge<'_>]) -> ReceiveRequest {
        let recv = self.prepare_receive(list).unwrap();
        self.post_receive(recv).unwrap();
        recv
    }

    #[track_caller]
    fn receive_within(&mut self, list: &[Sge<'_>]) -> ReceiveRequest {
        let (gpu, mut recv) = (self.device().gpu().clone(), None);
        super::until(&gpu, "room for a receive", || {
            recv = self.prepare_receive(list).ok();
            recv.is_some()
        });
        recv.unwrap()
    }

    #[track_caller]
    fn signaled(&mut self, work: &Work<'_>) -> SendRequest {
        self.prepare(&work.signaled()).unwrap()
    }

    #[track_caller]
    fn start(&mut self, work: &Work<'_>) -> SendRequest {
        let send = self.signaled(work);
        self.post(send).unwrap();
        send
    }

    #[track_caller]
    fn complete(&mut self, work: &Work<'_>) {
        let send = self.start(work);
        self.wait(send, super::LIMIT).unwrap();
    }

    #[track_caller]
    fn start_on(&mut self, stream: &Stream, work: &Work<'_>) -> SendRequest {
        let send = self.signaled(work);
        self.post_on(stream, &send_and_wait(send)).unwrap();
        send
    }

    #[track_caller]
    fn receive_on(&mut self, stream: &Stream, list: &[Sge<'_>]) -> ReceiveRequest {
        let recv = self.prepare_receive(list).unwrap();
        self.post_on(stream, &receive_and_wait(recv)).unwrap();
        recv
    }
}

/// The content of memory.
pub trait Bytes {
    /// `N` bytes at `at`.
    fn bytes<const N: usize>(&self, at: usize) -> [u8; N];
    /// `len` bytes at `at`.
    fn vec(&self, at: usize, len: usize) -> Vec<u8>;
}

impl Bytes for Region {
    #[track_caller]
    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        self.vec(at, N).try_into().unwrap()
    }

    #[track_caller]
    fn vec(&self, at: usize, len: usize) -> Vec<u8> {
        // No byte of the buffer has its expected value by chance.
        let mut got = vec![0xa5; len];
        self.read(at, &mut got).unwrap();
        got
    }
}

/// Words of a GPU.
pub trait Words {
    /// A pinned word that is 0.
    fn word(&self) -> Word32;
}

impl Words for Gpu {
    fn word(&self) -> Word32 {
        let region = self.alloc(MemoryKind::Pinned, 64).unwrap();
        region.word32(0).unwrap()
    }
}

/// Waits until `word` is at least `value`.
pub fn geq(word: &Word32, value: u32) -> Descriptor<'_> {
    Descriptor::wait_value(word, Condition::Geq, value)
}

/// Writes `value` to `word`.
pub fn write32(word: &Word32, value: u32) -> Descriptor<'_> {
    Descriptor::write_value(word, value)
}

/// Writes `value` to `word`.
pub fn write64(word: &Word64, value: u64) -> Descriptor<'_> {
    Descriptor::write_value(word, value)
}

/// Rings for a request and waits for it.
pub fn send_and_wait<'a>(send: SendRequest) -> [Descriptor<'a>; 2] {
    [Descriptor::Send(send), Descriptor::wait(send)]
}

/// Posts a receive and waits for it.
pub fn receive_and_wait<'a>(recv: ReceiveRequest) -> [Descriptor<'a>; 2] {
    [Descriptor::Receive(recv), Descriptor::wait(recv)]
}

/// Two queue pairs of a domain, connected to each other.
#[track_caller]
pub fn joined(pd: &Pd, config: &QpConfig) -> (Qp, Qp) {
    let [mut a, mut b] = [(); 2].map(|()| pd.create_qp(config).unwrap());
    connect(&mut a, &mut b);
    (a, b)
}

/// Connects two queue pairs to each other.
#[track_caller]
pub fn connect(a: &mut Qp, b: &mut Qp) {
    a.connect(&b.address()).unwrap();
    b.connect(&a.address()).unwrap();
}

/// A piece of a registration.
pub fn sge(mr: &Mr, offset: u64, len: u32) -> Sge<'_> {
    mr.sge(offset, len)
}

/// A word that stalls streams until it is opened.
pub struct Gate(pub Word32);

impl Gate {
    /// A closed gate.
    pub fn new(gpu: &Gpu) -> Gate {
        Gate(gpu.word())
    }

    /// Stalls a stream until the gate is opened.
    pub fn wait(&self) -> Descriptor<'_> {
        self.wait_for(1)
    }

    /// Stalls a stream until the gate is opened to `value`.
    pub fn wait_for(&self, value: u32) -> Descriptor<'_> {
        geq(&self.0, value)
    }

    /// Stalls a stream, then rings for a request and waits for it.
    pub fn before(&self, send: SendRequest) -> [Descriptor<'_>; 3] {
        [self.wait(), Descriptor::Send(send), Descriptor::wait(send)]
    }

    /// Lets all streams pass.
    pub fn open(&self) {
        self.open_to(1);
    }

    /// Releases the streams that wait for this value or less.
    pub fn open_to(&self, value: u32) {
        self.0.store(value).unwrap();
    }
}

/// A word that a stream sets when it reaches the write.
pub struct Flag(Word32);

impl Flag {
    /// A flag that is not set.
    pub fn new(gpu: &Gpu) -> Flag {
        Flag(gpu.word())
    }

    /// The operation that sets the flag.
    pub fn set(&self) -> Descriptor<'_> {
        write32(&self.0, 1)
    }

    /// Rings for a request, waits for it and sets the flag.
    pub fn behind(&self, send: SendRequest) -> [Descriptor<'_>; 3] {
        [Descriptor::Send(send), Descriptor::wait(send), self.set()]
    }

    /// Whether the flag is set.
    pub fn is_set(&self) -> bool {
        self.0.load().unwrap() == 1
    }
}

/// Makes objects until the call is refused; returns the objects and the refusal.
#[track_caller]
pub fn fill<T>(mut make: impl FnMut() -> Result<T, Error>) -> (Vec<T>, Error) {
    let mut all = Vec::new();
    loop {
        match make() {
            Ok(one) => all.push(one),
            Err(e) => return (all, e),
        }
        assert!(all.len() < 100_000, "never refused");
    }
}

/// The kind of a call's error, if it failed.
pub fn kind<T>(result: Result<T, Error>) -> Option<Kind> {
    result.err().map(|e| e.kind())
}

/// Asserts that a call is refused: with this kind and limit, and with these names in its text.
#[track_caller]
pub fn refused<T>(result: Result<T, Error>, kind: Kind, limit: Option<u64>, names: &[&str]) {
    let Err(error) = result else {
        panic!("accepted, where {kind:?} was expected");
    };
    assert_eq!(error.kind(), kind, "{error:?}");
    assert_eq!(error.limit(), limit, "{error:?}");
    let text = error.to_string();
    for name in names {
        assert!(text.contains(name), "{text:?} does not name {name:?}");
    }
    assert!(!error.operation().is_empty() && !error.reason().is_empty());
}

/// Asserts that all these calls are refused with one kind, limit and text.
macro_rules! all_refused {
    ($kind:expr, $limit:expr, $names:expr; $($call:expr),+ $(,)?) => {
        $(crate::common::refused($call, $kind, $limit, $names);)+
    };
}
pub(crate) use all_refused;

/// A test for each line: its name and its body.
macro_rules! plain_cases {
    ($($(#[$doc:meta])* $name:ident => $body:expr;)*) => {$(
        $(#[$doc])*
        #[test]
        fn $name() {
            $body;
        }
    )*};
}
pub(crate) use plain_cases;
