//! Refusals of DEVX commands, each because of a field; and random mailboxes.

mod mailbox;
mod rig;
mod work;

use mailbox::*;
use rig::*;
use rustix::io::Errno;
use vmlx5_uverbs::UarMode;
use vmlx5_uverbs::abi::mlx5::ioctl::*;
use vmlx5_uverbs::abi::prm::{Field, cqc, input, opcode, qpc, status};
use vmlx5_uverbs::address::LinkLayer;

#[test]
fn commands_without_the_devx_flag_are_refused() {
    let devx = Devx::new().changed(|d| d.rig = open(LinkLayer::InfiniBand, UarMode::Dynamic, 0));
    let at = devx.rig.process.memory.addr();
    let devx = devx.changed(|d| (d.input, d.output) = (at + 4096, at + 8192));
    let kernel = Err(Refused::Kernel(Errno::INVAL));
    assert_eq!(devx.register(at, 4096, 1).err(), Some(Errno::INVAL));
    assert_eq!(devx.create(&devx.cq()), kernel);
    let (done, _) = devx.general(&header(opcode::QUERY_HCA_CAP), 4112);
    assert_eq!(done.err(), Some(Errno::INVAL));
}

#[test]
fn invalid_registrations_are_refused() {
    let devx = Devx::new();
    let (at, len) = (devx.umem.at, 4096);
    assert_eq!(devx.register(at, 0, 1).err(), Some(Errno::INVAL));
    assert_eq!(devx.register(at, len, 2).err(), Some(Errno::INVAL));
    assert_eq!(devx.register(at, len, 8).err(), Some(Errno::INVAL));
    assert_eq!(devx.register(NOWHERE, len, 1).err(), Some(Errno::FAULT));
    assert_eq!(devx.register(at, 1 << 40, 1).err(), Some(Errno::FAULT));
    // The memory behind a descriptor; the address is an offset of it.
    let of_file = |fd: i32, offset: u64| {
        let out = devx.rig.process.memory.addr() + 2048;
        let attrs = [
            (UMEM_HANDLE, 0, 0),
            (UMEM_ADDR, 8, offset),
            (UMEM_LEN, 8, 4096),
            (UMEM_ACCESS, 4, 1),
            (UMEM_OUT_ID, 4, out),
            (UMEM_PGSZ_BITMAP, 8, 4096),
            (UMEM_DMABUF_FD, 0, fd as u64),
        ];
        let done = devx.rig.ioctl(OBJECT_DEVX_UMEM, DEVX_UMEM_REG, &attrs);
        done.map(drop)
    };
    assert_eq!(of_file(FILE, 4096), Ok(()));
    assert_eq!(of_file(FILE, FILE_LEN), Err(Errno::INVAL));
    assert_eq!(of_file(GPU, 0), Err(Errno::OPNOTSUPP));
    // A part of a page, as doorbell records are registered.
    let small = devx.register(at + 8, 8, 0).unwrap();
    assert_ne!(small.id, devx.umem.id);
    devx.deregister(small).unwrap();
    assert_eq!(
        devx.deregister(small.changed(|u| u.handle = devx.pd)),
        Err(Errno::INVAL)
    );
}

