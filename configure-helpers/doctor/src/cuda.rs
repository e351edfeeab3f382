//! NVIDIA GPUs: what the CUDA driver reports about each, and the variables that it reads.

use crate::library::State;
use crate::machine::Machine;
use gdsync::Kind;
use gdsync::decide::{cuda_caps, cuda_refusal, driver_too_old, wait_limits};
use gdsync::gpu::{Caps, Consistency, MemoryKind};
use gdsync_sys::cuda::consts::*;
use gdsync_sys::cuda::types::{CUdevice, CUuuid};
use gdsync_sys::cuda::{Cuda as Table, CudaResult};
use serde::Serialize;
use std::ffi::{CStr, c_char, c_int};
use std::path::PathBuf;

/// The CUDA driver and its GPUs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cuda {
    /// libcuda.
    pub library: State,
    /// The CUDA version that it implements.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The reason why gdsync does not use a driver of this version, if it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub too_old: Option<String>,
    /// The reason why the driver or its devices cannot be used, if they cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<Trouble>,
    /// The GPUs, in CUDA's order.
    pub gpus: Vec<Gpu>,
    /// Hardware channels.
    pub channels: Channels,
    /// `CUDA_MODULE_LOADING`.
    pub module_loading: Option<String>,
    /// `CUDA_VISIBLE_DEVICES`.
    pub visible_devices: Option<String>,
}

/// A call that failed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Trouble {
    /// The function.
    pub call: &'static str,
    /// The code that it returned.
    pub code: i32,
    /// The name of the code.
    pub name: String,
}

/// The number of hardware channels of a context.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Channels {
    /// The number.
    pub count: u32,
    /// The value of `CUDA_DEVICE_MAX_CONNECTIONS`.
    pub variable: Option<String>,
    /// Whether CUDA accepts the value of the variable; true if it is not set.
    pub understood: bool,
    /// Streams of one context that gdsync lets wait at a time, so that the others can continue.
    #[serde(skip)]
    pub waiting: u32,
}

impl Channels {
    /// The maximum number.
    pub const MOST: u32 = 32;

