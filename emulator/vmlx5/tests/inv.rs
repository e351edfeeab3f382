//! SEND with invalidation: the key is invalid when the message is complete, or the message fails.

mod rig;

use std::sync::Arc;

use mlx5_prm::opcode::{CqeOpcode, SendOpcode};
use mlx5_prm::syndrome::Syndrome;
use mlx5_prm::wqe::Remote;
use rig::*;
use vmlx5::*;

const RESP_SEND_INV: CqeOpcode = CqeOpcode::RESP_SEND_INV;

/// A further region of a domain, of 4096 bytes.
fn region(world: &mut World, nic: usize, pd: PdId) -> (Arc<HostMemory>, MrKeys) {
    let mem = Arc::new(HostMemory::new(4096));
    let keys = register(&mut world.nics[nic], pd, &mem, 0, 4096);
    (mem, keys)
}

#[test]
fn invalidated_key_fails_after_the_message() {
    for len in [0, 5, 100_000] {
        let (mut world, mut a, mut b) = World::connected();
        let (mem, keys) = region(&mut world, 1, b.pd);
        let rkey = keys.rkey;
        let at = |rkey| Remote {
            addr: mem.addr(),
            rkey,
        };
        let bytes = pattern(1, len);
        a.put(0, &bytes);
        a.put(200_000, b"before");
        a.post(&write(at(rkey), &[a.sge(200_000, 6)]));
        let recv = b.post_recv(&[b.sge(0, 100_000)]);
        let sent = a.run(&mut world, &send_inv(rkey, &[a.sge(0, len as u32)]));
        let cqe = b.recv.poll().unwrap();
        assert_ok(&cqe, RESP_SEND_INV, recv);
        assert_eq!(cqe.imm_inval_pkey, rkey.to_be_bytes());
        assert_eq!((cqe.byte_cnt.get() as usize, b.get(0, len)), (len, bytes));
        a.send.poll().unwrap();
        let done = a.send.poll().unwrap();
        assert_ok(&done, CqeOpcode::REQ, sent);
        assert_eq!(done.send_opcode(), SendOpcode::SEND_INV);
        // The key is invalid on both sides.
        let failed = a.run(&mut world, &write(at(rkey), &[a.sge(0, 6)]));
        assert_eq!(
            a.send_failed(failed, Syndrome::REMOTE_ACCESS),
            vendor::KEY_UNKNOWN
        );
        let mut before = [0; 6];
        mem.read(0, &mut before).unwrap();
        assert_eq!(&before, b"before");
        // The region still exists and can be removed once.
        let nic = &mut world.nics[1];
        nic.dereg_mr(keys.lkey).unwrap();
        assert!(nic.dereg_mr(keys.lkey).is_err());
        let (_, next) = region(&mut world, 1, b.pd);
        assert_ne!(next.rkey, rkey);
    }
}

#[test]
fn key_is_valid_until_the_last_byte() {
    let (mut world, mut a, mut b) = World::connected();
    // The key of the region that the message is received into.
    let rkey = b.keys.rkey;
    b.post_recv(&[b.sge(0, 1 << 20)]);
    let bytes = pattern(3, 1 << 20);
    a.put(0, &bytes);
    a.run(&mut world, &send_inv(rkey, &[a.sge(0, 1 << 20)]));
    assert_ok(&b.recv.poll().unwrap(), RESP_SEND_INV, 0);
    assert_eq!(b.get(0, 1 << 20), bytes);
}

/// A duplicate invalidates nothing: the following key stays valid.
#[test]
fn unreliable_wire_invalidates_each_key_once() {
    for seed in 0..20 {
        println!("seed {seed}");
        let mut world = World::new(2);
        world.set_faults(&bad_wire(seed, [0.1, 0.2, 0.1]));
        let config = EndConfig::default().changed(|c| (c.retry_cnt, c.timeout) = (7, 8));
        let (mut a, mut b) = world.pair(config.clone(), config);
        for _ in 0..10 {
            let (mem, keys) = region(&mut world, 1, b.pd);
            let at = Remote {
                addr: mem.addr(),
                rkey: keys.rkey,
            };
            b.post_recv(&[b.sge(0, 64)]);
            a.prepare(&write(at, &[a.sge(0, 64)]));
            a.prepare(&send_inv(keys.rkey, &[a.sge(0, 8)]));
            a.ring();
            world.outlast();
            let cqe = b.recv.poll().unwrap();
            assert_eq!(cqe.opcode(), RESP_SEND_INV, "seed {seed}");
            assert_eq!(cqe.imm_inval_pkey, keys.rkey.to_be_bytes());
            let done = a.send.drain();
            assert_eq!(done.len(), 2);
            assert!(done.iter().all(|c| !c.opcode().is_error()), "seed {seed}");
            world.nics[1].dereg_mr(keys.lkey).unwrap();
        }
    }
}
