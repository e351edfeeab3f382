use super::*;

#[test]
fn table_has_a_row_for_each_peer_and_the_columns_that_are_used() {
    let row = |peer, path, counts| PeerStats { peer, path, counts };
    let first = Counts {
        sends: 7,
        bytes_out: 123_456_789_012,
        ..Counts::default()
    };
    let second = Counts {
        sends: 10,
        waits: 3,
        ..Counts::default()
    };
    let stats = Stats {
        rank: 1,
        peers: vec![
            row(Some(0), Some(Path::Nic), first),
            row(Some(1), Some(Path::Local), second),
        ],
    };
    assert_eq!(stats.total().sends, 17);
    assert_eq!((stats.by(Path::Nic), stats.of(1)), (first, second));
    assert_eq!(stats.of(2), Counts::default());
    let expected = "\
rank 1   path   sends     bytes out  waits
to 0     nic        7  123456789012      0
to 1     local     10             0      3
total              17  123456789012      3
";
    assert_eq!(stats.to_string(), expected, "\n{stats}");
}
