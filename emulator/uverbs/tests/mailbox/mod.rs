//! A process that passes commands on to the device: mailboxes, and commands that create and modify
//! objects.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test uses a part of the harness"
)]

use mlx5_prm::wqe::SendWqe;
use rustix::io::Errno;
use vmlx5_uverbs::abi::core::*;
use vmlx5_uverbs::abi::mlx5::ioctl::*;
use vmlx5_uverbs::abi::prm::{Field, cqc, input, opcode, output, qpc};
use vmlx5_uverbs::address::LinkLayer;
use vmlx5_uverbs::{UarMode, User};
use zerocopy::IntoBytes;

use crate::rig::*;

/// A process whose device accepts DEVX commands.
pub struct Devx {
    pub rig: Rig,
    /// Mailboxes: commands, and 8 KiB for answers.
    pub input: u64,
    pub output: u64,
    pub pd: u32,
    pub pdn: u32,
    pub umem: Umem,
    pub uar: u32,
}

#[derive(Clone, Copy)]
pub struct Umem {
    pub handle: u32,
    pub id: u32,
    pub at: u64,
}

/// The answer to a command, if the device received it.
pub type Answered = Result<Vec<u8>, Errno>;

/// The length of the registered memory in bytes.
pub const ROOM: usize = 8 * 4096;
/// The offset of rings and records in the registered memory.
pub const RINGS: u64 = 4096;
pub const RECORDS: u64 = 7 * 4096;
pub const LOG_CQ: u64 = 4;

pub fn open(link: LinkLayer, uar: UarMode, flags: u32) -> Rig {
    let mut rig = Rig::new(link, uar);
    let cmd = first_driver(flags);
    rig.call(&GetContext::default(), cmd.as_bytes()).unwrap();
    rig
}

impl Devx {
    pub fn on(link: LinkLayer) -> Devx {
        let rig = open(link, UarMode::Dynamic, 1);
        let nothing = Umem {
            handle: 0,
            id: 0,
            at: 0,
        };
        let mut devx = Devx {
            rig,
            input: 0,
            output: 0,
            pd: 0,
            pdn: 0,
            umem: nothing,
            uar: 0,
        };
        devx.input = devx.rig.room(4096);
        devx.output = devx.rig.room(8192);
        let (pd, own) = devx.rig.call(&AllocPd::default(), &[]).unwrap();
        (devx.pd, devx.pdn) = (pd.pd_handle, own.pdn);
        let at = devx.rig.room(ROOM);
        devx.umem = devx.register(at, ROOM as u64, 1).unwrap();
        devx.uar = devx.page().1;
        devx
    }

    pub fn new() -> Devx {
        Devx::on(LinkLayer::InfiniBand)
    }

    pub fn page(&self) -> (u32, u32) {
        let out = self.rig.process.memory.addr() + 2048;
        let attrs = [
            (UAR_HANDLE, 0, 0),
            (UAR_TYPE, 4, 1),
            (UAR_MMAP_OFFSET, 8, out),
            (UAR_MMAP_LENGTH, 4, out + 8),
            (UAR_PAGE_ID, 4, out + 16),
        ];
        let at = self.rig.ioctl(OBJECT_UAR, UAR_OBJ_ALLOC, &attrs).unwrap();
        (self.rig.read(at + 24 + 8), self.rig.read(out + 16))
    }

    pub fn register(&self, at: u64, len: u64, access: u64) -> Result<Umem, Errno> {
        let out = self.rig.process.memory.addr() + 2048;
        let attrs = [
            (UMEM_HANDLE, 0, 0),
            (UMEM_ADDR, 8, at),
            (UMEM_LEN, 8, len),
            (UMEM_ACCESS, 4, access),
            (UMEM_OUT_ID, 4, out),
        ];
        let rig = &self.rig;
        let block = rig.ioctl(OBJECT_DEVX_UMEM, DEVX_UMEM_REG, &attrs)?;
        Ok(Umem {
            handle: rig.read(block + 24 + 8),
            id: rig.read(out),
            at,
        })
    }

    pub fn destroy(&self, object: u16, method: u16, handle: u32) -> Result<(), Errno> {
        let attrs = [(0x1000, 0, handle.into())];
        self.rig.ioctl(object, method, &attrs).map(drop)
    }

    pub fn deregister(&self, umem: Umem) -> Result<(), Errno> {
        self.destroy(OBJECT_DEVX_UMEM, DEVX_UMEM_DEREG, umem.handle)
    }

