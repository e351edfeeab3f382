//! Commands with mostly valid fields, and ioctls.

use vmlx5_uverbs::abi::core::*;
use vmlx5_uverbs::abi::mlx5;
use zerocopy::IntoBytes;

use super::Scene;
use super::call::Command;
use super::shadow::{Effect, Kind, Queue};
use crate::input::Input;
use crate::uverbs_rig::{cq_driver, extended, plain, qp_driver, qp_input};

/// Bytes of the headers of both kinds of commands.
const PLAIN: usize = 8;
const EXTENDED: usize = 24;

impl Scene {
    /// A handle of a kind, mostly of an existing object.
    fn handle(&self, kind: Kind, input: &mut Input<'_>) -> u32 {
        let found = self.shadow.handle(kind, input);
        found.unwrap_or_else(|| self.word(input))
    }

    /// A plain command; if its input starts with the address of the answer, the address is filled
    /// in.
    fn plain(
        &self,
        number: u32,
        body: [&[u8]; 2],
        answer: usize,
        input: &mut Input<'_>,
    ) -> Vec<u8> {
        let mut bytes = plain(number, &body.concat(), answer);
        if answer > 0 {
            let at = self.address(input);
            bytes[PLAIN..PLAIN + 8].copy_from_slice(&at.to_ne_bytes());
        }
        bytes
    }

    fn extended(
        &self,
        number: u32,
        body: [&[u8]; 2],
        answer: [usize; 2],
        input: &mut Input<'_>,
    ) -> Vec<u8> {
        let at = self.address(input);
        extended(number, at, (body[0], body[1]), (answer[0], answer[1]))
    }

    /// A command to run.
    pub fn command(&self, act: u8, input: &mut Input<'_>) -> Command {
        use command::*;
        let none = |bytes| Command {
            bytes,
            effect: Effect::None,
        };
        match act {
            0..0x04 => {
                let cmd = mlx5::AllocUcontextReqV2 {
                    total_num_bfregs: input.number() as u32,
                    num_low_latency_bfregs: input.byte().into(),
                    flags: (input.byte() & 1).into(),
                    max_cqe_version: input.byte() & 1,
                    lib_caps: 3,
                    ..Default::default()
                };
                let resp = GetContext::default();
                let body = [resp.as_bytes(), cmd.as_bytes()];
                none(self.plain(GET_CONTEXT, body, 80, input))
            }
            0x04..0x06 => {
                let resp = QueryDevice::default();
                let body = [resp.as_bytes(), &[][..]];
                none(self.plain(QUERY_DEVICE, body, 176, input))
            }
            0x06..0x08 => {
                let resp = ExQueryDevice::default();
                let body = [resp.as_bytes(), &[][..]];
                none(self.extended(QUERY_DEVICE, body, [304, 104], input))
            }
            0x08..0x0a => {
                let cmd = QueryPort {
                    port_num: input.byte() & 3,
                    ..Default::default()
                };
                none(self.plain(QUERY_PORT, [cmd.as_bytes(), &[]], 40, input))
            }
            0x0a..0x18 => {
                let resp = AllocPd::default();
                let body = [resp.as_bytes(), &[][..]];
                Command {
                    bytes: self.plain(ALLOC_PD, body, 8, input),
                    effect: Effect::Makes(Kind::Pd, Vec::new(), None),
                }
            }
            0x18..0x20 => self.ends(DEALLOC_PD, Kind::Pd, input),
            0x20..0x30 => self.reg_mr(input),
            0x30..0x34 => self.rereg_mr(input),
            0x34..0x3a => self.ends(DEREG_MR, Kind::Mr, input),
            0x3a..0x3e => {
                let resp = CreateCompChannel::default();
                let body = [resp.as_bytes(), &[][..]];
                none(self.plain(CREATE_COMP_CHANNEL, body, 4, input))
            }
            0x3e..0x50 => self.create_cq(input),
            0x50..0x58 => self.ends(DESTROY_CQ, Kind::Cq, input),
            0x58..0x70 => self.create_qp(input),
            0x70..0x76 => self.ends(DESTROY_QP, Kind::Qp, input),
            0x76..0x90 => self.modify_qp(input),
            0x90..0x94 => {
                let cmd = QueryQp {
                    qp_handle: self.handle(Kind::Qp, input),
                    attr_mask: input.next(),
                    ..Default::default()
                };
                none(self.plain(QUERY_QP, [cmd.as_bytes(), &[]], 128, input))
            }
            0x94..0x9a => self.create_ah(input),
            0x9a..0x9c => self.ends(DESTROY_AH, Kind::Ah, input),
            0x9c..0xa2 => self.create_srq(input),
            0xa2..0xa8 => self.other_srq(input),
            0xa8..0xae => {
                let number = input.pick(&[ATTACH_MCAST, DETACH_MCAST]);
                let cmd = McastAttach {
                    qp_handle: self.handle(Kind::Qp, input),
                    ..Default::default()
                };
                none(self.plain(number, [cmd.as_bytes(), &[]], 0, input))
            }
            _ => self.any(input),
        }
    }

