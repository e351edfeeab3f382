//! The matrix of messages: ranks that send, receive and look at every byte, over models x
//! providers x memories x sizes x ranks x laps and whatever else a message can differ in.
//!
//! [`cells`] says what there is to set and which settings go together, [`setup`] turns a cell
//! into numbers, [`plan`] draws its messages, [`memory`] has what they are made of and land in,
//! [`rank`] plays one rank. [`run`] brings ranks together as threads of this process,
//! [`processes`] as processes that [`launch`] starts. In [`lost`] one of these dies or stops, and
//! the others go on in [`pair`]s.

pub mod cells;
pub mod launch;
pub mod lost;
pub mod memory;
pub mod pair;
pub mod plan;
pub mod processes;
pub mod rank;
pub mod run;
pub mod setup;
