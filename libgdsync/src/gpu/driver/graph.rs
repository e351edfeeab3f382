//! Graphs of a driver.

use std::sync::Arc;

use super::calls::{Handle, MISSING};
use super::context::Context;
use crate::error::Result;
use crate::gpu::runtime::GraphHandle;
use gds_step::Mutex;

/// A graph that streams can launch.
pub(super) struct DriverGraph {
    context: Arc<Context>,
    /// Locked during every call: the driver does not synchronise calls with one graph.
    launchable: Mutex<Handle>,
    submissions: Option<u32>,
}

// SAFETY: a handle of the driver, which any thread may use, one at a time.
unsafe impl Send for DriverGraph {}
// SAFETY: as above.
unsafe impl Sync for DriverGraph {}

impl GraphHandle for DriverGraph {
    fn submissions(&self) -> Option<u32> {
        self.submissions
    }
}

/// Starts a capture of `stream`. Its mode allows every call of every thread: the library makes no
/// call that would become part of the capture, and the thread that ends the capture may be another.
pub(super) fn begin(context: &Context, stream: Handle) -> Result<()> {
    let _app = context.enter_app()?;
    // SAFETY: a live stream of the current context.
    let began = unsafe { context.driver.capture_begin(stream) };
    context.check(began, "begin capture")
}

/// Ends the capture of `stream`, and prepares the graph for launches.
pub(super) fn end(context: &Arc<Context>, stream: Handle) -> Result<DriverGraph> {
    const OPERATION: &str = "end capture";
    let driver = context.driver;
    let _app = context.enter_app()?;
    let (mut graph, mut launchable) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: a live stream of the current context.
    let ended = unsafe { driver.capture_end(stream, &mut graph) };
    context.check(ended, OPERATION)?;
    // SAFETY: the graph of the capture, which nothing uses behind these calls. What is made of it is
    // independent.
    let (submissions, made) = unsafe {
        let submissions = driver.graph_submissions(graph);
        let made = driver.graph_instantiate(&mut launchable, graph);
        driver.graph_destroy(graph);
        (submissions, made)
    };
    context.check(made, OPERATION)?;
    let graph = DriverGraph {
        context: Arc::clone(context),
        launchable: Mutex::new(launchable),
        submissions,
    };
    // SAFETY: live objects of the current context.
    let uploaded = unsafe { driver.graph_upload(launchable, stream) };
    if uploaded.code != MISSING {
        context.check(uploaded, OPERATION)?;
    }
    Ok(graph)
}

impl DriverGraph {
    pub(super) fn launch(&self, stream: Handle) -> Result<()> {
        let _app = self.context.enter_to_enqueue()?;
        let launchable = self.launchable.lock();
        // SAFETY: a live graph and a live stream. The caller has checked that they are of one
        // context; the memory of the graph is kept by the library, or by the promise of a launch.
        let launched = unsafe { self.context.driver.graph_launch(*launchable, stream) };
        self.context.check(launched, "launch graph")
    }
}

impl Drop for DriverGraph {
    fn drop(&mut self) {
        if !self.context.is_lost()
            && let Ok(_app) = self.context.enter_to_ask()
        {
            // SAFETY: the library's graph; the driver finishes the launches that run.
            unsafe {
                self.context
                    .driver
                    .launchable_destroy(*self.launchable.lock())
            };
        }
    }
}
