//! Trials of one kind over one provider, and their summary: the number of trials that ran, those
//! that were skipped because the machine lacks something, and those that the provider does not
//! support.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Mutex, PoisonError};

use gdsync::rdma::Provider;
use gdsync::{Gpu, Kind};
use libtest_mimic::{Arguments, Conclusion, Trial};

use super::is_required;
use super::unsupported::{Lack, SIMULATED};
use crate::rig::Runtime;
use crate::rig::limits;
use crate::rig::provider::{self, Chosen};
use crate::rig::verdict::Verdict;

/// Number of trials refused as listed, by the name and reason in the list.
static REFUSED: Mutex<BTreeMap<(&str, &str), usize>> = Mutex::new(BTreeMap::new());

/// A list of trials.
#[derive(Debug)]
pub struct Suite {
    name: &'static str,
    /// The NIC of the trials.
    pub chosen: &'static Chosen,
    trials: Vec<Trial>,
    absent: Vec<String>,
}

impl Suite {
    /// An empty list, over the provider that the environment chooses.
    pub fn new(name: &'static str) -> Verdict<Suite> {
        limits::check()?;
        Ok(Suite {
            name,
            chosen: provider::chosen()?,
            trials: Vec::new(),
            absent: Vec::new(),
        })
    }

    /// The GPU of a runtime. `None`: it is absent or broken, which a separate trial reports.
    pub fn gpu(&mut self, runtime: Runtime) -> Option<Gpu> {
        let name = runtime.name();
        match Gpu::open(name) {
            Ok(gpu) => Some(gpu),
            Err(e) => {
                // A runtime that is present and broken is a failure, an absent one is ignored.
                let absent = e.kind() == Kind::Absent;
                self.lacking(name, &e, absent && !is_required(name));
                None
            }
        }
    }

    /// Adds a trial that cannot run here, as ignored.
    pub fn lacking(&mut self, what: &str, why: impl Display, ignored: bool) {
        let title = format!("{what} (needs {what}: {why})");
        if ignored {
            self.absent.push(title.clone());
        }
        let why = why.to_string();
        let trial = Trial::test(title, move || Err(why.into()));
        self.trials.push(trial.with_ignored_flag(ignored));
    }

    /// Adds a trial.
    pub fn add(
        &mut self,
        runtime: Runtime,
        title: impl Display,
        run: impl FnOnce() -> Verdict + Send + 'static,
    ) {
        let (runtime, provider) = (runtime.name(), self.chosen.provider);
        let title = match provider {
            Provider::Emulated => format!("{runtime} {title}"),
            _ => format!("{runtime} {provider}: {title}"),
        };
        let trial = match Lack::of(provider, &title) {
            None => Trial::test(title, run),
            Some(lack) => {
                let title = format!("{title} (unsupported: {})", lack.reason);
                Trial::test(title, move || {
                    lack.judge(run())?;
                    let mut refused = REFUSED.lock().unwrap_or_else(PoisonError::into_inner);
                    *refused.entry((lack.trials, lack.reason)).or_default() += 1;
                    Ok(())
                })
            }
        };
        self.trials.push(trial);
    }

    /// Runs the trials one after the other and prints the summary, then `more`.
    pub fn run(self, mut arguments: Arguments, more: impl FnOnce(&Conclusion)) -> ! {
        // A trial starts threads and processes, and on one GPU only a few streams may wait
        // at a time.
        arguments.test_threads = Some(1);
        let listed = arguments.list;
        let Suite {
            name,
            chosen,
            trials,
            absent,
        } = self;
        let conclusion = libtest_mimic::run(&arguments, trials);
        if !listed {
            let refused = REFUSED.lock().unwrap_or_else(PoisonError::into_inner);
            let unsupported: usize = refused.values().sum();
            let run = (conclusion.num_passed + conclusion.num_failed) as usize - unsupported;
            let failed = match conclusion.num_failed {
                0 => String::new(),
                some => format!(" ({some} failed)"),
            };
            let skipped = conclusion.num_ignored;
            let (provider, nic) = (chosen.provider, &chosen.nic);
            println!(
                "{provider} on {nic}: {name}: {run} run{failed}, {skipped} skipped, {unsupported} unsupported"
            );
            // The command line's filter may have removed the trial.
            for what in absent.iter().filter(|_| skipped > 0) {
                println!("  skipped: {what}");
            }
            for ((what, why), trials) in refused.iter() {
                println!("  unsupported: {what}: {why} ({trials} tried)");
            }
            if provider::was_alone() {
                println!("  two NICs: one, opened twice: there is no other");
            }
            if chosen.provider != Provider::Emulated {
                let (what, why) = SIMULATED;
                println!("  over emulated alone: {what}: {why}");
            }
            more(&conclusion);
        }
        conclusion.exit()
    }
}
