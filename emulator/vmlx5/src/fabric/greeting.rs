//! The greetings (handshake) of two NICs of one host on their socket before frames flow, and the
//! transfer of descriptors with them.
//!
//! Each side sends one message of 32 bytes. The first twelve bytes are the same in every version,
//! so that each version can recognise another.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix,
};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{LinkError, NodeId};

/// The version of greetings, rings and frames in this crate.
pub const PROTOCOL_VERSION: u32 = 2;

const MAGIC: [u8; 8] = *b"vmlx5fab";

/// A greeting. The caller's greeting carries two descriptors, its ring and its bell. The answer
/// carries one, the bell of the called end; an answer that refuses carries none.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Greeting {
    magic: [u8; 8],
    /// The sender's protocol version.
    pub version: U32,
    /// Size of the transferred ring in bytes; zero in an answer.
    pub ring_bytes: U32,
    /// The node of the sender.
    pub from: U64,
    /// The node of the receiver.
    pub to: U64,
}

const SIZE: usize = size_of::<Greeting>();

impl Greeting {
    /// A greeting of this version.
    pub fn new(version: u32, from: NodeId, to: NodeId, ring_bytes: usize) -> Greeting {
        Greeting {
            magic: MAGIC,
            version: version.into(),
            ring_bytes: (ring_bytes as u32).into(),
            from: from.0.into(),
            to: to.0.into(),
        }
    }
}

/// The address of a node's listening socket: an abstract name, which ends with its process.
pub fn address(node: NodeId) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(format!("vmlx5-fabric-{node}").as_bytes())
}

/// Sends a greeting with descriptors.
pub fn send(
    socket: BorrowedFd<'_>,
    greeting: &Greeting,
    fds: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::NOBUFS);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = rustix::net::sendmsg(
        socket,
        &[IoSlice::new(greeting.as_bytes())],
        &mut control,
        flags,
    )?;
    if sent == SIZE {
        Ok(())
    } else {
        Err(Errno::MSGSIZE)
    }
}

/// The result of a read from a socket.
pub enum Received {
    /// No greeting arrived yet.
    Nothing,
    /// A greeting with a valid magic number (of any version), and its descriptors.
    Greeting(Greeting, Vec<OwnedFd>),
    /// The other end closed the socket.
    Closed,
}

/// Reads a greeting without waiting.
///
/// # Errors
/// The bytes are no greeting.
pub fn receive(socket: BorrowedFd<'_>) -> Result<Received, LinkError> {
    let mut bytes = [0; SIZE + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut into = [IoSliceMut::new(&mut bytes)];
    let message = match rustix::net::recvmsg(socket, &mut into, &mut control, flags) {
        Ok(message) => message,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(Received::Nothing),
        Err(_) => return Ok(Received::Closed),
    };
    let mut fds = Vec::new();
    for item in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = item {
            fds.extend(rights);
        }
    }
    if message.bytes == 0 {
        return Ok(Received::Closed);
    }
    if message.flags.contains(ReturnFlags::CTRUNC) {
        return Err(LinkError::Greeting("it has too many descriptors"));
    }
    if message.bytes < 12 || bytes[..8] != MAGIC {
        return Err(LinkError::Greeting("its first bytes are wrong"));
    }
    match Greeting::read_from_bytes(&bytes[..SIZE]) {
        Ok(greeting) if message.bytes == SIZE => Ok(Received::Greeting(greeting, fds)),
        // Another version may have another length after its version number.
        Ok(greeting) if greeting.version.get() != PROTOCOL_VERSION => {
            Ok(Received::Greeting(greeting, fds))
        }
        _ => Err(LinkError::Greeting("its length is wrong")),
    }
}
