//! Addresses of one library convert to those of the other.

use super::*;

const GID: [u8; 16] = *b"\xfe\x80\0\0\0\0\0\x01interfac";

fn here(lid: u16, gid: [u8; 16]) -> QpAddress {
    QpAddress::default()
        .node(1)
        .qpn(0x00ab_cdef)
        .psn(7)
        .gpu(2)
        .process(3)
        .port(PortAddress::default().lid(lid).mtu(4).gid(gid))
}

fn end(lid: u16, gid: Option<[u8; 16]>) -> QueuePairEndpoint {
    QueuePairEndpoint {
        num: 0x0012_3456,
        lid,
        gid: gid.map(super::gid),
    }
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T>, why: &str) {
    let e = result.unwrap_err();
    assert!(matches!(e, Error::Peer(_)), "{e:?}");
    assert!(e.to_string().contains(why), "{e}");
}

#[test]
fn guids_and_gids_keep_their_bytes() {
    // The library stores it in network byte order.
    let raw = 0x0002_c903_002f_1190_u64.to_be();
    assert_eq!(guid(Guid::from(raw)), 0x0002_c903_002f_1190);
    assert_eq!(gid_bytes(gid(GID)), GID);
    assert_eq!(gid(GID).subnet_prefix(), 0xfe80_0000_0000_0001);
}

#[test]
fn endpoint_has_a_gid_where_the_path_needs_one() {
    let mut far = GID;
    far[7] = 2;
    // In one subnet, with and without a GID on this side.
    for own in [None, Some(GID)] {
        let there = endpoint(&here(5, GID), &end(6, own)).unwrap();
        assert_eq!((there.num, there.lid, there.gid), (0x00ab_cdef, 5, None));
    }
    // To another subnet, and on Ethernet.
    for (lid, there) in [(5, far), (0, GID)] {
        let found = endpoint(&here(lid, there), &end(lid, Some(GID))).unwrap();
        assert_eq!((found.lid, found.gid), (lid, Some(gid(there))));
    }
    refused(endpoint(&here(0, GID), &end(0, None)), "Ethernet");
    let linked_in = here(5, GID).port(None);
    refused(endpoint(&linked_in, &end(6, None)), "linked into");
}

#[test]
fn endpoint_converts_to_an_address() {
    let near = address(&end(6, None), &here(5, GID)).unwrap();
    let port = near.port.unwrap();
    assert_eq!((near.qpn, near.psn, near.rail), (0x0012_3456, 0, 0));
    assert_eq!((port.lid, port.mtu), (6, 4));
    assert_eq!((&port.gid[..8], &port.gid[8..]), (&GID[..8], &[0; 8][..]));
    let mut far = GID;
    far[7] = 2;
    for lid in [0, 6] {
        let found = address(&end(lid, Some(far)), &here(lid, GID)).unwrap();
        assert_eq!(found.port.unwrap().gid, far);
    }
    refused(address(&end(0, None), &here(0, GID)), "Ethernet");
    let linked_in = here(5, GID).port(None);
    refused(address(&end(6, None), &linked_in), "linked into");
}
