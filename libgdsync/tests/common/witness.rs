//! The kernel that records the words that it reads, `tests/kernels/witness.cpp`.

use std::ffi::c_void;

use gdsync::Status;
use gdsync::gpu::{DevicePtr, Dims, Kernel, MemoryKind, Region, Stream};
use gdsync::rdma::{Completion, Qp};

unsafe extern "C" {
    fn gds_test_witness(params: *const c_void);
}

/// The kernel's parameters.
#[repr(C)]
struct Params {
    error: u64,
    status: u64,
    saw: u64,
}

/// The words that the kernel read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The queue pair's error word.
    pub error: Status,
    /// The request's status word.
    pub status: Status,
}

/// The kernel.
pub fn kernel() -> Kernel {
    // SAFETY: defined by GDS_KERNEL in tests/kernels/witness.cpp with these parameters.
    Kernel::soft(unsafe {
        softgpu::Kernel::new("gds_test_witness", gds_test_witness, size_of::<Params>())
    })
}

/// Memory for the record of one run of the kernel.
pub struct Witness {
    saw: Region,
}

impl Witness {
    /// Enqueues the kernel: it reads the error word of `qp` and the status of `request`.
    pub fn launch(stream: &Stream, qp: &Qp, request: impl Into<Completion>) -> Witness {
        let saw = stream.gpu().alloc(MemoryKind::Device, 64).unwrap();
        let DevicePtr(error) = qp.error_word();
        let DevicePtr(status) = qp.status_word(request).unwrap();
        let params = Params {
            error,
            status,
            saw: saw.addr().0,
        };
        let args = [params.error, params.status, params.saw];
        // SAFETY: the pointers are words of the queue pair, which the caller keeps until the
        // stream is done, and of `saw`, which this value keeps.
        unsafe { stream.launch(&kernel(), Dims::linear(1, 32), &args) }.unwrap();
        Witness { saw }
    }

    /// The record; the stream must have run the kernel.
    pub fn seen(&self) -> Seen {
        let mut words = [0; 12];
        self.saw.read(0, &mut words).unwrap();
        let word = |i: usize| u32::from_le_bytes(words[4 * i..][..4].try_into().unwrap());
        assert_eq!(word(2), 1, "the kernel did not run");
        Seen {
            error: Status(word(0)),
            status: Status(word(1)),
        }
    }
}
