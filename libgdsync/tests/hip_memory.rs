//! Memory on HIP, by a stand-in for libamdhip64: coarse-grained memory has no words, memory of the
//! process and of another one is opened by IPC handles, and frees wait until streams are idle.

mod common;
mod standin;

use std::ffi::c_void;

use common::*;
use gdsync::gpu::{Condition, DevicePtr};
use gdsync_sys::hip::{Hip, HipResult, consts};
use standin::{Control, Driver, HIP_LIBRARY, Variant, inside, until};

fn hip() -> &'static Hip {
    Hip::get().unwrap()
}

/// Memory of the application, 16 KiB: fine-grained, or coarse-grained as `hipMalloc` makes it.
fn of_application(fine: bool) -> DevicePtr {
    let mut at: *mut c_void = std::ptr::null_mut();
    let flags = consts::hipDeviceMallocFinegrained;
    // SAFETY: stores an address.
    let made = unsafe {
        match fine {
            true => (hip().hipExtMallocWithFlags)(&mut at, 16384, flags),
            false => (hip().hipMalloc)(&mut at, 16384),
        }
    };
    assert_eq!(made, HipResult::SUCCESS);
    DevicePtr(at as u64)
}

#[test]
fn coarse_grained_memory_has_no_words() {
    inside!(Variant::HIP6);
    let gpu = Gpu::hip(0).unwrap();
    let stream = gpu.stream().unwrap();
    for fine in [false, true] {
        // SAFETY: the memory is never freed.
        let region = unsafe { gpu.adopt(of_application(fine), 4096) }.unwrap();
        // Bytes of both kinds can be copied.
        region.write(0, &[7; 64]).unwrap();
        let span = region.span(0, 64).unwrap();
        stream.copy(&region.span(64, 64).unwrap(), &span).unwrap();
        let words = [region.word32(128).err(), region.word64(128).err()];
        for word in words {
            match fine {
                true => assert!(word.is_none(), "{word:?}"),
                false => {
                    let word = word.expect("coarse-grained");
                    assert_eq!(word.kind(), Kind::Unsupported);
                    let text = word.to_string();
                    assert!(
                        text.contains("coarse-grained") && text.contains("Gpu::alloc"),
                        "{text}"
                    );
                }
            }
        }
    }
    // Memory of the library has words.
    for kind in [MemoryKind::Device, MemoryKind::Pinned] {
        let word = gpu.alloc(kind, 64).unwrap().word32(0).unwrap();
        post_on(&stream, &mut [], &[write32(&word, 9)]).unwrap();
        until("the stream ends", || stream.is_idle().unwrap());
        assert_eq!(word.load().unwrap(), 9);
    }
}

/// HIP opens no handle in the process that made it; the library does.
#[test]
fn handles_open_in_the_same_process() {
    inside!(Variant::HIP6);
    let gpu = Gpu::hip(0).unwrap();
    let memory = gpu.alloc_exportable(8192).unwrap();
    memory.write(4096, b"payload").unwrap();
    let shared = memory.share().unwrap();
    // SAFETY: the memory stays until the other region is dropped.
    let same = unsafe { gpu.open_shared(&shared) }.unwrap();
    assert_eq!(same.addr(), memory.addr());
    // A second handle is opened and closed by itself.
    // SAFETY: as above.
    drop(unsafe { gpu.open_shared(&memory.share().unwrap()) }.unwrap());
    let mut bytes = [0; 7];
    same.read(4096, &mut bytes).unwrap();
    assert_eq!(&bytes, b"payload");
    drop(same);
    memory.write(0, &[1]).unwrap();
}

/// `hipFree` blocks until the streams are idle: the library calls it only then.
#[test]
fn memory_is_freed_when_no_stream_waits() {
    inside!(Variant::HIP6);
    let gpu = Gpu::hip(0).unwrap();
    let control = Control::open();
    let stream = gpu.stream().unwrap();
    let gate = gpu
        .alloc(MemoryKind::Pinned, 64)
        .unwrap()
        .word32(0)
        .unwrap();
    let wait = gdsync::rdma::Descriptor::wait_value(&gate, Condition::Eq, 1);
    post_on(&stream, &mut [], &[wait]).unwrap();
    until("the stream waits", || control.waiting() == 1);
    let before = control.live();
    for _ in 0..3 {
        // A new stream and new memory do not block either.
        drop(gpu.alloc(MemoryKind::Device, 1 << 20).unwrap());
        drop(gpu.stream().unwrap());
    }
    assert!(
        control.live()["device"] > before["device"],
        "freed under a wait"
    );
    assert_eq!(control.blocked(), []);
    gate.store(1).unwrap();
    until("the memory is freed", || {
        control.live()["device"] == before["device"]
    });
    assert_eq!(control.blocked(), []);
}

/// Runs the test `name` on HIP 6 with the stand-in as the HSA runtime, too.
fn with_hsa(name: &str, more: &[(&'static str, &'static str)]) {
    let library = standin::build(&Variant::HIP6);
    let path: &'static str = library.to_str().unwrap().to_owned().leak();
    let env = [&[("GDS_HSA_LIB", path)], more].concat().leak();
    standin::run(name, &library, &Variant::of(Driver::Hip6, None, env));
}

/// The HSA runtime exports a whole allocation, and says where in it a range is.
#[test]
fn hsa_exports_memory_to_nics() {
    if std::env::var_os(HIP_LIBRARY).is_none() {
        return with_hsa("hsa_exports_memory_to_nics", &[]);
    }
    let gpu = Gpu::hip(0).unwrap();
    let at = of_application(false).0;
    for start in [0, 64, 8192 + 64] {
        // SAFETY: the memory is never freed.
        let region = unsafe { gpu.adopt(DevicePtr(at + start), 64) }.unwrap();
        assert_eq!(region.dma_buf().unwrap().1, start);
    }
    let memory = gpu.alloc(MemoryKind::Device, 64).unwrap();
    memory.dma_buf().unwrap();
    let pinned = gpu.alloc(MemoryKind::Pinned, 64).unwrap();
    assert_eq!(kind(pinned.dma_buf()), Some(Kind::Unsupported));
}