    /// Unknown command numbers, and arbitrary bytes.
    fn any(&self, input: &mut Input<'_>) -> Command {
        let number = input.byte().into();
        let shape = input.byte();
        let len = usize::from(shape & 31) * 8;
        let mut body = input.bytes(len).to_vec();
        body.resize(len, 0);
        let bytes = match shape >> 5 & 1 {
            0 if len >= 8 => self.plain(number, [&body, &[]], 64, input),
            0 => plain(number, &body, 0),
            _ => self.extended(number, [&body, &[]], [64, 64], input),
        };
        Command {
            bytes,
            effect: Effect::Unknown,
        }
    }

    /// Destroys an object. In commands with an answer, the handle follows the answer's address.
    fn ends(&self, number: u32, kind: Kind, input: &mut Input<'_>) -> Command {
        use command::*;
        let handle = self.handle(kind, input);
        let answer = match number {
            DESTROY_CQ => 8,
            DESTROY_QP | DESTROY_SRQ => 4,
            _ => 0,
        };
        let cmd = DestroyQp {
            qp_handle: handle,
            ..Default::default()
        };
        let body = if answer > 0 {
            cmd.as_bytes()
        } else {
            handle.as_bytes()
        };
        Command {
            bytes: self.plain(number, [body, &[]], answer, input),
            effect: Effect::Ends((kind, handle)),
        }
    }

    fn reg_mr(&self, input: &mut Input<'_>) -> Command {
        let start = self.address(input);
        let pd = self.handle(Kind::Pd, input);
        let cmd = RegMr {
            start,
            length: input.pick(&[8, 4096, 8192, 65536, 0, u64::MAX]),
            hca_va: match input.byte() {
                0..0xf0 => start,
                _ => input.number(),
            },
            pd_handle: pd,
            access_flags: match input.byte() {
                n @ 0..0xf0 => (n & 0xf).into(),
                _ => input.next(),
            },
            ..Default::default()
        };
        Command {
            bytes: self.plain(command::REG_MR, [cmd.as_bytes(), &[]], 12, input),
            effect: Effect::Makes(Kind::Mr, vec![(Kind::Pd, pd)], None),
        }
    }

    fn rereg_mr(&self, input: &mut Input<'_>) -> Command {
        let start = self.address(input);
        let cmd = ReregMr {
            mr_handle: self.handle(Kind::Mr, input),
            flags: (input.byte() & 7).into(),
            start,
            length: input.pick(&[8, 4096, 65536, 0]),
            hca_va: start,
            pd_handle: self.handle(Kind::Pd, input),
            access_flags: (input.byte() & 0xf).into(),
            ..Default::default()
        };
        Command {
            bytes: self.plain(command::REREG_MR, [cmd.as_bytes(), &[]], 8, input),
            effect: Effect::Unknown,
        }
    }

