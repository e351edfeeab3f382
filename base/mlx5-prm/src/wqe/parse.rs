//! The parser of send WQEs: the NIC's side.

use zerocopy::FromBytes;

use super::{
    Atomic, AtomicSeg, AvSeg, CtrlSeg, DataSeg, INLINE_FLAG, MAX_INLINE, MAX_SEGMENTS, ParseError,
    Part, RaddrSeg, Remote, SEGMENT, Sge, WqeFlags,
};
use crate::opcode::SendOpcode;

/// A parsed and checked send WQE.
#[derive(Clone, Copy, Debug)]
pub struct ParsedWqe<'a> {
    /// The control segment.
    pub ctrl: CtrlSeg,
    /// The remote address; present if and only if the opcode is a READ, a WRITE or an atomic.
    pub remote: Option<Remote>,
    /// The operands, of the opcode's kind; present if and only if the opcode is an atomic.
    pub atomic: Option<Atomic>,
    /// The destination; present if and only if the entry is a datagram's.
    pub av: Option<AvSeg>,
    /// The data segments, valid up to the last byte. Empty for a NOP.
    data: &'a [u8],
}

impl<'a> ParsedWqe<'a> {
    /// The opcode; always one with a name in this crate.
    #[inline]
    pub fn opcode(&self) -> SendOpcode {
        self.ctrl.opcode()
    }

    /// The flags of the request.
    #[inline]
    pub fn flags(&self) -> WqeFlags {
        self.ctrl.flags()
    }

    /// The pieces of the data, in order. For a READ or an atomic they are the destination of the
    /// response.
    #[inline]
    pub fn data(&self) -> DataItems<'a> {
        DataItems { rest: self.data }
    }

    /// The total length of the data in bytes.
    pub fn data_len(&self) -> u64 {
        self.data().map(|item| item.len()).sum()
    }
}

/// A piece of a request's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data<'a> {
    /// Registered memory. A byte count of 0 is already converted to 2 GiB, as the NIC reads it.
    Sge(Sge),
    /// Inline bytes.
    Inline(&'a [u8]),
}

impl Data<'_> {
    /// The length in bytes.
    #[inline]
    pub fn len(&self) -> u64 {
        match self {
            Data::Sge(sge) => u64::from(sge.len),
            Data::Inline(bytes) => bytes.len() as u64,
        }
    }

    /// Whether the length is 0.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The pieces of a request's data, in order.
#[derive(Clone, Debug)]
pub struct DataItems<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for DataItems<'a> {
    type Item = Data<'a>;

    #[inline]
    fn next(&mut self) -> Option<Data<'a>> {
        // The parser checked the segments, so this hides no error.
        let (item, rest) = next_item(self.rest).ok().flatten()?;
        self.rest = rest;
        Some(item)
    }
}

/// A defect of a data segment.
enum Fault {
    InlineTooLong { len: u32 },
    InlineOverrun { len: u32 },
}

/// The first piece and the segments after it; `None` at the end.
#[inline]
fn next_item(rest: &[u8]) -> Result<Option<(Data<'_>, &[u8])>, Fault> {
    let Ok((pointer, after)) = DataSeg::ref_from_prefix(rest) else {
        return Ok(None);
    };
    let byte_count = pointer.byte_count.get();
    if byte_count & INLINE_FLAG == 0 {
        return Ok(Some((Data::Sge(pointer.sge()), after)));
    }
    let len = byte_count & !INLINE_FLAG;
    let bytes = len as usize;
    if bytes > MAX_INLINE {
        return Err(Fault::InlineTooLong { len });
    }
    let whole = (4 + bytes).next_multiple_of(SEGMENT);
    let Some((inline, after)) = rest.split_at_checked(whole) else {
        return Err(Fault::InlineOverrun { len });
    };
    Ok(Some((Data::Inline(&inline[4..4 + bytes]), after)))
}