#[test]
fn hsa_refuses_an_export() {
    if std::env::var_os(HIP_LIBRARY).is_none() {
        return with_hsa("hsa_refuses_an_export", &[("STANDIN_HSA", "4104")]);
    }
    let memory = Gpu::hip(0).unwrap().alloc(MemoryKind::Device, 64).unwrap();
    let names = &["hsa_amd_portable_export_dmabuf"];
    common::refused(memory.dma_buf(), Kind::System, None, names);
}

#[test]
fn nothing_exports_memory() {
    inside!(Variant::HIP6);
    let memory = Gpu::hip(0).unwrap().alloc(MemoryKind::Device, 64).unwrap();
    let names = &["hipMemGetHandleForAddressRange"];
    common::refused(memory.dma_buf(), Kind::Unsupported, None, names);
}

/// Host memory of the application that is coarse-grained has no words either.
#[test]
fn host_memory_that_is_not_coherent_has_no_words() {
    inside!(Variant::HIP6);
    let gpu = Gpu::hip(0).unwrap();
    for (flags, has) in [(0, true), (consts::hipHostMallocNonCoherent, false)] {
        let mut at: *mut c_void = std::ptr::null_mut();
        // SAFETY: stores an address.
        let made = unsafe { (hip().hipHostMalloc)(&mut at, 4096, flags) };
        assert_eq!(made, HipResult::SUCCESS);
        // SAFETY: the memory is never freed.
        let region = unsafe { gpu.adopt(DevicePtr(at as u64), 4096) }.unwrap();
        assert_eq!(region.word32(0).is_ok(), has, "{flags:#x}");
    }
}

/// HIP would register pages twice, and end both registrations by one call: pages of the application
/// stay the application's.
#[test]
fn host_memory_that_the_application_registered_stays_registered() {
    const PAGE: usize = 4096;
    inside!(Variant::HIP7);
    let gpu = Gpu::hip(0).unwrap();
    let layout = std::alloc::Layout::from_size_align(3 * PAGE, PAGE).unwrap();
    // SAFETY: not empty; never freed.
    let at = unsafe { std::alloc::alloc_zeroed(layout) };
    // The last page is the library's.
    let pages = [at, at.wrapping_add(PAGE)];
    for page in pages {
        let flags = consts::hipHostRegisterPortable;
        // SAFETY: as above.
        let made = unsafe { (hip().hipHostRegister)(page.cast(), PAGE, flags) };
        assert_eq!(made, HipResult::SUCCESS);
    }
    for len in [PAGE, 3 * PAGE] {
        // SAFETY: as above, accessed by the region alone.
        drop(unsafe { gpu.register_host(at, len) }.unwrap());
    }
    for page in pages {
        // SAFETY: registered above.
        let gone = unsafe { (hip().hipHostUnregister)(page.cast()) };
        assert_eq!(gone, HipResult::SUCCESS);
    }
}

/// `hipStreamDestroy` waits for the stream's work. The library calls it for idle streams only, also if it
/// drops more streams than the pool of CUDA's keeps, whose hardware queue another stream holds.
#[test]
fn dropped_streams_do_not_block_behind_a_stream_that_waits() {
    inside!(Variant::HIP7);
    let gpu = Gpu::hip(0).unwrap();
    let control = Control::open();
    let memory = gpu.alloc(MemoryKind::Pinned, 64).unwrap();
    let [gate, word] = [0, 8].map(|at| memory.word32(at).unwrap());
    let waiting = gpu.stream().unwrap();
    let wait = gdsync::rdma::Descriptor::wait_value(&gate, Condition::Eq, 1);
    post_on(&waiting, &mut [], &[wait]).unwrap();
    until("the stream waits", || control.waiting() == 1);
    // One of four streams has the queue of the one that waits.
    let streams: Vec<_> = (0..160).map(|_| gpu.stream().unwrap()).collect();
    for stream in &streams {
        post_on(stream, &mut [], &[write32(&word, 7)]).unwrap();
    }
    drop(streams);
    assert!(control.live()["commands"] > 32, "{:?}", control.live());
    assert_eq!(control.blocked(), []);
    gate.store(1).unwrap();
    until("the streams are idle", || {
        drop(gpu.stream().unwrap());
        control.live()["commands"] == 0
    });
    assert_eq!(control.blocked(), []);
}

/// A GPU with a register for flushes: the CPU writes it, for itself and for a stream.
#[test]
fn register_flushes_writes_of_nics() {
    inside!(Variant::of(Driver::Hip6, None, &[("STANDIN_HDP", "1")]));
    let gpu = Gpu::hip(0).unwrap();
    let control = Control::open();
    assert!(gpu.caps().host_flush);
    control.flushed();
    gpu.flush_remote_writes();
    assert!(control.flushed());
    let _device = Device::emulated(&gpu).unwrap();
    let stream = gpu.stream().unwrap();
    post_on(&stream, &mut [], &[gdsync::rdma::Descriptor::Flush]).unwrap();
    passes(&stream);
    assert!(control.flushed());
}

#[test]
fn gpu_without_the_register_has_no_flush_by_the_cpu() {
    inside!(Variant::HIP6);
    let gpu = Gpu::hip(0).unwrap();
    assert!(!gpu.caps().host_flush);
    gpu.flush_remote_writes();
}
