//! The smallest and the largest allowed sizes: messages of 0 bytes, thirty segments, as many inline
//! bytes as an entry holds, full queues.

mod common;

use common::*;
use gdsync::rdma::{RemoteSpan, Sge};

/// `a` sends by its stream, which waits; the CPU waits for the receive.
fn carry(p: &mut Pair, work: &Work<'_>, recv: Option<ReceiveRequest>, what: &str) -> u32 {
    let stream = p.gpu.stream().unwrap();
    let send = p.a.start_on(&stream, work);
    finish(&stream, what);
    assert_eq!(p.a.poll(send).unwrap(), Some(Status::SUCCESS), "{what}");
    let Some(recv) = recv else { return 0 };
    p.b.wait(recv, LIMIT)
        .unwrap_or_else(|e| panic!("{what}: {e:?}"));
    p.b.received(recv).unwrap().len
}

fn bytes(mr: &Mr, at: usize, len: usize) -> Vec<u8> {
    mr.region().vec(at, len)
}

#[test]
fn messages_of_no_bytes() {
    for (path, config) in paths() {
        for net in [Net::One, Net::Hub, Net::Host] {
            let what = format!("{path}, {net:?}");
            let gpu = Gpu::soft().unwrap();
            let mut p = Pair::new(&gpu, net, &config);
            let [near, far] = p.memories(MemoryKind::Device, 64);
            far.region().write(0, &[0xee; 64]).unwrap();
            let empty = [sge(&near, 64, 0), sge(&near, 0, 0)];
            let nowhere = RemoteSpan::new(0, 0);
            let some = [sge(&far, 0, 8)];
            let none: [Sge<'_>; 2] = [sge(&far, 8, 0), sge(&far, 16, 0)];
            for receive_list in [&some[..], &none[..], &[]] {
                for work in [
                    Work::send(&[]),
                    Work::send(&empty),
                    Work::send_inline(&[]),
                    Work::send_inline(&[b"", b""]),
                    Work::send(&empty).with_imm(7),
                    Work::write(&empty, nowhere).with_imm(7),
                ] {
                    let recv = Some(p.b.receive(receive_list));
                    assert_eq!(carry(&mut p, &work, recv, &what), 0, "{what}");
                }
            }
            for work in [
                Work::write(&[], nowhere),
                Work::write(&empty, nowhere),
                Work::write_inline(&[], nowhere),
                Work::read(&[], nowhere),
                Work::read(&empty, nowhere),
            ] {
                carry(&mut p, &work, None, &what);
            }
            assert_eq!(bytes(&far, 0, 64), [0xee; 64], "{what}");
            p.check(&what);
        }
    }
}

#[test]
fn thirty_segments_and_as_many_inline_bytes_as_fit() {
    let mut rng = fastrand::Rng::with_seed(30);
    for (path, config) in paths() {
        let config = config.recv_sges(16);
        let gpu = Gpu::soft().unwrap();
        let mut p = Pair::new(&gpu, Net::Hub, &config);
        let [near, far] = p.memories(MemoryKind::Device, 8192);
        // Several times, so that the large entries wrap around the end of the ring.
        for round in 0..12 {
            let what = format!("{path}, round {round}");
            let data: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(8192).collect();
            near.region().write(0, &data).unwrap();
            far.region().write(0, &[0; 8192]).unwrap();
            let places: Vec<(u64, u32)> =
                (0..30).map(|_| (rng.u64(..8000), rng.u32(..100))).collect();
            let list: Vec<Sge<'_>> = places
                .iter()
                .map(|(at, len)| sge(&near, *at, *len))
                .collect();
            let expect: Vec<u8> = places
                .iter()
                .flat_map(|(at, len)| &data[*at as usize..][..*len as usize])
                .copied()
                .collect();
            // Received in 16 pieces, none of which begins where the previous one ends.
            let piece = expect.len() / 16 + 1;
            let pieces: Vec<Sge<'_>> = (0..16)
                .map(|i| sge(&far, (i * 300) as u64, piece as u32))
                .collect();
            let recv = Some(p.b.receive(&pieces));
            let len = carry(&mut p, &Work::send(&list), recv, &what);
            assert_eq!(len as usize, expect.len(), "{what}");
            let got: Vec<u8> = (0..16)
                .flat_map(|i| bytes(&far, i * 300, piece))
                .take(expect.len())
                .collect();
            assert_eq!(got, expect, "{what}");
            // Written, and read back into other pieces.
            let to = far.remote().span(17, expect.len() as u64).unwrap();
            carry(&mut p, &Work::write(&list, to), None, &what);
            assert_eq!(bytes(&far, 17, expect.len()), expect, "{what}");
            near.region().write(0, &[0; 8192]).unwrap();
            let half = expect.len() as u32 / 2;
            let back = [
                sge(&near, 1, half),
                sge(&near, 4001, expect.len() as u32 - half),
            ];
            carry(&mut p, &Work::read(&back, to), None, &what);
            assert_eq!(bytes(&near, 1, half as usize), expect[..half as usize]);
            let rest = &expect[half as usize..];
            assert_eq!(bytes(&near, 4001, rest.len()), rest, "{what}");
            // 63 segments: one for control, one for the peer's address, 4 bytes for the length.
            let (most, less) = (62 * 16 - 4, 61 * 16 - 4);
            let (head, tail) = data[..most].split_at(333);
            let recv = Some(p.b.receive(&[sge(&far, 0, 2000)]));
            let pieces = [head, &[], tail];
            let len = carry(&mut p, &Work::send_inline(&pieces), recv, &what);
            assert_eq!(len as usize, most, "{what}");
            assert_eq!(bytes(&far, 0, most), data[..most], "{what}");
            let to = far.remote().span(4000, less as u64).unwrap();
            carry(
                &mut p,
                &Work::write_inline(&[&data[..less]], to),
                None,
                &what,
            );
            assert_eq!(bytes(&far, 4000, less), data[..less], "{what}");
        }
        p.check(path);
    }
}

#[test]
fn a_queue_may_be_filled_to_the_last_block_again_and_again() {
    for (path, config) in paths() {
        for (send_blocks, recv_entries) in [(4, 4), (16, 8)] {
            let config = config
                .clone()
                .send_blocks(send_blocks)
                .recv_entries(recv_entries)
                .start(0xfff9);
            let gpu = Gpu::soft().unwrap();
            let mut p = Pair::new(&gpu, Net::One, &config);
            let [near, far] = p.memories(MemoryKind::Pinned, 64);
            let stream = gpu.stream().unwrap();
            let to = far.remote().span(0, 8).unwrap();
            let list = [sge(&near, 0, 8)];
            let mut largest = 0;
            for round in 0..20 {
                let what = format!("{path}, {send_blocks} blocks, round {round}");
                // Completion positions are returned in quarters, so it takes a moment, and more
                // than half of the blocks are always available for signaled requests.
                let (a, b) = (&mut p.a, &mut p.b);
                a.quiet(LIMIT).unwrap();
                let work = Work::write(&list, to).signaled();
                let (sends, full) = fill(|| a.prepare(&work));
                let most = Some(send_blocks.into());
                refused::<()>(Err(full), Kind::QueueFull, most, &["QP 0x"]);
                assert!(sends.len() > send_blocks as usize / 2, "{what}");
                let (receives, full) = fill(|| b.prepare_receive(&[sge(&far, 8, 8)]));
                let most = Some(recv_entries.into());
                refused::<()>(Err(full), Kind::QueueFull, most, &["QP 0x"]);
                assert!(receives.len() > recv_entries as usize / 2, "{what}");
                largest = largest.max(sends.len());
                // The last one of each posts all; streams wait for each.
                for r in &receives {
                    p.b.post_receive(*r).unwrap();
                }
                let posts = sends.iter().map(|s| Descriptor::Send(*s));
                let waits = sends.iter().map(|s| Descriptor::wait(*s));
                let all: Vec<_> = posts.chain(waits).collect();
                p.a.post_on(&stream, &all).unwrap();
                finish(&stream, &what);
                for s in &sends {
                    assert_eq!(p.a.poll(*s).unwrap(), Some(Status::SUCCESS), "{what}");
                }
                for r in receives {
                    let message =
                        p.a.prepare_within(&Work::send_inline(&[b"x"]).signaled(), LIMIT)
                            .unwrap();
                    p.a.post_within(message, LIMIT).unwrap();
                    p.b.wait(r, LIMIT).unwrap();
                    p.a.wait(message, LIMIT).unwrap();
                }
            }
            assert_eq!(largest, send_blocks as usize, "{path}");
        }
    }
}

/// `poll` never returns success for an aborted request, for any number of later requests.
#[test]
fn old_aborted_request_never_polls_as_success() {
    let gpu = Gpu::soft().unwrap();
    for newest in [false, true] {
        let config = sized(&QpConfig::default(), 8, 256);
        let mut p = Pair::new(&gpu, Net::One, &config);
        let aborted = p.a.signaled(&Work::nop());
        let behind = (!newest).then(|| p.a.signaled(&Work::nop()));
        p.a.abort(aborted).unwrap();
        if let Some(behind) = behind {
            p.a.post(behind).unwrap();
            p.a.wait(behind, LIMIT).unwrap();
        }
        let after = p.a.start(&Work::nop());
        p.a.wait(after, LIMIT).unwrap();
        for _ in 0..20 {
            let status = p.a.poll(aborted);
            assert_ne!(status.ok(), Some(Some(Status::SUCCESS)), "newest: {newest}");
            p.a.complete(&Work::nop());
        }
        assert_eq!(p.a.poll(aborted).unwrap(), Some(Status::ABORTED));
        assert_eq!(p.a.poll(after).unwrap(), Some(Status::SUCCESS));
    }
}
