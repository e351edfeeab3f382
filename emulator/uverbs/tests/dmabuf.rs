//! MRs on the memory behind a descriptor.

mod rig;

use rig::*;
use rustix::io::Errno;
use vmlx5_uverbs::abi::core::ioctl::*;
use vmlx5_uverbs::abi::core::*;

/// The arguments of a registration.
#[derive(Clone, Copy)]
struct Wanted {
    pd: u32,
    offset: u64,
    length: u64,
    iova: u64,
    fd: i32,
    access: u64,
}

/// Its handle and keys.
fn register(rig: &Rig, want: Wanted) -> Result<(u32, u32, u32), Errno> {
    let out = rig.process.memory.addr() + 2048;
    let attrs = [
        (DMABUF_HANDLE, 0, 0),
        (DMABUF_PD, 0, want.pd.into()),
        (DMABUF_OFFSET, 8, want.offset),
        (DMABUF_LENGTH, 8, want.length),
        (DMABUF_IOVA, 8, want.iova),
        (DMABUF_FD, 4, want.fd as u32 as u64),
        (DMABUF_ACCESS, 4, want.access),
        (DMABUF_LKEY, 4, out),
        (DMABUF_RKEY, 4, out + 4),
    ];
    let at = rig.ioctl(OBJECT_MR, REG_DMABUF_MR, &attrs)?;
    let handle = rig.read(at + 24 + 8);
    Ok((handle, rig.read(out), rig.read(out + 4)))
}

#[test]
fn mr_on_a_file_is_registered_and_deregistered() {
    let mut rig = Rig::open();
    let good = Wanted {
        pd: rig.pd(),
        offset: 4096 + 24,
        length: 4096,
        iova: 0x7000_0018,
        fd: FILE,
        access: 0xf,
    };
    let (handle, lkey, rkey) = register(&rig, good).unwrap();
    assert!(lkey != 0 && rkey != 0);
    // Its address cannot be changed by a re-registration.
    let again = ReregMr {
        mr_handle: handle,
        flags: 4,
        access_flags: 1,
        ..Default::default()
    };
    assert_eq!(rig.call(&again, &[]).err(), Some(Errno::OPNOTSUPP));
    let refused = [
        (good.changed(|w| w.iova = 0x7000_0000), Errno::INVAL),
        (Wanted { length: 0, ..good }, Errno::INVAL),
        (good.changed(|w| w.length = u64::MAX), Errno::INVAL),
        (Wanted { access: 2, ..good }, Errno::INVAL),
        (good.changed(|w| w.access = 0x10), Errno::INVAL),
        (good.changed(|w| w.access = 0x40), Errno::INVAL),
        (good.changed(|w| w.length = FILE_LEN), Errno::INVAL),
        (Wanted { pd: handle, ..good }, Errno::INVAL),
        (good.changed(|w| w.fd = FILE + 1), Errno::BADF),
        (Wanted { fd: GPU, ..good }, Errno::OPNOTSUPP),
    ];
    for (want, errno) in refused {
        assert_eq!(register(&rig, want).err(), Some(errno));
    }
    rig.run(command::DEREG_MR, &Handle { handle }).unwrap();
    let gone = rig.run(command::DEREG_MR, &Handle { handle });
    assert_eq!(gone.err(), Some(Errno::NOENT));
    let pd = Handle { handle: good.pd };
    rig.run(command::DEALLOC_PD, &pd).unwrap();
}
