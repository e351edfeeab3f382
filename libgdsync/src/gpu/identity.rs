//! The names of GPUs among the processes of a host, and whether one reaches the memory of another.

use std::fmt;

use super::Gpu;
use crate::error::{Error, Kind, Result};

/// A GPU, for other processes of its host: plain bytes, which can be sent by any channel. Two
/// identities are equal if they name the same GPU.
///
/// ```
/// use gdsync::Gpu;
/// use gdsync::gpu::GpuIdentity;
///
/// # fn main() -> gdsync::Result<()> {
/// let (first, second) = (Gpu::soft()?, Gpu::soft()?); // or one GPU in each of two processes
/// let sent = second.identity().to_bytes();
/// let other = GpuIdentity::from_bytes(&sent)?;
/// assert!(other == second.identity() && other != first.identity());
/// assert_eq!(first.reaches(&other), Ok(()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GpuIdentity(pub(super) Device);

/// The name of a GPU in its runtime.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Device {
    /// A software GPU: its process, by a random number, and its number there.
    #[cfg_attr(not(feature = "soft"), allow(dead_code))]
    Soft { process: u64, gpu: u64 },
    /// A CUDA device, or a MIG slice of one.
    CudaUuid([u8; 16]),
    /// A CUDA device whose driver gives no UUID, by its PCI address.
    CudaPci(String),
    /// A HIP device.
    HipUuid([u8; 16]),
    /// A HIP device without a UUID, by its PCI address.
    HipPci(String),
}

impl Device {
    fn runtime(&self) -> &'static str {
        match self {
            Device::Soft { .. } => "soft",
            Device::CudaUuid(_) | Device::CudaPci(_) => "cuda",
            Device::HipUuid(_) | Device::HipPci(_) => "hip",
        }
    }
}

impl fmt::Display for GpuIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Device::Soft { process, gpu } => write!(f, "soft GPU {gpu} of process {process:016x}"),
            Device::CudaUuid(uuid) => {
                f.write_str("CUDA GPU-")?;
                for (i, byte) in uuid.iter().enumerate() {
                    let dash = if [4, 6, 8, 10].contains(&i) { "-" } else { "" };
                    write!(f, "{dash}{byte:02x}")?;
                }
                Ok(())
            }
            Device::CudaPci(address) => write!(f, "CUDA GPU at {address}"),
            // AMD's UUIDs are printable characters.
            Device::HipUuid(uuid) => write!(f, "HIP GPU-{}", uuid.escape_ascii()),
            Device::HipPci(address) => write!(f, "HIP GPU at {address}"),
        }
    }
}

impl GpuIdentity {
    /// The version of the bytes.
    const VERSION: u8 = 1;
    /// The second byte: what follows.
    const SOFT: u8 = 1;
    const CUDA_UUID: u8 = 2;
    const CUDA_PCI: u8 = 3;
    const HIP_UUID: u8 = 4;
    const HIP_PCI: u8 = 5;
    /// The maximum number of bytes.
    const MOST: usize = 64;

    /// The identity as bytes, at most 64.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![Self::VERSION];
        match &self.0 {
            Device::Soft { process, gpu } => {
                bytes.push(Self::SOFT);
                bytes.extend(process.to_le_bytes());
                bytes.extend(gpu.to_le_bytes());
            }
            Device::CudaUuid(uuid) => {
                bytes.push(Self::CUDA_UUID);
                bytes.extend(uuid);
            }
            Device::CudaPci(address) => {
                bytes.push(Self::CUDA_PCI);
                bytes.extend(address.bytes().take(Self::MOST - 2));
            }
            Device::HipUuid(uuid) => {
                bytes.push(Self::HIP_UUID);
                bytes.extend(uuid);
            }
            Device::HipPci(address) => {
                bytes.push(Self::HIP_PCI);
                bytes.extend(address.bytes().take(Self::MOST - 2));
            }
        }
        bytes
    }

    /// The identity that [`GpuIdentity::to_bytes`] made, also in another process.
    ///
    /// # Errors
    /// `Protocol` for other bytes, and for those of a release with another format.
    pub fn from_bytes(bytes: &[u8]) -> Result<GpuIdentity> {
        let word = |at: usize| -> Option<u64> {
            let half = bytes.get(at..at + 8)?;
            Some(u64::from_le_bytes(half.try_into().ok()?))
        };
        let device = match bytes {
            [Self::VERSION, Self::SOFT, rest @ ..] if rest.len() == 16 => {
                let named = word(2).zip(word(10));
                named.map(|(process, gpu)| Device::Soft { process, gpu })
            }
            [Self::VERSION, Self::CUDA_UUID, uuid @ ..] => {
                uuid.try_into().ok().map(Device::CudaUuid)
            }
            [Self::VERSION, Self::HIP_UUID, uuid @ ..] => uuid.try_into().ok().map(Device::HipUuid),
            [
                Self::VERSION,
                kind @ (Self::CUDA_PCI | Self::HIP_PCI),
                text @ ..,
            ] if bytes.len() <= Self::MOST => {
                let text = std::str::from_utf8(text).ok();
                let text = text.filter(|text| !text.is_empty() && text.is_ascii());
                text.map(|text| match *kind {
                    Self::HIP_PCI => Device::HipPci(text.to_owned()),
                    _ => Device::CudaPci(text.to_owned()),
                })
            }
            _ => None,
        };
        device.map(GpuIdentity).ok_or_else(|| {
            let what = format!(
                "the {} bytes are no identity of a GPU that this library reads; use the same \
                 release in all processes",
                bytes.len()
            );
            Error::new("read GPU identity", Kind::Protocol, what)
        })
    }
}

