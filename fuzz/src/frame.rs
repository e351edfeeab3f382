//! Frames of the virtual NIC: any header, with any number of payload bytes.

use vmlx5::fuzzing::recode;
use vmlx5::{FrameHeader, Kind, MAX_MESSAGE, MAX_PAYLOAD};
use zerocopy::IntoBytes;

use crate::input::Input;

const FIRST: u8 = 1;
const LAST: u8 = 2;

/// A header is refused; or encoding the decoded header gives the same header, and it keeps the
/// rules that the handlers of the frame rely on.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let payload = input.next::<u16>() as usize;
    let mut header: FrameHeader = input.next();
    let Ok(again) = recode(&header, payload) else {
        return;
    };
    header.len = (payload as u32).into();
    assert_eq!(again.as_bytes(), header.as_bytes());
    let kind = Kind::from_u8(header.kind).expect("a kind");
    assert_eq!(kind as u8, header.kind);
    for number in [header.dst_qpn, header.src_qpn, header.psn] {
        assert!(number.get() < 1 << 24);
    }
    let (offset, total) = (u64::from(header.offset.get()), header.total.get());
    assert!(payload <= MAX_PAYLOAD && total <= MAX_MESSAGE);
    if matches!(kind, Kind::Send | Kind::Write | Kind::ReadData) {
        let end = offset + payload as u64;
        assert!(end <= total.into());
        assert_eq!(header.flags & FIRST != 0, offset == 0);
        assert_eq!(header.flags & LAST != 0, end == total.into());
        // Otherwise a peer could send parts of a message without end.
        assert!(payload > 0 || total == 0);
        // The code that places the payload shifts by whole packets.
        let packet = 1_u64 << header.mtu_log;
        assert!(offset.is_multiple_of(packet));
        let count = (payload as u64).div_ceil(packet).max(1);
        assert_eq!(u64::from(header.count.get()), count);
    } else {
        assert_eq!(payload, 0);
    }
}
