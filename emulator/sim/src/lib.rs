//! The simulated driver of the step machines: software GPUs, virtual NICs, links, watchers.
//!
//! Machines and ranks share one thread and a virtual clock, and a seed decides which of them runs
//! next ([`Sim`]). A failing seed fails again in exactly the same way, so the order of events that
//! broke a protocol can be replayed as often as needed. The other driver, [`Live`](gds_step::Live),
//! runs the same machines on threads in real time.
//!
//! Machines and ranks are independent of the driver. Machines receive the time as an argument
//! ([`Machine::step`](gds_step::Machine::step)). Ranks wait through an [`Env`](gds_step::Env). The
//! code that sets up a simulation attaches machines to a [`Host`](gds_step::Host). In this example
//! a wire carries a word, first in the simulation, then in real time:
//!
//! ```
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU64, Ordering};
//! use std::time::Duration;
//!
//! use gds_sim::{Sim, SimConfig};
//! use gds_step::{Host, Thread, Live, Machine, Step, Time};
//!
//! /// What is written at one end appears a microsecond later at the other.
//! struct Wire {
//!     ends: [Arc<AtomicU64>; 2],
//!     arrives: Option<(Time, u64)>,
//! }
//!
//! impl Machine for Wire {
//!     fn step(&mut self, now: Time) -> Step {
//!         match self.arrives {
//!             Some((at, word)) if now >= at => {
//!                 self.ends[1].store(word, Ordering::Release);
//!                 self.arrives = None;
//!             }
//!             Some((at, _)) => return Step::IdleUntil(Some(at)),
//!             None => match self.ends[0].swap(0, Ordering::AcqRel) {
//!                 0 => return Step::IdleUntil(None),
//!                 word => self.arrives = Some((now + Duration::from_micros(1), word)),
//!             },
//!         }
//!         Step::Progress
//!     }
//!
//!     fn name(&self) -> String {
//!         "wire".into()
//!     }
//! }
//!
//! /// Sends a word and waits for its arrival. It works the same under both drivers.
//! fn through_a_wire(host: &dyn Host) -> bool {
//!     let ends = [Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0))];
//!     let wire = Wire { ends: ends.clone(), arrives: None };
//!     let id = host.attach(Thread::Device, Box::new(wire));
//!     ends[0].store(42, Ordering::Release);
//!     host.ring();
//!     let deadline = host.now() + Duration::from_secs(10);
//!     let came = host.wait_until(Some(deadline), &mut || ends[1].load(Ordering::Acquire) == 42);
//!     host.detach(id);
//!     came
//! }
//!
//! // Simulated: twenty seeds, twenty orders of events; each replays exactly.
//! gds_sim::seeds(20, |seed| {
//!     let play = || {
//!         let mut sim = Sim::new(SimConfig::seed(seed));
//!         let host = sim.host();
//!         sim.rank("rank0", move || assert!(through_a_wire(&*host)));
//!         sim.run()
//!     };
//!     let (first, again) = (play()?, play()?);
//!     assert_eq!(first, again);
//!     Ok::<_, gds_sim::SimError>(())
//! });
//!
//! // In real time.
//! assert!(through_a_wire(&*Live::global()?));
//! # Ok::<(), gds_step::LiveError>(())
//! ```

mod config;
mod error;
mod fiber;
mod host;
mod sched;
mod seeds;
mod sim;
mod trace;
mod when;

pub use config::SimConfig;
pub use error::{Cause, SimError, SimReport, Waiting};
pub use seeds::seeds;
pub use sim::{Sim, SimControl};
pub use when::When;
