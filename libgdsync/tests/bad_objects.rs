//! Invalid objects, memory, addresses and settings: each is refused with a typed error that names
//! object and limit.

mod child;
mod common;

use common::*;
use gdsync::gpu::DevicePtr;
use gdsync::internals::{Batch, Op, Width};
use gdsync::rdma::{QpAddress, RAILS, RemoteMemory};

#[test]
fn sizes_of_queue_pairs_out_of_range() {
    let gpu = Gpu::soft().unwrap();
    let device = Device::emulated(&gpu).unwrap();
    let pd = device.alloc_pd().unwrap();
    let base = QpConfig::default();
    for n in [0, 1, 2, 3, 5, 255, 32769, 65536, u32::MAX, 1 << 31] {
        for (queue, config) in [
            ("send queue", base.clone().send_blocks(n)),
            ("receive queue", base.clone().recv_entries(n)),
        ] {
            let names = &[queue, &n.to_string()];
            refused(pd.create_qp(&config), Kind::Invalid, Some(32768), names);
        }
    }
    for n in [0, 17, u32::MAX] {
        let config = base.clone().recv_sges(n);
        let names = &["SGEs", &n.to_string()];
        refused(pd.create_qp(&config), Kind::Invalid, Some(16), names);
    }
    // The ends of the ranges work, with traffic.
    for (send_blocks, recv_entries, recv_sges) in [(4, 4, 1), (32768, 32768, 16), (4, 8, 3)] {
        let config = base
            .clone()
            .send_blocks(send_blocks)
            .recv_entries(recv_entries)
            .recv_sges(recv_sges);
        let mut p = Pair::new(&gpu, Net::One, &config);
        p.check("ends of the ranges");
        p.recover("ends of the ranges");
    }
}

#[test]
fn list_that_needs_a_kernel_is_refused_without_kernels() {
    let mut options = SoftOptions::default();
    options.caps.kernels = false;
    (options.caps.nor, options.caps.mask, options.caps.cyclic) = (false, false, true);
    let gpu = soft(options);
    let device = Device::emulated(&gpu).unwrap();
    let pd = device.alloc_pd().unwrap();
    let (_, config) = paths().remove(0);
    let by_kernel = config.clone().lowering(Lowering::Kernel);
    let names = &["kernel", "soft gpu"];
    refused(pd.create_qp(&by_kernel), Kind::Unsupported, None, names);
    // Without NOR, a receive in an even lap needs a kernel too; sends do not, nor do odd laps.
    let config = sized(&config, 4, 4);
    let mut p = Pair::new(&gpu, Net::One, &config);
    let mem = p.mem_a(MemoryKind::Pinned, 64);
    let (stream, sender) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let mut refusals = 0;
    for i in 0..32 {
        let recv = p.a.prepare_receive(&[sge(&mem, 0, 8)]).unwrap();
        let list = receive_and_wait(recv);
        if let Err(e) = p.a.post_on(&stream, &list) {
            assert_eq!(e.kind(), Kind::Unsupported, "{e:?}");
            refusals += 1;
            // Neither the receive nor the wait was posted: the CPU posts the receive.
            p.a.post_receive(recv).unwrap();
        }
        p.b.start_on(&sender, &Work::send_inline(&[b"x"]));
        finish(&sender, &format!("message {i}"));
        finish(&stream, &format!("message {i}"));
        p.a.wait(recv, LIMIT).unwrap();
    }
    // Laps of 8 entries: the first needs another test, the third is even.
    assert_eq!(refusals, 8);
}