    fn create_cq(&self, input: &mut Input<'_>) -> Command {
        let cmd = CreateCq {
            user_handle: input.byte().into(),
            cqe: match input.byte() {
                n @ 0..0xf0 => n.into(),
                _ => input.next(),
            },
            comp_vector: (input.byte() & 7).into(),
            comp_channel: match input.byte() {
                0..0xa0 => -1,
                _ => self.word(input) as i32,
            },
            ..Default::default()
        };
        let mut own = cq_driver(self.address(input), self.address(input));
        if input.byte() >= 0xf0 {
            own.flags = input.next();
            own.uar_page_index = input.next();
            own.cqe_size = input.pick(&[64, 128, 0]);
        }
        let bytes = if input.byte() & 1 == 0 {
            let body = [cmd.as_bytes(), own.as_bytes()];
            self.plain(command::CREATE_CQ, body, 16, input)
        } else {
            let cmd = ExCreateCq {
                user_handle: cmd.user_handle,
                cqe: cmd.cqe,
                comp_vector: cmd.comp_vector,
                comp_channel: cmd.comp_channel,
                flags: (input.byte() & 3).into(),
                ..Default::default()
            };
            let body = [cmd.as_bytes(), own.as_bytes()];
            self.extended(command::CREATE_CQ, body, [16, 8], input)
        };
        Command {
            bytes,
            effect: Effect::Makes(Kind::Cq, Vec::new(), None),
        }
    }

    fn create_qp(&self, input: &mut Input<'_>) -> Command {
        let pd = self.handle(Kind::Pd, input);
        let (send, recv) = (self.handle(Kind::Cq, input), self.handle(Kind::Cq, input));
        let shape = input.byte();
        let mut init = qp_input(pd, send).init;
        init.recv_cq_handle = recv;
        init.qp_type = [2, 2, 3, 4][usize::from(shape & 3)];
        init.sq_sig_all = shape >> 2 & 1;
        let (buf, db) = (self.address(input), self.address(input));
        let mut own = qp_driver(buf, db);
        let mut uses = vec![(Kind::Pd, pd), (Kind::Cq, send), (Kind::Cq, recv)];
        match shape >> 3 {
            0..16 => {}
            16..20 => {
                own.sq_wqe_count = input.pick(&[0, 1, 64, 3, 1 << 15]);
                own.rq_wqe_count = input.pick(&[0, 1, 64, 3, 1 << 15]);
                own.rq_wqe_shift = input.pick(&[4, 5, 9, 0, 10, 64]);
            }
            20..24 => {
                init.is_srq = 1;
                init.srq_handle = self.handle(Kind::Srq, input);
                own.rq_wqe_count = 0;
                uses.push((Kind::Srq, init.srq_handle));
            }
            24..28 => {
                own.flags = 1 << 10;
                own.bfreg_index = self.word(input);
            }
            28..30 => own.flags = input.next(),
            30 => init.qp_type = input.byte(),
            _ => init.max_inline_data = input.next(),
        }
        let queue = Queue {
            sq: buf.wrapping_add(u64::from(own.rq_wqe_count) << (own.rq_wqe_shift & 63)),
            rq: buf,
            sends: u64::from(own.sq_wqe_count).max(1).next_power_of_two(),
            record: db,
            ..Queue::default()
        };
        let bytes = if input.byte() & 1 == 0 {
            let cmd = CreateQp {
                init,
                ..Default::default()
            };
            let body = [cmd.as_bytes(), own.as_bytes()];
            self.plain(command::CREATE_QP, body, 72, input)
        } else {
            let cmd = ExCreateQp {
                init,
                create_flags: match input.byte() {
                    0..0xf8 => 0,
                    n => n.into(),
                },
                ..Default::default()
            };
            let body = [cmd.as_bytes(), own.as_bytes()];
            self.extended(command::CREATE_QP, body, [40, 40], input)
        };
        Command {
            bytes,
            effect: Effect::Makes(Kind::Qp, uses, Some(queue)),
        }
    }

