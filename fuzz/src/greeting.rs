//! The contents of one message on the socket of a NIC, with descriptors.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use vmlx5::fuzzing::{Received, receive};
use zerocopy::IntoBytes;

use crate::input::Input;

/// A socket of the kind that NICs use, with its other end.
pub fn socket_pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .expect("a socket pair")
}

/// Sends one message with descriptors. The receiver decides whether it is accepted.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let _ = rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags);
}

/// Any message with any number of descriptors is refused, or received unchanged.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let (ours, theirs) = socket_pair();
    for _ in 0..4 {
        let (many, len) = (usize::from(input.byte() % 7), usize::from(input.byte()));
        let bytes = input.bytes(len);
        send(&theirs, bytes, &vec![theirs.as_fd(); many]);
        match receive(ours.as_fd()) {
            Ok(Received::Nothing) => panic!("a message is lost"),
            Ok(Received::Closed) => assert!(bytes.is_empty()),
            Ok(Received::Greeting(greeting, fds)) => {
                let again = greeting.as_bytes();
                let same = bytes.len().min(again.len());
                assert!(same >= 12 && again[..same] == bytes[..same]);
                assert!(again[same..].iter().all(|b| *b == 0));
                assert_eq!(fds.len(), many);
                assert!(
                    bytes.len() == again.len()
                        || greeting.version.get() != vmlx5::fabric::shm::PROTOCOL_VERSION
                );
            }
            Err(e) => assert!(e.to_string().len() < 100),
        }
        if input.done() {
            break;
        }
    }
    drop(theirs);
    assert!(matches!(receive(ours.as_fd()), Ok(Received::Closed)));
}
