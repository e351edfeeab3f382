//! Queries and uses of objects that DEVX commands created. `emulator/programs/devx.c` shows that
//! their rings work.

mod mailbox;
mod rig;
mod work;

use mailbox::*;
use mlx5_prm::opcode::SendOpcode;
use mlx5_prm::wqe::{Payload, SendWqe, WqeFlags};
use rig::*;
use rustix::io::Errno;
use vmlx5_uverbs::abi::core::*;
use vmlx5_uverbs::abi::mlx5::{self, ioctl::*};
use vmlx5_uverbs::abi::prm::{Field, cap, cqc, input, opcode, qpc, roce_address, status};
use vmlx5_uverbs::address::LinkLayer;
use vmlx5_uverbs::{UarMode, User};
use zerocopy::IntoBytes;

#[test]
fn fields_have_their_declared_position() {
    let mut bytes = [0; 16];
    let field = Field { bit: 13, bits: 40 };
    field.set(&mut bytes, 0x12_3456_789a | 0xff << 40);
    assert_eq!(field.get(&bytes), 0x12_3456_789a);
    let around = [Field { bit: 0, bits: 13 }, Field { bit: 53, bits: 64 }];
    assert!(around.iter().all(|f| f.get(&bytes) == 0));
    // A read beyond the end returns zero, and a write there changes nothing.
    let beyond = Field { bit: 124, bits: 8 };
    beyond.set(&mut bytes, 0xff);
    assert_eq!((bytes[15], beyond.get(&bytes)), (0x0f, 0xf0));
    let (bit, bits) = (1 << 20, 64);
    assert_eq!(Field { bit, bits }.get(&bytes), 0);
}

#[test]
fn rings_in_program_memory_work() {
    let mut devx = Devx::on(LinkLayer::Ethernet);
    let cq = devx.create(&devx.cq()).unwrap();
    let a = devx.create(&devx.qp(0, cq.1)).unwrap();
    let b = devx.create(&devx.qp(1, cq.1)).unwrap();
    devx.connect(a, b.1);
    devx.connect(b, a.1);
    let nop = SendWqe {
        opcode: SendOpcode::NOP,
        flags: WqeFlags::default().changed(|w| w.signaled = true),
        ..SendWqe::default()
    };
    devx.post(0, a.1, 0, &nop);
    devx.rig.settle();
    let context = devx.query_qp(a);
    assert_eq!(qpc::HW_SQ_WQEBB_COUNTER.get(&context), 1);
    assert_eq!(qpc::USER_INDEX.get(&context), 0x700);
    assert_eq!(qpc::REMOTE_QPN.get(&context), b.1.into());
    assert_eq!(qpc::NEXT_RCV_PSN.get(&context), 7);
    assert_eq!(qpc::path::ACK_TIMEOUT.get(&context), 14);
    let mut bytes = header(opcode::QUERY_CQ);
    input::NUMBER.set(&mut bytes, cq.1.into());
    let (done, answer) = devx.object(DEVX_OBJ_QUERY, cq.0, &bytes, 272);
    done.unwrap();
    assert_eq!(cqc::PRODUCER_COUNTER.get(&answer[cqc::AT..]), 1);
    assert_eq!(cqc::LOG_CQ_SIZE.get(&answer[cqc::AT..]), LOG_CQ);

    // Objects in use are not destroyed; then all are.
    assert_eq!(devx.remove(cq.0), Err(Errno::BUSY));
    assert_eq!(devx.deregister(devx.umem), Err(Errno::BUSY));
    for handle in [a.0, b.0, cq.0] {
        devx.remove(handle).unwrap();
        assert_eq!(devx.remove(handle), Err(Errno::NOENT));
    }
    devx.deregister(devx.umem).unwrap();
    assert_eq!(devx.deregister(devx.umem), Err(Errno::NOENT));
}