    fn modify_qp(&self, input: &mut Input<'_>) -> Command {
        use attr::*;
        let qp = self.handle(Kind::Qp, input);
        let remote = self.shadow.qpn(input);
        let mut ways = self.rig.ways(qp, remote).to_vec();
        let to = |state, attr_mask| ModifyQp {
            qp_state: state,
            attr_mask,
            ..ways[2]
        };
        // To RESET, to ERR, to SQD and back; the three transitions of a UD QP; changes without a
        // transition.
        let more = [
            to(0, STATE),
            to(6, STATE),
            to(4, STATE),
            to(3, STATE | CUR_STATE),
            to(1, STATE | PKEY_INDEX | PORT | QKEY),
            to(2, STATE),
            to(3, STATE | SQ_PSN),
            to(3, MIN_RNR_TIMER | ACCESS_FLAGS),
        ];
        ways.extend(more);
        let mut cmd = ways[usize::from(input.byte()) % ways.len()];
        match input.byte() {
            0..0xc0 => {}
            0xc0..0xd8 => {
                cmd.dest.is_global = 1;
                cmd.dest.dgid = input.next();
                cmd.dest.sgid_index = input.byte();
            }
            0xd8..0xe8 => {
                cmd.attr_mask ^= 1 << (input.byte() & 31);
                cmd.qp_state = input.byte() & 7;
            }
            _ => {
                cmd.path_mtu = input.byte() & 7;
                cmd.timeout = input.byte() & 63;
                cmd.port_num = input.byte() & 3;
                cmd.max_rd_atomic = input.byte() & 31;
                cmd.max_dest_rd_atomic = input.byte() & 31;
                cmd.cur_qp_state = input.byte() & 7;
                cmd.dest_qp_num = self.word(input);
                cmd.rq_psn = self.word(input);
            }
        }
        let number = command::MODIFY_QP;
        let bytes = if input.byte() & 3 != 0 {
            self.plain(number, [cmd.as_bytes(), &[]], 0, input)
        } else {
            let cmd = ExModifyQp {
                base: cmd,
                ..Default::default()
            };
            let own = mlx5::ModifyQp::default();
            self.extended(number, [cmd.as_bytes(), own.as_bytes()], [8, 16], input)
        };
        Command {
            bytes,
            effect: Effect::None,
        }
    }

    fn create_ah(&self, input: &mut Input<'_>) -> Command {
        let pd = self.handle(Kind::Pd, input);
        let global = input.byte();
        let cmd = CreateAh {
            pd_handle: pd,
            attr: AhAttr {
                grh: GlobalRoute {
                    dgid: input.next(),
                    sgid_index: global >> 6,
                    ..Default::default()
                },
                dlid: input.byte().into(),
                is_global: global & 1,
                port_num: 1 + (global >> 1 & 1),
                ..Default::default()
            },
            ..Default::default()
        };
        Command {
            bytes: self.plain(command::CREATE_AH, [cmd.as_bytes(), &[]], 20, input),
            effect: Effect::Makes(Kind::Ah, vec![(Kind::Pd, pd)], None),
        }
    }

    fn create_srq(&self, input: &mut Input<'_>) -> Command {
        let pd = self.handle(Kind::Pd, input);
        let cmd = CreateSrq {
            pd_handle: pd,
            max_wr: input.pick(&[3, 4, 15, 0, 1 << 16]),
            max_sge: input.pick(&[1, 2, 0, 64]),
            srq_limit: input.pick(&[0, 1, 64]),
            ..Default::default()
        };
        let own = mlx5::CreateSrq {
            buf_addr: self.address(input),
            db_addr: self.address(input),
            ..Default::default()
        };
        let body = [cmd.as_bytes(), own.as_bytes()];
        Command {
            bytes: self.plain(command::CREATE_SRQ, body, 24, input),
            effect: Effect::Makes(Kind::Srq, vec![(Kind::Pd, pd)], None),
        }
    }

    fn other_srq(&self, input: &mut Input<'_>) -> Command {
        let srq_handle = self.handle(Kind::Srq, input);
        let none = |bytes| Command {
            bytes,
            effect: Effect::None,
        };
        match input.byte() % 3 {
            0 => self.ends(command::DESTROY_SRQ, Kind::Srq, input),
            1 => {
                let cmd = QuerySrq {
                    srq_handle,
                    ..Default::default()
                };
                none(self.plain(command::QUERY_SRQ, [cmd.as_bytes(), &[]], 16, input))
            }
            _ => {
                let cmd = ModifySrq {
                    srq_handle,
                    attr_mask: (input.byte() & 3).into(),
                    max_wr: input.byte().into(),
                    srq_limit: input.byte().into(),
                };
                none(self.plain(command::MODIFY_SRQ, [cmd.as_bytes(), &[]], 0, input))
            }
        }
    }

