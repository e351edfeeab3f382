//! Every operation between two NICs and within one NIC: payloads byte for byte, completions field
//! by field.

mod rig;

use mlx5_prm::opcode::{CqeOpcode, SendOpcode};
use mlx5_prm::wqe::{Atomic, Payload, SendWqe, Sge};
use rig::*;

/// Two worlds: the other end is on another NIC, and on the same NIC.
fn each(mut test: impl FnMut(World, End, End)) {
    for nics in [2, 1] {
        let mut world = World::new(nics);
        let (a, b) = world.pair(EndConfig::default(), EndConfig::default());
        test(world, a, b);
    }
}

const SIZES: [usize; 12] = [1, 2, 7, 8, 9, 63, 64, 4096, 32767, 32768, 32769, 300_001];

#[test]
fn every_size_arrives_intact() {
    each(|mut world, mut a, mut b| {
        for (i, &len) in SIZES.iter().enumerate() {
            let n = len as u32;
            let data = pattern(i as u64, len);
            a.put(100, &data);
            b.put(0, &vec![0xee; len + 8]);
            let receives = [b.post_recv(&[b.sge(3, n)]), b.post_recv(&[b.sge(0, 3)])];
            let (half, written, back) = (n / 2, b.remote(310_000), 400_000);
            let sges = [a.sge(100, n)];
            let with_imm = SendWqe {
                opcode: SendOpcode::RDMA_WRITE_IMM,
                imm: [9, 8, 7, i as u8],
                ..write(b.remote(620_000), &sges)
            };
            let posted = [
                a.post(&send(&sges)),
                a.post(&write(written, &sges)),
                a.post(&with_imm),
                a.post(&rig::read(
                    written,
                    &[a.sge(back, half), a.sge(back + 300_000, n - half)],
                )),
            ];
            world.settle();
            // A WRITE with immediate uses its receive and leaves the receive's memory unchanged.
            assert_eq!(b.get(0, 3), [0xee; 3]);
            assert_eq!(b.get(3, len), data, "length {len}");
            assert_eq!(b.get(3 + len as u64, 5), [0xee; 5]);
            assert_eq!(b.get(310_000, len), data);
            assert_eq!(b.get(620_000, len), data);
            let mut read = a.get(back, half as usize);
            read.extend(a.get(back + 300_000, len - half as usize));
            assert_eq!(read, data);
            let opcodes = [
                (SendOpcode::SEND, 0),
                (SendOpcode::RDMA_WRITE, 0),
                (SendOpcode::RDMA_WRITE_IMM, 0),
                (SendOpcode::RDMA_READ, n),
            ];
            for (index, (opcode, bytes)) in posted.into_iter().zip(opcodes) {
                let done = a.send.poll().unwrap();
                assert_ok(&done, CqeOpcode::REQ, index);
                assert_eq!((done.send_opcode(), done.qpn()), (opcode, a.qpn.0));
                assert_eq!(done.byte_cnt.get(), bytes);
            }
            let kinds = [
                (CqeOpcode::RESP_SEND, [0; 4]),
                (CqeOpcode::RESP_WR_IMM, [9, 8, 7, i as u8]),
            ];
            for (index, (opcode, imm)) in receives.into_iter().zip(kinds) {
                let got = b.recv.poll().unwrap();
                assert_ok(&got, opcode, index);
                assert_eq!((got.byte_cnt.get(), got.qpn()), (n, b.qpn.0));
                assert_eq!((got.imm_inval_pkey, got.solicited()), (imm, false));
            }
            // A WRITE without immediate makes no completion at the responder.
            assert!(a.send.poll().is_none() && b.recv.poll().is_none());
        }
        // A read of zero bytes.
        a.run(&mut world, &rig::read(b.remote(0), &[]));
        assert_eq!(a.send.poll().unwrap().byte_cnt.get(), 0);
    });
}

#[test]
fn immediate_data_and_solicited_bit_arrive() {
    each(|mut world, mut a, mut b| {
        let wqe = SendWqe {
            opcode: SendOpcode::SEND_IMM,
            imm: [1, 2, 3, 4],
            flags: signaled().changed(|w| w.solicited = true),
            ..SendWqe::default()
        };
        b.post_recv(&[]);
        let r = b.post_recv(&[]);
        a.post(&send(&[]));
        a.run(&mut world, &wqe);
        let empty = b.recv.poll().unwrap();
        assert_eq!(
            (empty.opcode(), empty.byte_cnt.get()),
            (CqeOpcode::RESP_SEND, 0)
        );
        let got = b.recv.poll().unwrap();
        assert_ok(&got, CqeOpcode::RESP_SEND_IMM, r);
        assert_eq!((got.imm_inval_pkey, got.solicited()), ([1, 2, 3, 4], true));
        assert_eq!(a.send.drain().len(), 2);
    });
}

