//! The C interface of `include/gdsync_hip.h`, for C++ programs that use HIP: messages between two
//! buffers, on a stream of the program. It is an example of `Gpu::hip_stream_owned` and
//! `Gpu::adopt_owned`, and a start for the interface that a program needs.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use gdsync::gpu::DevicePtr;
use gdsync::rdma::{Access, Descriptor, Device, Mr, Pd, Qp, QpConfig, Work, post_on};
use gdsync::{Gpu, Kind, Stream};

/// Time limit for the messages of a pair.
const LIMIT: Duration = Duration::from_secs(20);

type Failed = Box<dyn std::error::Error>;

/// A `gdsync_hip_pair`.
pub struct Pair {
    /// `None` after the stream has executed all messages, or is lost.
    open: Option<Open>,
    /// Disconnected when the library no longer uses the program's stream and buffers: it holds a
    /// sender with each of them.
    unused: Receiver<()>,
}

struct Open {
    stream: Stream,
    a: Qp,
    b: Qp,
    source: Mr,
    target: Mr,
    len: u32,
    _pd: Pd,
}

impl Open {
    /// # Safety
    /// Stream and buffers stay valid until `used` and its clones are dropped. No Rust reference to
    /// the buffers is used meanwhile.
    unsafe fn new(
        device: u32,
        stream: *mut c_void,
        buffers: [*mut c_void; 2],
        len: u32,
        used: Sender<()>,
    ) -> Result<Open, Failed> {
        let gpu = Gpu::hip(device)?;
        // SAFETY: the caller's promise.
        let stream = unsafe { gpu.hip_stream_owned(stream, Box::new(used.clone())) }?;
        let pd = Device::emulated(&gpu)?.alloc_pd()?;
        let register = |at: *mut c_void| {
            let used = Box::new(used.clone());
            // SAFETY: the caller's promise.
            let region = unsafe { gpu.adopt_owned(DevicePtr(at as u64), len as usize, used) }?;
            pd.register(&region, Access::ALL)
        };
        let [source, target] = [register(buffers[0])?, register(buffers[1])?];
        let config = QpConfig::default();
        let (mut a, mut b) = (pd.create_qp(&config)?, pd.create_qp(&config)?);
        a.connect(&b.address())?;
        b.connect(&a.address())?;
        Ok(Open {
            stream,
            a,
            b,
            source,
            target,
            len,
            _pd: pd,
        })
    }

    fn send(&mut self) -> Result<(), Failed> {
        let Open { stream, a, b, .. } = self;
        let receive = b.prepare_receive(&[self.target.sge(0, self.len)])?;
        let payload = [self.source.sge(0, self.len)];
        let send = match a.prepare(&Work::send(&payload).signaled()) {
            Ok(send) => send,
            Err(e) => {
                b.abort_receive(receive)?;
                return Err(e.into());
            }
        };
        let list = [
            Descriptor::Receive(receive),
            Descriptor::Send(send),
            Descriptor::wait(send),
            Descriptor::wait_flushed(receive),
        ];
        if let Err(e) = post_on(stream, &mut [a, b], &list) {
            // Refused if HIP has failed in the middle of the list: the queue pairs are in error.
            let _ = (a.abort(send), b.abort_receive(receive));
            return Err(e.into());
        }
        Ok(())
    }
}

impl Pair {
    /// # Safety
    /// As the header says.
    unsafe fn open(
        device: c_int,
        stream: *mut c_void,
        buffers: [*mut c_void; 2],
        len: usize,
    ) -> Result<Pair, Failed> {
        let device = device.try_into();
        let device = device.map_err(|_| "open pair: the number of the GPU is negative")?;
        if len == 0 || len > u32::MAX as usize {
            let what = format!(
                "open pair: messages have 1 to {} bytes, not {len}",
                u32::MAX
            );
            return Err(what.into());
        }
        let (used, unused) = channel();
        let mut pair = Pair { open: None, unused };
        // SAFETY: the caller keeps them until `close` succeeds, or until this function has failed.
        match unsafe { Open::new(device, stream, buffers, len as u32, used) } {
            Ok(open) => pair.open = Some(open),
            Err(e) => {
                // The library drops what it has made in the background.
                return Err(match pair.close() {
                    Ok(()) => e,
                    Err(more) => format!("{e}; {more}").into(),
                });
            }
        }
        Ok(pair)
    }

    fn send(&mut self) -> Result<(), Failed> {
        let open = self.open.as_mut();
        open.ok_or("send: the pair is closed, but stream or buffers are in use")?
            .send()
    }

    /// Waits until the stream has executed all messages and the library uses nothing of the
    /// program's.
    fn close(&mut self) -> Result<(), Failed> {
        if let Some(open) = &self.open {
            match open.stream.synchronize(LIMIT) {
                Ok(true) => {}
                // A lost GPU executes nothing more.
                Err(e) if e.kind() == Kind::DeviceLost => {}
                Ok(false) => {
                    let what = format!("close: messages are not executed (limit {LIMIT:?})");
                    return Err(what.into());
                }
                Err(e) => return Err(e.into()),
            }
        }
        self.open = None;
        match self.unused.recv_timeout(LIMIT) {
            Err(RecvTimeoutError::Disconnected) => Ok(()),
            _ => Err(format!("close: stream or buffers are in use (limit {LIMIT:?})").into()),
        }
    }
}

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
}

/// 0, or -1 and the error in `ERROR`.
fn code(result: Result<(), Failed>) -> c_int {
    let Err(e) = result else {
        return 0;
    };
    let text = CString::new(e.to_string().replace('\0', " ")).unwrap_or_default();
    ERROR.set(text);
    -1
}

/// `gdsync_hip_open`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_hip_open(
    device: c_int,
    stream: *mut c_void,
    from: *mut c_void,
    to: *mut c_void,
    len: usize,
    out: *mut *mut Pair,
) -> c_int {
    let open = || -> Result<(), Failed> {
        // SAFETY: the caller's promise.
        let pair = unsafe { Pair::open(device, stream, [from, to], len) }?;
        // SAFETY: the caller passes a place for the pointer.
        unsafe { out.write(Box::into_raw(Box::new(pair))) };
        Ok(())
    };
    code(open())
}

/// `gdsync_hip_send`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_hip_send(pair: *mut Pair) -> c_int {
    // SAFETY: `gdsync_hip_open` made it, and no other thread uses it.
    code(unsafe { (*pair).send() })
}

/// `gdsync_hip_close`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdsync_hip_close(pair: *mut Pair) -> c_int {
    if pair.is_null() {
        return 0;
    }
    // SAFETY: `gdsync_hip_open` made it, and no other thread uses it.
    let closed = unsafe { (*pair).close() };
    if closed.is_ok() {
        // SAFETY: as above; the caller no longer uses it.
        drop(unsafe { Box::from_raw(pair) });
    }
    code(closed)
}

/// `gdsync_hip_error`.
#[unsafe(no_mangle)]
pub extern "C" fn gdsync_hip_error() -> *const c_char {
    ERROR.with_borrow(|text| text.as_ptr())
}
