//! Creation and destruction of SRQs.

use rustix::io::Errno;
use vmlx5::{PdId, SrqAttr, Srqn};

use crate::abi::core::*;
use crate::abi::mlx5;
use crate::command::{Call, Done};
use crate::context::Object;
use crate::context::Open;
use crate::context::queues::aligned;
use crate::device::{Device, MAX_SRQ_SGE, MAX_WQE};

/// An SRQ of a context.
pub(crate) struct SharedReceives {
    pub srqn: Srqn,
    /// The owner field of its events.
    pub owner: u64,
    /// The maximal number of receives, and of SGEs of each.
    max_wr: u32,
    max_sge: u32,
}

/// The attributes of a modification.
mod srq_attr {
    pub const MAX_WR: u32 = 1 << 0;
    pub const LIMIT: u32 = 1 << 1;
}

/// The length of a segment in bytes. The first segment of an entry has the index of the next entry,
/// the others are its SGEs.
const SEGMENT: u32 = mlx5_prm::wqe::SEGMENT as u32;

impl Open {
    pub fn create_srq(&mut self, device: &Device, call: &Call<'_>) -> Done {
        let cmd: CreateSrq = call.input()?;
        // The input of an older library has no index.
        let least = std::mem::offset_of!(mlx5::CreateSrq, uidx) - 4;
        let own: mlx5::CreateSrq = call.driver_input(least)?;
        if own.flags != 0 || own.reserved0 != 0 || own.reserved1 != 0 || own.uidx >> 24 != 0 {
            return Err(Errno::INVAL);
        }
        let pd = *self.objects.get::<PdId>(cmd.pd_handle)?;
        if cmd.max_wr >= MAX_WQE || cmd.max_sge > MAX_SRQ_SGE {
            return Err(Errno::INVAL);
        }
        // One more than requested: the library never posts the last free one.
        let entries = (cmd.max_wr + 1).next_power_of_two();
        let stride = (SEGMENT + cmd.max_sge * SEGMENT)
            .next_power_of_two()
            .max(32);
        aligned(own.buf_addr, SEGMENT as usize)?;
        aligned(own.db_addr, 8)?;
        let bytes = u64::from(entries) * u64::from(stride);
        let mem = device.user.memory(own.buf_addr, bytes, false)?;
        let record = device.user.memory(own.db_addr, 8, false)?;
        let owner = self.track(device, cmd.user_handle, None);
        let attr = SrqAttr {
            pd,
            mem,
            offset: 0,
            log_entries: entries.trailing_zeros() as u8,
            stride,
            record: (record, 0),
            // The limit is set by a modification only.
            limit: 0,
            owner,
        };
        let created = device.with_nic(|nic| nic.create_srq(attr));
        let srqn = created.inspect_err(|_| {
            device.untrack(owner);
        })?;
        let (max_wr, max_sge) = (entries - 1, cmd.max_sge);
        let srq = SharedReceives {
            srqn,
            owner,
            max_wr,
            max_sge,
        };
        self.keep(device, Object::Srq(srq), |srq_handle| {
            call.driver_answer(&mlx5::CreateSrqResp {
                srqn: srqn.0,
                reserved: 0,
            })?;
            call.answer(&CreateSrqResp {
                srq_handle,
                max_wr,
                max_sge,
                // Attributes of other kinds of queues.
                srqn: 0,
            })
        })
    }

    pub fn modify_srq(&mut self, device: &Device, call: &Call<'_>) -> Done {
        let cmd: ModifySrq = call.input()?;
        let srq = self.objects.get::<SharedReceives>(cmd.srq_handle)?;
        // No resizing.
        if cmd.attr_mask & srq_attr::MAX_WR != 0 {
            return Err(Errno::INVAL);
        }
        if cmd.attr_mask & srq_attr::LIMIT == 0 {
            return Ok(());
        }
        if cmd.srq_limit > srq.max_wr {
            return Err(Errno::INVAL);
        }
        let limit = cmd.srq_limit as u16;
        let armed = device.with_nic(|nic| nic.modify_srq(srq.srqn, limit));
        // An event may be due at once.
        device.user.ring();
        armed
    }

    pub fn query_srq(&mut self, device: &Device, call: &Call<'_>) -> Done {
        let cmd: QuerySrq = call.input()?;
        let srq = self.objects.get::<SharedReceives>(cmd.srq_handle)?;
        let info = device.with_nic(|nic| nic.query_srq(srq.srqn))?;
        call.answer(&QuerySrqResp {
            max_wr: srq.max_wr,
            max_sge: srq.max_sge,
            srq_limit: info.limit.into(),
            reserved: 0,
        })
    }

    pub fn destroy_srq(&mut self, device: &Device, call: &Call<'_>) -> Done {
        let cmd: DestroySrq = call.input()?;
        let srq = self.objects.doomed::<SharedReceives>(cmd.srq_handle)?;
        let (srqn, owner) = (srq.srqn, srq.owner);
        device.with_nic(|nic| nic.destroy_srq(srqn))?;
        self.objects.remove(cmd.srq_handle);
        let events_reported = device.untrack(owner).asynchronous;
        call.answer(&DestroySrqResp { events_reported })
    }
}
