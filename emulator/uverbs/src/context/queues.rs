//! Creation and destruction of CQs and QPs.

use std::sync::Arc;

use mlx5_prm::cqe;
use mlx5_prm::wqe::{BASIC_BLOCK, SEGMENT};
use rustix::io::Errno;
use vmlx5::{CqAttr, Cqn, PdId, QpAttr, Qpn, RqAttr, Scatter, Service, SqAttr, UarId};

use crate::abi::core::*;
use crate::abi::mlx5::{self, cq_flag, qp_flag};
use crate::command::{Call, Done};
use crate::context::Object;
use crate::context::Open;
use crate::context::shared_receives::SharedReceives;
use crate::device::{COMP_VECTORS, Device, MAX_CQE, MAX_INLINE, MAX_SGE, MAX_WQE};
use crate::doorbells::Doorbells;
use crate::transitions;

/// A CQ of a context.
pub(crate) struct CompletionQueue {
    pub cqn: Cqn,
    /// The owner field of its events.
    pub owner: u64,
}

/// A QP of a context, with the attributes that were set.
pub(crate) struct QueuePair {
    pub qpn: Qpn,
    pub service: Service,
    /// Its doorbell register, if it has one.
    register: Option<u32>,
    /// The owner field of its events.
    pub owner: u64,
    init: QpInit,
    receives: u32,
    /// The attributes of all modifications; its `attr_mask` is not used.
    pub set: ModifyQp,
}

/// Flags of an extended completion queue.
mod ex_cq_flag {
    pub const TIMESTAMP: u32 = 1 << 0;
    pub const IGNORE_OVERRUN: u32 = 1 << 1;
}

impl Open {
    pub fn create_cq(&mut self, device: &Device, call: &Call<'_>) -> Done {
        let cmd: CreateCq = call.input()?;
        let cmd = ExCreateCq {
            user_handle: cmd.user_handle,
            cqe: cmd.cqe,
            comp_vector: cmd.comp_vector,
            comp_channel: cmd.comp_channel,
            ..ExCreateCq::default()
        };
        self.make_cq(device, call, &cmd, |resp| call.answer(resp))
    }

    pub fn create_cq_extended(&mut self, device: &Device, call: &Call<'_>) -> Done {
        let cmd: ExCreateCq = call.input()?;
        if cmd.comp_mask != 0 || cmd.reserved != 0 {
            return Err(Errno::INVAL);
        }
        if cmd.flags & !(ex_cq_flag::TIMESTAMP | ex_cq_flag::IGNORE_OVERRUN) != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        self.make_cq(device, call, &cmd, |&base| {
            call.answer(&ExCreateCqResp {
                base,
                comp_mask: 0,
                response_length: size_of::<ExCreateCqResp>() as u32,
            })
        })
    }

    fn make_cq(
        &mut self,
        device: &Device,
        call: &Call<'_>,
        cmd: &ExCreateCq,
        answer: impl FnOnce(&CreateCqResp) -> Done,
    ) -> Done {
        // The input of an older library ends before the flags and the page.
        let least = std::mem::offset_of!(mlx5::CreateCq, uar_page_index) - 4;
        let own: mlx5::CreateCq = call.driver_input(least)?;
        if cmd.comp_vector >= COMP_VECTORS || cmd.cqe == 0 || cmd.cqe > MAX_CQE {
            return Err(Errno::INVAL);
        }
        if own.cqe_size != cqe::SIZE as u32 || own.cqe_comp_en != 0 {
            return Err(Errno::INVAL);
        }
        if own.flags & !cq_flag::UAR_PAGE_INDEX != 0 {
            return Err(Errno::INVAL);
        }
        let named = own.flags & cq_flag::UAR_PAGE_INDEX != 0;
        let named = named.then_some(own.uar_page_index.into());
        let page = self.doorbells.of_queues(device, named)?;
        let channel = match cmd.comp_channel {
            fd if fd >= 0 => Some(self.channel(fd)?),
            _ => None,
        };
        // At least one entry more than requested, so that a full queue differs from an empty one.
        let entries = (cmd.cqe + 1).next_power_of_two();
        let log_entries = entries.trailing_zeros() as u8;
        aligned(own.buf_addr, cqe::SIZE)?;
        aligned(own.db_addr, 8)?;
        let bytes = u64::from(entries) * cqe::SIZE as u64;
        let mem = device.user.memory(own.buf_addr, bytes, true)?;
        let record = device.user.memory(own.db_addr, 8, true)?;
        let events = channel.is_some().then_some(page);
        let owner = self.track(device, cmd.user_handle, channel);
        let attr = CqAttr {
            record: Some((record, 0)),
            ignore_overrun: cmd.flags & ex_cq_flag::IGNORE_OVERRUN != 0,
            owner,
            events,
            ..CqAttr::new(mem, 0, log_entries)
        };
        let created = device.with_nic(|nic| nic.create_cq(attr));
        let cqn = created.inspect_err(|_| {
            device.untrack(owner);
        })?;
        let cq = CompletionQueue { cqn, owner };
        self.keep(device, Object::Cq(cq), |cq_handle| {
            call.driver_answer(&mlx5::CreateCqResp {
                cqn: cqn.0,
                reserved: 0,
            })?;
            answer(&CreateCqResp {
                cq_handle,
                cqe: entries - 1,
            })
        })
    }