    fn from(variable: Option<String>) -> Channels {
        let limits = wait_limits(variable.as_deref(), 0);
        let set = variable.as_deref().map(|v| v.trim().parse());
        Channels {
            count: limits.channels,
            understood: set.is_none_or(|set| set == Ok(limits.channels)),
            waiting: limits.streams,
            variable,
        }
    }
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Gpu {
    /// Its CUDA device number.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its PCI address, in lower case.
    pub pci: Option<String>,
    /// Its path in the tree of devices, below the machine's `/`.
    pub place: Option<PathBuf>,
    /// Its UUID.
    pub uuid: Option<String>,
    /// Compute capability, major and minor.
    pub compute_capability: (i32, i32),
    /// Memory in bytes.
    pub memory: u64,
    /// Number of multiprocessors.
    pub multiprocessors: i32,
    /// Memory operations that streams support.
    pub memory_operations: MemoryOperations,
    /// Whether RDMA devices may access its memory.
    pub gpudirect_rdma: bool,
    /// GPUs for which remote writes are in order: 0 none, 100 this GPU, 200 every GPU.
    pub writes_ordering: i32,
    /// Whether `cuFlushGPUDirectRDMAWrites` works.
    pub host_flush: bool,
    /// The policy that makes payload from a NIC visible to the stream that waited for the
    /// completion.
    pub consistency: &'static str,
    /// The same in a sentence.
    #[serde(skip)]
    pub flush_policy: &'static str,
    /// Capabilities of its streams.
    #[serde(skip)]
    pub caps: Caps,
    /// The reason why gdsync cannot run on it, with the kind of the error, if it cannot.
    #[serde(skip)]
    pub refusal: Option<(Kind, &'static str)>,
    /// Whether its memory can be exported as a dma-buf.
    pub dma_buf: bool,
    /// Whether memory can be mapped by `cuMemMap`.
    pub virtual_memory: bool,
    /// Whether memory can be exported as a file descriptor.
    pub posix_fd: bool,
    /// Whether memory can be exported as a fabric handle.
    pub fabric: bool,
    /// Whether host memory can be registered.
    pub host_register: bool,
    /// Whether registered host memory has the same address on the GPU.
    pub same_host_address: bool,
    /// `CU_COMPUTEMODE_*`.
    pub compute_mode: i32,
    /// Whether contexts use MPS.
    pub mps: bool,
    /// The IOMMU mode of the device: `identity`, `DMA`, `DMA-FQ`.
    pub iommu: Option<String>,
    /// The nearest NUMA node of the host.
    pub numa_node: Option<i32>,
    /// The device numbers of the other GPUs whose memory it can access, by NVLink or PCIe.
    pub peers: Vec<u32>,
}

/// The memory operations that a stream supports.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MemoryOperations {
    /// 64-bit waits and writes.
    pub bits64: bool,
    /// Waits with NOR.
    pub nor: bool,
    /// Waits that flush remote writes.
    pub flush: bool,
}

/// The policy that makes payload from a NIC visible to the stream that waited for the completion:
/// as one word, and as a sentence.
fn consistency(caps: &Caps, ordering: i32) -> (&'static str, &'static str) {
    let for_all = ordering >= CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES as i32;
    match Consistency::choose(MemoryKind::Device, caps, true) {
        Ok(Consistency::Ordered) if for_all => (
            "ordered_for_all",
            "none needed: NIC writes reach this and every other GPU in order, so a stream that waited for the completion reads the payload",
        ),
        Ok(Consistency::Ordered) => (
            "ordered_for_owner",
            "none needed on this GPU: NIC writes reach it in order, so a stream that waited for the completion reads the payload; other GPUs may read older bytes",
        ),
        Ok(Consistency::Flush) => (
            "flush_by_stream",
            "flush: NIC writes may arrive out of order, so each wait for payload flushes on the stream",
        ),
        Ok(Consistency::HostFlag) => (
            "flush_by_host",
            "flush by the CPU: NIC writes may arrive out of order and streams cannot flush, so after each wait for payload a stream requests a flush by the CPU, and waits until it is done",
        ),
        _ => (
            "read_by_nic",
            "READs by the NIC: NIC writes may arrive out of order and neither streams nor the CPU can flush them, so after each wait for payload the NIC READs a word of GPU memory, which makes earlier writes visible, and the stream waits for the READ",
        ),
    }
}

/// Examines the driver and its GPUs.
pub(crate) fn look(machine: &Machine) -> Cuda {
    let mut found = Cuda {
        library: State::Absent { tried: Vec::new() },
        version: None,
        too_old: None,
        trouble: None,
        gpus: Vec::new(),
        channels: Channels::from(machine.variable("CUDA_DEVICE_MAX_CONNECTIONS")),
        module_loading: machine.variable("CUDA_MODULE_LOADING"),
        visible_devices: machine.variable("CUDA_VISIBLE_DEVICES"),
    };
    // SAFETY: the creator of the machine guarantees that its libraries are sound.
    let table = match unsafe { Table::load_from(&machine.libraries().cuda) } {
        Ok(table) => table,
        Err(error) => {
            found.library = State::from(&error);
            return found;
        }
    };
    found.library = State::opened(table.path(), lacking(&table));
    let driver = Driver { table };
    if let Err(trouble) = driver.look(machine, &mut found) {
        found.trouble = Some(trouble);
    }
    found
}

/// The optional functions that gdsync would use and this driver lacks.
fn lacking(table: &Table) -> Vec<String> {
    let looked_for = [
        ("cuDeviceGetUuid_v2", table.cuDeviceGetUuid_v2.is_none()),
        ("cuMemCreate", table.cuMemCreate.is_none()),
        (
            "cuMemImportFromShareableHandle",
            table.cuMemImportFromShareableHandle.is_none(),
        ),
        (
            "cuDeviceCanAccessPeer",
            table.cuDeviceCanAccessPeer.is_none(),
        ),
        (
            "cuMemGetHandleForAddressRange",
            table.cuMemGetHandleForAddressRange.is_none(),
        ),
        ("cuFuncLoad", table.cuFuncLoad.is_none()),
        (
            "cuFlushGPUDirectRDMAWrites",
            table.cuFlushGPUDirectRDMAWrites.is_none(),
        ),
    ];
    looked_for
        .into_iter()
        .filter(|(_, lacks)| *lacks)
        .map(|(name, _)| name.to_owned())
        .collect()
}

struct Driver {
    table: Table,
}

impl Driver {
    fn check(&self, call: &'static str, code: CudaResult) -> Result<(), Trouble> {
        if code.is_success() {
            return Ok(());
        }
        let name = match code.name() {
            Some(name) => name.to_owned(),
            None => self.name_of(code),
        };
        Err(Trouble {
            call,
            code: code.0,
            name,
        })
    }

