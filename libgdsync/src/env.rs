//! Variables of the environment.

use crate::error::{Error, Kind, Result};

/// The value of a variable that has a few; the first if it is not set.
pub(crate) fn choice<T: Copy>(name: &str, choices: &[(&str, T)]) -> Result<T> {
    let value = std::env::var(name).unwrap_or_else(|_| choices[0].0.to_owned());
    choices
        .iter()
        .find(|(choice, _)| *choice == value)
        .map(|(_, meaning)| *meaning)
        .ok_or_else(|| {
            let known: Vec<&str> = choices.iter().map(|(choice, _)| *choice).collect();
            let what = format!("{name}={value}: known are {}", known.join(", "));
            Error::new("read environment", Kind::Invalid, what)
        })
}
