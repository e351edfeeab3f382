//! Copies by the CPU from one region to another.

use gdsync::gpu::MemoryKind;
use gdsync::{Gpu, Kind};

#[test]
fn copy_changes_its_bytes_alone_in_memory_of_every_kind() {
    let gpu = Gpu::soft().unwrap();
    for kinds in [
        [MemoryKind::Pinned, MemoryKind::Pinned],
        [MemoryKind::Device, MemoryKind::Pinned],
        [MemoryKind::Pinned, MemoryKind::Device],
    ] {
        let [from, into] = kinds.map(|kind| gpu.alloc(kind, 64).unwrap());
        from.write(0, &std::array::from_fn::<u8, 64, _>(|i| i as u8 + 1))
            .unwrap();
        assert!(into.copy_from(8, &from, 3, 20).unwrap(), "{kinds:?}");
        let mut bytes = [0; 64];
        into.read(0, &mut bytes).unwrap();
        let right = std::array::from_fn(|i| match i {
            8..28 => i as u8 - 8 + 4,
            _ => 0,
        });
        assert_eq!(bytes, right, "{kinds:?}");
    }
}

#[test]
fn copy_outside_a_region_is_refused() {
    let gpu = Gpu::soft().unwrap();
    let [from, into] = [64, 32].map(|len| gpu.alloc(MemoryKind::Pinned, len).unwrap());
    for (at, start, len) in [(0, 0, 33), (0, 60, 5), (usize::MAX, 0, 1)] {
        let error = into.copy_from(at, &from, start, len).unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{at} {start} {len}");
    }
}