    pub fn destroy_cq(&mut self, device: &Device, call: &Call<'_>) -> Done {
        let cmd: DestroyCq = call.input()?;
        let cq = self.objects.doomed::<CompletionQueue>(cmd.cq_handle)?;
        let (cqn, owner) = (cq.cqn, cq.owner);
        device.with_nic(|nic| nic.destroy_cq(cqn))?;
        let read = device.untrack(owner);
        self.objects.remove(cmd.cq_handle);
        call.answer(&DestroyCqResp {
            comp_events_reported: read.completions,
            async_events_reported: read.asynchronous,
        })
    }

    pub fn create_qp(&mut self, device: &Device, call: &Call<'_>) -> Done {
        let cmd: CreateQp = call.input()?;
        self.make_qp(device, call, &cmd.init, cmd.user_handle, |resp| {
            call.answer(resp)
        })
    }

    pub fn create_qp_extended(&mut self, device: &Device, call: &Call<'_>) -> Done {
        let cmd: ExCreateQp = call.input()?;
        if cmd.comp_mask != 0 {
            return Err(Errno::INVAL);
        }
        if cmd.create_flags != 0 || cmd.source_qpn != 0 || cmd.rwq_ind_tbl_handle != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        self.make_qp(device, call, &cmd.init, cmd.user_handle, |&base| {
            call.answer(&ExCreateQpResp {
                base,
                comp_mask: 0,
                response_length: size_of::<ExCreateQpResp>() as u32,
            })
        })
    }

    fn make_qp(
        &mut self,
        device: &Device,
        call: &Call<'_>,
        init: &QpInit,
        handle: u64,
        answer: impl FnOnce(&CreateQpResp) -> Done,
    ) -> Done {
        let service = transitions::service(init.qp_type)?;
        // The input of older libraries ends here.
        let least = std::mem::offset_of!(mlx5::CreateQp, bfreg_index);
        let mut own: mlx5::CreateQp = call.driver_input(least)?;
        if init.is_srq != 0 {
            // Receives are in the SRQ, so the size of a receive queue of the QP is ignored.
            own.rq_wqe_count = 0;
        }
        let receives = own.rq_wqe_count;
        let (attr, register) = self.qp_attr(device, service, init, &own)?;
        let owner = self.track(device, handle, None);
        let attr = QpAttr { owner, ..attr };
        let created = device.with_nic(|nic| nic.create_qp(attr));
        let qpn = created.inspect_err(|_| {
            device.untrack(owner);
            self.release(register);
        })?;
        let qp = QueuePair {
            qpn,
            service,
            register,
            owner,
            init: *init,
            receives,
            set: ModifyQp::default(),
        };
        self.keep(device, Object::Qp(Box::new(qp)), |qp_handle| {
            call.driver_answer(&mlx5::CreateQpResp {
                bfreg_index: register.map_or(own.bfreg_index, Doorbells::called),
                ..mlx5::CreateQpResp::default()
            })?;
            answer(&CreateQpResp {
                qp_handle,
                qpn: qpn.0,
                max_send_wr: init.max_send_wr,
                max_recv_wr: receives,
                max_send_sge: init.max_send_sge,
                max_recv_sge: init.max_recv_sge,
                max_inline_data: init.max_inline_data,
                reserved: 0,
            })
        })
    }