    pub fn remove(&self, handle: u32) -> Result<(), Errno> {
        self.destroy(OBJECT_DEVX_OBJ, DEVX_OBJ_DESTROY, handle)
    }

    /// Executes a command for the object `handle`, or for a new one. Returns its answer if the
    /// device received the command.
    pub fn object(&self, method: u16, handle: u32, bytes: &[u8], room: u16) -> (Answered, Vec<u8>) {
        let attrs = [
            (DEVX_OBJ_HANDLE, 0, handle.into()),
            (DEVX_OBJ_CMD_IN, bytes.len() as u16, self.input),
            (DEVX_OBJ_CMD_OUT, room, self.output),
        ];
        self.pass(OBJECT_DEVX_OBJ, method, &attrs, bytes, room)
    }

    pub fn general(&self, bytes: &[u8], room: u16) -> (Answered, Vec<u8>) {
        let attrs = [
            (OTHER_CMD_IN, bytes.len() as u16, self.input),
            (OTHER_CMD_OUT, room, self.output),
        ];
        self.pass(OBJECT_DEVX, DEVX_OTHER, &attrs, bytes, room)
    }

    pub fn pass(
        &self,
        object: u16,
        method: u16,
        attrs: &[(u16, u16, u64)],
        bytes: &[u8],
        room: u16,
    ) -> (Answered, Vec<u8>) {
        self.rig.put(self.input, bytes);
        // The fill value shows which bytes the command does not write.
        self.rig.put(self.output, &[0xaa; 8192]);
        let done = self.rig.ioctl(object, method, attrs);
        let mut answer = vec![0; room.into()];
        self.rig.process.read(self.output, &mut answer).unwrap();
        (done.map(|_| answer.clone()), answer)
    }

    /// Creates an object; returns its handle and its number.
    pub fn create(&self, bytes: &[u8]) -> Result<(u32, u32), Refused> {
        let (done, answer) = self.object(DEVX_OBJ_CREATE, 0, bytes, 16);
        match done {
            Ok(_) => {
                assert_eq!(output::STATUS.get(&answer), 0);
                let at = self.rig.process.memory.addr();
                let number = output::NUMBER.get(&answer) as u32;
                Ok((self.rig.read(at + 24 + 8), number))
            }
            Err(errno) => Err(refused(errno, &answer)),
        }
    }

    pub fn modify(&self, qp: (u32, u32), bytes: &mut [u8]) -> Result<(), Refused> {
        input::NUMBER.set(bytes, qp.1.into());
        let (done, answer) = self.object(DEVX_OBJ_MODIFY, qp.0, bytes, 16);
        done.map(drop).map_err(|errno| refused(errno, &answer))
    }

    pub fn query_qp(&self, qp: (u32, u32)) -> Vec<u8> {
        let mut bytes = header(opcode::QUERY_QP);
        input::NUMBER.set(&mut bytes, qp.1.into());
        let (done, answer) = self.object(DEVX_OBJ_QUERY, qp.0, &bytes, 272);
        done.unwrap();
        answer[qpc::AT..][..qpc::SIZE].to_vec()
    }

    pub fn state(&self, qp: (u32, u32)) -> u64 {
        qpc::STATE.get(&self.query_qp(qp))
    }

    /// The command that creates a CQ of 16 entries in the first page.
    pub fn cq(&self) -> Vec<u8> {
        let mut bytes = vec![0; cqc::MAILBOX];
        input::OPCODE.set(&mut bytes, opcode::CREATE_CQ.into());
        cqc::create::CQ_UMEM_ID.set(&mut bytes, self.umem.id.into());
        let context = &mut bytes[cqc::AT..];
        cqc::OI.set(context, 1);
        cqc::LOG_CQ_SIZE.set(context, LOG_CQ);
        cqc::UAR_PAGE.set(context, self.uar.into());
        cqc::C_EQN.set(context, 4);
        cqc::DBR_UMEM_ID.set(context, self.umem.id.into());
        cqc::DBR_ADDR.set(context, RECORDS);
        bytes
    }

