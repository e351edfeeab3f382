//! Choices among alternatives, such as the arms of a `match` or the callers of a function. A search
//! runs the same code again for each combination; in a run, one thing is chosen once.

use std::collections::HashMap;

#[derive(Default)]
pub struct Choices {
    /// What was chosen in this run, and out of how many, in order.
    trail: Vec<(usize, usize)>,
    made: usize,
    of: HashMap<usize, usize>,
}

impl Choices {
    /// One of `count` alternatives of the thing with this number.
    pub fn choose(&mut self, thing: usize, count: usize) -> usize {
        if let Some(&chosen) = self.of.get(&thing) {
            return chosen;
        }
        if self.made == self.trail.len() {
            self.trail.push((0, count));
        }
        let chosen = self.trail[self.made].0;
        self.made += 1;
        self.of.insert(thing, chosen);
        chosen
    }

    /// Begins the run with the next combination; false after the last one.
    pub fn advance(&mut self) -> bool {
        self.trail.truncate(self.made);
        self.made = 0;
        self.of.clear();
        while let Some((chosen, count)) = self.trail.last_mut() {
            *chosen += 1;
            if chosen < count {
                return true;
            }
            self.trail.pop();
        }
        false
    }
}