    /// The attributes of the QP, and the doorbell register that was taken for it, if any.
    fn qp_attr(
        &mut self,
        device: &Device,
        service: Service,
        init: &QpInit,
        own: &mlx5::CreateQp,
    ) -> Result<(QpAttr, Option<u32>), Errno> {
        let known = qp_flag::SCATTER_CQE
            | qp_flag::ALLOW_SCATTER_CQE
            | qp_flag::BFREG_INDEX
            | qp_flag::UAR_PAGE_INDEX;
        let beyond = init.max_send_wr > MAX_WQE
            || init.max_recv_wr > MAX_WQE
            || init.max_send_sge > MAX_SGE
            || init.max_recv_sge > MAX_SGE
            || init.max_inline_data > MAX_INLINE;
        let sizes = own.sq_wqe_count > MAX_WQE || own.rq_wqe_count > MAX_WQE;
        if own.flags & !known != 0 || beyond || sizes {
            return Err(Errno::INVAL);
        }
        let srq = match init.is_srq {
            0 => None,
            _ => Some(self.objects.get::<SharedReceives>(init.srq_handle)?.srqn),
        };
        let pd = *self.objects.get::<PdId>(init.pd_handle)?;
        let send_cq = self.cqn(init.send_cq_handle)?;
        let recv_cq = self.cqn(init.recv_cq_handle)?;
        let stride = 1_u64.checked_shl(own.rq_wqe_shift).unwrap_or(0);
        let sized = |count: u32| count == 0 || count.is_power_of_two();
        let no_receives = own.rq_wqe_count == 0;
        let strided = no_receives || (SEGMENT as u64..=512).contains(&stride);
        if !sized(own.sq_wqe_count) || !sized(own.rq_wqe_count) || !strided {
            return Err(Errno::INVAL);
        }
        // The buffer contains the receive queue, then the send queue.
        let rq_bytes = if no_receives {
            0
        } else {
            u64::from(own.rq_wqe_count) * stride
        };
        // A queue without entries has one block, which the NIC never reads.
        let sq_blocks = own.sq_wqe_count.max(1);
        let sq_bytes = u64::from(own.sq_wqe_count) * BASIC_BLOCK as u64;
        let bytes = rq_bytes + sq_bytes;
        if bytes == 0 || !rq_bytes.is_multiple_of(BASIC_BLOCK as u64) {
            return Err(Errno::INVAL);
        }
        aligned(own.buf_addr, BASIC_BLOCK)?;
        aligned(own.db_addr, 8)?;
        let mem = device.user.memory(own.buf_addr, bytes, false)?;
        let record = device.user.memory(own.db_addr, 8, true)?;
        let rq = (!no_receives).then(|| RqAttr {
            mem: Arc::clone(&mem),
            offset: 0,
            log_entries: own.rq_wqe_count.trailing_zeros() as u8,
            stride: stride as u32,
        });
        let sq_offset = if sq_bytes == 0 { 0 } else { rq_bytes };
        let (uar, register) = self.doorbell(device, own)?;
        let sq = SqAttr {
            mem,
            offset: sq_offset,
            log_blocks: sq_blocks.trailing_zeros() as u8,
        };
        let attr = QpAttr {
            recv_cq,
            rq,
            srq,
            scatter: scatter(service, init, own.flags),
            uidx: own.uidx & 0xff_ffff,
            service,
            ..QpAttr::new(pd, uar, send_cq, sq, (record, 0))
        };
        Ok((attr, register))
    }

    /// The doorbell page of a QP: the page that the library names, or the page of a free register.
    fn doorbell(
        &mut self,
        device: &Device,
        own: &mlx5::CreateQp,
    ) -> Result<(UarId, Option<u32>), Errno> {
        if own.flags & qp_flag::UAR_PAGE_INDEX != 0 {
            return Ok((self.doorbells.named(own.bfreg_index)?, None));
        }
        if own.flags & qp_flag::BFREG_INDEX != 0 {
            // The register is on a page that was mapped separately.
            return Ok((self.doorbells.named_register(own.bfreg_index)?, None));
        }
        let (register, uar) = self.doorbells.take(device)?;
        Ok((uar, Some(register)))
    }

    fn release(&mut self, register: Option<u32>) {
        if let Some(register) = register {
            self.doorbells.give_back(register);
        }
    }

    fn cqn(&self, handle: u32) -> Result<Cqn, Errno> {
        Ok(self.objects.get::<CompletionQueue>(handle)?.cqn)
    }

