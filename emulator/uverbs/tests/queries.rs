//! Queries by ioctl of ports, GIDs and MRs.

mod rig;

use rig::*;
use rustix::io::Errno;
use vmlx5::Dma;
use vmlx5_uverbs::UarMode;
use vmlx5_uverbs::abi::core::ioctl::*;
use vmlx5_uverbs::abi::core::*;
use vmlx5_uverbs::address::LinkLayer;

fn on(link: LinkLayer) -> (Rig, u64) {
    let mut rig = Rig::new(link, UarMode::Dynamic);
    rig.get_context().unwrap();
    let out = rig.room(4096);
    (rig, out)
}

#[test]
fn ports() {
    let (mut rig, out) = on(LinkLayer::InfiniBand);
    let cmd = |rig: &Rig, port: u64, room: u16| {
        let attrs = [(QUERY_PORT_NUM, 0, port), (QUERY_PORT_RESP, room, out)];
        rig.ioctl(OBJECT_DEVICE, QUERY_PORT, &attrs)
    };
    cmd(&rig, 1, 48).unwrap();
    let by_ioctl: QueryPortRespEx = rig.read(out);
    let input = QueryPort::default().changed(|q| q.port_num = 1);
    assert_eq!(by_ioctl.legacy_resp, rig.call(&input, &[]).unwrap().0);
    for port in [0, 2, 257] {
        assert_eq!(cmd(&rig, port, 48), Err(Errno::INVAL));
    }
    assert_eq!(cmd(&rig, 1, 40), Err(Errno::NOSPC));
}

#[test]
fn gids_one_by_one_and_all() {
    for (link, count) in [(LinkLayer::InfiniBand, 1), (LinkLayer::Ethernet, 4)] {
        let (rig, out) = on(link);
        let one = |port: u64, index: u64, flags: u64| {
            let attrs = [
                (GID_ENTRY_PORT, 0, port),
                (GID_ENTRY_INDEX, 0, index),
                (GID_ENTRY_FLAGS, 4, flags),
                (GID_ENTRY_RESP, 32, out),
            ];
            let done = rig.ioctl(OBJECT_DEVICE, QUERY_GID_ENTRY, &attrs);
            done.map(|_| rig.read::<GidEntry>(out))
        };
        let entries: Vec<GidEntry> = (0..count).map(|i| one(1, i, 0).unwrap()).collect();
        for (port, index, flags) in [(0, 0, 0), (2, 0, 0), (1, count, 0), (1, 0, 1)] {
            assert_eq!(one(port, index, flags), Err(Errno::INVAL));
        }
        let kinds: Vec<u32> = entries.iter().map(|e| e.gid_type).collect();
        assert_eq!(kinds, [&[0][..], &[1, 2, 1, 2]][usize::from(count == 4)]);
        let all = |size: u64, room: u64| {
            let attrs = [
                (GID_TABLE_ENTRY_SIZE, 0, size),
                (GID_TABLE_FLAGS, 4, 0),
                (GID_TABLE_RESP_ENTRIES, (room * size) as u16, out),
                (GID_TABLE_RESP_NUM, 8, out + 2048),
            ];
            let done = rig.ioctl(OBJECT_DEVICE, QUERY_GID_TABLE, &attrs);
            done.map(|_| rig.read::<u64>(out + 2048))
        };
        // A newer library's entries are longer; their unknown fields are zero.
        for size in [32, 40] {
            let dirt = [0xee; 256];
            rig.process
                .memory
                .write(out - rig.process.memory.addr(), &dirt)
                .unwrap();
            assert_eq!(all(size, count), Ok(count));
            for (i, &entry) in entries.iter().enumerate() {
                let at = out + i as u64 * size;
                assert_eq!(rig.read::<GidEntry>(at), entry);
                if size > 32 {
                    assert_eq!(rig.read::<u64>(at + 32), 0);
                }
            }
        }
        assert_eq!(all(24, 8), Err(Errno::INVAL));
        assert_eq!(all(0, 8), Err(Errno::INVAL));
        assert_eq!(all(32, count - 1), Err(Errno::INVAL));
    }
}

#[test]
fn regions() {
    let (mut rig, out) = on(LinkLayer::InfiniBand);
    let pd = rig.pd();
    let at = rig.room(8192);
    let mr = rig.mr(pd, at + 8, 5000, 0xf).unwrap();
    let cmd = |handle: u32| {
        let attrs = [
            (QUERY_MR_HANDLE, 0, handle.into()),
            (QUERY_MR_LKEY, 4, out),
            (QUERY_MR_RKEY, 4, out + 4),
            (QUERY_MR_LENGTH, 8, out + 8),
            (QUERY_MR_IOVA, 8, out + 16),
        ];
        rig.ioctl(OBJECT_MR, QUERY_MR, &attrs).map(drop)
    };
    assert_eq!(cmd(mr.mr_handle), Ok(()));
    let keys: [u32; 2] = [rig.read(out), rig.read(out + 4)];
    assert_eq!(keys, [mr.lkey, mr.rkey]);
    assert_eq!(rig.read::<u64>(out + 8), 5000);
    assert_eq!(rig.read::<u64>(out + 16), at + 8);
    assert_eq!(cmd(pd), Err(Errno::INVAL));
    assert_eq!(cmd(12345), Err(Errno::INVAL));
}