    /// The driver's name of a code that is unknown here.
    fn name_of(&self, code: CudaResult) -> String {
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: a pointer to a static string is written to a local.
        let result = unsafe { (self.table.cuGetErrorName)(code, &mut name) };
        if !result.is_success() || name.is_null() {
            return "a code without a name".to_owned();
        }
        // SAFETY: the driver's names are static C strings.
        unsafe { CStr::from_ptr(name) }
            .to_string_lossy()
            .into_owned()
    }

    fn look(&self, machine: &Machine, found: &mut Cuda) -> Result<(), Trouble> {
        let mut version = 0;
        // SAFETY: the number is written to a local; needs no cuInit.
        let code = unsafe { (self.table.cuDriverGetVersion)(&mut version) };
        self.check("cuDriverGetVersion", code)?;
        found.version = Some(format!("{}.{}", version / 1000, version % 1000 / 10));
        found.too_old = driver_too_old(version);
        if found.too_old.is_some() {
            return Ok(());
        }
        // SAFETY: the flags are 0, the only value there is.
        self.check("cuInit", unsafe { (self.table.cuInit)(0) })?;
        let mut count = 0;
        // SAFETY: the number is written to a local.
        let code = unsafe { (self.table.cuDeviceGetCount)(&mut count) };
        self.check("cuDeviceGetCount", code)?;
        for index in 0..count {
            found.gpus.push(self.gpu(machine, index, count)?);
        }
        Ok(())
    }

