//! Tests of the byte ring: laps of every record size, refusals, and a hostile other end.

use super::*;
use crate::frame::Kind;

fn header(len: usize, tag: u32) -> FrameHeader {
    FrameHeader {
        len: (len as u32).into(),
        kind: Kind::Send as u8,
        psn: tag.into(),
        ..FrameHeader::default()
    }
}

/// Stores into a ring's words as a hostile end can.
pub fn spoil_tail(writer: &Writer, tail: u64) {
    writer.region.word(At::Tail).store(tail, Ordering::Release);
}

pub fn spoil_head(reader: &Reader, head: u64) {
    reader.region.word(At::Head).store(head, Ordering::Release);
}

/// Writes a header as a hostile writer can, and publishes `tail` bytes.
pub fn spoil_record(writer: &Writer, at: u64, header: &FrameHeader, tail: u64) {
    writer.put(writer.region.place(at), header);
    spoil_tail(writer, tail);
}

fn ends(scheduled: bool) -> (Writer, Reader, Arc<Region>) {
    let region = Region::private(MIN_RING).unwrap();
    let (writer, reader) = (
        Writer::new(region.clone(), scheduled),
        Reader::new(region.clone()),
    );
    (writer, reader, region)
}

#[test]
fn records_of_every_size_survive_many_laps() {
    let (mut writer, mut reader, _region) = ends(false);
    let mut rng = fastrand::Rng::with_seed(1);
    let (mut sent, mut got) = (0_u32, 0_u32);
    let byte = |tag: u32, i: usize| (tag as usize * 7 + i) as u8;
    while got < 5000 {
        let len = [0, 1, 64, 65, 1000, MAX_PAYLOAD - 1, MAX_PAYLOAD][rng.usize(..7)];
        let wrote = writer.write(&header(len, sent), &mut |room| {
            assert_eq!(room.len(), len);
            room.iter_mut()
                .enumerate()
                .for_each(|(i, b)| *b = byte(sent, i));
            true
        });
        match wrote {
            Ok(()) => sent += 1,
            Err(ref refused) => assert_eq!(*refused, Refused::Full),
        }
        if rng.bool() || wrote.is_err() {
            writer.publish();
            for _ in 0..rng.usize(1..6) {
                let read = reader.read(|header, payload| {
                    assert_eq!(header.psn.get(), got);
                    assert_eq!(header.len.get() as usize, payload.len());
                    assert!(payload.iter().enumerate().all(|(i, &b)| b == byte(got, i)));
                });
                got += u32::from(read.unwrap().is_some());
            }
            reader.release();
        }
    }
    assert!(writer.written > 20 * MIN_RING as u64);
}

#[test]
fn unpublished_records_are_invisible() {
    let (mut writer, mut reader, region) = ends(true);
    let mut delivery = Delivery::new(region);
    let next = |reader: &mut Reader| reader.read(|h, _| h.psn.get()).unwrap();
    for tag in 0..3 {
        writer.write(&header(10, tag), &mut |_| true).unwrap();
    }
    assert_eq!(next(&mut reader), None);
    assert!(!delivery.ready() && !delivery.deliver());
    assert!(writer.publish() && !writer.publish());
    assert_eq!(next(&mut reader), None, "a scheduled link publishes");
    assert!(delivery.deliver());
    assert_eq!((next(&mut reader), next(&mut reader)), (Some(0), None));
    assert!(delivery.deliver() && delivery.deliver() && !delivery.deliver());
    assert_eq!((next(&mut reader), next(&mut reader)), (Some(1), Some(2)));
}

#[test]
fn early_publication_still_reports_a_wake_up() {
    let (mut writer, mut reader, _region) = ends(false);
    for tag in 0..2 {
        // Together slightly more than the bytes that are published before the end of a step.
        writer
            .write(&header(MAX_PAYLOAD, tag), &mut |_| true)
            .unwrap();
    }
    assert!(writer.published == writer.written);
    assert!(writer.publish() && !writer.publish());
    for _ in 0..2 {
        assert_eq!(reader.read(|_, _| ()), Ok(Some(())));
    }
    assert!(reader.released == reader.taken);
    assert!(reader.release() && !reader.release());
}

