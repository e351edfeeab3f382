//! Memory of a soft GPU, shared with another GPU of the process and with another process.
//! (`cuda_objects` has the same for CUDA; the trials `shared` of the conformance program are about
//! two processes that run at the same time.)

mod child;

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

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

/// The memory file of pinned memory, and the offset of the region in it.
fn host(region: &Region) -> (File, u64) {
    match region.share().unwrap() {
        SharedMemory::Host { fd, offset, len } if len == region.len() as u64 => (fd.into(), offset),
        other => panic!("{other:?}"),
    }
}

fn opened_host(gpu: &Gpu, fd: impl Into<OwnedFd>, offset: u64) -> Region {
    let (fd, len) = (fd.into(), LEN as u64);
    // SAFETY: the descriptor keeps the memory.
    unsafe { gpu.open_shared(&SharedMemory::Host { fd, offset, len }) }.unwrap()
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
    let from = region.gpu().alloc(region.kind(), len).unwrap();
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

/// Pinned memory that shares a file with other regions, and pinned memory with its own file.
#[test]
fn pinned_memory_of_two_gpus_of_a_process_and_of_one() {
    let (a, b) = (Gpu::soft().unwrap(), Gpu::soft().unwrap());
    let _neighbour = a.alloc(MemoryKind::Pinned, LEN).unwrap();
    for len in [LEN, 1 << 20] {
        let here = a.alloc(MemoryKind::Pinned, len).unwrap();
        here.write(0, &[1; LEN]).unwrap();
        let (fd, offset) = host(&here);
        assert_eq!((offset > 0, offset % 4096), (len == LEN, 0));
        // By another GPU, by its own, and once more.
        let dup = || fd.try_clone().unwrap();
        let there = [&b, &a, &a].map(|gpu| opened_host(gpu, dup(), offset));
        for (value, there) in (2..).zip(&there) {
            assert_eq!((there.len(), there.kind()), (LEN, MemoryKind::Pinned));
            assert_ne!(there.addr(), here.addr());
            copy_in(there, value, 1000);
            there.word64(1000).unwrap().store(u64::from(value)).unwrap();
            let expected = [vec![value; 1000], vec![1; LEN - 1000]].concat();
            let mut got = vec![0; LEN];
            here.read(0, &mut got).unwrap();
            assert_eq!(got[1000..1008], u64::from(value).to_ne_bytes());
            got[1000..1008].fill(1);
            assert_eq!(got, expected);
            here.write(1000, &[1; 8]).unwrap();
        }
        // The memory lives as long as any region or handle of it.
        drop((here, fd));
        assert_eq!(bytes(&there[0])[..1000], [4; 1000]);
    }
}

/// A file of small regions is shared as a whole, so no other region gets a part of it later.
#[test]
fn small_pinned_regions_share_a_file_until_it_is_exported() {
    let gpu = Gpu::soft().unwrap();
    let alloc = |len| gpu.alloc(MemoryKind::Pinned, len).unwrap();
    let inode = |region: &Region| host(region).0.metadata().unwrap().ino();
    let size = |region: &Region| host(region).0.metadata().unwrap().size();
    let many: Vec<Region> = (0..300).map(|_| alloc(64)).collect();
    let mut files: Vec<u64> = many.iter().map(inode).collect();
    files.dedup();
    assert_eq!(files.len(), 2, "1 MiB has 256 pages");
    let late = alloc(64);
    assert!(!files.contains(&inode(&late)));
    assert_eq!((size(&late), size(&alloc(256 << 10))), (1 << 20, 1 << 20));
    let long = alloc((256 << 10) + 1);
    assert_eq!((host(&long).1, size(&long)), (0, (256 << 10) + 4096));
    // Memory that is allocated again is zeroed.
    let reused = Gpu::soft().unwrap();
    let first = reused.alloc(MemoryKind::Pinned, LEN).unwrap();
    let addr = first.addr();
    first.write(0, &[9; LEN]).unwrap();
    drop(first);
    let start = Instant::now();
    let again = loop {
        let again = reused.alloc(MemoryKind::Pinned, LEN).unwrap();
        if again.addr() == addr {
            break again;
        }
        assert!(start.elapsed() < LIMIT, "it is never allocated again");
        std::thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(bytes(&again), [0; LEN]);
}

/// The process has 1,024 descriptors by default.
#[test]
fn thousands_of_pinned_regions_take_few_descriptors() {
    let gpu = Gpu::soft().unwrap();
    let files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = files();
    let regions: Vec<_> = (0..4000)
        .map(|_| gpu.alloc(MemoryKind::Pinned, 64))
        .collect();
    assert!(regions.iter().all(|region| region.is_ok()));
    // Other tests open files meanwhile.
    assert!(files() < before + 500, "{before}, then {}", files());
}

#[test]
fn memory_of_another_process() {
    const NAME: &str = "memory_of_another_process";
    let gpu = Gpu::soft().unwrap();
    if child::is(OTHER, NAME) {
        let path = std::env::var(PATH).unwrap();
        let (path, offset) = path.split_once(' ').unwrap();
        let file = File::options().read(true).write(true).open(path).unwrap();
        let there = match offset {
            "" => opened(&gpu, file),
            offset => opened_host(&gpu, file, offset.parse().unwrap()),
        };
        assert_eq!(bytes(&there), [3; LEN]);
        return copy_in(&there, 4, LEN);
    }
    // Any memory is sufficient.
    for kind in [MemoryKind::Device, MemoryKind::Pinned] {
        let here = gpu.alloc(kind, LEN).unwrap();
        here.write(0, &[3; LEN]).unwrap();
        let (fd, offset) = match kind {
            MemoryKind::Pinned => {
                let (file, offset) = host(&here);
                (file.into(), offset.to_string())
            }
            _ => (file(&here), String::new()),
        };
        let path = format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
        child::run(OTHER, NAME, |command| {
            command.env(PATH, format!("{path} {offset}"));
        });
        assert_eq!(bytes(&here), [4; LEN]);
    }
}

#[test]
fn memory_of_the_application_and_of_others_is_not_shared() {
    let gpu = Gpu::soft().unwrap();
    let pinned = gpu.alloc(MemoryKind::Pinned, LEN).unwrap();
    let (fd, offset) = host(&pinned);
    let opened = opened_host(&gpu, fd, offset);
    let adopted = gpu.adopt_vec(vec![0; 64]).map_err(|(_, e)| e).unwrap();
    for region in [opened, adopted] {
        assert_eq!(region.share().unwrap_err().kind(), Kind::Unsupported);
    }
}

/// (Hostile files: the trial `shared memory that is none` of the conformance program.)
#[test]
fn invalid_shared_memory_is_refused() {
    let gpu = Gpu::soft().unwrap();
    let region = gpu.alloc_exportable(LEN).unwrap();
    let null = || File::options().read(true).write(true).open("/dev/null");
    let of = |fd, offset, len| SharedMemory::File { fd, offset, len };
    let host = |fd, offset, len| SharedMemory::Host { fd, offset, len };
    let pipe = || std::io::pipe().unwrap().0.into();
    let refused = [
        of(file(&region), 8, 8),
        of(file(&region), 0, 0),
        of(file(&region), 0, 1 << 20),
        of(null().unwrap().into(), 0, 8),
        of(pipe(), 0, 8),
        of(file(&region), 0, u64::MAX),
        host(null().unwrap().into(), 0, 8),
        host(pipe(), 0, 8),
        host(file(&region), 0, 0),
        host(file(&region), 8192, 1),
        host(file(&region), 8000, 193),
        host(file(&region), u64::MAX, 1),
        host(file(&region), 1, u64::MAX),
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
    // Bytes that end inside the last page, and begin inside a page.
    let shared = host(file(&region), 8000, 192);
    region.write(LEN - 8, b"the last").unwrap();
    // SAFETY: the descriptor keeps the memory.
    let tail = unsafe { gpu.open_shared(&host(file(&region), LEN as u64 - 8, 8)) }.unwrap();
    let mut got = [0; 8];
    tail.read(0, &mut got).unwrap();
    assert_eq!(&got, b"the last");
    // SAFETY: as above.
    assert_eq!(unsafe { gpu.open_shared(&shared) }.unwrap().len(), 192);
}
