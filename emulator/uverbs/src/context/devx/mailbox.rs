//! Mailboxes: the fields of a command, and the syndromes of a refusal.

use vmlx5::NicError;

use crate::abi::prm::{Field, input, output, status};

/// Set in the syndrome of a refusal because of a field; the other bits are the field's first bit in
/// the command.
const OF_FIELD: u32 = 0x0100_0000;

/// The reason for which the device refuses a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    status: u8,
    /// The syndrome, specific to this device: the position of the refused field, or zero.
    syndrome: u32,
}

impl Refusal {
    /// A refusal that is not because of a field.
    pub fn new(status: u8) -> Refusal {
        Refusal {
            status,
            syndrome: 0,
        }
    }

    /// Turns an answer into this refusal.
    pub fn write(self, answer: &mut [u8]) {
        answer.fill(0);
        output::STATUS.set(answer, self.status.into());
        output::SYNDROME.set(answer, self.syndrome.into());
    }
}

impl From<NicError> for Refusal {
    fn from(error: NicError) -> Refusal {
        Refusal::new(match error {
            NicError::Unknown { .. } => status::BAD_RES,
            NicError::InUse { .. } => status::RES_BUSY,
            NicError::Full { .. } | NicError::Link { .. } => status::LIMIT,
            NicError::Transition { .. } => status::BAD_QP_STATE,
            _ => status::BAD_PARAM,
        })
    }
}

/// A command, or a context within one.
#[derive(Clone, Copy)]
pub(crate) struct Mailbox<'a> {
    bytes: &'a [u8],
    /// The offset in the command, in bytes.
    at: usize,
}

impl<'a> Mailbox<'a> {
    /// A whole command.
    pub fn new(bytes: &'a [u8]) -> Mailbox<'a> {
        Mailbox { bytes, at: 0 }
    }

    /// The context of `len` bytes at `at`.
    pub fn context(self, at: usize, len: usize) -> Mailbox<'a> {
        let bytes = self.bytes.get(at..at + len).unwrap_or_default();
        Mailbox { bytes, at }
    }

    pub fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    pub fn get(self, field: Field) -> u64 {
        field.get(self.bytes)
    }

    /// The value of a field of at most 32 bits.
    pub fn get32(self, field: Field) -> u32 {
        self.get(field) as u32
    }

    /// The value of a field of at most 8 bits.
    pub fn get8(self, field: Field) -> u8 {
        self.get(field) as u8
    }

    pub fn is_set(self, field: Field) -> bool {
        self.get(field) != 0
    }

    pub fn opcode(self) -> u16 {
        self.get(input::OPCODE) as u16
    }

    /// The refusal for a field whose value is out of range.
    pub fn wrong(self, field: Field) -> Refusal {
        self.refuse(status::BAD_PARAM, field)
    }

    /// The refusal for a field that names no object.
    pub fn unknown(self, field: Field) -> Refusal {
        self.refuse(status::BAD_RES, field)
    }

    fn refuse(self, status: u8, field: Field) -> Refusal {
        Refusal {
            status,
            syndrome: OF_FIELD | (self.at as u32 * 8 + field.bit),
        }
    }

    /// A field that must have one value.
    pub fn must(self, field: Field, value: u64) -> Result<(), Refusal> {
        if self.get(field) == value {
            Ok(())
        } else {
            Err(self.wrong(field))
        }
    }

    /// A field with a limit.
    pub fn at_most(self, field: Field, limit: u64) -> Result<u64, Refusal> {
        let value = self.get(field);
        if value <= limit {
            Ok(value)
        } else {
            Err(self.wrong(field))
        }
    }

    /// Checks the lengths of a command and of the room for its answer.
    pub fn lengths(self, least: usize, answer: &[u8], room: usize) -> Result<(), Refusal> {
        if self.bytes.len() < least {
            return Err(Refusal::new(status::BAD_INPUT_LEN));
        }
        if answer.len() < room {
            return Err(Refusal::new(status::BAD_OUTPUT_LEN));
        }
        Ok(())
    }
}
