//! Per-CPU counters. They only grow; user space sums the CPUs. Packets are counted as the hook sees them: a
//! GSO super-packet is one packet, and bytes are the frame's length including its Ethernet header.

use super::Reason;

/// What became of the packets of one endpoint in one direction:
/// `received = passed + redirected + dropped`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointCounters {
    /// Packets that entered the hook.
    pub received_packets: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Packets that went on to whatever comes next on the hook.
    pub passed_packets: u64,
    /// Their bytes.
    pub passed_bytes: u64,
    /// Packets handed to another device instead.
    pub redirected_packets: u64,
    /// Their bytes.
    pub redirected_bytes: u64,
    /// Packets dropped here.
    pub dropped_packets: u64,
    /// Their bytes.
    pub dropped_bytes: u64,
    /// Packets of which at least one copy was wanted.
    pub mirrored_packets: u64,
    /// Their bytes.
    pub mirrored_bytes: u64,
}

/// What the guard found of one endpoint, by [`Reason`] from [`GuardCounters::FIRST`] on. Per CPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuardCounters {
    /// Packets that were dropped.
    pub dropped_packets: [u64; GuardCounters::REASONS],
    /// Packets that would have been.
    pub observed_packets: [u64; GuardCounters::REASONS],
}

impl GuardCounters {
    /// The first of its reasons.
    pub const FIRST: Reason = Reason::SpoofedMac;
    /// How many there are.
    pub const REASONS: usize = 8;

    /// Its reasons.
    pub fn reasons() -> &'static [Reason] {
        &Reason::ALL[Self::FIRST.index()..Self::FIRST.index() + Self::REASONS]
    }

    /// Books a packet.
    #[inline(always)]
    pub fn record(&mut self, reason: Reason, dropped: bool) {
        let rows = if dropped { &mut self.dropped_packets } else { &mut self.observed_packets };
        let index = core::hint::black_box(reason.index().wrapping_sub(Self::FIRST.index()));
        if let Some(count) = rows.get_mut(index) {
            *count = count.wrapping_add(1);
        }
    }
}

/// What became of the copies for one session:
/// `matched + taken = sampled_out + handed + sent + queued + lost`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionCounters {
    /// Copies wanted.
    pub matched_packets: u64,
    /// Bytes of the original frames.
    pub matched_bytes: u64,
    /// Copies that the outgoing device accepted.
    pub sent_packets: u64,
    /// Bytes of the frames handed to the outgoing device, tunnel headers included.
    pub sent_bytes: u64,
    /// Copies among the sent and queued that were cut to fit.
    pub truncated_packets: u64,
    /// Copies handed to the kernel's neighbour layer while the next hop's address was not known yet. The
    /// kernel keeps a bounded number of them and sends them when the neighbour answers.
    pub queued_packets: u64,
    /// Packets left out because the session takes samples.
    pub sampled_out_packets: u64,
    /// Copies handed on inside podwire: to the device that cuts super-packets up, or to user space.
    pub handed_packets: u64,
    /// Frames that came out there.
    pub taken_packets: u64,
    /// Copies lost, by [`Reason`].
    pub lost_packets: [u64; Reason::COUNT],
}

impl Default for SessionCounters {
    fn default() -> Self {
        Self {
            matched_packets: 0,
            matched_bytes: 0,
            sent_packets: 0,
            sent_bytes: 0,
            truncated_packets: 0,
            queued_packets: 0,
            sampled_out_packets: 0,
            handed_packets: 0,
            taken_packets: 0,
            lost_packets: [0; Reason::COUNT],
        }
    }
}