#[test]
fn invalid_cqs_are_refused() {
    use cqc::*;
    let devx = Devx::new();
    let good = devx.cq();
    let bad = |at: usize, field: Field, value, status| {
        let refused = devx.create(&with(&good, at, field, value)).err();
        let place = if at == 0 {
            field.bit
        } else {
            16 * 8 + field.bit
        };
        assert_eq!(refused, Some(Refused::Device(status, place)), "{field:?}");
    };
    bad(AT, CQE_SZ, 1, status::BAD_PARAM);
    bad(AT, CQE_COMP_EN, 1, status::BAD_PARAM);
    bad(AT, LOG_CQ_SIZE, 23, status::BAD_PARAM);
    bad(AT, C_EQN, 8, status::BAD_PARAM);
    bad(AT, UAR_PAGE, 0x399, status::BAD_RES);
    bad(AT, DBR_UMEM_ID, 77, status::BAD_RES);
    bad(AT, DBR_ADDR, 4, status::BAD_PARAM);
    bad(AT, DBR_ADDR, ROOM as u64, status::BAD_PARAM);
    bad(0, create::CQ_UMEM_ID, 0, status::BAD_RES);
    bad(0, create::CQ_UMEM_OFFSET, 32, status::BAD_PARAM);
    bad(
        0,
        create::CQ_UMEM_OFFSET,
        ROOM as u64 - 512,
        status::BAD_PARAM,
    );
    bad(0, create::CQ_UMEM_OFFSET, u64::MAX, status::BAD_PARAM);
    // A ring may begin within a page of any size.
    let paged = with(&good, AT, PAGE_OFFSET, 2);
    devx.create(&with(&paged, AT, LOG_PAGE_SIZE, 1)).unwrap();
    let far = with(&paged, AT, LOG_PAGE_SIZE, 31);
    let far = devx.create(&with(&far, 0, create::CQ_UMEM_OFFSET, u64::MAX - 4096));
    assert_eq!(far, Err(Refused::Device(status::BAD_PARAM, 0x280)));
    let short = devx.create(&good[..cqc::MAILBOX - 8]);
    assert_eq!(short, Err(Refused::Device(status::BAD_INPUT_LEN, 0)));
    // The NIC writes CQEs, so the memory must be writable.
    let read_only = devx.register(devx.umem.at, ROOM as u64, 0).unwrap();
    let bytes = with(&good, 0, create::CQ_UMEM_ID, read_only.id.into());
    let refused = Refused::Device(status::BAD_PARAM, 0x280);
    assert_eq!(devx.create(&bytes), Err(refused));
}

#[test]
fn invalid_qps_are_refused() {
    use qpc::*;
    let devx = Devx::new();
    let cq = devx.create(&devx.cq()).unwrap();
    let good = devx.qp(0, cq.1);
    let bad = |at: usize, field: Field, value, status| {
        let refused = devx.create(&with(&good, at, field, value)).err();
        let place = at as u32 * 8 + field.bit;
        assert_eq!(refused, Some(Refused::Device(status, place)), "{field:?}");
    };
    for (field, value) in [
        (ST, 2),
        (ST, 7),
        (WQ_SIGNATURE, 1),
        (SEND_DBR_MODE, 1),
        (RQ_TYPE, 2),
        (CS_REQ, 0x22),
        (CS_RES, 2),
        (LOG_RQ_STRIDE, 6),
        (DBR_ADDR, 4),
        (DBR_ADDR, ROOM as u64),
    ] {
        bad(AT, field, value, status::BAD_PARAM);
    }
    for (field, value) in [
        (PD, 0xfff),
        (UAR_PAGE, 0),
        (CQN_SND, 0xabc),
        (CQN_RCV, 0xabc),
        (DBR_UMEM_ID, 77),
    ] {
        bad(AT, field, value, status::BAD_RES);
    }
    bad(0, create::WQ_UMEM_ID, 77, status::BAD_RES);
    bad(
        0,
        create::WQ_UMEM_OFFSET,
        ROOM as u64 - 64,
        status::BAD_PARAM,
    );
    bad(0, create::WQ_UMEM_OFFSET, 32, status::BAD_PARAM);
    // A receive queue smaller than a block would leave the sends unaligned.
    let tiny = with(&good, AT, LOG_RQ_STRIDE, 0);
    let tiny = devx.create(&with(&tiny, AT, LOG_RQ_SIZE, 1));
    let place = AT as u32 * 8 + LOG_RQ_SIZE.bit;
    assert_eq!(tiny, Err(Refused::Device(status::BAD_PARAM, place)));
    let short = devx.create(&good[..qpc::MAILBOX - 4]);
    assert_eq!(short, Err(Refused::Device(status::BAD_INPUT_LEN, 0)));
    // An unreliable connection, and one without sends.
    devx.create(&with(&good, AT, ST, ST_UC)).unwrap();
    devx.create(&with(&good, AT, NO_SQ, 1)).unwrap();
}

