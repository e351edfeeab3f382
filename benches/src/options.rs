//! Options that several benchmarks have: GPU and NIC, layer, where ranks live, the time limit and the
//! file for the figures.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use gdsync::Gpu;
use gdsync::gpu::MemoryKind;
use gdsync::rdma::{self, Device, DeviceOptions, QpConfig};
use serde::{Deserialize, Serialize};

use crate::gpu;

/// Where payloads lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Memory {
    /// In the GPU.
    Device,
    /// In the host, pinned.
    Pinned,
}

/// How doorbells and waits become work of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lowering {
    /// Stream memory operations.
    Memops,
    /// Small kernels.
    Kernel,
    /// As GDS_LOWER says, or what the library prefers.
    Auto,
}

/// Which library carries the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layers {
    /// Verbs: prepared requests, posted on streams.
    Gdsync,
    /// Messages: sends and receives that match.
    Mp,
    /// Both in turn, to compare.
    Both,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// See [`Layers::Gdsync`].
    Gdsync,
    /// See [`Layers::Mp`].
    Mp,
}

impl Layers {
    /// Each that is asked for.
    pub fn each(self) -> &'static [Layer] {
        match self {
            Layers::Gdsync => &[Layer::Gdsync],
            Layers::Mp => &[Layer::Mp],
            Layers::Both => &[Layer::Gdsync, Layer::Mp],
        }
    }
}

impl Layer {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Layer::Gdsync => "gdsync",
            Layer::Mp => "mp",
        }
    }
}

/// Who rings the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Doorbell {
    /// The stream itself.
    #[value(alias = "ring")]
    #[serde(alias = "ring")]
    Direct,
    /// A CPU thread on its behalf.
    #[value(alias = "proxy")]
    #[serde(alias = "proxy")]
    CpuThread,
    /// As GDS_DOORBELL says, or the stream.
    #[default]
    Auto,
}

/// Who drives the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Provider {
    /// Libmlx5: a ConnectX.
    #[value(alias = "rdma_core")]
    #[serde(alias = "rdma_core")]
    Mlx5,
    /// Libibverbs: any NIC, by a CPU thread.
    #[value(alias = "proxy")]
    #[serde(alias = "proxy")]
    Verbs,
    /// The virtual ConnectX in the process.
    Emulated,
    /// As GDS_PROVIDER says, or the first of these that works.
    #[default]
    Auto,
}

/// Where ranks live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ranks {
    /// Each in a process of its own.
    Processes,
    /// Both in this one.
    Threads,
    /// In processes that somebody else starts, on hosts of their own perhaps.
    Launched,
}

impl Ranks {
    /// As the options of a command say.
    pub fn of(threads: bool, launched: bool) -> Ranks {
        match (threads, launched) {
            (true, _) => Ranks::Threads,
            (_, true) => Ranks::Launched,
            _ => Ranks::Processes,
        }
    }
}

/// Options about GPU and NIC.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct Setup {
    /// The GPU: soft, cuda, cuda:N, or auto, which is the first of CUDA's if there is one; of
    /// several, separated by commas, each rank takes the next.
    #[arg(long = "gpu", value_name = "GPU,..", env = "GDS_GPU", value_delimiter = ',',
          value_parser = gpu::name, default_value = "auto")]
    pub gpus: Vec<String>,
    /// Where payloads lie [default: in the GPU if it is a soft one, else pinned: a virtual NIC
    /// reaches device memory of CUDA by the copy engine only].
    #[arg(long, value_enum)]
    pub memory: Option<Memory>,
    /// How doorbells and waits become work of a stream.
    #[arg(long, value_enum, default_value = "auto")]
    pub lowering: Lowering,
    /// Who rings the NIC.
    #[arg(long, alias = "endpoint", value_enum, default_value = "auto")]
    #[serde(default, alias = "endpoint")]
    pub doorbell: Doorbell,
    /// Who drives the NIC.
    #[arg(long, value_enum, default_value = "auto")]
    pub provider: Provider,
}

impl Setup {
    /// Where payloads on `gpu` lie.
    pub fn memory(&self, gpu: &Gpu) -> MemoryKind {
        match self.memory {
            Some(Memory::Pinned) => MemoryKind::Pinned,
            None if !gpu.is_software() => MemoryKind::Pinned,
            Some(Memory::Device) | None => MemoryKind::Device,
        }
    }

    /// The NIC.
    pub fn device(&self, gpu: &Gpu) -> gdsync::Result<Device> {
        let options = DeviceOptions::default().provider(match self.provider {
            Provider::Mlx5 => rdma::Provider::Mlx5,
            Provider::Verbs => rdma::Provider::Verbs,
            Provider::Emulated => rdma::Provider::Emulated,
            Provider::Auto => rdma::Provider::Auto,
        });
        Device::open_with(gpu, &options)
    }

    /// Queue pairs as asked for, with `entries` entries in each queue.
    pub fn queues(&self, entries: u32) -> QpConfig {
        QpConfig::default()
            .send_blocks(entries)
            .recv_entries(entries)
            .lowering(match self.lowering {
                Lowering::Memops => rdma::Lowering::MemOps,
                Lowering::Kernel => rdma::Lowering::Kernel,
                Lowering::Auto => rdma::Lowering::Auto,
            })
            .doorbell(match self.doorbell {
                Doorbell::Direct => rdma::Doorbell::Direct,
                Doorbell::CpuThread => rdma::Doorbell::CpuThread,
                Doorbell::Auto => rdma::Doorbell::Auto,
            })
    }
}

/// Options about the run and its results.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct Run {
    /// Seconds after which the benchmark is given up.
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = seconds)]
    pub timeout: Duration,
    /// Write all figures, machine and program to this file.
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub json: Option<PathBuf>,
}

/// A time limit in seconds.
pub fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(s) if s > 0.0 && s <= 86_400.0 => Ok(Duration::from_secs_f64(s)),
        _ => Err("a number of seconds, at most a day, is needed".to_owned()),
    }
}

/// Largest payload.
const LARGEST: u64 = 256 << 20;

/// A number of bytes: `8`, `64Ki`, `1Mi`.
pub fn size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let (digits, shift) = match text.strip_suffix("Mi") {
        Some(digits) => (digits, 20),
        None => text
            .strip_suffix("Ki")
            .map_or((text, 0), |digits| (digits, 10)),
    };
    match digits.trim().parse::<u64>() {
        Ok(n) if n > 0 && n <= LARGEST >> shift => Ok(n << shift),
        _ => Err(format!(
            "sizes are 8, 64Ki, 1Mi and the like, from 1 to {LARGEST} bytes"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!(
            ["8", "64Ki", " 1Mi", "256Mi"].map(size),
            [Ok(8), Ok(65536), Ok(1 << 20), Ok(256 << 20)]
        );
        for bad in [
            "",
            "0",
            "-1",
            "1Gi",
            "x",
            "257Mi",
            "99999999999999999999",
            "18014398509481984Ki",
        ] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn limits_are_read() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["0", "-1", "nan", "inf", "1e9", "x"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