    pub fn query_qp(&mut self, device: &Device, call: &Call<'_>) -> Done {
        let cmd: QueryQp = call.input()?;
        let qp = self.objects.get::<Box<QueuePair>>(cmd.qp_handle)?;
        let info = device.with_nic(|nic| nic.query_qp(qp.qpn))?;
        let state = transitions::number(info.state);
        let set = &qp.set;
        call.answer(&QueryQpResp {
            dest: set.dest,
            alt_dest: set.alt_dest,
            max_send_wr: qp.init.max_send_wr,
            max_recv_wr: qp.receives,
            max_send_sge: qp.init.max_send_sge,
            max_recv_sge: qp.init.max_recv_sge,
            max_inline_data: qp.init.max_inline_data,
            qkey: set.qkey,
            rq_psn: set.rq_psn,
            sq_psn: set.sq_psn,
            dest_qp_num: set.dest_qp_num,
            qp_access_flags: set.qp_access_flags,
            pkey_index: set.pkey_index,
            alt_pkey_index: set.alt_pkey_index,
            qp_state: state,
            cur_qp_state: state,
            path_mtu: set.path_mtu,
            path_mig_state: 0,
            sq_draining: info.draining.into(),
            max_rd_atomic: set.max_rd_atomic,
            max_dest_rd_atomic: set.max_dest_rd_atomic,
            min_rnr_timer: set.min_rnr_timer,
            port_num: set.port_num,
            timeout: set.timeout,
            retry_cnt: set.retry_cnt,
            rnr_retry: set.rnr_retry,
            alt_port_num: set.alt_port_num,
            alt_timeout: set.alt_timeout,
            sq_sig_all: qp.init.sq_sig_all,
            reserved: [0; 5],
        })
    }

    pub fn destroy_qp(&mut self, device: &Device, call: &Call<'_>) -> Done {
        let cmd: DestroyQp = call.input()?;
        self.objects.doomed::<Box<QueuePair>>(cmd.qp_handle)?;
        let mut events_reported = 0;
        if let Some(Object::Qp(qp)) = self.objects.remove(cmd.qp_handle) {
            events_reported = self.drop_qp(device, &qp);
        }
        call.answer(&DestroyQpResp { events_reported })
    }

    /// Destroys a QP. Returns how many of its events were read.
    pub fn drop_qp(&mut self, device: &Device, qp: &QueuePair) -> u32 {
        // The QP exists and is destroyed once, so the NIC does not refuse.
        let _ = device.nic.with(|nic| nic.destroy_qp(qp.qpn));
        let read = device.untrack(qp.owner);
        self.release(qp.register);
        device.user.ring();
        read.asynchronous
    }
}

/// The inline scatter of a QP. Received payload: if `SCATTER_CQE` is set. Responses: if also all
/// work is signaled, or `ALLOW_SCATTER_CQE` is set, with which the library tracks signaled work.
fn scatter(service: Service, init: &QpInit, flags: u32) -> Scatter {
    let requested = flags & qp_flag::SCATTER_CQE != 0;
    let all = init.sq_sig_all != 0 || flags & qp_flag::ALLOW_SCATTER_CQE != 0;
    Scatter {
        responder: requested && matches!(service, Service::Rc | Service::Uc),
        requester: requested && all && service == Service::Rc,
    }
}

pub(crate) fn aligned(addr: u64, to: usize) -> Done {
    if addr.is_multiple_of(to as u64) {
        Ok(())
    } else {
        Err(Errno::INVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_payloads_are_scattered_into_entries_by_the_flags() {
        let (rc, uc, ud) = (Service::Rc, Service::Uc, Service::Ud);
        let (requested, known) = (qp_flag::SCATTER_CQE, qp_flag::ALLOW_SCATTER_CQE);
        for (service, flags, sq_sig_all, responder, requester) in [
            (rc, 0, 0, false, false),
            (rc, 0, 1, false, false),
            (rc, known, 1, false, false),
            (rc, requested, 0, true, false),
            (rc, requested, 1, true, true),
            (rc, requested | known, 0, true, true),
            (uc, 0, 1, false, false),
            (uc, requested, 1, true, false),
            (ud, requested, 1, false, false),
        ] {
            let init = QpInit {
                sq_sig_all,
                ..QpInit::default()
            };
            let expected = Scatter {
                responder,
                requester,
            };
            let got = scatter(service, &init, flags);
            assert_eq!(got, expected, "{service:?} {flags:#x} {sq_sig_all}");
        }
    }
}
