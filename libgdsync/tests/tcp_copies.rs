//! Memory of a GPU that the CPU cannot load, by TCP, on a stand-in for libcuda: a copy engine copies many
//! bytes through chunks of pinned memory, while the thread of the device sends and receives.

mod common;
mod standin;
mod tcp_rig;

use common::*;
use standin::{Control, cases};
use tcp_rig::{LOST, Side, device, end};

/// As in `gpu::chunks`.
const PART: usize = 256 << 10;
const LEAST: usize = 32 << 10;
/// The longest payload: more parts than a transfer uses chunks at a time.
const MOST: usize = 6 * PART + 13;
/// The payloads begin here.
const AT: usize = 24;

/// Two sides with device memory, connected.
fn sides(devices: &[Device; 2]) -> [Side; 2] {
    let config = QpConfig::default();
    let side = |device| Side::with(device, &config, MemoryKind::Device, 2 * (MOST + AT));
    let [mut a, mut b] = devices.each_ref().map(side);
    connect(&mut a.qp, &mut b.qp);
    [a, b]
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251 + seed) as u8).collect()
}

fn fill(side: &Side, at: usize, seed: usize, len: usize) {
    side.mem.region().write(at, &pattern(seed, len)).unwrap();
}

fn check(side: &Side, at: usize, seed: usize, len: usize, what: &str) {
    let mut found = vec![0; len];
    side.mem.region().read(at, &mut found).unwrap();
    let wanted = pattern(seed, len);
    let wrong = (0..len).find(|i| found[*i] != wanted[*i]);
    assert_eq!(wrong, None, "{what} of {len} bytes: this byte is wrong");
}

/// WRITE, READ and SEND of payloads around the limits of parts and chunks, and of several pieces.
fn lengths(encrypted: bool) {
    let gpu = Gpu::cuda(0).unwrap();
    let [mut a, mut b] = sides(&[(); 2].map(|()| device(&gpu, encrypted)));
    let host = memory(b.qp.pd(), MemoryKind::Pinned, 2 * LEAST, Access::ALL);
    let around = [LEAST, PART, PART + LEAST, 2 * PART + LEAST];
    let lengths = around.iter().flat_map(|n| [n - 1, *n, n + 1]);
    for (seed, len) in lengths.chain([MOST]).enumerate() {
        fill(&a, AT, seed, len);
        fill(&b, AT, seed + 100, len);
        let bytes = len as u32;
        let from = a.mem.sge(AT as u64, bytes);
        let span = b
            .mem
            .remote()
            .span((MOST + AT) as u64, bytes.into())
            .unwrap();
        a.qp.complete(&Work::write(&[from], span));
        check(&b, MOST + AT, seed, len, "WRITE");
        let span = b.mem.remote().span(AT as u64, bytes.into()).unwrap();
        let back = a.mem.sge((MOST + AT) as u64, bytes);
        a.qp.complete(&Work::read(&[back], span));
        check(&a, MOST + AT, seed + 100, len, "READ");
        // The first piece goes to host memory, the second to device memory, behind it the end.
        let short = len as u32 - LEAST as u32 / 2;
        let pieces = [host.sge(8, LEAST as u32 / 2), b.mem.sge(AT as u64, short)];
        let receive = b.qp.receive(&pieces);
        a.qp.complete(&Work::send(&[from]));
        b.qp.wait(receive, LIMIT).unwrap();
        let mut head = vec![0; LEAST / 2];
        host.region().read(8, &mut head).unwrap();
        assert_eq!(head, pattern(seed, len)[..LEAST / 2], "SEND of {len} bytes");
        let mut tail = vec![0; len - LEAST / 2];
        b.mem.region().read(AT, &mut tail).unwrap();
        assert!(
            tail == pattern(seed, len)[LEAST / 2..],
            "SEND of {len} bytes"
        );
    }
    assert_eq!(Control::open().blocked(), Vec::new());
}

/// More transfers at once than the device has chunks for.
fn crowd() {
    const PAIRS: usize = 14;
    let gpu = Gpu::cuda(0).unwrap();
    let devices = [(); 2].map(|()| device(&gpu, false));
    let mut pairs: Vec<[Side; 2]> = (0..PAIRS).map(|_| sides(&devices)).collect();
    for (seed, [a, _]) in pairs.iter().enumerate() {
        fill(a, AT, seed, MOST);
    }
    let sends: Vec<_> = (pairs.iter_mut())
        .map(|[a, b]| {
            let span = b.mem.remote().span(AT as u64, MOST as u64).unwrap();
            a.qp.start(&Work::write(&[a.mem.sge(AT as u64, MOST as u32)], span))
        })
        .collect();
    for (seed, ([a, b], send)) in pairs.iter_mut().zip(sends).enumerate() {
        a.qp.wait(send, LIMIT).unwrap();
        check(b, AT, seed, MOST, "WRITE");
    }
}