/// Why work of a GPU cannot use memory of another GPU. Its text is a clause.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unreachable {
    /// The GPUs have different runtimes.
    Runtime {
        /// This GPU.
        here: String,
        /// The other GPU.
        there: GpuIdentity,
    },
    /// The driver cannot share memory between processes by descriptors.
    NoDescriptors {
        /// This GPU.
        here: String,
    },
    /// The driver shows this process no such GPU.
    NotVisible {
        /// The other GPU.
        there: GpuIdentity,
    },
    /// The driver lacks a call.
    NoCall {
        /// The call.
        call: &'static str,
    },
    /// The GPUs have no peer access.
    NoPeerAccess {
        /// This GPU.
        here: String,
        /// The other GPU.
        there: String,
    },
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unreachable::Runtime { here, there } => {
                write!(f, "{here} and {there} have different runtimes")
            }
            Unreachable::NoDescriptors { here } => {
                write!(
                    f,
                    "the driver of {here} opens no memory of other processes by descriptors"
                )
            }
            Unreachable::NotVisible { there } => write!(
                f,
                "{there} is not visible to this process (CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES or \
                 ROCR_VISIBLE_DEVICES may hide it)"
            ),
            Unreachable::NoCall { call } => write!(f, "the driver has no {call}"),
            Unreachable::NoPeerAccess { here, there } => write!(
                f,
                "{here} has no peer access to {there} (`nvidia-smi topo -p2p rw` or `rocm-smi \
                 --showtopoaccess` shows the pairs that have)"
            ),
        }
    }
}

impl std::error::Error for Unreachable {}

impl Gpu {
    /// The name of this GPU for other processes of the host.
    pub fn identity(&self) -> GpuIdentity {
        self.runtime().identity()
    }

    /// Checks that work of this GPU can read and write memory of the GPU `other` that
    /// [`Gpu::open_shared`] opens here, and pinned memory of its process. A software GPU reaches
    /// every software GPU of the host. A CUDA GPU reaches itself, and each GPU that the driver shows
    /// to this process and to which the GPU has peer access, by NVLink or PCIe. A HIP GPU does so where
    /// memory is shared as a file (HIP 7); there the call enables the peer access. (CUDA opens no memory
    /// of the process by [`SharedMemory::Ipc`](super::SharedMemory::Ipc).)
    ///
    /// # Errors
    /// The reason why it cannot.
    pub fn reaches(&self, other: &GpuIdentity) -> Result<(), Unreachable> {
        if self.runtime_name() != other.0.runtime() {
            return Err(Unreachable::Runtime {
                here: self.name(),
                there: other.clone(),
            });
        }
        self.runtime().reaches(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_survives_its_bytes_and_nothing_else_is_one() {
        let devices = [
            Device::Soft {
                process: u64::MAX - 1,
                gpu: 7,
            },
            Device::CudaUuid(std::array::from_fn(|i| i as u8)),
            Device::CudaPci("0000:41:00.0".to_owned()),
        ];
        for device in devices {
            let identity = GpuIdentity(device);
            let bytes = identity.to_bytes();
            assert!(bytes.len() <= 64);
            assert_eq!(GpuIdentity::from_bytes(&bytes).unwrap(), identity);
            let mut newer = bytes.clone();
            newer[0] += 1;
            let mut unknown = bytes.clone();
            unknown[1] = 77;
            let longer = [&bytes[..], &[0; 64]].concat();
            for wrong in [&bytes[..1], &bytes[..2], &newer, &unknown, &longer, &[]] {
                let error = GpuIdentity::from_bytes(wrong).unwrap_err();
                assert_eq!(error.kind(), Kind::Protocol, "{wrong:?}");
            }
        }
    }
}
