//! Environment variables that take one of a few words. The former name of a renamed variable or
//! word is still accepted, with a warning.

use std::collections::BTreeSet;

use gds_step::Mutex;

use crate::error::{Error, Kind, Result};

/// An environment variable with a fixed set of words.
pub struct Variable<T: 'static> {
    /// The variable's name.
    pub name: &'static str,
    /// The variable's former name, if it was renamed.
    pub former_name: Option<&'static str>,
    /// The accepted words, each with its meaning. The first is the default if the variable is not
    /// set.
    pub words: &'static [(&'static str, T)],
    /// Former words, each with its present name.
    pub former_words: &'static [(&'static str, &'static str)],
}

impl<T: Copy> Variable<T> {
    /// Reads the variable and returns the meaning of its word.
    ///
    /// # Errors
    /// `Invalid` for an unknown word.
    pub(crate) fn read(&self) -> Result<T> {
        let former = || {
            self.former_name
                .and_then(|name| Some((name, std::env::var(name).ok()?)))
        };
        let own = std::env::var(self.name)
            .ok()
            .map(|value| (self.name, value));
        let Some((name, value)) = own.or_else(former) else {
            return Ok(self.words[0].1);
        };
        let (word, meaning) = self.meaning(&value).ok_or_else(|| {
            let what = format!("{name}={value} is not a known value; {}", self.known());
            Error::new("read environment", Kind::Invalid, what)
        })?;
        if word != value || name != self.name {
            let warning = format!("{name}={value} is now called {}={word}", self.name);
            if first_time(&warning) {
                tracing::warn!(target: "gdsync", "{warning}");
            }
        }
        Ok(meaning)
    }

    /// The present name of the word `value`, and its meaning; `None` for an unknown word.
    pub fn meaning(&self, value: &str) -> Option<(&'static str, T)> {
        let renamed = self.former_words.iter().find(|(word, _)| *word == value);
        let word = renamed.map_or(value, |(_, now)| now);
        self.words.iter().find(|(known, _)| *known == word).copied()
    }

    /// The list of accepted words, for an error.
    pub fn known(&self) -> String {
        let known: Vec<&str> = self.words.iter().map(|(word, _)| *word).collect();
        format!("the known values are {}", known.join(", "))
    }
}

/// Whether this is the first call with this text in this process.
pub(crate) fn first_time(text: &str) -> bool {
    static SEEN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut all = SEEN.lock();
    all.insert(text.to_owned())
}
