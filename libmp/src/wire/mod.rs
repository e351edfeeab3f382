//! What ranks say to each other, as bytes: words in each other's memory, and control messages.

pub(crate) mod control;
pub(crate) mod record;
pub(crate) mod word;
