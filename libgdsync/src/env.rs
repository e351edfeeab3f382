//! Variables of the environment that choose among a few words. A variable or word that has been
//! renamed is understood by its former name too, with a warning.

use std::collections::BTreeSet;

use gds_step::Mutex;

use crate::error::{Error, Kind, Result};

/// A variable.
pub struct Variable<T: 'static> {
    /// Its name.
    pub name: &'static str,
    /// What it was called before.
    pub former_name: Option<&'static str>,
    /// What it may be; the first if it is not set.
    pub words: &'static [(&'static str, T)],
    /// Former words, each with what it is called now.
    pub former_words: &'static [(&'static str, &'static str)],
}

impl<T: Copy> Variable<T> {
    /// What it says.
    ///
    /// # Errors
    /// `Invalid` for a word that it does not know.
    pub(crate) fn read(&self) -> Result<T> {
        let former = || {
            self.former_name
                .and_then(|name| Some((name, std::env::var(name).ok()?)))
        };
        let own = std::env::var(self.name).ok().map(|said| (self.name, said));
        let Some((name, said)) = own.or_else(former) else {
            return Ok(self.words[0].1);
        };
        let (word, meaning) = self.meaning(&said).ok_or_else(|| {
            let what = format!("{name}={said}: {}", self.known());
            Error::new("read environment", Kind::Invalid, what)
        })?;
        if word != said || name != self.name {
            let warning = format!("{name}={said} is now called {}={word}", self.name);
            if first_time(&warning) {
                tracing::warn!(target: "gdsync", "{warning}");
            }
        }
        Ok(meaning)
    }

    /// The word that `said` is, by its present name, and its meaning; `None` if it is none.
    pub fn meaning(&self, said: &str) -> Option<(&'static str, T)> {
        let renamed = self.former_words.iter().find(|(word, _)| *word == said);
        let word = renamed.map_or(said, |(_, now)| now);
        self.words.iter().find(|(known, _)| *known == word).copied()
    }

    /// Its words, for an error.
    pub fn known(&self) -> String {
        let known: Vec<&str> = self.words.iter().map(|(word, _)| *word).collect();
        format!("known are {}", known.join(", "))
    }
}

/// Whether this process has not said this before.
pub(crate) fn first_time(said: &str) -> bool {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut all = SAID.lock();
    all.insert(said.to_owned())
}