/// Queue pairs fail while their payloads are copied. No engine writes to the memory behind that, no handle on
/// it remains, and later transfers find all chunks.
fn cut() {
    let gpu = Gpu::cuda(0).unwrap();
    let devices = [(); 2].map(|()| device(&gpu, false));
    let [mut near, far] = sides(&devices);
    fill(&near, AT, 1, MOST);
    for round in 0..60_u64 {
        let [mut a, mut b] = sides(&devices);
        let span = b.mem.remote().span(AT as u64, MOST as u64).unwrap();
        let whole = a.mem.sge(AT as u64, MOST as u32);
        a.qp.start(&Work::write(&[whole], span));
        std::thread::sleep(Duration::from_micros(round * 37 % 1000));
        for qp in [&mut b.qp, &mut a.qp] {
            qp.fail(Status::CANCELLED);
            qp.quiet(LIMIT).unwrap();
        }
        fill(&b, AT, 2, MOST);
        for Side { qp, mem } in [a, b] {
            drop(qp);
            if mem.region().bytes::<1>(AT) == pattern(2, 1)[..] {
                let mut found = vec![0; MOST];
                mem.region().read(AT, &mut found).unwrap();
                assert!(found == pattern(2, MOST), "round {round}: written later");
            }
            assert!(mem.try_close().is_ok(), "round {round}");
        }
    }
    let span = far.mem.remote().span(AT as u64, MOST as u64).unwrap();
    let whole = near.mem.sge(AT as u64, MOST as u32);
    near.qp.complete(&Work::write(&[whole], span));
    check(&far, AT, 1, MOST, "WRITE");
    assert_eq!(Control::open().blocked(), Vec::new());
}

/// Answers of all lengths arrive although a request behind them is refused and ends the connection.
fn refusal_behind_an_answer() {
    let gpu = Gpu::cuda(0).unwrap();
    let devices = [(); 2].map(|()| device(&gpu, false));
    for len in [LEAST, 2 * LEAST, MOST] {
        let [mut a, b] = sides(&devices);
        fill(&b, AT, 5, len);
        let read = b.mem.remote().span(AT as u64, len as u64).unwrap();
        // The memory of this side is not registered at the other one.
        let wrong = a.mem.remote().span(0, 8).unwrap();
        let into = a.mem.sge(AT as u64, len as u32);
        let read = a.qp.start(&Work::read(&[into], read));
        let write = a.qp.start(&Work::write(&[a.mem.sge(0, 8)], wrong));
        assert_eq!(end(&mut a.qp, read, "READ"), Status::SUCCESS);
        check(&a, AT, 5, len, "READ");
        assert_eq!(end(&mut a.qp, write, "WRITE"), Status::REMOTE_ACCESS);
    }
}

/// A copy engine that does not end a copy: the connection ends at the limit of a copy, and later transfers use
/// other chunks.
fn stuck() {
    const NOT_READY: i32 = 600;
    let gpu = Gpu::cuda(0).unwrap();
    let devices = [(); 2].map(|()| device(&gpu, false));
    let [mut a, b] = sides(&devices);
    let span = b.mem.remote().span(AT as u64, MOST as u64).unwrap();
    let whole = a.mem.sge(AT as u64, MOST as u32);
    Control::open().fail("cuEventQuery", NOT_READY, 0);
    let send = a.qp.start(&Work::write(&[whole], span));
    assert_eq!(end(&mut a.qp, send, "stuck"), Status::TRANSPORT_RETRY);
    Control::open().fail("cuEventQuery", 0, 0);
    let [mut a, b] = sides(&devices);
    fill(&a, AT, 3, MOST);
    let span = b.mem.remote().span(AT as u64, MOST as u64).unwrap();
    let whole = a.mem.sge(AT as u64, MOST as u32);
    a.qp.complete(&Work::write(&[whole], span));
    check(&b, AT, 3, MOST, "WRITE");
}

/// A copy that the driver refuses ends the connection: both sides have an error, and neither hangs.
fn refused(call: &str) {
    const OUT_OF_MEMORY: i32 = 2;
    let gpu = Gpu::cuda(0).unwrap();
    let devices = [(); 2].map(|()| device(&gpu, false));
    for after in 0..4 {
        let [mut a, b] = sides(&devices);
        let span = b.mem.remote().span(AT as u64, MOST as u64).unwrap();
        Control::open().fail(call, OUT_OF_MEMORY, after);
        let send =
            a.qp.start(&Work::write(&[a.mem.sge(AT as u64, MOST as u32)], span));
        let status = end(&mut a.qp, send, call);
        let local = [Status::LOCAL_PROTECTION];
        assert!(
            LOST.contains(&status) || local.contains(&status),
            "{call} {after}: {status}"
        );
    }
    Control::open().fail(call, 0, 0);
    let [mut a, b] = sides(&devices);
    fill(&a, AT, 3, MOST);
    let span = b.mem.remote().span(AT as u64, MOST as u64).unwrap();
    a.qp.complete(&Work::write(&[a.mem.sge(AT as u64, MOST as u32)], span));
    check(&b, AT, 3, MOST, "WRITE");
}

cases! {
    payloads_of_all_lengths_arrive => lengths(false);
    encrypted_payloads_of_all_lengths_arrive => lengths(true);
    more_transfers_than_chunks_share_them => crowd();
    transfers_that_end_early_return_their_chunks => cut();
    a_refused_copy_to_the_host_ends_the_connection => refused("cuMemcpyDtoHAsync_v2");
    a_refused_copy_to_the_gpu_ends_the_connection => refused("cuMemcpyHtoDAsync_v2");
    a_refused_event_ends_the_connection => refused("cuEventRecord");
    a_copy_whose_end_is_unknown_ends_the_connection => refused("cuEventQuery");
    a_refusal_follows_the_answers_before_it => refusal_behind_an_answer();
    a_copy_that_does_not_end_ends_the_connection => stuck();
}
