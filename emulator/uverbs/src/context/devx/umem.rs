//! UMEM: memory that the program registered for rings and doorbell records.

use std::sync::Arc;

use rustix::io::Errno;
use vmlx5::Dma;

use super::mailbox::{Mailbox, Refusal};
use crate::abi::core::access;
use crate::abi::mlx5::ioctl::*;
use crate::abi::prm::Field;
use crate::command::Done;
use crate::context::Object;
use crate::context::Open;
use crate::context::request::Request;

/// Registered memory. Objects in it hold a reference.
pub(crate) struct Umem {
    id: u32,
    pub memory: Arc<dyn Dma>,
    /// The device may write to it.
    writable: bool,
}

/// The rights that a registration may have.
const RIGHTS: u32 = 7;
const LOCAL_WRITE: u32 = 1;
const REMOTE_WRITE: u32 = 2;

pub(super) fn register(open: &mut Open, request: &Request<'_>) -> Done {
    request.only(UMEM_HANDLE..=UMEM_DMABUF_FD)?;
    let (addr, len) = (request.small(UMEM_ADDR)?, request.small(UMEM_LEN)?);
    let rights = request.optional(UMEM_ACCESS)?.unwrap_or(0) as u32;
    let unknown = rights & !(RIGHTS | access::OPTIONAL) != 0;
    let unwritable = rights & REMOTE_WRITE != 0 && rights & LOCAL_WRITE == 0;
    let no_pages = request.optional(UMEM_PGSZ_BITMAP)? == Some(0);
    if !open.devx || len == 0 || unknown || unwritable || no_pages {
        return Err(Errno::INVAL);
    }
    let writable = rights & LOCAL_WRITE != 0;
    let memory = match request.optional(UMEM_DMABUF_FD)? {
        Some(fd) => request.device.user.dmabuf(fd as i32, addr, len, writable)?,
        None => request.device.user.memory(addr, len, writable)?,
    };
    request.find(UMEM_HANDLE)?;
    let id = open.umem_ids;
    let umem = Umem {
        id,
        memory,
        writable,
    };
    open.keep(request.device, Object::Umem(Arc::new(umem)), |handle| {
        request.answer(UMEM_OUT_ID, &id.to_ne_bytes())?;
        request.answer_handle(UMEM_HANDLE, handle)
    })?;
    // Numbers are not reused, so that an old number never means a newer registration.
    open.umem_ids = id.checked_add(1).unwrap_or(FIRST_ID);
    Ok(())
}

/// The first number of a context's memory; a field that is absent (zero) never has this value.
pub(crate) const FIRST_ID: u32 = 1;

pub(super) fn deregister(open: &mut Open, request: &Request<'_>) -> Done {
    request.only(UMEM_HANDLE..=UMEM_HANDLE)?;
    let handle = request.handle(UMEM_HANDLE)?;
    let umem = open.objects.doomed::<Arc<Umem>>(handle)?;
    if Arc::strong_count(umem) > 1 {
        return Err(Errno::BUSY);
    }
    open.objects.remove(handle);
    Ok(())
}

/// A place in registered memory, as a command gives it.
pub(super) struct Span {
    /// The registration, held as long as it contains an object.
    pub umem: Arc<Umem>,
    /// The offset in it.
    pub offset: u64,
}

impl Open {
    /// The memory with the number `id`, from `offset` on. It must contain `len` bytes, aligned.
    pub(super) fn span(
        &self,
        command: Mailbox<'_>,
        id: Field,
        (at, offset): (Field, u64),
        (len, align): (u64, u64),
        writable: bool,
    ) -> Result<Span, Refusal> {
        let number = command.get32(id);
        let mut all = self.objects.each();
        let umem = all.find_map(|object| match object {
            Object::Umem(umem) if umem.id == number => Some(Arc::clone(umem)),
            _ => None,
        });
        let umem = umem.ok_or(command.unknown(id))?;
        let end = offset.checked_add(len);
        let fits = end.is_some_and(|end| end <= umem.memory.len());
        if !fits || !offset.is_multiple_of(align) || writable && !umem.writable {
            return Err(command.wrong(at));
        }
        Ok(Span { umem, offset })
    }
}

/// The start of a ring: an offset, and a page offset in 64ths of a page of 4096 bytes times 2 to
/// the power of `log_page_size`.
pub(super) fn ring_at(
    command: Mailbox<'_>,
    offset: Field,
    context: Mailbox<'_>,
    (page_offset, log_page_size): (Field, Field),
) -> Result<u64, Refusal> {
    let quantum = 64_u64 << context.get(log_page_size);
    let into = context.get(page_offset) * quantum;
    let at = command.get(offset).checked_add(into);
    at.ok_or(command.wrong(offset))
}
