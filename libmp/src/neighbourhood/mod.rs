//! Neighbourhoods: a persistent exchange of data with any number of neighbours, one step after the
//! other.
//!
//! `spec` has the neighbours as the application names them, `join` exchanges their records,
//! `exchange` has what is fixed after that: memory, addresses, and the tables of moves between the
//! pieces and the memory that the NIC uses. `by_stream` and `by_cpu` execute the three
//! parts of a step: ready, send and wait; `by_stream` also all of them in one call. `request::step`
//! has the words of an exchange and the record of a step.
//!
//! Each part is one [`crate::plan::Plan`] over all neighbours. On a stream, `by_kernel` executes the
//! part of neighbours whose memory is mapped: one kernel, which waits for their words itself. One kernel can
//! also execute a whole step.
//! [`Neighbourhood`](crate::Neighbourhood) is the handle of the application.

mod by_cpu;
mod by_kernel;
mod by_stream;
mod exchange;
mod in_graph;
mod join;
mod spec;
#[cfg(test)]
mod tests;

pub(crate) use exchange::Exchange;
pub use spec::Neighbour;
