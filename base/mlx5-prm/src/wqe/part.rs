//! The parts of an entry beside the control segment.

use core::fmt;

use crate::opcode::SendOpcode;

/// A part of a request beside its opcode and flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Remote address and key, in a segment after the control segment. Never with an address
    /// vector.
    Remote,
    /// Operands of an atomic operation, of the opcode's kind, after the remote address.
    Atomic,
    /// Immediate data.
    Immediate,
    /// The address vector of a UD QP, after the control segment.
    AddressVector,
    /// Payload of any kind.
    Payload,
    /// Inline payload.
    Inline,
}

impl Part {
    const ALL: [Part; 6] = [
        Part::Remote,
        Part::Atomic,
        Part::Immediate,
        Part::AddressVector,
        Part::Payload,
        Part::Inline,
    ];

    /// The bit of the part; 0 if the part is absent.
    #[inline]
    pub(super) const fn bit(self, there: bool) -> u8 {
        (there as u8) << self as u8
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Part::Remote => "a remote address",
            Part::Atomic => "atomic operands of this kind",
            Part::Immediate => "an immediate",
            Part::AddressVector => "an address vector",
            Part::Payload => "a payload",
            Part::Inline => "an inline payload",
        })
    }
}

/// A set of parts that an opcode needs or permits, as bits.
#[derive(Clone, Copy)]
pub(super) struct Shape(u8);

impl Shape {
    const fn of(parts: &[Part]) -> Shape {
        let (mut bits, mut i) = (0, 0);
        while i < parts.len() {
            bits |= parts[i].bit(true);
            i += 1;
        }
        Shape(bits)
    }

    #[inline]
    pub(super) const fn has(self, part: Part) -> bool {
        self.0 & part.bit(true) != 0
    }

    /// The first part in `given` (a set of [`Part::bit`]s) that is not in this set.
    #[inline]
    pub(super) const fn excess(self, given: u8) -> Option<Part> {
        match given & !self.0 {
            0 => None,
            excess => Some(Part::ALL[excess.trailing_zeros() as usize]),
        }
    }
}

impl SendOpcode {
    /// The parts that an entry with this opcode may have. `None` for an unknown opcode.
    #[inline]
    pub(super) const fn shape(self) -> Option<Shape> {
        use Part::{AddressVector, Atomic, Immediate, Inline, Payload, Remote};
        Some(match self {
            SendOpcode::NOP => const { Shape::of(&[Inline]) },
            SendOpcode::SEND => const { Shape::of(&[AddressVector, Payload, Inline]) },
            SendOpcode::SEND_IMM => {
                const { Shape::of(&[AddressVector, Immediate, Payload, Inline]) }
            }
            SendOpcode::SEND_INV => const { Shape::of(&[Immediate, Payload, Inline]) },
            SendOpcode::RDMA_WRITE => const { Shape::of(&[Remote, Payload, Inline]) },
            SendOpcode::RDMA_WRITE_IMM => {
                const { Shape::of(&[Remote, Immediate, Payload, Inline]) }
            }
            SendOpcode::RDMA_READ => const { Shape::of(&[Remote, Payload]) },
            SendOpcode::ATOMIC_CS | SendOpcode::ATOMIC_FA => {
                const { Shape::of(&[Remote, Atomic, Payload]) }
            }
            _ => return None,
        })
    }
}
