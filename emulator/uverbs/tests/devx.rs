//! Objects made by commands of the device: what each command does, and how each is refused.

mod rig;

use mlx5_prm::doorbell;
use mlx5_prm::opcode::SendOpcode;
use mlx5_prm::wqe::{Payload, Remote, SendWqe, Sge, SliceSink, WqeFlags};
use rig::*;
use rustix::io::Errno;
use vmlx5::Dma;
use vmlx5_uverbs::UarMode;
use vmlx5_uverbs::abi::core::*;
use vmlx5_uverbs::abi::mlx5::{self, ioctl::*};
use vmlx5_uverbs::abi::prm::{Field, cap, cqc, input, opcode, output, qpc, roce_address, status};
use vmlx5_uverbs::address::LinkLayer;
use zerocopy::IntoBytes;

/// A process with a device that it passes commands on to.
struct Devx {
    rig: Rig,
    /// Mailboxes: commands, and 8 KiB for answers.
    input: u64,
    output: u64,
    pd: u32,
    pdn: u32,
    umem: Umem,
    uar: u32,
}

#[derive(Clone, Copy)]
struct Umem {
    handle: u32,
    id: u32,
    at: u64,
}

/// What a command answered, if the device was asked.
type Answered = Result<Vec<u8>, Errno>;

/// Bytes of the registered memory.
const ROOM: usize = 8 * 4096;
/// Where rings and records lie in it.
const RINGS: u64 = 4096;
const RECORDS: u64 = 7 * 4096;
const LOG_CQ: u64 = 4;

fn open(link: LinkLayer, uar: UarMode, flags: u32) -> Rig {
    let mut rig = Rig::new(link, uar);
    let ask = mlx5::AllocUcontextReqV2 {
        total_num_bfregs: 16,
        num_low_latency_bfregs: 4,
        max_cqe_version: 1,
        lib_caps: 3,
        flags,
        ..Default::default()
    };
    let answer: Answer<GetContextResp, mlx5::AllocUcontextResp> = rig.call(
        command::GET_CONTEXT,
        GetContext::default().as_bytes(),
        ask.as_bytes(),
    );
    answer.unwrap();
    rig
}

impl Devx {
    fn on(link: LinkLayer) -> Devx {
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
        let answer: Answer<AllocPdResp, mlx5::AllocPdResp> =
            devx.rig
                .call(command::ALLOC_PD, AllocPd::default().as_bytes(), &[]);
        let (pd, own) = answer.unwrap();
        (devx.pd, devx.pdn) = (pd.pd_handle, own.pdn);
        let at = devx.rig.room(ROOM);
        devx.umem = devx.register(at, ROOM as u64, 1).unwrap();
        devx.uar = devx.page().1;
        devx
    }

    fn new() -> Devx {
        Devx::on(LinkLayer::InfiniBand)
    }

    fn offset(&self, addr: u64) -> u64 {
        addr - self.rig.process.memory.addr()
    }

