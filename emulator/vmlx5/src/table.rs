//! A table of numbered objects: a lookup by index that rejects the number of a former object in the
//! same slot.

use std::collections::VecDeque;

use crate::error::{NicError, Object};

/// Numbers have 24 bits: the slot is below, a generation is above. The generation changes with each
/// reuse of the slot and is never zero.
const NUMBER_BITS: u8 = 24;

pub(crate) struct Table<T> {
    object: Object,
    log_max: u8,
    /// The base of all numbers: a number is the base plus the slot, without a generation.
    base: Option<u32>,
    slots: Vec<Slot<T>>,
    /// Free slots, the one that was free longest first.
    free: VecDeque<u32>,
}

struct Slot<T> {
    /// How many times the slot was used before.
    uses: u32,
    /// Number of users of the object in the slot.
    users: u32,
    value: Option<T>,
}

impl<T> Table<T> {
    /// A table of at most 2^`log_max` objects, which is at most 2^20.
    pub fn new(object: Object, log_max: u8) -> Table<T> {
        Table {
            object,
            log_max: log_max.min(20),
            base: None,
            slots: Vec::new(),
            free: VecDeque::new(),
        }
    }

    /// A table of at most 2^`log_max` objects with the numbers from `base` on; `base` is a multiple
    /// of 2^`log_max`. The table reuses a number only after it used all of them.
    pub fn within(object: Object, base: u32, log_max: u8) -> Table<T> {
        let log_max = log_max.min(20);
        let base = base & 0xff_ffff & !((1 << log_max) - 1);
        Table {
            base: Some(base),
            ..Table::new(object, log_max)
        }
    }

    fn limit(&self) -> u32 {
        1 << self.log_max
    }

    /// The current number of a slot.
    fn number(&self, slot: u32) -> u32 {
        if let Some(base) = self.base {
            return base | slot;
        }
        let generations = (1 << (NUMBER_BITS - self.log_max)) - 1;
        (1 + self.slots[slot as usize].uses % generations) << self.log_max | slot
    }

    /// Inserts the object that `make` returns for its number.
    pub fn insert(&mut self, make: impl FnOnce(u32) -> T) -> Result<u32, NicError> {
        let fresh = self.base.is_some() && self.slots.len() < self.limit() as usize;
        let used = if fresh { None } else { self.free.pop_front() };
        let slot = match used {
            Some(slot) => slot,
            None if self.slots.len() < self.limit() as usize => {
                self.slots.push(Slot {
                    uses: 0,
                    users: 0,
                    value: None,
                });
                self.slots.len() as u32 - 1
            }
            None => {
                return Err(NicError::Full {
                    object: self.object,
                    limit: self.limit(),
                });
            }
        };
        let number = self.number(slot);
        self.slots[slot as usize].value = Some(make(number));
        Ok(number)
    }

    /// The slot of a number, if an object has this number.
    #[inline]
    pub fn slot(&self, number: u32) -> Option<u32> {
        let slot = number & (self.limit() - 1);
        let live = self.slots.get(slot as usize)?.value.is_some();
        (live && self.number(slot) == number).then_some(slot)
    }

    /// The object in a slot.
    #[inline]
    pub fn at(&mut self, slot: u32) -> Option<&mut T> {
        self.slots.get_mut(slot as usize)?.value.as_mut()
    }

    /// The object of a number.
    pub fn get(&self, number: u32) -> Result<&T, NicError> {
        let value = self
            .slot(number)
            .and_then(|s| self.slots[s as usize].value.as_ref());
        value.ok_or(NicError::Unknown {
            object: self.object,
            number,
        })
    }

    /// The object of a number.
    pub fn get_mut(&mut self, number: u32) -> Result<&mut T, NicError> {
        let object = self.object;
        let slot = self.slot(number);
        let value = slot.and_then(|s| self.slots[s as usize].value.as_mut());
        value.ok_or(NicError::Unknown { object, number })
    }

    /// Adds `by` users to the object of a number.
    pub fn count_users(&mut self, number: u32, by: i32) {
        if let Some(slot) = self.slot(number) {
            let users = &mut self.slots[slot as usize].users;
            *users = users.wrapping_add_signed(by);
        }
    }

    /// Number of users of the object of a number.
    pub fn users(&self, number: u32) -> u32 {
        self.slot(number)
            .map_or(0, |s| self.slots[s as usize].users)
    }

    /// Removes an object without users; returns it and its slot. The table does not reuse the
    /// number soon.
    pub fn remove(&mut self, number: u32) -> Result<(u32, T), NicError> {
        let (object, users) = (self.object, self.users(number));
        if users > 0 {
            return Err(NicError::InUse {
                object,
                number,
                users,
            });
        }
        let taken = self.slot(number).and_then(|slot| {
            let entry = &mut self.slots[slot as usize];
            entry.uses = entry.uses.wrapping_add(1);
            self.free.push_back(slot);
            Some((slot, entry.value.take()?))
        });
        taken.ok_or(NicError::Unknown { object, number })
    }

    /// Number of slots, used or free.
    pub fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Number of objects.
    pub fn count(&self) -> usize {
        self.slots.iter().filter(|s| s.value.is_some()).count()
    }

    /// The number of the object in a slot.
    pub fn number_at(&self, slot: u32) -> Option<u32> {
        let live = self.slots.get(slot as usize)?.value.is_some();
        live.then(|| self.number(slot))
    }

    /// Every object with its slot.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        let slots = self.slots.iter_mut().enumerate();
        slots.filter_map(|(i, s)| Some((i as u32, s.value.as_mut()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_not_reused_soon_after_removal() {
        let mut t = Table::new(Object::Qp, 2);
        let a = t.insert(|n| n).unwrap();
        assert_eq!(t.remove(a), Ok((0, a)));
        let b = t.insert(|n| n).unwrap();
        assert_ne!(a, b);
        assert_eq!(t.slot(a), None);
        assert!(t.get(a).is_err());
        assert_eq!(t.get(b).copied().ok(), Some(b));
        for _ in 0..3 {
            t.insert(|n| n).unwrap();
        }
        let full = NicError::Full {
            object: Object::Qp,
            limit: 4,
        };
        assert_eq!(t.insert(|n| n), Err(full));
    }

    #[test]
    fn all_numbers_are_used_before_one_is_reused() {
        let mut t = Table::within(Object::Qp, 0x3000, 2);
        let numbers: Vec<u32> = (0..6)
            .map(|_| {
                let n = t.insert(|n| n).unwrap();
                t.remove(n).unwrap().1
            })
            .collect();
        assert_eq!(numbers, [0x3000, 0x3001, 0x3002, 0x3003, 0x3000, 0x3001]);
        assert_eq!(t.slot(0x3000), None);
        let n = t.insert(|n| n).unwrap();
        assert_eq!((n, t.slot(n), t.slot(n + 0x1000)), (0x3002, Some(2), None));
    }

    #[test]
    fn numbers_have_24_bits_and_a_nonzero_generation() {
        let mut t = Table::new(Object::Cq, 20);
        for _ in 0..100 {
            let n = t.insert(|n| n).unwrap();
            assert!(n >> 24 == 0 && n >> 20 != 0);
            t.remove(n).unwrap();
        }
    }
}
