//! Options that several benchmarks share: GPU and NIC, layer, processes or threads, the time limit
//! and the file for the figures.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use gdsync::Gpu;
use gdsync::gpu::MemoryKind;
use gdsync::rdma::{self, Device, DeviceOptions, QpConfig};
use serde::{Deserialize, Serialize};

use crate::gpu;

/// The memory of payloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Memory {
    /// Device memory of the GPU, also `D`.
    #[value(alias = "D")]
    Device,
    /// Pinned host memory, also `H`.
    #[value(alias = "H")]
    Pinned,
}

/// How a stream executes doorbell writes and waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lowering {
    /// Stream memory operations.
    Memops,
    /// Small kernels.
    Kernel,
    /// The value of GDS_LOWER, or the library's choice.
    Auto,
}

/// The libraries that carry the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layers {
    /// gdsync: prepared requests of verbs, posted on streams.
    Gdsync,
    /// mp: messages, with matched sends and receives.
    Mp,
    /// Both in turn, for a comparison.
    Both,
}

/// One library of [`Layers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// See [`Layers::Gdsync`].
    Gdsync,
    /// See [`Layers::Mp`].
    Mp,
}

impl Layers {
    /// The libraries, one by one.
    pub fn each(self) -> &'static [Layer] {
        match self {
            Layers::Gdsync => &[Layer::Gdsync],
            Layers::Mp => &[Layer::Mp],
            Layers::Both => &[Layer::Gdsync, Layer::Mp],
        }
    }
}

impl Layer {
    /// The name of the library.
    pub fn name(self) -> &'static str {
        match self {
            Layer::Gdsync => "gdsync",
            Layer::Mp => "mp",
        }
    }
}

/// The poster of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Poster {
    /// The CPU.
    Cpu,
    /// A stream.
    Stream,
}

impl Poster {
    /// Its name in a sentence.
    pub fn name(self) -> &'static str {
        match self {
            Poster::Cpu => "the CPU",
            Poster::Stream => "a stream",
        }
    }
}

/// The side that writes the doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Doorbell {
    /// The stream.
    #[value(alias = "ring")]
    #[serde(alias = "ring")]
    Direct,
    /// A CPU thread, for the stream.
    #[value(alias = "proxy")]
    #[serde(alias = "proxy")]
    CpuThread,
    /// The value of GDS_DOORBELL, or the stream.
    #[default]
    Auto,
}

/// The provider: the library that drives the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Provider {
    /// libmlx5: a ConnectX.
    #[value(alias = "rdma_core")]
    #[serde(alias = "rdma_core")]
    Mlx5,
    /// libibverbs: any NIC, by a CPU thread.
    #[value(alias = "proxy")]
    #[serde(alias = "proxy")]
    Verbs,
    /// The virtual ConnectX in this process.
    Emulated,
    /// The value of GDS_PROVIDER, or the first of these that works.
    #[default]
    Auto,
}

impl Provider {
    /// Opens a NIC.
    pub fn open(self, gpu: &Gpu) -> gdsync::Result<Device> {
        let options = DeviceOptions::default().provider(match self {
            Provider::Mlx5 => rdma::Provider::Mlx5,
            Provider::Verbs => rdma::Provider::Verbs,
            Provider::Emulated => rdma::Provider::Emulated,
            Provider::Auto => rdma::Provider::Auto,
        });
        Device::open_with(gpu, &options)
    }
}

/// How ranks run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ranks {
    /// Each rank is a process that mpbench starts.
    Processes,
    /// Both ranks are threads of this process.
    Threads,
    /// Each rank is a process that a launcher starts, possibly on separate hosts.
    Launched,
}

/// The options that say how ranks are started.
#[derive(Clone, Copy, Debug, Default, Args, Serialize, Deserialize)]
pub struct Launch {
    /// Runs the ranks as threads of this process.
    #[arg(long)]
    threads: bool,
    /// Runs as one rank of a job, on one host or several: a launcher such as mprun starts all ranks,
    /// or MP_RANK, MP_SIZE and MP_STORE describe the job. Rank 0 prints the figures.
    #[arg(long, conflicts_with = "threads")]
    launched: bool,
}

impl Launch {
    /// How the ranks are started.
    pub fn ranks(self) -> Ranks {
        match (self.threads, self.launched) {
            (true, _) => Ranks::Threads,
            (_, true) => Ranks::Launched,
            _ => Ranks::Processes,
        }
    }
}

/// Options about GPU and NIC.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct Setup {
    /// The GPU: soft, cuda, cuda:N, hip, hip:N, or auto, which is the first CUDA GPU if there is one, else
    /// soft. In a list separated by commas, each rank takes the next GPU.
    #[arg(long = "gpu", value_name = "GPU,..", env = "GDS_GPU", value_delimiter = ',',
          value_parser = gpu::name, default_value = "auto")]
    pub gpus: Vec<String>,
    /// Memory of the payloads [default: device on a software GPU, else pinned, because a virtual
    /// NIC reaches device memory of CUDA by the copy engine only].
    #[arg(short = 'd', long, value_enum)]
    pub memory: Option<Memory>,
    /// How a stream executes doorbell writes and waits.
    #[arg(long, value_enum, default_value = "auto")]
    pub lowering: Lowering,
    /// The side that writes the doorbell.
    #[arg(long, alias = "endpoint", value_enum, default_value = "auto")]
    #[serde(default, alias = "endpoint")]
    pub doorbell: Doorbell,
    /// The library that drives the NIC.
    #[arg(long, value_enum, default_value = "auto")]
    pub provider: Provider,
}

impl Setup {
    /// The memory of payloads on `gpu`.
    pub fn memory(&self, gpu: &Gpu) -> MemoryKind {
        match self.memory {
            Some(Memory::Pinned) => MemoryKind::Pinned,
            None if !gpu.is_software() => MemoryKind::Pinned,
            Some(Memory::Device) | None => MemoryKind::Device,
        }
    }

    /// A configuration of QPs by these options, with `entries` entries in each queue.
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
    /// Time limit of the benchmark in seconds; the benchmark fails after it.
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = seconds)]
    pub timeout: Duration,
    /// Writes all figures, and a description of machine and program, to this file.
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
    fn sizes_are_parsed() {
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
    fn limits_are_parsed() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["0", "-1", "nan", "inf", "1e9", "x"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