    fn page(&self) -> (u32, u32) {
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

    fn register(&self, at: u64, len: u64, access: u64) -> Result<Umem, Errno> {
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

    fn destroy(&self, object: u16, method: u16, handle: u32) -> Result<(), Errno> {
        let attrs = [(0x1000, 0, handle.into())];
        self.rig.ioctl(object, method, &attrs).map(drop)
    }

    fn deregister(&self, umem: Umem) -> Result<(), Errno> {
        self.destroy(OBJECT_DEVX_UMEM, DEVX_UMEM_DEREG, umem.handle)
    }

    fn remove(&self, handle: u32) -> Result<(), Errno> {
        self.destroy(OBJECT_DEVX_OBJ, DEVX_OBJ_DESTROY, handle)
    }

    /// A command for the object `handle`, or for a new one, and its answer, which is there
    /// whenever the device was asked.
    fn object(&self, method: u16, handle: u32, bytes: &[u8], room: u16) -> (Answered, Vec<u8>) {
        let attrs = [
            (DEVX_OBJ_HANDLE, 0, handle.into()),
            (DEVX_OBJ_CMD_IN, bytes.len() as u16, self.input),
            (DEVX_OBJ_CMD_OUT, room, self.output),
        ];
        self.pass(OBJECT_DEVX_OBJ, method, &attrs, bytes, room)
    }

    fn general(&self, bytes: &[u8], room: u16) -> (Answered, Vec<u8>) {
        let attrs = [
            (OTHER_CMD_IN, bytes.len() as u16, self.input),
            (OTHER_CMD_OUT, room, self.output),
        ];
        self.pass(OBJECT_DEVX, DEVX_OTHER, &attrs, bytes, room)
    }

    fn pass(
        &self,
        object: u16,
        method: u16,
        attrs: &[(u16, u16, u64)],
        bytes: &[u8],
        room: u16,
    ) -> (Answered, Vec<u8>) {
        let memory = &self.rig.process.memory;
        memory.write(self.offset(self.input), bytes).unwrap();
        // What is not written is seen.
        memory
            .write(self.offset(self.output), &[0xaa; 8192])
            .unwrap();
        let done = self.rig.ioctl(object, method, attrs);
        let mut answer = vec![0; room.into()];
        memory.read(self.offset(self.output), &mut answer).unwrap();
        (done.map(|_| answer.clone()), answer)
    }

    /// Makes an object: its handle and its number.
    fn create(&self, bytes: &[u8]) -> Result<(u32, u32), Refused> {
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

    fn modify(&self, qp: (u32, u32), bytes: &mut [u8]) -> Result<(), Refused> {
        input::NUMBER.set(bytes, qp.1.into());
        let (done, answer) = self.object(DEVX_OBJ_MODIFY, qp.0, bytes, 16);
        done.map(drop).map_err(|errno| refused(errno, &answer))
    }

    fn query_qp(&self, qp: (u32, u32)) -> Vec<u8> {
        let mut bytes = header(opcode::QUERY_QP);
        input::NUMBER.set(&mut bytes, qp.1.into());
        let (done, answer) = self.object(DEVX_OBJ_QUERY, qp.0, &bytes, 272);
        done.unwrap();
        answer[qpc::AT..][..qpc::SIZE].to_vec()
    }

    fn state(&self, qp: (u32, u32)) -> u64 {
        qpc::STATE.get(&self.query_qp(qp))
    }

    /// What makes a completion queue of 16 entries in the first page.
    fn cq(&self) -> Vec<u8> {
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

    /// What makes a queue pair of four receives of 64 bytes and four blocks, the `n`th.
    fn qp(&self, n: u64, cqn: u32) -> Vec<u8> {
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
    fn ways(&self, remote: u32) -> [Vec<u8>; 3] {
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
        let fabric = vmlx5_uverbs::address::Fabric {
            name: "test".into(),
            devices: 1,
            ports: 1,
            link: LinkLayer::Ethernet,
        };
        let gid = fabric.gids(place)[3].0;
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

    fn connect(&self, qp: (u32, u32), remote: u32) {
        for (i, mut way) in self.ways(remote).into_iter().enumerate() {
            self.modify(qp, &mut way).unwrap();
            assert_eq!(self.state(qp), i as u64 + 1);
        }
    }

    /// Posts an entry of the `n`th queue pair, and rings.
    fn post(&self, n: u64, qpn: u32, index: u32, wqe: &SendWqe<'_>) {
        let mut entry = [0; 64];
        let encoded = wqe
            .encode(index as u16, qpn, &mut SliceSink::new(&mut entry))
            .unwrap();
        let memory = &self.rig.process.memory;
        let base = self.offset(self.umem.at);
        let place = base + RINGS + n * 512 + 256 + u64::from(index % 4) * 64;
        memory.write(place, &entry).unwrap();
        let record = base + RECORDS + 64 + n * 64 + doorbell::SND as u64;
        memory.store32(record, encoded.record_value(index)).unwrap();
        self.rig.ring();
    }

    fn entry(&self, index: u64) -> [u8; 64] {
        self.rig.read_bytes(self.umem.at + index * 64)
    }
}

/// Why a command was refused.
#[derive(Debug, PartialEq, Eq)]
enum Refused {
    /// By the kernel: nothing was answered.
    Kernel(Errno),
    /// By the device: a status, and where in the command the field lies, in bits.
    Device(u8, u32),
}

fn refused(errno: Errno, answer: &[u8]) -> Refused {
    if errno != Errno::REMOTEIO {
        assert!(answer.iter().all(|&b| b == 0xaa), "an answer with {errno}");
        return Refused::Kernel(errno);
    }
    let syndrome = output::SYNDROME.get(answer) as u32;
    let field = if syndrome == 0 {
        0
    } else {
        syndrome & 0xff_ffff
    };
    Refused::Device(output::STATUS.get(answer) as u8, field)
}

fn header(code: u16) -> Vec<u8> {
    let mut bytes = vec![0; 16];
    input::OPCODE.set(&mut bytes, code.into());
    bytes
}

fn with(bytes: &[u8], at: usize, field: Field, value: u64) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    field.set(&mut bytes[at..], value);
    bytes
}

#[test]
fn fields_are_where_they_are_said_to_be() {
    let mut bytes = [0; 16];
    let field = Field { bit: 13, bits: 40 };
    field.set(&mut bytes, 0x12_3456_789a | 0xff << 40);
    assert_eq!(field.get(&bytes), 0x12_3456_789a);
    let around = [Field { bit: 0, bits: 13 }, Field { bit: 53, bits: 64 }];
    assert!(around.iter().all(|f| f.get(&bytes) == 0));
    // Beyond the end there is nothing, and nothing is changed there.
    let beyond = Field { bit: 124, bits: 8 };
    beyond.set(&mut bytes, 0xff);
    assert_eq!((bytes[15], beyond.get(&bytes)), (0x0f, 0xf0));
    assert_eq!(
        Field {
            bit: 1 << 20,
            bits: 64
        }
        .get(&bytes),
        0
    );
}

#[test]
fn without_the_flag_there_is_nothing() {
    let devx = Devx {
        rig: open(LinkLayer::InfiniBand, UarMode::Dynamic, 0),
        ..Devx::new()
    };
    let at = devx.rig.process.memory.addr();
    let devx = Devx {
        input: at + 4096,
        output: at + 8192,
        ..devx
    };
    let kernel = Err(Refused::Kernel(Errno::INVAL));
    assert_eq!(devx.register(at, 4096, 1).err(), Some(Errno::INVAL));
    assert_eq!(devx.create(&devx.cq()), kernel);
    let (done, _) = devx.general(&header(opcode::QUERY_HCA_CAP), 4112);
    assert_eq!(done.err(), Some(Errno::INVAL));
}

#[test]
fn rings_of_ones_own_do_the_work() {
    for link in [LinkLayer::InfiniBand, LinkLayer::Ethernet] {
        let mut devx = Devx::on(link);
        let cq = devx.create(&devx.cq()).unwrap();
        let a = devx.create(&devx.qp(0, cq.1)).unwrap();
        let b = devx.create(&devx.qp(1, cq.1)).unwrap();
        devx.connect(a, b.1);
        devx.connect(b, a.1);
        let data = devx.rig.room(8192);
        let mr = devx.rig.mr(devx.pd, data, 8192, 0xf).unwrap();
        let bytes: Vec<u8> = (0..2000).map(|i| (i * 7) as u8).collect();
        devx.rig
            .process
            .memory
            .write(devx.offset(data), &bytes)
            .unwrap();
        let sges = [Sge {
            addr: data,
            len: 2000,
            lkey: mr.lkey,
        }];
        let write = SendWqe {
            opcode: SendOpcode::RDMA_WRITE,
            flags: WqeFlags {
                signaled: true,
                ..WqeFlags::default()
            },
            remote: Some(Remote {
                addr: data + 4096,
                rkey: mr.rkey,
            }),
            payload: Payload::Gather(&sges),
            ..SendWqe::default()
        };
        devx.post(0, a.1, 0, &write);
        devx.rig.settle();
        let mut back = vec![0; 2000];
        let memory = &devx.rig.process.memory;
        memory.read(devx.offset(data) + 4096, &mut back).unwrap();
        assert_eq!(back, bytes);
        let entry = devx.entry(0);
        assert_eq!(entry[63] >> 4, 0);
        let qpn = u32::from_be_bytes(entry[56..60].try_into().unwrap()) & 0xff_ffff;
        assert_eq!(qpn, a.1);
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

        // What is used stays; then all goes.
        assert_eq!(devx.remove(cq.0), Err(Errno::BUSY));
        assert_eq!(devx.deregister(devx.umem), Err(Errno::BUSY));
        for handle in [a.0, b.0, cq.0] {
            devx.remove(handle).unwrap();
            assert_eq!(devx.remove(handle), Err(Errno::NOENT));
        }
        devx.deregister(devx.umem).unwrap();
        assert_eq!(devx.deregister(devx.umem), Err(Errno::NOENT));
    }
}

#[test]
fn a_collapsed_queue_has_one_entry() {
    let mut devx = Devx::new();
    let collapsed = with(&devx.cq(), cqc::AT, cqc::CC, 1);
    let cq = devx.create(&collapsed).unwrap();
    // Without receives, and rung by hand.
    let bytes = with(&devx.qp(0, cq.1), qpc::AT, qpc::RQ_TYPE, qpc::RQ_ZERO);
    let bytes = with(&bytes, qpc::AT, qpc::CQN_RCV, 0);
    let bytes = with(&bytes, 0, qpc::create::WQ_UMEM_OFFSET, RINGS + 256);
    let qp = devx.create(&bytes).unwrap();
    devx.connect(qp, qp.1);
    for index in 0..40 {
        let wqe = SendWqe {
            opcode: SendOpcode::NOP,
            flags: WqeFlags {
                signaled: true,
                ..WqeFlags::default()
            },
            ..SendWqe::default()
        };
        devx.post(0, qp.1, index, &wqe);
        devx.rig.settle();
        let entry = devx.entry(0);
        assert_eq!(entry[60..62], (index as u16).to_be_bytes());
        assert_eq!(devx.entry(1), [0; 64]);
    }
}

#[test]
fn what_a_device_can_do() {
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
        // Structures that are not there are zeros; a short room takes what it holds.
        assert!(caps(0xc).iter().all(|&b| b == 0));
        let (done, _) = devx.general(&header(opcode::QUERY_HCA_CAP), 64);
        assert_eq!(done.unwrap()[16..], general[..48]);

        let ask = |index, port| {
            let bytes = header(opcode::QUERY_ROCE_ADDRESS);
            let bytes = with(&bytes, 0, roce_address::input::INDEX, index);
            let bytes = with(&bytes, 0, roce_address::input::VHCA_PORT_NUM, port);
            let (done, answer) = devx.general(&bytes, 48);
            done.map_err(|errno| refused(errno, &answer))
        };
        if ethernet == 0 {
            assert_eq!(ask(0, 1), Err(Refused::Device(status::BAD_PARAM, 0x5c)));
            continue;
        }
        let answer = ask(3, 1).unwrap();
        assert_eq!(answer[roce_address::GID][10..14], [0xff, 0xff, 127, 0]);
        assert_eq!(roce_address::output::VERSION.get(&answer), 2);
        assert_eq!(roce_address::output::L3_TYPE.get(&answer), 0);
        assert_eq!(ask(4, 1), Err(Refused::Device(status::BAD_PARAM, 0x40)));
        assert_eq!(ask(0, 2), Err(Refused::Device(status::BAD_PARAM, 0x5c)));
    }
}

#[test]
fn event_queues_and_pages_have_numbers() {
    let devx = Devx::new();
    let out = devx.rig.process.memory.addr() + 2048;
    let query = |devx: &Devx, method, asked: u64| {
        let attrs = [(0x1000, 4, asked), (0x1001, 4, out)];
        let done = devx.rig.ioctl(OBJECT_DEVX, method, &attrs);
        done.map(|_| devx.rig.read::<u32>(out))
    };
    assert_eq!(query(&devx, DEVX_QUERY_EQN, 0), Ok(4));
    assert_eq!(query(&devx, DEVX_QUERY_EQN, 3), Ok(7));
    assert_eq!(query(&devx, DEVX_QUERY_EQN, 4), Err(Errno::INVAL));
    assert_eq!(query(&devx, DEVX_QUERY_UAR, 0), Err(Errno::INVAL));
    // With static pages, those beyond are asked for by the library's own number.
    let rig = open(LinkLayer::InfiniBand, UarMode::Static, 1);
    let devx = Devx { rig, ..devx };
    let out = devx.rig.process.memory.addr() + 2048;
    let query = |asked: u64| {
        let attrs = [(0x1000, 4, asked), (0x1001, 4, out)];
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
fn a_protection_domain_by_command() {
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
fn registrations_that_are_refused() {
    let devx = Devx::new();
    let (at, len) = (devx.umem.at, 4096);
    assert_eq!(devx.register(at, 0, 1).err(), Some(Errno::INVAL));
    assert_eq!(devx.register(at, len, 2).err(), Some(Errno::INVAL));
    assert_eq!(devx.register(at, len, 8).err(), Some(Errno::INVAL));
    assert_eq!(devx.register(NOWHERE, len, 1).err(), Some(Errno::FAULT));
    assert_eq!(devx.register(at, 1 << 40, 1).err(), Some(Errno::FAULT));
    // A part of a page, as records are registered.
    let small = devx.register(at + 8, 8, 0).unwrap();
    assert_ne!(small.id, devx.umem.id);
    devx.deregister(small).unwrap();
    assert_eq!(
        devx.deregister(Umem {
            handle: devx.pd,
            ..small
        }),
        Err(Errno::INVAL)
    );
}

#[test]
fn queues_that_are_refused() {
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
    // Entries are written: the memory must be.
    let read_only = devx.register(devx.umem.at, ROOM as u64, 0).unwrap();
    let bytes = with(&good, 0, create::CQ_UMEM_ID, read_only.id.into());
    let refused = Refused::Device(status::BAD_PARAM, 0x280);
    assert_eq!(devx.create(&bytes), Err(refused));
}

#[test]
fn queue_pairs_that_are_refused() {
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
    // A receive queue of less than a block would leave the sends unaligned.
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
fn changes_that_are_refused() {
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
    // Rights may come late.
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
fn what_the_kernel_refuses() {
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
    // A room too small for what there is to say is the device's business.
    let bytes = with(&header(opcode::QUERY_QP), 0, input::NUMBER, qp.1.into());
    let (done, answer) = devx.object(DEVX_OBJ_QUERY, qp.0, &bytes, 100);
    let errno = done.err().unwrap();
    let short = Refused::Device(status::BAD_OUTPUT_LEN, 0);
    assert_eq!(refused(errno, &answer), short);
    // An answer that nobody can have leaves nothing behind.
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
fn a_context_that_ends_takes_all_with_it() {
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

#[test]
fn random_mailboxes_do_no_harm() {
    let seed = std::env::var("GDS_SEED").ok().and_then(|s| s.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("GDS_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let link = [LinkLayer::InfiniBand, LinkLayer::Ethernet][random.usize(..2)];
    let mut devx = Devx::on(link);
    let cq = devx.create(&devx.cq()).unwrap();
    let mut objects = vec![cq];
    let mut done = [0; 2];
    for _ in 0..5_000 {
        let (handle, number) = objects[random.usize(..objects.len())];
        // Something like what works, or a few bytes of anything.
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