    /// The command that creates the `n`th QP: four receives of 64 bytes and four blocks.
    pub fn qp(&self, n: u64, cqn: u32) -> Vec<u8> {
        let mut bytes = vec![0; qpc::MAILBOX];
        input::OPCODE.set(&mut bytes, opcode::CREATE_QP.into());
        qpc::create::WQ_UMEM_ID.set(&mut bytes, self.umem.id.into());
        qpc::create::WQ_UMEM_OFFSET.set(&mut bytes, RINGS + n * 512);
        let context = &mut bytes[qpc::AT..];
        qpc::PM_STATE.set(context, 3);
        qpc::PD.set(context, self.pdn.into());
        qpc::LOG_RQ_SIZE.set(context, 2);
        qpc::LOG_RQ_STRIDE.set(context, 2);
        qpc::LOG_SQ_SIZE.set(context, 2);
        qpc::UAR_PAGE.set(context, self.uar.into());
        qpc::USER_INDEX.set(context, 0x700 + n);
        qpc::CQN_SND.set(context, cqn.into());
        qpc::CQN_RCV.set(context, cqn.into());
        qpc::DBR_UMEM_ID.set(context, self.umem.id.into());
        qpc::DBR_ADDR.set(context, RECORDS + 64 + n * 64);
        bytes
    }

    /// The three commands that connect a queue pair with another.
    pub fn ways(&self, remote: u32) -> [Vec<u8>; 3] {
        let way = |code: u16, fields: &[(Field, u64)]| {
            let mut bytes = vec![0; qpc::MAILBOX];
            input::OPCODE.set(&mut bytes, code.into());
            for (field, value) in fields {
                field.set(&mut bytes[qpc::AT..], *value);
            }
            bytes
        };
        let port = (qpc::path::VHCA_PORT_NUM, 1);
        let mut to_rtr = way(
            opcode::INIT2RTR_QP,
            &[
                (qpc::MTU, 3),
                (qpc::REMOTE_QPN, remote.into()),
                (qpc::NEXT_RCV_PSN, 7),
                (qpc::MIN_RNR_NAK, 12),
                (qpc::LOG_RRA_MAX, 2),
                (qpc::path::RLID, 1),
                port,
            ],
        );
        let place = vmlx5_uverbs::address::Place { device: 0, port: 1 };
        let gid = fabric(LinkLayer::Ethernet).gids(place)[3].0;
        to_rtr[qpc::AT..][qpc::path::RGID].copy_from_slice(&gid);
        [
            way(
                opcode::RST2INIT_QP,
                &[(qpc::RRE, 1), (qpc::RWE, 1), (qpc::RAE, 1), port],
            ),
            to_rtr,
            way(
                opcode::RTR2RTS_QP,
                &[
                    (qpc::NEXT_SEND_PSN, 7),
                    (qpc::LOG_SRA_MAX, 2),
                    (qpc::RETRY_COUNT, 7),
                    (qpc::RNR_RETRY, 7),
                    (qpc::path::ACK_TIMEOUT, 14),
                    port,
                ],
            ),
        ]
    }

    pub fn connect(&self, qp: (u32, u32), remote: u32) {
        for (i, mut way) in self.ways(remote).into_iter().enumerate() {
            self.modify(qp, &mut way).unwrap();
            assert_eq!(self.state(qp), i as u64 + 1);
        }
    }

    /// Posts an entry of the `n`th QP, and rings the doorbell.
    pub fn post(&self, n: u64, qpn: u32, index: u32, wqe: &SendWqe<'_>) {
        let qp = Qp {
            qpn,
            sends: self.umem.at + RINGS + n * 512 + 256,
            db: self.umem.at + RECORDS + 64 + n * 64,
            ..Qp::default()
        };
        self.rig.post(&qp, index, wqe);
    }

    pub fn entry(&self, index: u64) -> [u8; 64] {
        self.rig.read_bytes(self.umem.at + index * 64)
    }
}

/// The refusal of a command.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    /// By the kernel: there is no answer.
    Kernel(Errno),
    /// By the device: a status, and the position of the field in the command, in bits.
    Device(u8, u32),
}

pub fn refused(errno: Errno, answer: &[u8]) -> Refused {
    if errno != Errno::REMOTEIO {
        assert!(answer.iter().all(|&b| b == 0xaa), "an answer with {errno}");
        return Refused::Kernel(errno);
    }
    let syndrome = output::SYNDROME.get(answer) as u32;
    Refused::Device(output::STATUS.get(answer) as u8, syndrome & 0xff_ffff)
}

pub fn header(code: u16) -> Vec<u8> {
    let mut bytes = vec![0; 16];
    input::OPCODE.set(&mut bytes, code.into());
    bytes
}

pub fn with(bytes: &[u8], at: usize, field: Field, value: u64) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    field.set(&mut bytes[at..], value);
    bytes
}