#[test]
fn pieces_are_gathered_and_scattered() {
    each(|mut world, mut a, mut b| {
        a.put(0, &pattern(9, 200_000));
        let from = [
            a.sge(5, 3),
            a.sge(1000, 40_000),
            a.sge(11, 1),
            a.sge(90_000, 777),
        ];
        let to = [b.sge(0, 1), b.sge(50_000, 33_000), b.sge(200_000, 100_000)];
        let mut sent = Vec::new();
        for (at, len) in [(5, 3), (1000, 40_000), (11, 1), (90_000, 777)] {
            sent.extend(a.get(at, len));
        }
        b.post_recv(&to);
        a.post(&send(&from));
        let target = b.remote(400_000);
        a.run(&mut world, &write(target, &from));
        let mut got = b.get(0, 1);
        got.extend(b.get(50_000, 33_000));
        got.extend(b.get(200_000, sent.len() - 33_001));
        assert_eq!(got, sent);
        assert_eq!(b.get(400_000, sent.len()), sent);
        assert_eq!(b.recv.poll().unwrap().byte_cnt.get(), sent.len() as u32);
    });
}

#[test]
fn inline_payloads_arrive_intact() {
    each(|mut world, mut a, mut b| {
        for len in [1, 4, 12, 13, 28, 29, 44, 60, 61, 124, 500, 900] {
            let data = pattern(len as u64, len);
            let (head, tail) = data.split_at(len / 2);
            let pieces = [head, tail];
            let payload = Payload::Inline(&pieces);
            let target = b.remote(2000);
            b.post_recv(&[b.sge(0, 1000)]);
            a.post(&send(&[]).changed(|s| s.payload = payload));
            a.run(
                &mut world,
                &write(target, &[]).changed(|s| s.payload = payload),
            );
            assert_eq!(b.get(0, len), data);
            assert_eq!(b.get(2000, len), data);
            assert_eq!(b.recv.poll().unwrap().byte_cnt.get(), len as u32);
            assert_eq!(a.send.drain().len(), 2);
        }
    });
}

#[test]
fn largest_entry_completes() {
    // 63 segments: a write of 61 pieces, in 16 basic blocks; and a SEND of 62.
    each(|mut world, mut a, mut b| {
        a.put(0, &pattern(1, 62 * 16));
        let pieces: Vec<Sge> = (0..62).map(|i| a.sge((61 - i) * 16, 16)).collect();
        let mut expect = Vec::new();
        for i in 0..61 {
            expect.extend(a.get((61 - i) * 16, 16));
        }
        let target = b.remote(8);
        assert_eq!(a.post(&write(target, &pieces[..61])), 0);
        assert_eq!(a.sq, 16);
        world.settle();
        assert_eq!(b.get(8, expect.len()), expect);
        a.sent(0);
        expect.extend(a.get(0, 16));
        b.post_recv(&[b.sge(4000, 62 * 16)]);
        assert_eq!(a.post(&send(&pieces)), 16);
        assert_eq!(a.sq, 32);
        world.settle();
        assert_eq!(b.get(4000, expect.len()), expect);
    });
}

#[test]
fn atomics_return_the_old_value() {
    each(|mut world, mut a, b| {
        b.put64(16, 40);
        let at = b.remote(16);
        let into = |i: u64| [a.sge(i * 8, 8)];
        let lists = [into(0), into(1), into(2)];
        let swap = |compare, swap| Atomic::CompareSwap { compare, swap };
        let add = Atomic::FetchAdd { add: u64::MAX };
        let first = a.post(&atomic(at, add, &lists[0]));
        a.post(&atomic(at, swap(40, 1), &lists[1]));
        a.run(
            &mut world,
            &atomic(at, swap(39, 0x1122_3344_5566_7788), &lists[2]),
        );
        assert_eq!([a.get64(0), a.get64(8), a.get64(16)], [40, 39, 39]);
        assert_eq!(b.get64(16), 0x1122_3344_5566_7788);
        let done = a.send.poll().unwrap();
        assert_ok(&done, CqeOpcode::REQ, first);
        assert_eq!(
            (done.send_opcode(), done.byte_cnt.get()),
            (SendOpcode::ATOMIC_FA, 8)
        );
        assert_eq!(a.send.drain().len(), 2);
    });
}
