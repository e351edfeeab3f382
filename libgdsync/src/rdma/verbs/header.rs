//! What lies in front of a datagram that was received: a global route header as InfiniBand has
//! it, or the header of IPv6 or IPv4 that RoCE v2 has in its place (InfiniBand specification, volume
//! 1, chapter 8 and annex A17).

/// Bytes in front of every datagram received, whether or not they tell something.
pub const GRH: usize = 40;

/// A header of IPv4 lies in the last bytes.
const IPV4: usize = 20;
/// Its version, and its length in words.
const IPV4_PLAIN: u8 = 0x45;
/// RoCE v2 is carried by UDP.
const UDP: u8 = 17;

/// The identifier (GID) of the port that it came from, if the bytes are such a header.
pub(in crate::rdma) fn sender(front: &[u8; GRH]) -> Option<[u8; 16]> {
    let ip = &front[GRH - IPV4..];
    let mut gid = [0; 16];
    // The bytes before such a header are anything, and it has a checksum: it goes first. The
    // kernel's soft-RoCE leaves that at 0 in what a port sends to itself.
    let six = front[0] >> 4 == 6;
    let summed = ones_complement_sum(ip) == 0xffff || (!six && ip[10..12] == [0, 0]);
    if ip[0] == IPV4_PLAIN && ip[9] == UDP && summed {
        gid[10..12].fill(0xff);
        gid[12..].copy_from_slice(&ip[12..16]);
        return Some(gid);
    }
    gid.copy_from_slice(&front[8..24]);
    six.then_some(gid)
}

/// Of all 16-bit words; with its own checksum among them a header's is `0xffff` (RFC 1071).
fn ones_complement_sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks_exact(2);
    let sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    // Two folds: there are ten words.
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From 10.1.2.3 to 10.1.2.4, with the checksum that it has to have.
    const PACKET: [u8; IPV4] = [
        0x45, 0, 0, 0x48, 0, 0, 0x40, 0, 64, 17, 0x22, 0x9d, 10, 1, 2, 3, 10, 1, 2, 4,
    ];

    #[test]
    fn an_ipv4_header_lies_at_the_end() {
        for before in [0, 0x60, 0xff] {
            let mut front = [before; GRH];
            front[GRH - IPV4..].copy_from_slice(&PACKET);
            let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3];
            assert_eq!(sender(&front), Some(mapped));
            // A changed bit, wherever it is, and it is no such header any more.
            for bit in 0..8 * IPV4 {
                let mut other = front;
                other[GRH - IPV4 + bit / 8] ^= 1 << (bit % 8);
                assert_ne!(sender(&other), Some(mapped), "bit {bit}");
                assert_eq!(sender(&other).is_some(), before == 0x60, "bit {bit}");
            }
        }
    }

    #[test]
    fn a_checksum_may_be_left_out() {
        let mut front = [0; GRH];
        front[GRH - IPV4..].copy_from_slice(&PACKET);
        front[GRH - IPV4 + 10..][..2].fill(0);
        assert_eq!(sender(&front).unwrap()[12..], [10, 1, 2, 3]);
        // Where that could be a part of another header, it is.
        front[0] = 0x60;
        assert_ne!(sender(&front).unwrap()[12..], [10, 1, 2, 3]);
    }

    #[test]
    fn others_have_the_senders_gid_in_the_middle() {
        let mut front: [u8; GRH] = std::array::from_fn(|i| i as u8);
        for version in 0..16 {
            front[0] = version << 4;
            let gid = std::array::from_fn(|i| 8 + i as u8);
            assert_eq!(sender(&front), (version == 6).then_some(gid));
        }
    }
}
