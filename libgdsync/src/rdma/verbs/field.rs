//! The fields of a prepared entry that a stream or kernel may change before the doorbell.

use mlx5_prm::wqe::{BASIC_BLOCK, DataSeg, RaddrSeg, SEGMENT};

use super::{Field, Qp, SendRequest};
use crate::error::{Error, Kind, Result};
use crate::gpu::{Word32, Word64};

impl Qp {
    fn field(&self, request: SendRequest, field: Field, operation: &'static str) -> Result<usize> {
        self.own(request.queue, operation)?;
        let state = self.core.lock();
        self.known(&state, request.into(), operation)?;
        state
            .send
            .fifo
            .check_prepared(request.ticket)
            .map_err(|e| self.refused(operation, e))?;
        let no = || {
            Error::new(
                operation,
                Kind::Invalid,
                format!("the WQE of {self:?} has no field {field:?}"),
            )
        };
        let slot = state.send.fifo.slot(request.ticket).ok_or_else(no)?;
        let layout = state.send.layout(slot).ok_or_else(no)?;
        let (segment, offset) = match field {
            Field::Opcode => (0, 0),
            Field::Length(i) => (layout.data(i).ok_or_else(no)?, DataSeg::BYTE_COUNT),
            Field::Key(i) => (layout.data(i).ok_or_else(no)?, DataSeg::LKEY),
            Field::Address(i) => (layout.data(i).ok_or_else(no)?, DataSeg::ADDR),
            Field::RemoteAddress => (layout.remote.ok_or_else(no)?, RaddrSeg::ADDR),
            Field::RemoteKey => (layout.remote.ok_or_else(no)?, RaddrSeg::RKEY),
        };
        let ring = state.send.fifo.room() as usize * BASIC_BLOCK;
        Ok((state.send.offset(slot.start) + segment * SEGMENT + offset) % ring)
    }

    /// A 32-bit field of a prepared request: a length, a key or the opcode. The stream that posts
    /// the request stores into it before the post, big-endian, for example a length that a kernel
    /// has computed.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use gdsync::rdma::{Descriptor, Field, Work};
    /// # use gdsync::{gpu::MemoryKind, rdma::{Access, Device, QpConfig}};
    ///
    /// # fn main() -> gdsync::Result<()> {
    /// # let gpu = gdsync::Gpu::soft()?;
    /// # let pd = Device::emulated(&gpu)?.alloc_pd()?;
    /// # let config = QpConfig::default();
    /// # let (mut a, mut b) = (pd.create_qp(&config)?, pd.create_qp(&config)?);
    /// # a.connect(&b.address())?;
    /// # b.connect(&a.address())?;
    /// # let memory = pd.register(&gpu.alloc(MemoryKind::Device, 128)?, Access::ALL)?;
    /// # let stream = gpu.stream()?;
    /// let recv = b.prepare_receive(&[memory.sge(64, 64)])?;
    /// b.post_receive(recv)?;
    /// let send = a.prepare(&Work::send(&[memory.sge(0, 64)]).signaled())?;
    /// let length = a.field32(send, Field::Length(0))?;
    /// let list = [
    ///     Descriptor::write_value(&length, 5_u32.to_be()),
    ///     Descriptor::Send(send),
    ///     Descriptor::wait(send),
    /// ];
    /// a.post_on(&stream, &list)?;
    /// b.wait(recv, Duration::from_secs(10))?;
    /// assert_eq!(b.received(recv)?.len, 5);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Invalid` if the entry does not have the field or the field is an address; `NoSuchRequest`
    /// if the request is not prepared; `Foreign` for a request of another queue pair.
    pub fn field32(&self, request: SendRequest, field: Field) -> Result<Word32> {
        if matches!(field, Field::Address(_) | Field::RemoteAddress) {
            let what = format!("the field {field:?} has 64 bits; use `field64`");
            return Err(Error::new("locate field", Kind::Invalid, what));
        }
        let at = self.field(request, field, "locate field")?;
        let (region, start) = &self.ring;
        region.word32(start + at)
    }

    /// A 64-bit field of a prepared request: an address, big-endian; see [`Qp::field32`].
    ///
    /// # Errors
    /// As [`Qp::field32`], but `Invalid` if the field is not an address.
    pub fn field64(&self, request: SendRequest, field: Field) -> Result<Word64> {
        if !matches!(field, Field::Address(_) | Field::RemoteAddress) {
            let what = format!("the field {field:?} has 32 bits; use `field32`");
            return Err(Error::new("locate field", Kind::Invalid, what));
        }
        let at = self.field(request, field, "locate field")?;
        let (region, start) = &self.ring;
        region.word64(start + at)
    }
}
