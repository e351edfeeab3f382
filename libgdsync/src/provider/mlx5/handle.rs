//! Address handles: how a port is reached by datagrams. On Ethernet the kernel looks up who answers
//! to the address.

use gdsync_sys::mlx5::{MLX5DV_OBJ_AH, Mlx5, mlx5dv_ah, mlx5dv_obj};
use gdsync_sys::verbs::types::{ibv_ah, ibv_ah_attr, ibv_pd};
use mlx5_prm::wqe::{AvSeg, SEGMENT};

use super::context::{Context, check, missing, refused_last};
use crate::error::Result;

const OPERATION: &str = "name destination";

/// One of libibverbs.
pub(crate) struct Handle {
    context: &'static Context,
    raw: *mut ibv_ah,
}

// SAFETY: libibverbs may be called from any thread with any of its objects.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    /// # Safety
    /// `pd` is a protection domain of `context`, which outlives this.
    pub(in crate::provider) unsafe fn make(
        context: &'static Context,
        pd: *mut ibv_pd,
        mut attr: ibv_ah_attr,
    ) -> Result<Handle> {
        // SAFETY: as the caller says.
        let raw = unsafe { (context.verbs().ibv_create_ah)(pd, &mut attr) };
        if raw.is_null() {
            let what = format!("{} by {attr:?}", context.name);
            return Err(refused_last(OPERATION, &what));
        }
        Ok(Handle { context, raw })
    }

    /// For requests.
    pub fn raw(&self) -> *mut ibv_ah {
        self.raw
    }

    /// How entries of a ConnectX name the port, without a queue pair there and its key.
    pub fn address_vector(&self) -> Result<AvSeg> {
        let mut out = mlx5dv_ah {
            av: std::ptr::null_mut(),
            comp_mask: 0,
        };
        let mut question = mlx5dv_obj::default();
        question.ah.object = self.raw;
        question.ah.out = &mut out;
        let mlx5 = Mlx5::get().map_err(missing)?;
        // SAFETY: a live address handle of a NIC for direct verbs, and a place to write to.
        let answer = unsafe { (mlx5.mlx5dv_init_obj)(&mut question, MLX5DV_OBJ_AH) };
        check(answer, OPERATION, "how entries name it")?;
        let av = out.av.cast::<[[u8; SEGMENT]; AvSeg::SEGMENTS]>();
        // SAFETY: the library's own, of this length, which lives as long as the handle.
        Ok(AvSeg::from_bytes(unsafe { av.read() }))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: made by `make`, and destroyed once. Requests that name it hold it.
        let answer = unsafe { (self.context.verbs().ibv_destroy_ah)(self.raw) };
        if answer != 0 {
            let name = &self.context.name;
            tracing::warn!(target: "gdsync", "destroy address handle of {name}: {answer}");
        }
    }
}
