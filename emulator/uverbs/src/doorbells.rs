//! Doorbell pages and their registers: the page of an `mmap` offset, and the register of a QP.
//!
//! With static pages, the library maps all pages at the start, and the driver numbers their
//! registers, two per usable page: register `n` is on page `n / 2`, and the library's number of it
//! is `n / 2 * 4 + n % 2`. The last registers are for one QP each, because the library takes no
//! lock there. Register 0 is for any number of QPs, because it is written with plain doorbells
//! only. The registers between are shared. With dynamic pages, the library requests each page by an
//! ioctl.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use vmlx5::UarId;

use crate::abi::mlx5::{AllocUcontextReqV2, lib_cap, map};
use crate::device::{Device, UarMode};

/// The maximal number of registers that a library may request.
const MAX_REGISTERS: u32 = 512;
/// Additional pages in static mode, mapped one by one.
pub(crate) const DYNAMIC_REGISTERS: u32 = 512;
/// The first number of a page of a dynamic context.
const FIRST_PAGE: u32 = 0x400;
/// Page numbers of dynamic pages wrap here; the offset of `mmap` has 16 bits of them.
const LAST_PAGE: u32 = 0xffff;
const PAGE: u64 = 4096;

/// A UAR page of the NIC.
pub(crate) struct Page {
    pub uar: UarId,
    pub file: OwnedFd,
}

/// A page that the user requested by an ioctl.
pub(crate) struct Doorbell {
    pub index: u32,
}

/// The doorbells of a context.
pub(crate) struct Doorbells {
    pages: BTreeMap<u32, Page>,
    /// The number of registers; zero with dynamic pages.
    pub registers: u32,
    low_latency: u32,
    /// The number of QPs on each register.
    users: Vec<u32>,
    next: u32,
}

impl Doorbells {
    pub fn new(mode: UarMode, ask: &AllocUcontextReqV2) -> Result<Doorbells, Errno> {
        let dynamic = mode == UarMode::Dynamic && ask.lib_caps & lib_cap::DYN_UAR != 0;
        let asked = ask.total_num_bfregs;
        if asked == 0 || asked > MAX_REGISTERS {
            return Err(Errno::INVAL);
        }
        // Two registers per page.
        let registers = asked.next_multiple_of(2);
        if ask.num_low_latency_bfregs >= registers {
            return Err(Errno::INVAL);
        }
        let registers = if dynamic { 0 } else { registers };
        Ok(Doorbells {
            pages: BTreeMap::new(),
            registers,
            low_latency: ask.num_low_latency_bfregs,
            users: vec![0; registers as usize],
            next: FIRST_PAGE,
        })
    }

    /// The page with a number, created on first use.
    fn page(&mut self, device: &Device, index: u32) -> Result<&Page, Errno> {
        match self.pages.entry(index) {
            Entry::Occupied(page) => Ok(page.into_mut()),
            Entry::Vacant(place) => {
                let page = device.user.doorbell_page()?;
                let uar = device.with_nic(|nic| nic.alloc_uar(page.memory, 0))?;
                let file = page.file;
                Ok(place.insert(Page { uar, file }))
            }
        }
    }

    /// Allocates a separate page for a request by ioctl.
    pub fn allocate(&mut self, device: &Device) -> Result<Doorbell, Errno> {
        let free = (self.next..=LAST_PAGE).chain(FIRST_PAGE..self.next);
        let index = { free }
            .find(|i| !self.pages.contains_key(i))
            .ok_or(Errno::NOMEM)?;
        self.page(device, index)?;
        self.next = index + 1;
        Ok(Doorbell { index })
    }

    /// Frees a page.
    ///
    /// # Errors
    /// `EBUSY`: QPs are bound to it.
    pub fn free(&mut self, device: &Device, index: u32) -> Result<(), Errno> {
        if let Some(page) = self.pages.get(&index) {
            device.with_nic(|nic| nic.free_uar(page.uar))?;
            self.pages.remove(&index);
        }
        Ok(())
    }