    /// The GPU with number `index` of `count`.
    fn gpu(&self, machine: &Machine, index: c_int, count: c_int) -> Result<Gpu, Trouble> {
        let mut device: CUdevice = 0;
        // SAFETY: the device is written to a local.
        let code = unsafe { (self.table.cuDeviceGet)(&mut device, index) };
        self.check("cuDeviceGet", code)?;
        let mut memory = 0;
        // SAFETY: the number is written to a local; the device is the driver's own.
        let code = unsafe { (self.table.cuDeviceTotalMem_v2)(&mut memory, device) };
        self.check("cuDeviceTotalMem_v2", code)?;

        let query = |attribute| self.attribute(device, attribute);
        let has = |attribute| query(attribute) == Some(1);
        let number = |attribute| query(attribute).unwrap_or(0);
        let caps = cuda_caps(&self.table, device);
        let ordering = number(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
        let (consistency, flush_policy) = consistency(&caps, ordering);
        let compute_capability = (
            number(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            number(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        );
        let pci = self
            .text(|at, len| {
                // SAFETY: writes at most `len` bytes to `at`, ended by NUL.
                unsafe { (self.table.cuDeviceGetPCIBusId)(at, len, device) }
            })
            .map(|pci| pci.to_lowercase());
        let sysfs = pci.as_ref().map(|pci| format!("sys/bus/pci/devices/{pci}"));
        Ok(Gpu {
            index: index as u32,
            name: self
                .text(|at, len| {
                    // SAFETY: writes at most `len` bytes to `at`, ended by NUL.
                    unsafe { (self.table.cuDeviceGetName)(at, len, device) }
                })
                .unwrap_or_else(|| "unnamed GPU".to_owned()),
            uuid: self.uuid(device),
            compute_capability,
            memory: memory as u64,
            multiprocessors: number(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
            memory_operations: MemoryOperations {
                bits64: caps.memops64,
                nor: caps.nor,
                flush: caps.flush,
            },
            gpudirect_rdma: has(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED),
            writes_ordering: ordering,
            host_flush: caps.host_flush,
            consistency,
            flush_policy,
            caps,
            // The driver refuses the library's kernels, because they are compiled for another GPU.
            refusal: cuda_refusal(&self.table, device).or((compute_capability < (7, 0)).then_some(
                (
                    Kind::Invalid,
                    "its compute capability is below 7.0, for which the library's kernels are made",
                ),
            )),
            dma_buf: has(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)
                && self.table.cuMemGetHandleForAddressRange.is_some(),
            virtual_memory: has(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)
                && self.table.cuMemCreate.is_some(),
            posix_fd: has(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED),
            fabric: has(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED),
            host_register: has(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED),
            same_host_address: has(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM),
            compute_mode: number(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE),
            mps: has(CU_DEVICE_ATTRIBUTE_MPS_ENABLED),
            iommu: sysfs
                .as_ref()
                .and_then(|sysfs| machine.read(&format!("{sysfs}/iommu_group/type"))),
            place: sysfs.as_ref().and_then(|sysfs| machine.place(sysfs)),
            numa_node: sysfs
                .and_then(|sysfs| machine.read(&format!("{sysfs}/numa_node")))
                .and_then(|node| node.parse().ok())
                .filter(|node| *node >= 0),
            peers: (0..count)
                .filter(|peer| *peer != index && self.reaches(device, *peer))
                .map(|peer| peer as u32)
                .collect(),
            pci,
        })
    }

    /// Whether a device can access memory of the device with number `peer`.
    fn reaches(&self, device: CUdevice, peer: c_int) -> bool {
        let (mut there, mut can) = (0, 0);
        let Some(ask) = self.table.cuDeviceCanAccessPeer else {
            return false;
        };
        // SAFETY: the device, then the number, are written to locals.
        unsafe {
            (self.table.cuDeviceGet)(&mut there, peer).is_success()
                && ask(&mut can, device, there).is_success()
                && can != 0
        }
    }

    /// An attribute; `None` if the driver does not support it.
    fn attribute(&self, device: CUdevice, attribute: u32) -> Option<i32> {
        let mut value = 0;
        // SAFETY: the number is written to a local; unknown attributes are refused.
        let code = unsafe { (self.table.cuDeviceGetAttribute)(&mut value, attribute, device) };
        code.is_success().then_some(value)
    }

    fn uuid(&self, device: CUdevice) -> Option<String> {
        let mut uuid = CUuuid::default();
        let get = self.table.cuDeviceGetUuid_v2?;
        // SAFETY: the bytes are written to a local.
        if !unsafe { get(&mut uuid, device) }.is_success() {
            return None;
        }
        let mut text = "GPU".to_owned();
        for (i, byte) in uuid.bytes.iter().enumerate() {
            if [0, 4, 6, 8, 10].contains(&i) {
                text.push('-');
            }
            text.push_str(&format!("{byte:02x}"));
        }
        Some(text)
    }

    /// The text that `fill` writes into a buffer of a given length.
    fn text(&self, fill: impl FnOnce(*mut c_char, c_int) -> CudaResult) -> Option<String> {
        let mut buffer = [0u8; 256];
        let code = fill(buffer.as_mut_ptr().cast(), buffer.len() as c_int - 1);
        if !code.is_success() {
            return None;
        }
        let text = CStr::from_bytes_until_nul(&buffer).ok()?;
        Some(text.to_string_lossy().into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdsync::decide::SOFT_CAPS;

    #[test]
    fn channel_count_follows_the_rules_of_cuda_for_the_variable() {
        let of = |value: Option<&str>| {
            let channels = Channels::from(value.map(str::to_owned));
            (channels.count, channels.understood, channels.waiting)
        };
        assert_eq!(of(None), (8, true, 6));
        assert_eq!(of(Some("32")), (32, true, 30));
        assert_eq!(of(Some(" 3 ")), (3, true, 1));
        assert_eq!(of(Some("1")), (1, true, 1));
        assert_eq!(of(Some("33")), (32, false, 30));
        assert_eq!(of(Some("0")), (1, false, 1));
        assert_eq!(of(Some("many")), (8, false, 6));
    }

    #[test]
    fn consistency_is_ordered_for_the_owner_or_for_all_gpus() {
        let policies = |ordering: i32, flush| {
            let caps = SOFT_CAPS.ordered_writes(ordering >= 100).flush(flush);
            (
                consistency(&caps, ordering).0,
                consistency(&caps.host_flush(false), ordering).0,
            )
        };
        for flush in [false, true] {
            assert_eq!(policies(200, flush), ("ordered_for_all", "ordered_for_all"));
            assert_eq!(
                policies(100, flush),
                ("ordered_for_owner", "ordered_for_owner")
            );
        }
        assert_eq!(policies(0, true), ("flush_by_stream", "flush_by_stream"));
        assert_eq!(policies(0, false), ("flush_by_host", "read_by_nic"));
    }
}
