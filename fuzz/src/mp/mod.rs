//! Messages of mp's ranks to each other and to the store.

pub mod context;
pub mod control;
pub mod frame;
pub mod notes;
pub mod session;
pub mod store;