#[test]
fn memory_of_zero_or_too_great_length_is_refused() {
    let gpu = Gpu::soft().unwrap();
    for memory in [MemoryKind::Device, MemoryKind::Pinned] {
        refused(gpu.alloc(memory, 0), Kind::Invalid, None, &["0 bytes"]);
        for len in [usize::MAX, usize::MAX / 2, 1 << 60] {
            assert!(gpu.alloc(memory, len).is_err());
        }
        let region = gpu.alloc(memory, 64).unwrap();
        let names = &["region"];
        let (invalid, len) = (Kind::Invalid, Some(64));
        for offset in [1, 2, 61, 64, usize::MAX, usize::MAX - 3] {
            refused(region.word32(offset), invalid, len, names);
        }
        for offset in [4, 57, 60, 64, usize::MAX - 7] {
            refused(region.word64(offset), invalid, len, names);
        }
        for (offset, n) in [(0, 65), (64, 1), (65, 0), (usize::MAX, 2), (1, usize::MAX)] {
            refused(region.span(offset, n), invalid, len, names);
        }
        refused(region.read(60, &mut [0; 5]), invalid, len, names);
        refused(region.write(65, &[]), invalid, len, names);
        region.write(64, &[]).unwrap();
    }
    // SAFETY: refused before any access.
    let null = unsafe { gpu.register_host(std::ptr::null_mut(), 8) };
    refused(null, Kind::Invalid, None, &[]);
    let mut bytes = vec![0u64; 8];
    let ptr = bytes.as_mut_ptr().cast::<u8>();
    // SAFETY: as above.
    let empty = unsafe { gpu.register_host(ptr, 0) };
    refused(empty, Kind::Invalid, None, &[]);
    // SAFETY: the vector outlives the region, which is dropped first, and has no other users.
    let first = unsafe { gpu.register_host(ptr, 64) }.unwrap();
    // SAFETY: as above.
    let again = unsafe { gpu.register_host(ptr.wrapping_add(32), 8) };
    assert_eq!(kind(again), Some(Kind::Invalid));
    drop(first);
    // SAFETY: as above.
    let again = unsafe { gpu.register_host(ptr, 64) };
    again.unwrap();
}

#[test]
fn raw_operations_outside_memory_are_refused() {
    let gpu = Gpu::soft().unwrap();
    let stream = gpu.stream().unwrap();
    let region = gpu.alloc(MemoryKind::Device, 64).unwrap();
    let DevicePtr(base) = region.addr();
    let write = |at| Op::write(Width::Bits32, DevicePtr(at), 7u32);
    for bad in [0, 8, base + 2, base + 64, u64::MAX - 3] {
        let mut batch = Batch::new();
        batch.push(write(base));
        batch.push(write(bad));
        // SAFETY: the first word is the region's; the other is refused.
        let result = unsafe { stream.submit(&batch) };
        assert_eq!(kind(result), Some(Kind::Invalid), "{bad:#x}");
    }
    finish(&stream, "raw operations");
    let word = region.bytes::<4>(0);
    assert_eq!(word, [0; 4], "all or nothing");
}

#[test]
fn kernels_with_invalid_dimensions_are_refused() {
    let gpu = Gpu::soft().unwrap();
    let stream = gpu.stream().unwrap();
    let kernel = common::witness::kernel();
    for (dims, bytes) in [
        (Dims::linear(0, 1), 24),
        (Dims::linear(1, 0), 24),
        (Dims::linear(1, 1025), 24),
        (Dims::linear(1, 1).shared(u32::MAX), 24),
        (Dims::linear(1, 1), 23),
        (Dims::linear(1, 1), 0),
    ] {
        // SAFETY: refused before it runs.
        let result = unsafe { stream.launch(&kernel, dims, &[0_u8; 24][..bytes]) };
        assert_eq!(kind(result), Some(Kind::Invalid), "{dims:?}, {bytes}");
    }
    finish(&stream, "after refusals");
}

#[test]
fn invalid_settings_of_a_gpu_are_refused() {
    let live = || Live::global().unwrap();
    let with = |change: fn(&mut SoftOptions)| {
        let mut options = SoftOptions::default();
        change(&mut options);
        Gpu::soft_with(live(), options)
    };
    for (bad, most, name) in [
        (with(|o| o.stream_bound = 0), 1 << 20, "stream_bound"),
        (
            with(|o| o.stream_bound = usize::MAX),
            1 << 20,
            "stream_bound",
        ),
        (with(|o| o.channels = 0), u64::MAX, "channels"),
        (with(|o| o.caps.batch_limit = 0), 1 << 16, "batch_limit"),
    ] {
        refused(bad, Kind::Invalid, Some(most), &[name]);
    }
    // One operation a batch: a record and its doorbell cannot stay together.
    let gpu = with(|o| o.caps.batch_limit = 1).unwrap();
    let (_, config) = paths().remove(0);
    let mut p = Pair::new(&gpu, Net::One, &config);
    let stream = gpu.stream().unwrap();
    let send = p.a.signaled(&Work::nop());
    let post = p.a.post_on(&stream, &[Descriptor::Send(send)]);
    refused(post, Kind::Unsupported, Some(1), &[]);
    p.a.post(send).unwrap();
    p.a.wait(send, LIMIT).unwrap();
}

