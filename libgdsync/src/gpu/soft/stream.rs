//! Streams, events and graphs: the operations of this crate as those of the emulator.

use std::any::Any;
use std::sync::Arc;

use gds_step::{Host, Time};

use super::system;
use crate::error::{Error, Kind, Result};
use crate::gpu::runtime::{EventHandle, GraphHandle, StreamHandle, foreign};
use crate::gpu::{Dims, Kernel};
use crate::kernels::Transfer;
use crate::memop::{Condition, DevicePtr, Op, Width};

impl EventHandle for softgpu::Event {
    fn is_done(&self) -> Result<bool> {
        Ok(self.query())
    }
}

impl EventHandle for softgpu::Stamp {
    fn is_done(&self) -> Result<bool> {
        Ok(self.at().is_some())
    }
}

impl StreamHandle for softgpu::Stream {
    fn submit(&self, ops: &[Op]) -> Result<()> {
        softgpu::Stream::submit(self, ops.iter().map(translate))
            .map_err(|e| system("submit batch", &e))
    }

    fn launch(&self, kernel: &Kernel, dims: Dims, args: &[u8]) -> Result<()> {
        let kernel: &softgpu::Kernel = kernel
            .0
            .downcast_ref()
            .ok_or_else(|| foreign("launch kernel", "kernel", self.gpu().name()))?;
        let dims = softgpu::Dims::new(dims.grid, dims.block, dims.shared).map_err(|e| {
            let what = format!("the dimensions are invalid: {e}");
            Error::new("launch kernel", Kind::Invalid, what).with_source(e)
        })?;
        softgpu::Stream::launch(self, kernel, dims, args).map_err(|e| system("launch kernel", &e))
    }

    fn copy(&self, transfer: &Transfer) -> Result<()> {
        let addr = |at: DevicePtr| softgpu::DevAddr::from_raw(at.0);
        let (to, from) = (addr(transfer.to), addr(transfer.from));
        softgpu::Stream::copy(self, to, from, transfer.len as usize)
            .map_err(|e| system("enqueue copy", &e))
    }

    fn record(&self) -> Result<Arc<dyn EventHandle>> {
        let event = softgpu::Event::new();
        softgpu::Stream::record(self, &event).map_err(|e| system("record event", &e))?;
        Ok(Arc::new(event))
    }

    fn stamp(&self) -> Result<Option<Arc<dyn EventHandle>>> {
        let stamp = softgpu::Stream::stamp(self).map_err(|e| system("stamp stream", &e))?;
        Ok(stamp.map(|stamp| Arc::new(stamp) as _))
    }

    fn wait_event(&self, event: &dyn EventHandle) -> Result<()> {
        let event = (event as &dyn Any)
            .downcast_ref()
            .ok_or_else(|| foreign("wait for event", "event", self.gpu().name()))?;
        softgpu::Stream::wait_event(self, event).map_err(|e| system("wait for event", &e))
    }

    fn begin_capture(&self) -> Result<()> {
        softgpu::Stream::begin_capture(self).map_err(|e| system("begin capture", &e))
    }

    fn end_capture(&self) -> Result<Box<dyn GraphHandle>> {
        let graph = softgpu::Stream::end_capture(self).map_err(|e| system("end capture", &e))?;
        Ok(Box::new(graph))
    }

    fn launch_graph(&self, graph: &dyn GraphHandle) -> Result<()> {
        let graph: &softgpu::Graph = (graph as &dyn Any)
            .downcast_ref()
            .ok_or_else(|| foreign("launch graph", "graph", self.gpu().name()))?;
        graph.launch(self).map_err(|e| system("launch graph", &e))
    }

    fn load(&self) -> Option<(u32, u32)> {
        let count = |n| u32::try_from(n).unwrap_or(u32::MAX);
        Some((count(self.pending()), count(self.bound())))
    }

    fn is_idle(&self) -> Result<bool> {
        Ok(self.query())
    }

    fn is_capturing(&self) -> Result<bool> {
        Ok(softgpu::Stream::is_capturing(self))
    }

    fn synchronize(&self, _: &dyn Host, deadline: Option<Time>) -> Result<bool> {
        softgpu::Stream::synchronize(self, deadline).map_err(|e| system("synchronize stream", &e))
    }

    fn set_number(&self, id: u64) {
        softgpu::Stream::set_number(self, id);
    }
}

impl GraphHandle for softgpu::Graph {
    fn submissions(&self) -> Option<u32> {
        Some(1)
    }
}

#[inline]
fn translate(op: &Op) -> softgpu::MemOp {
    let addr = |at: DevicePtr| softgpu::DevAddr::from_raw(at.0);
    let cond = |c: Condition| match c {
        Condition::Geq => softgpu::Cond::Geq,
        Condition::Eq => softgpu::Cond::Eq,
        Condition::And => softgpu::Cond::And,
        Condition::Nor => softgpu::Cond::Nor,
    };
    match *op {
        Op::Write {
            width,
            at,
            value,
            fenced,
        } => softgpu::MemOp::Write {
            addr: addr(at),
            value,
            wide: width == Width::Bits64,
            fenced,
        },
        Op::Wait {
            width,
            at,
            value,
            mask,
            condition,
            flush,
        } => softgpu::MemOp::Wait {
            addr: addr(at),
            value,
            mask,
            cond: cond(condition),
            wide: width == Width::Bits64,
            flush,
        },
        Op::Copy { at, data } => softgpu::MemOp::Copy {
            addr: addr(at),
            data: softgpu::InlineData::new(data.bytes()).expect("it holds more than ours"),
        },
        Op::Fence => softgpu::MemOp::Fence,
        Op::Flush => softgpu::MemOp::FlushRemote,
    }
}