/// Parses a WQE of a connection's send queue. `bytes` is a contiguous copy that contains at least
/// the entry; bytes after the entry's last segment are ignored.
///
/// # Errors
/// `bytes` is shorter than the entry, the entry is malformed, or this crate does not parse its
/// opcode or its opcode modifier.
pub fn parse_send(bytes: &[u8]) -> Result<ParsedWqe<'_>, ParseError> {
    parse(bytes, false)
}

/// Parses a WQE of a UD send queue, as [`parse_send`] does for a connection.
///
/// # Errors
/// As [`parse_send`]. Also, the operation is not possible for datagrams, or the address vector does
/// not have all 48 bytes.
pub fn parse_datagram(bytes: &[u8]) -> Result<ParsedWqe<'_>, ParseError> {
    parse(bytes, true)
}

fn parse(bytes: &[u8], datagram: bool) -> Result<ParsedWqe<'_>, ParseError> {
    let len = bytes.len();
    let (ctrl, _) = CtrlSeg::read_from_prefix(bytes).map_err(|_| ParseError::NoCtrl { len })?;
    let (opcode, opmod, ds) = (ctrl.opcode(), ctrl.opmod(), ctrl.ds());
    if ds == 0 || usize::from(ds) > MAX_SEGMENTS {
        return Err(ParseError::Size { ds });
    }
    let Some(entry) = bytes.get(SEGMENT..usize::from(ds) * SEGMENT) else {
        return Err(ParseError::Truncated { ds, len });
    };
    let shape = match opcode.shape() {
        Some(shape)
            if opmod == 0
                && !(datagram && shape.has(Part::Payload) && !shape.has(Part::AddressVector)) =>
        {
            shape
        }
        _ => return Err(ParseError::Unsupported { opcode, opmod }),
    };
    let missing = |part| ParseError::Missing { opcode, ds, part };
    let mut parsed = ParsedWqe {
        ctrl,
        remote: None,
        atomic: None,
        av: None,
        data: entry,
    };
    if !shape.has(Part::Payload) {
        parsed.data = &[];
        return Ok(parsed);
    }
    if datagram {
        let missing = || missing(Part::AddressVector);
        let (av, rest) = AvSeg::read_from_prefix(parsed.data).map_err(|_| missing())?;
        if av.dqp_dct.get() & AvSeg::EXTENDED == 0 {
            return Err(missing());
        }
        parsed.av = Some(av);
        parsed.data = rest;
    }
    if shape.has(Part::Remote) {
        let (segment, rest) =
            RaddrSeg::read_from_prefix(parsed.data).map_err(|_| missing(Part::Remote))?;
        parsed.remote = Some(Remote {
            addr: segment.addr.get(),
            rkey: segment.rkey.get(),
        });
        parsed.data = rest;
    }
    if shape.has(Part::Atomic) {
        let (segment, rest) =
            AtomicSeg::read_from_prefix(parsed.data).map_err(|_| missing(Part::Atomic))?;
        let swap_add = segment.swap_add.get();
        parsed.atomic = Some(if opcode == SendOpcode::ATOMIC_CS {
            Atomic::CompareSwap {
                compare: segment.compare.get(),
                swap: swap_add,
            }
        } else {
            Atomic::FetchAdd { add: swap_add }
        });
        parsed.data = rest;
    }
    check_data(parsed.data, opcode, ds, shape.has(Part::Inline))?;
    Ok(parsed)
}

/// Checks the data segments, the last ones of an entry of `ds` segments.
fn check_data(data: &[u8], opcode: SendOpcode, ds: u8, inline: bool) -> Result<(), ParseError> {
    let mut rest = data;
    loop {
        // At most 62 segments are left.
        let segment = ds - (rest.len() / SEGMENT) as u8;
        match next_item(rest) {
            Ok(None) => return Ok(()),
            Ok(Some((Data::Inline(_), _))) if !inline => {
                return Err(ParseError::InlineNotAllowed { opcode, segment });
            }
            Ok(Some((_, after))) => rest = after,
            Err(Fault::InlineTooLong { len }) => {
                return Err(ParseError::InlineTooLong { segment, len });
            }
            Err(Fault::InlineOverrun { len }) => {
                return Err(ParseError::InlineOverrun { segment, len });
            }
        }
    }
}
