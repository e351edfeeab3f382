//! What the library promises, checked from outside over random programs and faults.
//!
//! [`plan`] draws a program from a seed: who sends what to whom, how it is posted, what is
//! aborted, what the runtime can do. [`player`] runs it on ranks under the simulation,
//! [`oracle`] knows what every byte must be in the end, [`exchange`] joins the three.
//! [`directed`] holds the scenarios that a random program would meet too rarely: failures,
//! held streams, silent peers. [`world`] is what all of them stand on.
//!
//! [`hardware`] is for real threads and real GPUs, over every GPU runtime present; [`cover`]
//! draws a few cells from a matrix too large to be run whole.

pub mod cover;
pub mod digest;
pub mod directed;
pub mod exchange;
pub mod hardware;
pub mod list;
pub mod mp;
pub mod mp_sim;
pub mod mutants;
pub mod oracle;
pub mod plan;
pub mod player;
pub mod world;