#[test]
fn shared_receives_and_inline_scatter_work() {
    let mut devx = Devx::new();
    let (ring, db, data) = (devx.rig.room(128), devx.rig.room(8), devx.rig.room(4096));
    let mr = devx.rig.mr(devx.pd, data, 4096, 0xf).unwrap();
    // Two receives of 64 bytes: the index of the next entry, and an SGE.
    for i in 0..2_u64 {
        let mut entry = [0; 32];
        entry[2..4].copy_from_slice(&(i as u16 + 1).to_be_bytes());
        entry[16..20].copy_from_slice(&64_u32.to_be_bytes());
        entry[20..24].copy_from_slice(&mr.lkey.to_be_bytes());
        entry[24..32].copy_from_slice(&(data + 64 * i).to_be_bytes());
        devx.rig.put(ring + 32 * i, &entry);
    }
    let cmd = CreateSrq {
        pd_handle: devx.pd,
        max_wr: 3,
        max_sge: 1,
        ..Default::default()
    };
    let own = mlx5::CreateSrq::default().changed(|c| (c.buf_addr, c.db_addr) = (ring, db));
    let (srq, driver) = devx.rig.call(&cmd, own.as_bytes()).unwrap();
    devx.rig.put32(db, 2_u32.to_be());

    let cq = devx.create(&devx.cq()).unwrap();
    let a = devx.create(&devx.qp(0, cq.1)).unwrap();
    let shared = with(&devx.qp(1, cq.1), qpc::AT, qpc::RQ_TYPE, qpc::RQ_SRQ);
    let shared = with(&shared, qpc::AT, qpc::SRQN, driver.srqn.into());
    let shared = with(&shared, qpc::AT, qpc::CS_RES, qpc::CS_RES_32);
    let b = devx.create(&shared).unwrap();
    devx.connect(a, b.1);
    devx.connect(b, a.1);
    let payload: Vec<u8> = (1..=44).collect();
    for (index, len) in [20, 44].into_iter().enumerate() {
        let send = SendWqe {
            opcode: SendOpcode::SEND,
            payload: Payload::Inline(&[&payload[..len]]),
            ..SendWqe::default()
        };
        devx.post(0, a.1, index as u32, &send);
        devx.rig.settle();
        let entry = devx.entry(index as u64);
        assert_eq!((entry[63] >> 4, entry[47]), (2, len as u8));
        let mut there = vec![0; len];
        let at = data + 64 * index as u64;
        devx.rig.process.read(at, &mut there).unwrap();
        if len <= 32 {
            assert_eq!((&entry[..len], there), (&payload[..len], vec![0; len]));
        } else {
            assert_eq!(there, payload);
        }
    }
    let handle = srq.srq_handle;
    let destroy = |devx: &mut Devx| {
        let cmd = DestroySrq::default().changed(|d| d.srq_handle = handle);
        devx.rig.call(&cmd, &[]).map(drop)
    };
    assert_eq!(destroy(&mut devx), Err(Errno::BUSY));
    devx.remove(b.0).unwrap();
    destroy(&mut devx).unwrap();
    let gone = Refused::Device(status::BAD_RES, 24 * 8 + qpc::SRQN.bit);
    assert_eq!(devx.create(&shared), Err(gone));
}

#[test]
fn capabilities_are_returned() {
    for link in [LinkLayer::InfiniBand, LinkLayer::Ethernet] {
        let devx = Devx::on(link);
        let ethernet = u64::from(link == LinkLayer::Ethernet);
        let caps = |which: u64| {
            let bytes = with(
                &header(opcode::QUERY_HCA_CAP),
                0,
                input::OP_MOD,
                which << 1 | 1,
            );
            let (done, _) = devx.general(&bytes, 4112);
            done.unwrap()[16..].to_vec()
        };
        let general = caps(cap::GENERAL);
        assert_eq!(cap::general::PORT_TYPE.get(&general), ethernet);
        assert_eq!(cap::general::LOG_BF_REG_SIZE.get(&general), 9);
        assert_eq!(cap::general::LOG_MAX_CQ_SZ.get(&general), 22);
        assert_eq!(cap::atomic::SIZE_QP.get(&caps(cap::ATOMIC)), 8);
        let version = if ethernet == 1 { 5 } else { 0 };
        assert_eq!(cap::roce::VERSION.get(&caps(cap::ROCE)), version);
        // Unknown structures are zeros; a short buffer receives the beginning.
        assert!(caps(0xc).iter().all(|&b| b == 0));
        let (done, _) = devx.general(&header(opcode::QUERY_HCA_CAP), 64);
        assert_eq!(done.unwrap()[16..], general[..48]);

        let cmd = |index, port| {
            let bytes = header(opcode::QUERY_ROCE_ADDRESS);
            let bytes = with(&bytes, 0, roce_address::input::INDEX, index);
            let bytes = with(&bytes, 0, roce_address::input::VHCA_PORT_NUM, port);
            let (done, answer) = devx.general(&bytes, 48);
            done.map_err(|errno| refused(errno, &answer))
        };
        if ethernet == 0 {
            assert_eq!(cmd(0, 1), Err(Refused::Device(status::BAD_PARAM, 0x5c)));
            continue;
        }
        let answer = cmd(3, 1).unwrap();
        assert_eq!(answer[roce_address::GID][10..14], [0xff, 0xff, 127, 0]);
        assert_eq!(roce_address::output::VERSION.get(&answer), 2);
        assert_eq!(roce_address::output::L3_TYPE.get(&answer), 0);
        assert_eq!(cmd(4, 1), Err(Refused::Device(status::BAD_PARAM, 0x40)));
        assert_eq!(cmd(0, 2), Err(Refused::Device(status::BAD_PARAM, 0x5c)));
    }
}

