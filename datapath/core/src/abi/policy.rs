//! A policy as the datapath sees it.

/// One policy in one bank.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyRow {
    /// Hash of the policy's name: an agent that starts again finds its numbers by it. 0 for a free number.
    pub name_hash: u64,
    /// Where redirected packets come back: see [`super::TripKey::returns`].
    pub returns: u32,
    /// `FLAG_…` of this type.
    pub flags: u32,
}

impl PolicyRow {
    /// A packet whose tool does not take it is dropped; otherwise it goes on.
    pub const FLAG_CLOSED: u32 = 1 << 0;
}

/// What a policy did. Copies that were sent or lost are counted by session: policies may share one.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyCounters {
    /// Packets that the policy's rules matched.
    pub matched_packets: u64,
    /// Their bytes.
    pub matched_bytes: u64,
    /// Packets that the tool's port took.
    pub redirected_packets: u64,
    /// Their bytes.
    pub redirected_bytes: u64,
    /// Packets that came back from the tool.
    pub returned_packets: u64,
    /// Their bytes.
    pub returned_bytes: u64,
    /// Packets that went on without the tool, because it did not take them.
    pub bypassed_packets: u64,
    /// Packets that were dropped, because the tool did not take them.
    pub refused_packets: u64,
    /// Packets that had been through the tool on this node already.
    pub passed_tool_packets: u64,
    /// Copies tried on a tool that counts as dead.
    pub probes: u64,
    /// Answers to them.
    pub probes_returned: u64,
}
