//! Rows of the maps. Fixed layout, native byte order; both sides are of one build.

/// What the program's user is.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A collector: tunnel packets that it asked for are its own, the rest is the stack's.
    Collector = 0,
    /// An inline inspector: every packet is its own.
    Inspector = 1,
}

/// What becomes of a packet that no worker can take.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// It goes on to the stack.
    Pass = 0,
    /// It goes out of the device in `XSK_BYPASS`, as if the worker had passed it.
    Bypass = 1,
    /// It is dropped.
    Drop = 2,
}

/// What the program shall do.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigRow {
    /// A worker that was not heard of for so many nanoseconds counts as dead.
    pub patience: u64,
    /// [`Role`] as a number.
    pub role: u32,
    /// [`Action`] as a number.
    pub action: u32,
    /// Bytes of a packet that one buffer holds.
    pub room: u32,
    /// `FORMAT_…` of this type.
    pub formats: u32,
    /// A bit for each [`IdKind`] of which only the identifiers in `XSK_IDS` are asked for.
    pub by_id: u32,
    /// Largest number of buffers that one packet may need; a longer one is treated as if the worker were behind. 1: no
    /// packet is longer than a buffer, its length is not asked for, and [`QueueRow::used`] counts packets.
    pub buffers: u32,
    /// [`Action`] as a number, for packets that meet a living worker without buffers.
    pub behind: u32,
    /// Not 0: only one CPU at a time runs the program for a queue, as in a driver's poll, and the machine keeps reads in
    /// order: [`QueueRow::used`] needs no atomic addition, which is a good part of what a packet costs here.
    pub alone: u32,
    /// UDP destination ports of VXLAN, 0 for none.
    pub vxlan_ports: [u16; ConfigRow::PORTS],
    /// UDP destination ports of GENEVE, 0 for none.
    pub geneve_ports: [u16; ConfigRow::PORTS],
}

impl QueueRow {
    /// Packets handed over.
    pub const fn handed(&self) -> u64 {
        let single =
            if self.single_since == u64::MAX { 0 } else { self.used.wrapping_sub(self.single_since) };
        self.handed_packets.wrapping_add(single)
    }
}

impl ConfigRow {
    /// UDP ports of a format.
    pub const PORTS: usize = 4;
    /// GRE with an Ethernet payload.
    pub const FORMAT_GRE: u32 = 1 << 0;
    /// ERSPAN, every type.
    pub const FORMAT_ERSPAN: u32 = 1 << 1;
}

/// One receive queue. The first cache line is written by the worker and read by the program for each packet, so it
/// has nothing else that the worker writes often; the second is written by the program, the third by the worker.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueRow {
    /// When the worker last went round, by the monotonic clock in nanoseconds.
    pub beat: u64,
    /// Buffers that the worker ever gave to the kernel.
    pub credit: u64,
    /// Keeps the lines apart.
    pub pad: [u64; 6],
    /// Buffers' worth of packets that the program ever handed over.
    pub used: u64,
    /// Packets handed over, but for those that [`Self::single_since`] is about.
    pub handed_packets: u64,
    /// Packets that met a dead worker.
    pub dead_packets: u64,
    /// Packets that met a worker without buffers.
    pub behind_packets: u64,
    /// Packets that met a queue without a socket.
    pub unbound_packets: u64,
    /// Packets longer than the worker's buffers.
    pub long_packets: u64,
    /// Later fragments whose first was not seen: they went on to the stack.
    pub orphan_packets: u64,
    /// Of dead, behind, unbound and long: those that were dropped.
    pub dropped_packets: u64,
    /// Packets that the worker is done with.
    pub taken_packets: u64,
    /// Packets that earlier workers had in hand when they ended.
    pub lost_packets: u64,
    /// Buffers' worth of packets that were handed over and never came, beyond what the kernel counts.
    pub vanished_buffers: u64,
    /// The kernel's own counts of this worker's socket (`XDP_STATISTICS`): packets that it dropped,
    pub kernel_dropped: u64,
    /// packets that found the queue full,
    pub kernel_full: u64,
    /// times that it found no buffer,
    pub kernel_empty: u64,
    /// descriptors that it refused.
    pub kernel_invalid: u64,
    /// `used` when packets of one buffer each began, which only `used` counts; all ones where packets may take several.
    pub single_since: u64,
}

/// Which identifier an [`IdKey`] is.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IdKind {
    /// VXLAN's or GENEVE's network identifier.
    Vni = 0,
    /// GRE's key.
    Key = 1,
    /// ERSPAN's session.
    Session = 2,
}

impl IdKind {
    /// Its bit in [`ConfigRow::by_id`].
    pub const fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// An identifier that a collector asks for.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IdKey {
    /// [`IdKind`] as a number.
    pub kind: u32,
    /// The identifier.
    pub id: u32,
}

/// A fragmented IP packet (RFC 791 section 3.2, RFC 8200 section 4.5).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FragmentKey {
    /// Network order; IPv4 in the first four bytes.
    pub source: [u8; 16],
    /// Network order; IPv4 in the first four bytes.
    pub destination: [u8; 16],
    /// The identification.
    pub id: u32,
    /// The transport protocol.
    pub protocol: u32,
}

const _: () = {
    assert!(size_of::<ConfigRow>() == 56);
    assert!(size_of::<QueueRow>() == 192);
    assert!(core::mem::offset_of!(QueueRow, used) == 64);
    assert!(core::mem::offset_of!(QueueRow, taken_packets) == 128);
    assert!(size_of::<FragmentKey>() == 40);
};