#[test]
fn unreachable_peers_are_errors() {
    let (_, config) = paths().remove(0);
    let gpu = Gpu::soft().unwrap();
    for net in [Net::One, Net::Hub, Net::Host] {
        let mut p = Pair::apart(&gpu, net, &config, &config);
        let b = p.b.address();
        // A number that no queue pair has; a call with a valid number succeeds afterwards.
        for wide in [b.qpn(1 << 24), b.psn(u32::MAX)] {
            let limit = Some(0xff_ffff);
            refused(p.a.connect(&wide), Kind::Invalid, limit, &["QP 0x"]);
        }
        p.connect();
        p.check("after wrong numbers");
        p.recover("after wrong numbers");
        // No NIC of that name, or no queue pair of that number there: this shows when a request is
        // sent.
        for nobody in [b.node(b.node ^ 0x5a5a_0000_0000), b.qpn(0x00ab_cdef)] {
            let mut lost = p.pd_a.create_qp(&config).unwrap();
            lost.connect(&nobody).unwrap();
            let mem = p.mem_a(MemoryKind::Pinned, 64);
            let stream = gpu.stream().unwrap();
            let send = lost.start_on(&stream, &Work::send(&[sge(&mem, 0, 8)]));
            finish(&stream, "no peer");
            let expect = Kind::Failed(Status::TRANSPORT_RETRY);
            assert_eq!(kind(lost.wait(send, LIMIT)), Some(expect), "{nobody:?}");
            // A queue pair in error does not connect; after a reset it does.
            let names = &["QP 0x", "in error"];
            refused(lost.connect(&b), Kind::WrongState, None, names);
            lost.quiet(LIMIT).unwrap();
            lost.reset().unwrap();
            let mut peer = p.pd_b.create_qp(&config).unwrap();
            connect(&mut lost, &mut peer);
        }
        p.check("beside lost ones");
    }
}

#[test]
fn records_that_cannot_be_read() {
    let gpu = Gpu::soft().unwrap();
    let (_, config) = paths().remove(0);
    let p = Pair::apart(&gpu, Net::Hub, &config, &config);
    let address = p.a.address().to_bytes();
    let mr = p.mem_a(MemoryKind::Pinned, 64);
    let remote = mr.remote().to_bytes();
    assert_eq!(QpAddress::from_bytes(&address).unwrap(), p.a.address());
    assert_eq!(RemoteMemory::from_bytes(&remote).unwrap(), mr.remote());
    let protocol = Kind::Protocol;
    for len in 0..address.len() {
        refused(QpAddress::from_bytes(&address[..len]), protocol, None, &[]);
    }
    for len in 0..remote.len() {
        all_refused! { protocol, None, &[]; RemoteMemory::from_bytes(&remote[..len]) }
    }
    let longer = [&address[..], &[0]].concat();
    all_refused! { protocol, None, &["65 bytes"]; QpAddress::from_bytes(&longer) }
    // One record read as the other, another version, another magic.
    refused(QpAddress::from_bytes(&remote), protocol, None, &["type 2"]);
    all_refused! { protocol, None, &["type 1"]; RemoteMemory::from_bytes(&address) }
    let mut other = address;
    other[4] = 7;
    let names = &["version 7", "version 3"];
    refused(QpAddress::from_bytes(&other), protocol, None, names);
    let mut other = remote;
    other[5] = 1;
    let names = &["version 259", "version 3"];
    refused(RemoteMemory::from_bytes(&other), protocol, None, names);
    for bit in 0..32 {
        let mut other = address;
        other[bit / 8] ^= 1 << (bit % 8);
        all_refused! { protocol, None, &["no record"]; QpAddress::from_bytes(&other) }
    }
    // No bytes cause a panic; a record that is read is valid or is refused later.
    let mut rng = fastrand::Rng::with_seed(7);
    for _ in 0..10_000 {
        let mut bytes = remote;
        for _ in 0..rng.usize(..6) {
            let at = rng.usize(..bytes.len());
            bytes[at] = rng.u8(..);
        }
        if let Ok(remote) = RemoteMemory::from_bytes(&bytes) {
            let _ = remote.span(rng.u64(..), rng.u64(..));
        }
        let _ = QpAddress::from_bytes(&bytes[..rng.usize(..=24)]);
    }
    // Spans of remote memory.
    let names = &["9 bytes at offset 56"];
    refused(mr.remote().span(56, 9), Kind::Invalid, Some(64), names);
    refused(mr.remote().span(u64::MAX, 1), Kind::Invalid, Some(64), &[]);
    let keyless = mr.remote().rkeys([None; RAILS]);
    refused(keyless.span(0, 1), Kind::NotRegistered, None, &["no key"]);
}