#[test]
fn event_queues_and_pages_have_numbers() {
    let devx = Devx::new();
    let out = devx.rig.process.memory.addr() + 2048;
    let query = |devx: &Devx, method, value: u64| {
        let attrs = [(0x1000, 4, value), (0x1001, 4, out)];
        let done = devx.rig.ioctl(OBJECT_DEVX, method, &attrs);
        done.map(|_| devx.rig.read::<u32>(out))
    };
    assert_eq!(query(&devx, DEVX_QUERY_EQN, 0), Ok(4));
    assert_eq!(query(&devx, DEVX_QUERY_EQN, 3), Ok(7));
    assert_eq!(query(&devx, DEVX_QUERY_EQN, 4), Err(Errno::INVAL));
    assert_eq!(query(&devx, DEVX_QUERY_UAR, 0), Err(Errno::INVAL));
    // With static pages, the library requests the additional pages by its own numbers.
    let rig = open(LinkLayer::InfiniBand, UarMode::Static, 1);
    let devx = Devx { rig, ..devx };
    let out = devx.rig.process.memory.addr() + 2048;
    let query = |value: u64| {
        let attrs = [(0x1000, 4, value), (0x1001, 4, out)];
        let done = devx.rig.ioctl(OBJECT_DEVX, DEVX_QUERY_UAR, &attrs);
        done.map(|_| devx.rig.read::<u32>(out))
    };
    assert_eq!(query(2), Err(Errno::INVAL), "not mapped");
    devx.rig.context.map(4096 * (6 << 8 | 1), 4096).unwrap();
    assert_eq!(query(2), Ok(9));
    assert_eq!(query(3), Ok(9));
    assert_eq!(query(512), Err(Errno::INVAL));
}

#[test]
fn pd_is_created_by_command() {
    let devx = Devx::new();
    let pd = devx.create(&header(opcode::ALLOC_PD)).unwrap();
    let cq = devx.create(&devx.cq()).unwrap();
    let bytes = with(&devx.qp(0, cq.1), qpc::AT, qpc::PD, pd.1.into());
    let qp = devx.create(&bytes).unwrap();
    assert_eq!(devx.remove(pd.0), Err(Errno::BUSY));
    devx.remove(qp.0).unwrap();
    devx.remove(pd.0).unwrap();
    let gone = Err(Refused::Device(status::BAD_RES, 24 * 8 + qpc::PD.bit));
    assert_eq!(devx.create(&bytes), gone);
}

#[test]
fn closed_context_destroys_its_objects() {
    let mut devx = Devx::new();
    let cq = devx.create(&devx.cq()).unwrap();
    let qp = devx.create(&devx.qp(0, cq.1)).unwrap();
    devx.connect(qp, qp.1);
    devx.create(&header(opcode::ALLOC_PD)).unwrap();
    let next = devx.rig.device.open();
    drop(std::mem::replace(&mut devx.rig.context, next));
    let stats = devx.rig.nic.with(|nic| {
        let qp = nic.query_qp(vmlx5::Qpn(qp.1)).is_err();
        let cq = nic.query_cq(vmlx5::Cqn(cq.1)).is_err();
        (qp, cq)
    });
    assert_eq!(stats, (true, true));
}
