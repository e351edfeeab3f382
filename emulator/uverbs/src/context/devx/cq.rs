//! CQs that DEVX commands create.

use std::sync::Arc;

use mlx5_prm::cqe;
use vmlx5::{CqAttr, Cqn};

use super::mailbox::{Mailbox, Refusal};
use super::umem::{Span, ring_at};
use super::{FIRST_EQN, Umem};
use crate::abi::prm::cqc::{self, create};
use crate::abi::prm::input;
use crate::context::Open;
use crate::device::{COMP_VECTORS, Device, MAX_CQE};

/// A completion queue.
pub(crate) struct CompletionQueue {
    pub cqn: Cqn,
    /// Its context, as it was made.
    context: Vec<u8>,
    #[expect(dead_code, reason = "as long as it lives its memory stays registered")]
    held: [Arc<Umem>; 2],
}

pub(super) fn create(
    device: &Device,
    open: &Open,
    command: Mailbox<'_>,
) -> Result<CompletionQueue, Refusal> {
    command.lengths(cqc::MAILBOX, &[], 0)?;
    let context = command.context(cqc::AT, cqc::SIZE);
    context.must(cqc::CQE_SZ, cqc::CQE_64)?;
    context.must(cqc::CQE_COMP_EN, 0)?;
    let log_entries = context.at_most(cqc::LOG_CQ_SIZE, u64::from(MAX_CQE.ilog2()) + 1)? as u8;
    context.at_most(cqc::C_EQN, u64::from(FIRST_EQN + COMP_VECTORS) - 1)?;
    open.page(context, cqc::UAR_PAGE)?;
    let start = ring_at(
        command,
        create::CQ_UMEM_OFFSET,
        context,
        (cqc::PAGE_OFFSET, cqc::LOG_PAGE_SIZE),
    )?;
    let bytes = (cqe::SIZE as u64) << log_entries;
    let size = (bytes, cqe::SIZE as u64);
    let at = (create::CQ_UMEM_OFFSET, start);
    let Span { umem, offset } = open.span(command, create::CQ_UMEM_ID, at, size, true)?;
    let at = (cqc::DBR_ADDR, context.get(cqc::DBR_ADDR));
    let record = open.span(context, cqc::DBR_UMEM_ID, at, (8, 8), false)?;
    let attr = CqAttr {
        record: Some((Arc::clone(&record.umem.memory), record.offset)),
        ignore_overrun: context.is_set(cqc::OI),
        collapsed: context.is_set(cqc::CC),
        ..CqAttr::new(Arc::clone(&umem.memory), offset, log_entries)
    };
    let cqn = device.nic.with(|nic| nic.create_cq(attr))?;
    Ok(CompletionQueue {
        cqn,
        context: context.bytes().to_vec(),
        held: [umem, record.umem],
    })
}

impl CompletionQueue {
    pub(super) fn query(
        &self,
        device: &Device,
        command: Mailbox<'_>,
        answer: &mut [u8],
    ) -> Result<(), Refusal> {
        command.lengths(input::HEADER, answer, cqc::MAILBOX)?;
        let info = device.nic.with(|nic| nic.query_cq(self.cqn))?;
        let context = &mut answer[cqc::AT..][..cqc::SIZE];
        context.copy_from_slice(&self.context);
        cqc::PRODUCER_COUNTER.set(context, info.producer.into());
        Ok(())
    }
}
