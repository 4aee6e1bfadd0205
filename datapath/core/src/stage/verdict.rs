//! What the pipeline decides about a packet.

use super::redirect::Redirect;
use crate::abi::{CopyRow, CopyState, Direction, EndpointCounters, Generation, Reason};

/// What becomes of the original packet.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// On to whatever comes next on the hook.
    Pass,
    /// A tool has it; here it ends.
    Taken,
    /// Gone, for a reason.
    Drop(Reason),
}

/// The copies that a packet's rules ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copies {
    /// Slots of the mirroring policies that match, a bit each; 0 for no copy.
    pub slots: u64,
    /// Absolute index of the rule set.
    pub ruleset: u32,
    /// The generation that the packet runs under.
    pub generation: Generation,
    /// Direction of the packet.
    pub direction: Direction,
    /// See [`super::Facts::flow_hash`].
    pub flow_hash: u32,
    /// Frame bytes before the network header.
    pub network_offset: u32,
    /// Frame bytes before the transport payload, or before the network header where that is unknown.
    pub payload_offset: u32,
    /// EtherType after all VLAN tags.
    pub ether_type: u16,
    /// IP protocol, 0 for what is not IP.
    pub protocol: u8,
}

impl Copies {
    /// No copy.
    pub const NONE: Self = Self {
        slots: 0,
        ruleset: 0,
        generation: Generation(0),
        direction: Direction::Ingress,
        flow_hash: 0,
        network_offset: 0,
        payload_offset: 0,
        ether_type: 0,
        protocol: 0,
    };

    /// The row that tells the mirror program about a copy for these slots.
    #[inline(always)]
    pub fn row(&self, slots: u64) -> CopyRow {
        CopyRow {
            slots,
            generation: self.generation.0,
            state: CopyState::Pending as u32,
            ruleset: self.ruleset,
            direction: self.direction.index(),
            flow_hash: self.flow_hash,
            network_offset: self.network_offset,
            payload_offset: self.payload_offset,
            ether_type: self.ether_type as u32,
            protocol: self.protocol as u32,
            redirect: 0,
            failure: 0,
        }
    }
}

/// What a pod's hook wants with a packet.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Slot of the endpoint plus one; 0 when the interface is nobody's.
    pub slot: u32,
    /// Which copies leave.
    pub copies: Copies,
    /// Why it may not go on, if so.
    pub refused: Option<Reason>,
    /// Whether podwire leads it from here on; see [`super::leave`].
    pub leaves: bool,
    /// Whether its headers were read.
    pub is_read: bool,
    /// Whether it was injected for a trace that ends here.
    pub ended: bool,
    /// Where the packet itself goes.
    pub redirect: Redirect,
}

impl Decision {
    /// Untouched.
    pub const PASS: Self = Self {
        slot: 0,
        copies: Copies::NONE,
        refused: None,
        leaves: false,
        is_read: false,
        ended: false,
        redirect: Redirect::NONE,
    };
}

impl EndpointCounters {
    /// Books a packet of `len` bytes: received, and exactly one of passed, redirected and dropped.
    #[inline(always)]
    pub fn record(&mut self, len: u32, verdict: Verdict, mirrored: bool) {
        let bytes = len as u64;
        add(&mut self.received_packets, &mut self.received_bytes, bytes);
        match verdict {
            Verdict::Pass => add(&mut self.passed_packets, &mut self.passed_bytes, bytes),
            Verdict::Taken => add(&mut self.redirected_packets, &mut self.redirected_bytes, bytes),
            Verdict::Drop(_) => add(&mut self.dropped_packets, &mut self.dropped_bytes, bytes),
        }
        if mirrored {
            add(&mut self.mirrored_packets, &mut self.mirrored_bytes, bytes);
        }
    }
}

#[inline(always)]
fn add(packets: &mut u64, total: &mut u64, bytes: u64) {
    *packets = packets.wrapping_add(1);
    *total = total.wrapping_add(bytes);
}
