//! The objects of an open device file, by handle.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustix::io::Errno;
use vmlx5::{MrKeys, PdId};

use crate::devx::{Devx, Umem};
use crate::doorbells::Doorbell;
use crate::queues::{CompletionQueue, QueuePair};
use crate::shared_receives::SharedReceives;

/// An object of a context.
pub(crate) enum Object {
    Pd(PdId),
    Mr(Region),
    Cq(CompletionQueue),
    Qp(Box<QueuePair>),
    Srq(SharedReceives),
    Ah(AddressHandle),
    Uar(Doorbell),
    Umem(Arc<Umem>),
    Devx(Devx),
}

/// An address handle, which is only counted: the library keeps what it says.
pub(crate) struct AddressHandle {
    pub pd: PdId,
}

/// A registered region.
pub(crate) struct Region {
    pub keys: MrKeys,
    /// As registered, for a change of parts of it.
    pub start: u64,
    pub length: u64,
    pub hca_va: u64,
    pub pd: u32,
    pub access: u32,
    /// Its memory is the process's own, and not that of a file.
    pub own: bool,
}

/// The kinds of objects that have an own type here.
pub(crate) trait Kind: Sized {
    fn of(object: &Object) -> Option<&Self>;
    fn of_mut(object: &mut Object) -> Option<&mut Self>;
}

macro_rules! kinds {
    ($($type:ty = $variant:ident,)*) => {$(
        impl Kind for $type {
            fn of(object: &Object) -> Option<&Self> {
                match object { Object::$variant(it) => Some(it), _ => None }
            }
            fn of_mut(object: &mut Object) -> Option<&mut Self> {
                match object { Object::$variant(it) => Some(it), _ => None }
            }
        }
    )*};
}

kinds! {
    PdId = Pd,
    AddressHandle = Ah,
    Region = Mr,
    CompletionQueue = Cq,
    Box<QueuePair> = Qp,
    SharedReceives = Srq,
    Doorbell = Uar,
    Arc<Umem> = Umem,
    Devx = Devx,
}

#[derive(Default)]
pub(crate) struct Handles {
    objects: BTreeMap<u32, Object>,
    next: u32,
}

impl Handles {
    /// Gives an object a handle.
    pub fn insert(&mut self, object: Object) -> u32 {
        while self.objects.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1) & 0x7fff_ffff;
        }
        let handle = self.next;
        self.next = self.next.wrapping_add(1) & 0x7fff_ffff;
        self.objects.insert(handle, object);
        handle
    }

    /// The object that a command uses.
    ///
    /// # Errors
    /// `EINVAL`: there is none of the kind.
    pub fn get<T: Kind>(&self, handle: u32) -> Result<&T, Errno> {
        let object = self.objects.get(&handle).ok_or(Errno::INVAL)?;
        T::of(object).ok_or(Errno::INVAL)
    }

    /// The object that a command changes.
    ///
    /// # Errors
    /// `EINVAL`: there is none of the kind.
    pub fn get_mut<T: Kind>(&mut self, handle: u32) -> Result<&mut T, Errno> {
        let object = self.objects.get_mut(&handle).ok_or(Errno::INVAL)?;
        T::of_mut(object).ok_or(Errno::INVAL)
    }

    /// The object that a command is to destroy.
    ///
    /// # Errors
    /// `ENOENT`: there is none. `EINVAL`: it is of another kind.
    pub fn doomed<T: Kind>(&self, handle: u32) -> Result<&T, Errno> {
        let object = self.objects.get(&handle).ok_or(Errno::NOENT)?;
        T::of(object).ok_or(Errno::INVAL)
    }

    /// All objects.
    pub fn each(&self) -> impl Iterator<Item = &Object> {
        self.objects.values()
    }

    pub fn remove(&mut self, handle: u32) -> Option<Object> {
        self.objects.remove(&handle)
    }

    /// All objects, those that use others first.
    pub fn drain(&mut self) -> Vec<Object> {
        let mut all: Vec<Object> = std::mem::take(&mut self.objects).into_values().collect();
        all.sort_by_key(|object| match object {
            Object::Ah(_) | Object::Qp(_) => 0,
            Object::Cq(_) | Object::Srq(_) => 1,
            Object::Mr(_) => 2,
            Object::Pd(_) | Object::Uar(_) | Object::Umem(_) => 3,
            Object::Devx(made) => made.rank(),
        });
        all
    }
}
