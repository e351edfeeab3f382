//! A NIC's way into a hub under the name that its fabric gives it.

use gds_step::Time;
use vmlx5::FrameHeader;
use vmlx5::fabric::{
    Budget, Fabric as NicFabric, Fill, LinkError, LinkState, NodeId, PeerId, SendRefused, Sink,
};

/// A port of a hub under another name.
pub struct Named<F> {
    pub node: NodeId,
    pub of: F,
}

impl<F: NicFabric> NicFabric for Named<F> {
    fn node(&self) -> NodeId {
        self.node
    }

    fn connect(&mut self, node: NodeId) -> Result<PeerId, LinkError> {
        self.of.connect(node)
    }

    fn state(&self, peer: PeerId) -> LinkState {
        self.of.state(peer)
    }

    fn send(
        &mut self,
        peer: PeerId,
        header: &FrameHeader,
        fill: Fill<'_>,
    ) -> Result<(), SendRefused> {
        self.of.send(peer, header, fill)
    }

    fn receive(&mut self, budget: Budget, sink: Sink<'_>) -> u32 {
        self.of.receive(budget, sink)
    }

    fn lost(&mut self) -> Option<PeerId> {
        self.of.lost()
    }

    fn flush(&mut self) {
        self.of.flush();
    }

    fn step(&mut self, now: Time) -> Option<Time> {
        self.of.step(now)
    }
}
