//! Tests that look inside: what is written byte for byte beside libmlx5, when the NIC is called, and
//! NICs that lack something.

/// Methods of `Nic` that call those of `self.nic`, after `self.note` was told of each that may
/// reach a device.
macro_rules! delegate_to_nic {
    () => {
        delegate_to_nic! { @plain
            provider() -> crate::nic::Provider;
            name() -> &str;
            node() -> u64;
            port() -> Option<crate::nic::PortAddress>;
            layout() -> crate::nic::Layout;
        }
        delegate_to_nic! {
            alloc_pd() -> Result<PdId>;
            dealloc_pd(id: PdId);
            reg_mr(pd: PdId, region: &Region, access: Access) -> Result<MrKeys>;
            dereg_mr(keys: MrKeys);
            holds(region: &Region) -> usize;
            create_qp(pd: PdId, rings: &QpRings<'_>) -> Result<QpMade>;
            connect_qp(qpn: u32, psn: u32, peer: &QpAddress) -> Result<()>;
            activate_qp(qpn: u32, psn: u32, qkey: u32) -> Result<()>;
            create_ah(pd: PdId, to: &AhAttr) -> Result<Ah>;
            destroy_ah(id: u64);
            reset_qp(qpn: u32) -> Result<()>;
            cq_indices(objects: &QpObjects) -> Result<Option<(u64, u64)>>;
            destroy_qp(objects: &QpObjects);
        }
    };
    (@plain $($name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)?;)*) => {$(
        fn $name(&self, $($arg: $type),*) $(-> $result)? {
            self.nic.$name($($arg),*)
        }
    )*};
    ($($name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)?;)*) => {$(
        fn $name(&self, $($arg: $type),*) $(-> $result)? {
            self.note(stringify!($name));
            self.nic.$name($($arg),*)
        }
    )*};
}

mod bytes;
mod calls;
pub(super) mod odd_nic;
