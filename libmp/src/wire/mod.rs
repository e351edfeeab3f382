//! The formats that ranks exchange: words in each other's memory, and control messages.

pub(crate) mod agree;
pub(crate) mod collective;
pub(crate) mod control;
pub(crate) mod flag;
pub(crate) mod record;
pub(crate) mod word;