    /// Frees all pages.
    pub fn clear(&mut self, device: &Device) {
        for (_, page) in std::mem::take(&mut self.pages) {
            // Its QPs are destroyed, so the NIC has no reason to refuse.
            let _ = device.nic.with(|nic| nic.free_uar(page.uar));
        }
    }

    /// The file at an offset of `mmap`.
    ///
    /// # Errors
    /// `EINVAL`: there is no page with this offset, or it cannot be mapped.
    pub fn map(&mut self, device: &Device, offset: u64, len: usize) -> Result<&OwnedFd, Errno> {
        let number = offset / PAGE;
        let (command, low, high) = (number >> 8 & 0xff, number & 0xff, number >> 16);
        let index = (high << 8 | low) as u32;
        if len as u64 != PAGE || !offset.is_multiple_of(PAGE) || high > 0xff {
            return Err(Errno::INVAL);
        }
        let fixed = self.registers / 2;
        let index = match command {
            map::REGULAR_PAGE | map::WC_PAGE
                if index < fixed || index >= FIRST_PAGE && self.pages.contains_key(&index) =>
            {
                index
            }
            // These are counted from the first additional page.
            map::ALLOC_WC if index < self.beyond() => fixed + index,
            _ => return Err(Errno::INVAL),
        };
        Ok(&self.page(device, index)?.file)
    }

    /// The number of additional pages that can be mapped one by one.
    fn beyond(&self) -> u32 {
        if self.registers > 0 {
            DYNAMIC_REGISTERS / 2
        } else {
            0
        }
    }

    /// The additional page of a register, by the library's number.
    pub fn named_register(&self, register: u32) -> Result<UarId, Errno> {
        if register >= DYNAMIC_REGISTERS {
            return Err(Errno::INVAL);
        }
        self.named(self.registers / 2 + register / 2)
    }

    /// The number of that page.
    pub fn page_of(&self, register: u32) -> Result<u32, Errno> {
        self.named_register(register)?;
        Ok(self.registers / 2 + register / 2)
    }

    /// The offset of `mmap` for a page.
    pub fn offset(index: u32) -> u64 {
        let index = u64::from(index);
        PAGE * (map::WC_PAGE << 8 | index & 0xff | (index >> 8) << 16)
    }

    /// The page on which CQs are armed: the page that the user named, or the first one.
    pub fn of_queues(&mut self, device: &Device, named: Option<u32>) -> Result<UarId, Errno> {
        match named {
            Some(index) => self.named(index),
            None => Ok(self.page(device, 0)?.uar),
        }
    }

    /// A page that the user named, if it was created.
    pub fn named(&self, index: u32) -> Result<UarId, Errno> {
        let page = self.pages.get(&index).ok_or(Errno::INVAL)?;
        Ok(page.uar)
    }

    /// Takes a register for a QP; returns it with its page.
    pub fn take(&mut self, device: &Device) -> Result<(u32, UarId), Errno> {
        if self.registers == 0 {
            return Err(Errno::INVAL);
        }
        let own = self.registers - self.low_latency..self.registers;
        let shared = 1..own.start;
        let users = &self.users;
        let register = { own }
            .find(|&n| users[n as usize] == 0)
            .or_else(|| shared.min_by_key(|&n| users[n as usize]))
            .unwrap_or(0);
        let uar = self.page(device, register / 2)?.uar;
        self.users[register as usize] += 1;
        Ok((register, uar))
    }

    /// Frees a register.
    pub fn give_back(&mut self, register: u32) {
        if let Some(users) = self.users.get_mut(register as usize) {
            *users = users.saturating_sub(1);
        }
    }

    /// The library's number of a register.
    pub fn called(register: u32) -> u32 {
        register / 2 * 4 + register % 2
    }
}
