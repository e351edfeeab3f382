//! Regions on the memory behind a descriptor: a dma-buf, or any file that can be mapped.

use rustix::io::Errno;
use vmlx5::MrKeys;

use crate::abi::core::access;
use crate::abi::core::ioctl::*;
use crate::command::Done;
use crate::context::Open;
use crate::context::request::{Method, Request};
use crate::context::{Object, Registration};

/// The method of an object, if it is one of these.
pub(crate) fn method(object: u16, method: u16) -> Option<Method> {
    match (object, method) {
        (OBJECT_MR, REG_DMABUF_MR) => Some(register),
        _ => None,
    }
}

/// Registers a part of the memory. The MR keeps the memory when the descriptor is closed.
fn register(open: &mut Open, ask: &Request<'_>) -> Done {
    ask.only(DMABUF_HANDLE..=DMABUF_RKEY)?;
    let of = Registration {
        start: ask.small(DMABUF_OFFSET)?,
        length: ask.small(DMABUF_LENGTH)?,
        hca_va: ask.small(DMABUF_IOVA)?,
        pd: ask.handle(DMABUF_PD)?,
        access: ask.small(DMABUF_ACCESS)? as u32,
        file: Some(ask.small(DMABUF_FD)? as i32),
    };
    if of.access & !(access::RIGHTS | access::OPTIONAL) != 0 {
        return Err(Errno::INVAL);
    }
    let region = open.register(ask.device, of)?;
    let MrKeys { lkey, rkey } = region.keys;
    open.keep(ask.device, Object::Mr(region), |handle| {
        ask.answer(DMABUF_LKEY, &lkey.to_ne_bytes())?;
        ask.answer(DMABUF_RKEY, &rkey.to_ne_bytes())?;
        ask.answer_handle(DMABUF_HANDLE, handle)
    })
}