#[test]
fn invalid_modifications_are_refused() {
    use qpc::*;
    let devx = Devx::new();
    let cq = devx.create(&devx.cq()).unwrap();
    let qp = devx.create(&devx.qp(0, cq.1)).unwrap();
    let [to_init, to_rtr, to_rts] = devx.ways(qp.1);
    let state = |code| Err(Refused::Device(code, 0));
    let bad = |way: &[u8], at: usize, field: Field, value: u64| {
        let refused = devx.modify(qp, &mut with(way, at, field, value)).err();
        let place = at as u32 * 8 + field.bit;
        assert_eq!(
            refused,
            Some(Refused::Device(status::BAD_PARAM, place)),
            "{field:?}"
        );
    };
    for way in [&to_rtr, &to_rts] {
        assert_eq!(
            devx.modify(qp, &mut way.clone()),
            state(status::BAD_QP_STATE)
        );
    }
    bad(&to_init, AT, path::VHCA_PORT_NUM, 0);
    bad(&to_init, AT, path::VHCA_PORT_NUM, 2);
    bad(&to_init, AT, path::PKEY_INDEX, 1);
    bad(&to_init, 0, modify::OPT_PARAM_MASK, 1 << 9);
    assert_eq!(devx.state(qp), 0);
    devx.modify(qp, &mut to_init.clone()).unwrap();
    bad(&to_rtr, AT, MTU, 0);
    bad(&to_rtr, AT, MTU, 6);
    bad(&to_rtr, AT, LOG_RRA_MAX, 5);
    bad(&to_rtr, AT, path::SRC_ADDR_INDEX, 1);
    assert_eq!(devx.state(qp), 1);
    devx.modify(qp, &mut to_rtr.clone()).unwrap();
    bad(&to_rts, AT, LOG_SRA_MAX, 5);
    // Rights may be set later.
    let late = with(&to_rts, 0, modify::OPT_PARAM_MASK, opt::RWE);
    devx.modify(qp, &mut late.clone()).unwrap();
    let context = devx.query_qp(qp);
    assert_eq!((RWE.get(&context), RRE.get(&context)), (0, 1));
    assert_eq!(
        devx.modify(qp, &mut to_init.clone()),
        state(status::BAD_QP_STATE)
    );
    assert_eq!(
        devx.modify(qp, &mut to_rts[..271].to_vec()),
        state(status::BAD_INPUT_LEN)
    );
    devx.modify(qp, &mut header(opcode::TO_ERR_QP)).unwrap();
    assert_eq!(devx.state(qp), 6);
    devx.modify(qp, &mut header(opcode::TO_RST_QP)).unwrap();
    assert_eq!(devx.state(qp), 0);
}

#[test]
fn refusals_of_the_kernel_are_einval() {
    let devx = Devx::new();
    let cq = devx.create(&devx.cq()).unwrap();
    let qp = devx.create(&devx.qp(0, cq.1)).unwrap();
    let invalid = Errno::INVAL;
    let kernel = |method, handle, bytes: &[u8], room| {
        let (done, answer) = devx.object(method, handle, bytes, room);
        assert_eq!(done.err(), Some(invalid));
        assert!(answer.iter().all(|&b| b == 0xaa));
    };
    // Too short for a header, of the wrong kind for the method, for another object.
    kernel(DEVX_OBJ_CREATE, 0, &devx.cq()[..15], 16);
    kernel(DEVX_OBJ_CREATE, 0, &devx.cq(), 15);
    kernel(DEVX_OBJ_CREATE, 0, &header(opcode::QUERY_QP), 16);
    kernel(DEVX_OBJ_QUERY, qp.0, &header(opcode::CREATE_QP), 272);
    kernel(DEVX_OBJ_QUERY, qp.0, &header(opcode::QUERY_QP), 272);
    kernel(DEVX_OBJ_QUERY, cq.0, &header(opcode::QUERY_QP), 272);
    kernel(DEVX_OBJ_MODIFY, qp.0, &header(opcode::TO_ERR_QP), 16);
    kernel(DEVX_OBJ_MODIFY, cq.0, &header(opcode::TO_ERR_QP), 16);
    kernel(DEVX_OBJ_MODIFY, devx.pd, &header(opcode::TO_ERR_QP), 16);
    kernel(DEVX_OBJ_MODIFY, 999, &header(opcode::TO_ERR_QP), 16);
    let (done, _) = devx.general(&header(opcode::CREATE_CQ), 16);
    assert_eq!(done.err(), Some(invalid));
    // The device handles an answer buffer that is too small for the result.
    let bytes = with(&header(opcode::QUERY_QP), 0, input::NUMBER, qp.1.into());
    let (done, answer) = devx.object(DEVX_OBJ_QUERY, qp.0, &bytes, 100);
    let errno = done.err().unwrap();
    let short = Refused::Device(status::BAD_OUTPUT_LEN, 0);
    assert_eq!(refused(errno, &answer), short);
    // A command with an unwritable answer creates nothing.
    let bytes = devx.cq();
    let attrs = [
        (DEVX_OBJ_HANDLE, 0, 0),
        (DEVX_OBJ_CMD_IN, bytes.len() as u16, devx.input),
        (DEVX_OBJ_CMD_OUT, 16, NOWHERE),
    ];
    let (done, _) = devx.pass(OBJECT_DEVX_OBJ, DEVX_OBJ_CREATE, &attrs, &bytes, 16);
    assert_eq!(done.err(), Some(Errno::FAULT));
    devx.remove(qp.0).unwrap();
    devx.remove(cq.0).unwrap();
    devx.deregister(devx.umem).unwrap();
}

