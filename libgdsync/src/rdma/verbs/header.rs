//! The header before a received datagram: a global route header on InfiniBand, or the IPv6 or IPv4
//! header that RoCE v2 has in its place (InfiniBand specification, volume 1, chapter 8 and annex
//! A17).

/// The number of bytes before the data of every received datagram: 40, whether or not they contain
/// a header. In verbs, `struct ibv_grh`; [`Source::grh`](super::Source::grh) says whether the bytes
/// are valid.
pub const GRH: usize = 40;

/// An IPv4 header is in the last bytes.
const IPV4: usize = 20;
/// The version of IPv4, and the header's length in 32-bit words.
const IPV4_PLAIN: u8 = 0x45;
/// The protocol number of UDP, which carries RoCE v2.
const UDP: u8 = 17;

/// The GID of the sending port, if the bytes are a header.
pub(in crate::rdma) fn sender(front: &[u8; GRH]) -> Option<[u8; 16]> {
    let ip = &front[GRH - IPV4..];
    let mut gid = [0; 16];
    // The bytes before an IPv4 header are undefined, and the header has a checksum: it is tested
    // first. The kernel's soft-RoCE leaves the checksum at 0 in packets from a port to itself.
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

/// The ones' complement sum of all 16-bit words; over a header with its checksum it is `0xffff`
/// (RFC 1071).
fn ones_complement_sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks_exact(2);
    let sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    // Two folds are enough: there are ten words.
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet from 10.1.2.3 to 10.1.2.4, with its correct checksum.
    const PACKET: [u8; IPV4] = [
        0x45, 0, 0, 0x48, 0, 0, 0x40, 0, 64, 17, 0x22, 0x9d, 10, 1, 2, 3, 10, 1, 2, 4,
    ];

    #[test]
    fn ipv4_header_is_read_from_the_last_bytes() {
        for before in [0, 0x60, 0xff] {
            let mut front = [before; GRH];
            front[GRH - IPV4..].copy_from_slice(&PACKET);
            let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3];
            assert_eq!(sender(&front), Some(mapped));
            // Any changed bit makes the header invalid.
            for bit in 0..8 * IPV4 {
                let mut other = front;
                other[GRH - IPV4 + bit / 8] ^= 1 << (bit % 8);
                assert_ne!(sender(&other), Some(mapped), "bit {bit}");
                assert_eq!(sender(&other).is_some(), before == 0x60, "bit {bit}");
            }
        }
    }

    #[test]
    fn ipv4_checksum_of_zero_is_accepted() {
        let mut front = [0; GRH];
        front[GRH - IPV4..].copy_from_slice(&PACKET);
        front[GRH - IPV4 + 10..][..2].fill(0);
        assert_eq!(sender(&front).unwrap()[12..], [10, 1, 2, 3]);
        // If the first byte can start an IPv6 header, the bytes count as one.
        front[0] = 0x60;
        assert_ne!(sender(&front).unwrap()[12..], [10, 1, 2, 3]);
    }

    #[test]
    fn grh_and_ipv6_headers_have_the_source_gid_in_the_middle() {
        let mut front: [u8; GRH] = std::array::from_fn(|i| i as u8);
        for version in 0..16 {
            front[0] = version << 4;
            let gid = std::array::from_fn(|i| 8 + i as u8);
            assert_eq!(sender(&front), (version == 6).then_some(gid));
        }
    }
}
