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
fn register(open: &mut Open, request: &Request<'_>) -> Done {
    request.only(DMABUF_HANDLE..=DMABUF_RKEY)?;
    let of = Registration {
        start: request.small(DMABUF_OFFSET)?,
        length: request.small(DMABUF_LENGTH)?,
        hca_va: request.small(DMABUF_IOVA)?,
        pd: request.handle(DMABUF_PD)?,
        access: request.small(DMABUF_ACCESS)? as u32,
        file: Some(request.small(DMABUF_FD)? as i32),
    };
    if of.access & !(access::RIGHTS | access::OPTIONAL) != 0 {
        return Err(Errno::INVAL);
    }
    let region = open.register(request.device, of)?;
    let MrKeys { lkey, rkey } = region.keys;
    open.keep(request.device, Object::Mr(region), |handle| {
        request.answer(DMABUF_LKEY, &lkey.to_ne_bytes())?;
        request.answer(DMABUF_RKEY, &rkey.to_ne_bytes())?;
        request.answer_handle(DMABUF_HANDLE, handle)
    })
}
