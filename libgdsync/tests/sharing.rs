//! Device memory of a soft GPU, shared with another GPU of the process and with another process.
//! (`cuda_objects` has the same for CUDA.)

mod child;

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use gdsync::gpu::{MemoryKind, Region, SharedMemory};
use gdsync::{Gpu, Kind};

const LIMIT: Duration = Duration::from_secs(20);
const LEN: usize = 5000;
/// Selects the test that runs as the other process, and names the file of the memory.
const OTHER: &str = "GDSYNC_SHARING";
const PATH: &str = "GDSYNC_SHARING_PATH";

fn file(region: &Region) -> OwnedFd {
    match region.share().unwrap() {
        SharedMemory::File { fd, offset: 0, len } if len == LEN as u64 => fd,
        other => panic!("{other:?}"),
    }
}

fn opened(gpu: &Gpu, fd: impl Into<OwnedFd>) -> Region {
    let (fd, offset, len) = (fd.into(), 0, LEN as u64);
    // SAFETY: the descriptor keeps the memory.
    unsafe { gpu.open_shared(&SharedMemory::File { fd, offset, len }) }.unwrap()
}

fn bytes(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    region.read(0, &mut bytes).unwrap();
    bytes
}

/// Makes a stream of the region's GPU copy this many bytes of this value to the region's start.
fn copy_in(region: &Region, value: u8, len: usize) {
    let from = region.gpu().alloc(MemoryKind::Device, len).unwrap();
    from.write(0, &vec![value; len]).unwrap();
    let stream = region.gpu().stream().unwrap();
    let (to, from) = (region.span(0, len), from.span(0, len));
    stream.copy(&to.unwrap(), &from.unwrap()).unwrap();
    assert!(stream.synchronize(LIMIT).unwrap());
}

#[test]
fn two_gpus_of_a_process_share_memory() {
    let (a, b) = (Gpu::soft().unwrap(), Gpu::soft().unwrap());
    let here = a.alloc_exportable(LEN).unwrap();
    here.write(0, &[1; LEN]).unwrap();
    let there = opened(&b, file(&here));
    assert_eq!((there.len(), there.kind()), (LEN, MemoryKind::Device));
    assert!(there.gpu().is(&b) && there.addr() != here.addr());
    assert_eq!(bytes(&there), [1; LEN]);
    copy_in(&there, 2, 1000);
    let expected = [vec![2; 1000], vec![1; LEN - 1000]].concat();
    assert_eq!(bytes(&here), expected);
    // The memory lives as long as any region or handle of it.
    drop((here, a));
    assert_eq!(bytes(&there), expected);
}

#[test]
fn memory_of_another_process() {
    const NAME: &str = "memory_of_another_process";
    let gpu = Gpu::soft().unwrap();
    if child::is(OTHER, NAME) {
        let path = std::env::var(PATH).unwrap();
        let file = File::options().read(true).write(true).open(path);
        let there = opened(&gpu, file.unwrap());
        assert_eq!(bytes(&there), [3; LEN]);
        return copy_in(&there, 4, LEN);
    }
    // Any device memory is sufficient.
    let here = gpu.alloc(MemoryKind::Device, LEN).unwrap();
    here.write(0, &[3; LEN]).unwrap();
    let fd = file(&here);
    let path = format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
    child::run(OTHER, NAME, |command| {
        command.env(PATH, path);
    });
    assert_eq!(bytes(&here), [4; LEN]);
}

#[test]
fn invalid_shared_memory_is_refused() {
    let gpu = Gpu::soft().unwrap();
    let pinned = gpu.alloc(MemoryKind::Pinned, LEN).unwrap();
    assert_eq!(pinned.share().unwrap_err().kind(), Kind::Unsupported);
    let region = gpu.alloc_exportable(LEN).unwrap();
    let null = File::options().read(true).write(true).open("/dev/null");
    let of = |fd, offset, len| SharedMemory::File { fd, offset, len };
    let refused = [
        of(file(&region), 8, 8),
        of(file(&region), 0, 0),
        of(file(&region), 0, 1 << 20),
        of(null.unwrap().into(), 0, 8),
        SharedMemory::Ipc {
            handle: [0; 64],
            offset: 0,
            len: 8,
        },
    ];
    for shared in refused {
        // SAFETY: refused.
        let error = unsafe { gpu.open_shared(&shared) }.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{shared:?}: {error}");
    }
}