#[test]
fn registrations_beyond_the_nics_limit_are_refused() {
    let gpu = Gpu::soft().unwrap();
    let device = Device::emulated(&gpu).unwrap();
    let (mut pds, refusal) = fill(|| device.alloc_pd());
    refused::<()>(Err(refusal), Kind::System, Some(256), &["PD"]);
    pds.pop();
    pds.push(device.alloc_pd().unwrap());
    let pd = pds.swap_remove(0);
    let config = sized(&QpConfig::default(), 4, 4);
    let (mut qps, refusal) = fill(|| pd.create_qp(&config));
    refused::<()>(Err(refusal), Kind::System, Some(1024), &["limit"]);
    // The objects made before the refusal were destroyed: after one deregistration one registration
    // succeeds, repeatedly.
    for _ in 0..5 {
        qps.pop();
        device.close(LIMIT).unwrap();
        qps.push(pd.create_qp(&config).unwrap());
    }
    let (mut a, mut b) = (qps.pop().unwrap(), qps.pop().unwrap());
    connect(&mut a, &mut b);
    let mem = memory(&pd, MemoryKind::Pinned, 64, Access::ALL);
    let list = [sge(&mem, 0, 8)];
    let to = mem.remote().span(8, 8).unwrap();
    a.complete(&Work::write(&list, to));
}

#[test]
fn settings_from_the_environment() {
    const CHILD: &str = "GDSYNC_SETTINGS";
    const SETTING: &str = "GDSYNC_SETTING";
    const EXPECT: &str = "GDSYNC_EXPECT";
    let test = child::test_name!();
    if child::is(CHILD, test) {
        let [setting, expect] = [SETTING, EXPECT].map(|name| std::env::var(name).unwrap());
        return setting_means(&setting, &expect);
    }
    for (name, value, expect) in [
        ("GDS_LOWER", "auto", "MemOps Direct"),
        ("GDS_LOWER", "memops", "MemOps Direct"),
        ("GDS_LOWER", "kernel", "Kernel Direct"),
        ("GDS_DOORBELL", "auto", "MemOps Direct"),
        ("GDS_DOORBELL", "direct", "MemOps Direct"),
        ("GDS_DOORBELL", "cpu-thread", "MemOps CpuThread"),
        ("GDS_ENDPOINT", "auto", "MemOps Direct"),
        ("GDS_ENDPOINT", "ring", "MemOps Direct"),
        ("GDS_ENDPOINT", "proxy", "MemOps CpuThread"),
        ("GDS_LOWER", "nonsense", "Invalid"),
        ("GDS_LOWER", "", "Invalid"),
        ("GDS_LOWER", "MEMOPS", "Invalid"),
        ("GDS_DOORBELL", "rdma", "Invalid"),
        ("GDS_ENDPOINT", "rdma", "Invalid"),
    ] {
        child::run(CHILD, test, |command| {
            command
                .env_remove("GDS_LOWER")
                .env_remove("GDS_DOORBELL")
                .env_remove("GDS_ENDPOINT")
                .env(name, value)
                .env(SETTING, format!("{name}={value}"))
                .env(EXPECT, expect);
        });
    }
}

/// Runs in a process with this setting in its environment.
fn setting_means(setting: &str, expect: &str) {
    let gpu = Gpu::soft().unwrap();
    let pd = Device::emulated(&gpu).unwrap().alloc_pd().unwrap();
    match pd.create_qp(&QpConfig::default()) {
        Ok(qp) => {
            let made = format!("{:?} {:?}", qp.lowering(), qp.doorbell());
            assert_eq!(made, expect, "{setting}");
        }
        Err(e) => {
            assert_eq!(format!("{:?}", e.kind()), expect, "{setting}: {e}");
            let known = format!("{setting} is not a known value; the known values are auto, ");
            assert!(e.to_string().contains(&known), "{e}");
        }
    }
    // The program's options take precedence over the environment.
    let config = by(Lowering::MemOps, Doorbell::Direct);
    Pair::new(&gpu, Net::One, &config).check(setting);
}
