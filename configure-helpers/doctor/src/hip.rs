//! AMD GPUs: what HIP reports about each, the kernel driver's device file, and the variables that
//! hide GPUs.

use crate::cuda::Trouble;
use crate::library::State;
use crate::machine::{Access, Machine};
use gdsync::Kind;
use gdsync::decide::{hip_architecture, hip_caps, hip_refusal, hip_runtime_refusal};
use gdsync::gpu::Caps;
use gdsync_sys::hip::consts::*;
use gdsync_sys::hip::{Hip as Table, HipResult};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int};

/// HIP and its GPUs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Hip {
    /// libamdhip64.
    pub library: State,
    /// The version of HIP, which is that of ROCm in its first two numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The reason why gdsync does not use this release of HIP, or this process's settings of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    /// The reason why the library or its devices cannot be used, if they cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<Trouble>,
    /// The GPUs, in HIP's order.
    pub gpus: Vec<Gpu>,
    /// Whether the kernel driver amdgpu is loaded.
    pub amdgpu: bool,
    /// `/dev/kfd`, by which programs use the driver.
    pub kfd: Access,
    /// Variables that hide GPUs, and their values.
    pub hidden_by: BTreeMap<&'static str, String>,
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Gpu {
    /// Its HIP device number.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its PCI address, in lower case.
    pub pci: Option<String>,
    /// Its architecture, such as `gfx942`.
    pub architecture: Option<String>,
    /// Memory in bytes.
    pub memory: u64,
    /// Number of compute units.
    pub compute_units: i32,
    /// Whether streams can wait for a word.
    pub wait_values: bool,
    /// Whether it has fine-grained memory.
    pub fine_grained: bool,
    /// Whether PCI devices reach all its memory.
    pub large_bar: bool,
    /// The capabilities of its streams.
    #[serde(skip)]
    pub caps: Caps,
    /// The reason why gdsync cannot run on it, with the kind of the error, if it cannot.
    #[serde(skip)]
    pub refusal: Option<(Kind, &'static str)>,
}

/// Examines HIP and its GPUs.
pub(crate) fn look(machine: &Machine) -> Hip {
    let variables = [
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "GPU_DEVICE_ORDINAL",
    ];
    let mut found = Hip {
        library: State::Absent { tried: Vec::new() },
        version: None,
        refusal: None,
        trouble: None,
        gpus: Vec::new(),
        amdgpu: machine.module("amdgpu"),
        kfd: machine.access("dev/kfd"),
        hidden_by: variables
            .into_iter()
            .filter_map(|name| Some((name, machine.variable(name)?)))
            .collect(),
    };
    // SAFETY: the creator of the machine guarantees that its libraries are sound.
    let table = match unsafe { Table::load_from(&machine.libraries().hip) } {
        Ok(table) => table,
        Err(error) => {
            found.library = State::from(&error);
            return found;
        }
    };
    let lacks = table.hipMemGetHandleForAddressRange.is_none();
    let lacks = lacks.then(|| "hipMemGetHandleForAddressRange".to_owned());
    found.library = State::opened(table.path(), lacks.into_iter().collect());
    if let Err(trouble) = (Runtime { table }).look(machine, &mut found) {
        found.trouble = Some(trouble);
    }
    found
}

struct Runtime {
    table: Table,
}

impl Runtime {
    fn check(&self, call: &'static str, code: HipResult) -> Result<(), Trouble> {
        if code.is_success() {
            return Ok(());
        }
        // SAFETY: HIP's names are static C strings, or null.
        let name = unsafe {
            let name = (self.table.hipGetErrorName)(code);
            (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy().into_owned())
        };
        Err(Trouble {
            call,
            code: code.0,
            name: name.unwrap_or_else(|| "a code without a name".to_owned()),
        })
    }

    fn look(&self, machine: &Machine, found: &mut Hip) -> Result<(), Trouble> {
        let mut version = 0;
        // SAFETY: the number is written to a local.
        let code = unsafe { (self.table.hipRuntimeGetVersion)(&mut version) };
        self.check("hipRuntimeGetVersion", code)?;
        let (major, minor) = (version / 10_000_000, version / 100_000 % 100);
        found.version = Some(format!("{major}.{minor}"));
        let signals = machine.variable("GPU_STREAMOPS_CP_WAIT");
        found.refusal = hip_runtime_refusal(version, signals.as_deref());
        if found.refusal.is_some() {
            return Ok(());
        }
        let mut count = 0;
        // SAFETY: the number is written to a local.
        let code = unsafe { (self.table.hipGetDeviceCount)(&mut count) };
        self.check("hipGetDeviceCount", code)?;
        for index in 0..count {
            found.gpus.push(self.gpu(index)?);
        }
        Ok(())
    }

    fn gpu(&self, index: c_int) -> Result<Gpu, Trouble> {
        let mut name = [0; 256];
        // SAFETY: the name is written to a local of this length.
        let code = unsafe { (self.table.hipDeviceGetName)(name.as_mut_ptr(), 256, index) };
        self.check("hipDeviceGetName", code)?;
        let mut memory = 0;
        // SAFETY: the number is written to a local.
        let code = unsafe { (self.table.hipDeviceTotalMem)(&mut memory, index) };
        self.check("hipDeviceTotalMem", code)?;
        let mut pci = [0; 32];
        // SAFETY: the address is written to a local of this length.
        let code = unsafe { (self.table.hipDeviceGetPCIBusId)(pci.as_mut_ptr(), 32, index) };
        let is = |attribute| self.attribute(attribute, index) == Some(1);
        let units = self.attribute(hipDeviceAttributeMultiprocessorCount, index);
        Ok(Gpu {
            index: index.unsigned_abs(),
            name: text(&name).unwrap_or_default(),
            pci: text(&pci)
                .filter(|_| code.is_success())
                .map(|pci| pci.to_lowercase()),
            // Without its features.
            architecture: hip_architecture(&self.table, index)
                .and_then(|name| name.split(':').next().map(str::to_owned)),
            memory: memory as u64,
            compute_units: units.unwrap_or(0),
            wait_values: is(hipDeviceAttributeCanUseStreamWaitValue),
            fine_grained: is(hipDeviceAttributeFineGrainSupport),
            large_bar: is(hipDeviceAttributeIsLargeBar),
            caps: hip_caps(&self.table, index),
            refusal: hip_refusal(&self.table, index),
        })
    }

    /// The value of an attribute, if the library knows it.
    fn attribute(&self, attribute: u32, index: c_int) -> Option<c_int> {
        let mut value = 0;
        // SAFETY: the number is written to a local; none of the attributes is an address.
        let code = unsafe { (self.table.hipDeviceGetAttribute)(&mut value, attribute, index) };
        code.is_success().then_some(value)
    }
}

/// The text before the first NUL.
fn text(bytes: &[c_char]) -> Option<String> {
    let bytes: Vec<u8> = bytes.iter().map(|c| c.cast_unsigned()).collect();
    let text = CStr::from_bytes_until_nul(&bytes).ok()?;
    Some(text.to_string_lossy().into_owned())
}