#[test]
fn random_mailboxes_do_no_harm() {
    let mut random = random();
    let link = [LinkLayer::InfiniBand, LinkLayer::Ethernet][random.usize(..2)];
    let mut devx = Devx::on(link);
    let cq = devx.create(&devx.cq()).unwrap();
    let mut objects = vec![cq];
    let mut done = [0; 2];
    for _ in 0..5_000 {
        let (handle, number) = objects[random.usize(..objects.len())];
        // A nearly valid command, or a few random bytes.
        let mut bytes = match random.u32(..10) {
            0 => devx.cq(),
            1 | 2 => devx.qp(random.u64(..4), cq.1),
            3..=5 => devx.ways(number)[random.usize(..3)].clone(),
            6 => header([opcode::QUERY_QP, opcode::QUERY_CQ][random.usize(..2)]),
            7 => header([opcode::TO_ERR_QP, opcode::TO_RST_QP][random.usize(..2)]),
            8 => header(opcode::QUERY_HCA_CAP),
            _ => (0..random.usize(..300)).map(|_| random.u8(..)).collect(),
        };
        if random.u32(..4) > 0 && bytes.len() >= 16 && !bytes.is_empty() {
            let code = input::OPCODE.get(&bytes) as u16;
            if code != opcode::CREATE_CQ && code != opcode::CREATE_QP {
                input::NUMBER.set(&mut bytes, number.into());
            }
        }
        for _ in 0..random.u32(..3) {
            if !bytes.is_empty() {
                let at = random.usize(..bytes.len());
                bytes[at] = random.u8(..);
            }
        }
        let room = [0, 16, 48, 272, 4112][random.usize(..5)];
        let answered = match random.u32(..4) {
            0 => devx.general(&bytes, room).0,
            1 if objects.len() < 64 => match devx.create(&bytes) {
                Ok(made) => {
                    objects.push(made);
                    Ok(Vec::new())
                }
                Err(_) => Err(Errno::REMOTEIO),
            },
            2 => devx.object(DEVX_OBJ_QUERY, handle, &bytes, room).0,
            _ => devx.object(DEVX_OBJ_MODIFY, handle, &bytes, room).0,
        };
        done[usize::from(answered.is_ok())] += 1;
        if objects.len() > 32 {
            let (handle, _) = objects.swap_remove(random.usize(1..objects.len()));
            let _ = devx.remove(handle);
        }
        if random.u32(..50) == 0 {
            devx.rig.ring();
            devx.rig.settle();
        }
    }
    println!("{done:?} refused and done, {} objects", objects.len());
    assert!(done[0] > 100 && done[1] > 100, "{done:?}");
}