#[test]
fn unreadable_payload_writes_no_record() {
    let (mut writer, mut reader, _region) = ends(false);
    let refused = writer.write(&header(100, 0), &mut |_| false);
    assert_eq!(refused, Err(Refused::Unfilled));
    writer.write(&header(0, 1), &mut |_| true).unwrap();
    writer.publish();
    assert_eq!(reader.read(|h, _| h.psn.get()).unwrap(), Some(1));
    let long = writer.write(&header(MAX_PAYLOAD + 1, 0), &mut |_| true);
    assert!(matches!(
        long,
        Err(Refused::Garbage(FrameError::Length { .. }))
    ));
}

#[test]
fn hostile_writer_is_refused() {
    let size = MIN_RING as u64;
    for tail in [1, 63, size + 64, u64::MAX, u64::MAX - 63] {
        let (writer, mut reader, _region) = ends(false);
        spoil_tail(&writer, tail);
        let error = reader.read(|_, _| ()).unwrap_err();
        assert_eq!(
            error,
            FrameError::Indices {
                head: 0,
                tail,
                size
            }
        );
    }
    // More payload than was published, than a frame holds, or than the ring has.
    for (len, tail) in [
        (1, 64),
        (65, 128),
        (MAX_PAYLOAD + 1, size),
        (u32::MAX as usize, size),
    ] {
        let (writer, mut reader, _region) = ends(false);
        spoil_record(&writer, 0, &header(len, 0), tail);
        let error = reader.read(|_, _| ()).unwrap_err();
        assert!(
            matches!(error, FrameError::Length { .. }),
            "{len} {error:?}"
        );
        assert!(reader.read(|_, _| ()).is_err(), "the error persists");
    }
    // Padding that exceeds the published bytes.
    let (writer, mut reader, _region) = ends(false);
    let filler = FrameHeader {
        kind: PADDING,
        ..header(MIN_RING, 0)
    };
    spoil_record(&writer, 0, &filler, 64);
    assert!(reader.read(|_, _| ()).is_err());
    // The reader skips valid padding all around the ring.
    let (writer, mut reader, _region) = ends(false);
    let filler = FrameHeader {
        kind: PADDING,
        ..header(MIN_RING - HEADER, 0)
    };
    spoil_record(&writer, 0, &filler, size);
    assert_eq!(reader.read(|_, _| ()), Ok(None));
    // Paddings in a row would keep the reader in its loop.
    let (writer, mut reader, _region) = ends(false);
    let filler = FrameHeader {
        kind: PADDING,
        ..header(0, 0)
    };
    spoil_record(&writer, 0, &filler, 64);
    spoil_record(&writer, 64, &filler, 128);
    let error = reader.read(|_, _| ()).unwrap_err();
    assert_eq!(error, FrameError::Kind(PADDING));
}

#[test]
fn hostile_reader_is_refused() {
    for head in [64, 1, u64::MAX - 63] {
        let (mut writer, reader, _region) = ends(false);
        spoil_head(&reader, head);
        let mut result = Ok(());
        for _ in 0..10 {
            result = writer.write(&header(MAX_PAYLOAD, 0), &mut |_| true);
            if result.is_err() {
                break;
            }
        }
        let honest = head == 64;
        let full = result == Err(Refused::Full);
        let caught = matches!(result, Err(Refused::Garbage(FrameError::Indices { .. })));
        assert!(if honest { full } else { caught }, "{head}: {result:?}");
    }
}

#[test]
fn invalid_ring_files_are_refused() {
    let shared = Region::shared(MIN_RING).unwrap();
    let copy = |region: &Region| region.file().unwrap().try_clone_to_owned().unwrap();
    assert!(Region::open(copy(&shared), MIN_RING).is_ok());
    assert!(Region::open(copy(&shared), 2 * MIN_RING).is_err());
    let unsealed = rustix::fs::memfd_create("t", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&unsealed, (DATA + MIN_RING) as u64).unwrap();
    assert!(Region::open(unsealed, MIN_RING).is_err());
    let null = std::fs::File::open("/dev/null").unwrap();
    assert!(Region::open(null.into(), MIN_RING).is_err());
}
