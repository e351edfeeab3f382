//! The format of a command that is written to the device file: headers, the inputs of the core and
//! of the driver, and the buffers for both answers.

use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::abi::core::{CmdHdr, ExCmdHdr, command};
use crate::user::User;

/// The result of a command with an answer in the process's memory.
pub(crate) type Done = Result<(), Errno>;

/// The lengths of the fixed parts of a command, in bytes without headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub input: usize,
    pub answer: usize,
    /// An input that begins with the address of the answer.
    pub addressed: bool,
}

/// A parsed command.
pub(crate) struct Call<'a> {
    pub user: &'a dyn User,
    pub core: &'a [u8],
    /// The input from the driver's part of the library.
    pub driver: &'a [u8],
    pub core_out: Room,
    pub driver_out: Room,
}

/// A buffer for an answer in the process's memory.
#[derive(Clone, Copy, Default)]
pub(crate) struct Room {
    pub addr: u64,
    pub len: usize,
}

/// The number in a command's header, and whether the command is extended.
///
/// # Errors
/// `EINVAL`: the header is missing, or has an unknown flag.
pub(crate) fn number(bytes: &[u8]) -> Result<(u32, bool), Errno> {
    let (hdr, _) = CmdHdr::read_from_prefix(bytes).map_err(|_| Errno::INVAL)?;
    if hdr.command & !(command::EXTENDED | command::MASK) != 0 {
        return Err(Errno::INVAL);
    }
    let extended = hdr.command & command::EXTENDED != 0;
    Ok((hdr.command & command::MASK, extended))
}

impl<'a> Call<'a> {
    /// Checks the header of a command that is not extended. Its lengths are in words of four bytes,
    /// including the header.
    pub fn plain(user: &'a dyn User, bytes: &'a [u8], shape: Shape) -> Result<Call<'a>, Errno> {
        let (hdr, body) = CmdHdr::read_from_prefix(bytes).map_err(|_| Errno::INVAL)?;
        if usize::from(hdr.in_words) * 4 != bytes.len() {
            return Err(Errno::INVAL);
        }
        let out = usize::from(hdr.out_words) * 4;
        if body.len() < shape.input || out < shape.answer {
            return Err(Errno::NOSPC);
        }
        let (core, driver) = body.split_at(shape.input);
        let mut call = Call {
            user,
            core,
            driver,
            core_out: Room::default(),
            driver_out: Room::default(),
        };
        if shape.addressed {
            let (addr, _) = u64::read_from_prefix(core).map_err(|_| Errno::INVAL)?;
            call.core_out = Room {
                addr,
                len: shape.answer,
            };
            call.driver_out = Room {
                addr: addr.wrapping_add(shape.answer as u64),
                len: out - shape.answer,
            };
        }
        Ok(call)
    }

    /// Checks the headers of an extended command. Its lengths are in words of eight bytes, without
    /// headers.
    pub fn extended(user: &'a dyn User, bytes: &'a [u8], shape: Shape) -> Result<Call<'a>, Errno> {
        let (hdr, rest) = CmdHdr::read_from_prefix(bytes).map_err(|_| Errno::INVAL)?;
        let (ex, body) = ExCmdHdr::read_from_prefix(rest).map_err(|_| Errno::INVAL)?;
        let bytes_of = |words: u16| usize::from(words) * 8;
        let (input, driver_in) = (bytes_of(hdr.in_words), bytes_of(ex.provider_in_words));
        let (out, driver_out) = (bytes_of(hdr.out_words), bytes_of(ex.provider_out_words));
        if input + driver_in != body.len() {
            return Err(Errno::INVAL);
        }
        if input < shape.input {
            return Err(Errno::NOSPC);
        }
        if ex.reserved != 0 || (ex.response == 0) != (out + driver_out == 0) {
            return Err(Errno::INVAL);
        }
        if ex.response != 0 && out < shape.answer {
            return Err(Errno::NOSPC);
        }
        let (core, driver) = body.split_at(input);
        nothing_new(&core[shape.input..])?;
        Ok(Call {
            user,
            core,
            driver,
            core_out: Room {
                addr: ex.response,
                len: out,
            },
            driver_out: Room {
                addr: ex.response.wrapping_add(out as u64),
                len: driver_out,
            },
        })
    }

    /// Checks a command whose parts came as separate attributes.
    pub fn checked(self, extended: bool, shape: Shape) -> Result<Call<'a>, Errno> {
        if self.core.len() < shape.input || self.core_out.len < shape.answer {
            return Err(Errno::NOSPC);
        }
        if extended {
            nothing_new(&self.core[shape.input..])?;
        }
        Ok(self)
    }

    /// The input of the core.
    pub fn input<T: FromBytes>(&self) -> Result<T, Errno> {
        let (value, _) = T::read_from_prefix(self.core).map_err(|_| Errno::INVAL)?;
        Ok(value)
    }

    /// The input of the driver; fields that an older library does not have are zero.
    ///
    /// # Errors
    /// `EINVAL`: fewer than `least` bytes. `EOPNOTSUPP`: an unknown field is not zero.
    pub fn driver_input<T: FromBytes + IntoBytes + Default>(
        &self,
        least: usize,
    ) -> Result<T, Errno> {
        if self.driver.len() < least {
            return Err(Errno::INVAL);
        }
        let mut value = T::default();
        let into = value.as_mut_bytes();
        let known = self.driver.len().min(into.len());
        into[..known].copy_from_slice(&self.driver[..known]);
        if self.driver[known..].iter().any(|&b| b != 0) {
            return Err(Errno::OPNOTSUPP);
        }
        Ok(value)
    }

    /// The buffer length in bytes for the core's answer.
    pub fn room(&self) -> usize {
        self.core_out.len
    }

    /// Writes the answer up to the length of the buffer; the rest of the buffer becomes zero.
    pub fn answer<T: IntoBytes + Immutable>(&self, value: &T) -> Done {
        self.core_out.fill(self.user, value.as_bytes())
    }

    /// The buffer length in bytes for the driver's answer.
    pub fn driver_room(&self) -> usize {
        self.driver_out.len
    }

    /// Writes the driver's answer in the same way.
    pub fn driver_answer<T: IntoBytes + Immutable + ?Sized>(&self, value: &T) -> Done {
        self.driver_out.fill(self.user, value.as_bytes())
    }
}

/// Fields of a newer library that are unknown here must be zero.
fn nothing_new(beyond: &[u8]) -> Done {
    if beyond.iter().any(|&b| b != 0) {
        return Err(Errno::OPNOTSUPP);
    }
    Ok(())
}

impl Room {
    fn fill(self, user: &dyn User, value: &[u8]) -> Done {
        let here = self.len.min(value.len());
        if here > 0 {
            user.write(self.addr, &value[..here])?;
        }
        let rest = [0; 64];
        for at in (here..self.len).step_by(rest.len()) {
            let here = rest.len().min(self.len - at);
            user.write(self.addr.wrapping_add(at as u64), &rest[..here])?;
        }
        Ok(())
    }
}