    /// An ioctl: a command in ioctl form, a page, or any bytes.
    pub fn ioctl(&mut self, input: &mut Input<'_>) {
        let shape = input.byte();
        let mut effect = Effect::Unknown;
        let at = self.address(input);
        // Addresses of inputs and of answers.
        let (inside, answers) = (self.address(input), self.address(input));
        let attr = |id, len, data| IoctlAttr {
            attr_id: id,
            len,
            flags: 1,
            attr_data: 0,
            data,
        };
        let (object, method, attrs) = match shape {
            0..0x60 => {
                let act = input.byte() % 0xb0;
                let command = self.command(act, input);
                let number = u32::from_ne_bytes(command.bytes[..4].try_into().expect("four"));
                let header = if number & command::EXTENDED == 0 {
                    PLAIN
                } else {
                    EXTENDED
                };
                effect = command.effect;
                let body = &command.bytes[header..];
                let cut = body.len().min(usize::from(input.byte()) * 8);
                self.put(inside, body);
                let attrs = vec![
                    attr(0, cut as u16, inside),
                    attr(1, 128, answers),
                    attr(2, 4, number.into()),
                    attr(
                        0x1000,
                        (body.len() - cut) as u16,
                        inside.wrapping_add(cut as u64),
                    ),
                    attr(0x1001, 128, answers.wrapping_add(128)),
                ];
                // The effect of a cut command depends on the position of the cut.
                if !matches!(effect, Effect::None) {
                    effect = Effect::Unknown;
                }
                (0, 0, attrs)
            }
            0x60..0xa0 => {
                let attrs = vec![
                    attr(0x1000, 0, 0),
                    attr(0x1001, 4, (shape & 1).into()),
                    attr(0x1002, 8, answers),
                    attr(0x1003, 4, answers.wrapping_add(8)),
                    attr(0x1004, 4, answers.wrapping_add(16)),
                ];
                (0x1008, 0x1000, attrs)
            }
            0xa0..0xb0 => {
                let handle = self.word(input);
                (0x1008, 0x1001, vec![attr(0x1000, 0, handle.into())])
            }
            _ => {
                let id = |n: u8| u16::from(n & 15) | u16::from(n >> 7) << 12;
                let (object, method) = (id(input.byte()), id(input.byte()));
                let attrs = (0..input.byte() & 7).map(|_| IoctlAttr {
                    attr_id: id(input.byte()),
                    len: input.pick(&[0, 4, 8, 16, 64, 4096]),
                    flags: (input.byte() & 1).into(),
                    attr_data: 0,
                    data: match input.byte() {
                        0..0x80 => self.word(input).into(),
                        0x80..0xf0 => self.address(input),
                        _ => input.next(),
                    },
                });
                (object, method, attrs.collect())
            }
        };
        let hdr = IoctlHdr {
            length: (size_of::<IoctlHdr>() + size_of_val(&attrs[..])) as u16,
            object_id: object,
            method_id: method,
            num_attrs: attrs.len() as u16,
            reserved1: 0,
            // The driver's id of mlx5.
            driver_id: 3,
            reserved2: 0,
        };
        let mut bytes = [hdr.as_bytes(), attrs.as_bytes()].concat();
        if input.byte() >= 0xe0 {
            let place = usize::from(input.byte()) % bytes.len();
            bytes[place] ^= input.byte();
            effect = Effect::Unknown;
        }
        self.put(at, &bytes);
        let before = self.population();
        let done = self.rig.context.ioctl(at);
        let words = self.answers(None);
        self.judge(before, done, effect, &words);
    }

    /// Writes bytes into memory of the process, if some is mapped.
    fn put(&self, at: u64, bytes: &[u8]) {
        use vmlx5_uverbs::User;
        // If the write fails, the command reads other bytes there. It is not an answer.
        let _ = self.rig.process.write(at, bytes);
        self.rig.process.answers.lock().expect("one thread").clear();
    }
}
