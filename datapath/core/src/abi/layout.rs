//! The layout of every row, as data: for the golden text in the tests, and for [`HASH`], which is compared
//! before pinned maps are adopted.

use super::{
    ABI_VERSION, AddressRow, CaptureRow, ConfigRow, CopyRow, DeliveryRow, EgressCounters, EgressRow,
    EndpointCounters, EndpointRow, FlowKey, FlowRow, GuardCounters, KernelRow, LiveRow, MatchBlock, MatchRow,
    ModeRow, NetworkRow, ObservationCounters, ObservationRow, PolicyCounters, PolicyRow, PrefixRow, Reason,
    RelayRow, RulesetRow, SessionCounters, SessionRow, TargetRow, TraceKey, TraceRow, TripKey, TripRow,
    TunnelKey, WatchRow, limits,
};
use crate::wire::encap::{OUTER_MAX, OuterTemplate};

/// A row type.
#[derive(Clone, Copy, Debug)]
pub struct TypeLayout {
    /// Name in Rust.
    pub name: &'static str,
    /// Bytes.
    pub size: usize,
    /// Alignment in bytes.
    pub align: usize,
    /// Fields in order.
    pub fields: &'static [FieldLayout],
}

/// A field of a row type.
#[derive(Clone, Copy, Debug)]
pub struct FieldLayout {
    /// Name in Rust.
    pub name: &'static str,
    /// Bytes from the start of the row.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
}

macro_rules! layouts {
    ($($row:ident { $($field:ident: $kind:ty,)* })*) => {
        /// Every row type, in the order of the module's table.
        pub const TYPES: &[TypeLayout] = &[$(TypeLayout {
            name: stringify!($row),
            size: size_of::<$row>(),
            align: align_of::<$row>(),
            fields: &[$(FieldLayout {
                name: stringify!($field),
                offset: core::mem::offset_of!($row, $field),
                size: size_of::<$kind>(),
            },)*],
        },)*];

        // Fields follow each other without a hole, have the types said here, and end with the row.
        $(const _: () = {
            let mut end = 0;
            $(
                let _: fn(&$row) -> &$kind = |row| &row.$field;
                assert!(core::mem::offset_of!($row, $field) == end);
                end += size_of::<$kind>();
            )*
            assert!(end == size_of::<$row>());
        };)*
    };
}

layouts! {
    ConfigRow {
        generation: u64, abi_version: u32, mirror_ifindex: u32, segment_ifindex: u32, copy_mark: u32,
        layout_hash: u32, pad: u32,
    }
    EndpointRow {
        rulesets: [u32; 2], flags: u32, macs: u32, sources_v4: u32, sources_v6: u32, egress: u32, gateway: [u8; 6],
        pad: [u8; 2],
    }
    GuardCounters {
        dropped_packets: [u64; GuardCounters::REASONS], observed_packets: [u64; GuardCounters::REASONS],
    }
    ModeRow {
        base: u32, remote: u32, local: u32, source: u32, destination: u32, portless: u32, tcp_flags: u32,
    }
    RulesetRow {
        modes: [ModeRow; 3], chunks: u32, spans: u32, pad: u32, redirects: u64, stateful: u64, limited: u64, snaps: u64,
        readers: u64,
        shares: [u64; limits::RULESET_POLICIES], policies: [u16; limits::RULESET_POLICIES],
        sessions: [u16; limits::RULESET_POLICIES],
    }
    PrefixRow { high: u64, low: u64, mask_high: u64, mask_low: u64, hit: u32, miss: u32, }
    OuterTemplate {
        bytes: [u8; OUTER_MAX], len: u32, kind: u32, family: u32, flags: u32, ip_sum: u32,
        transport_offset: u16, tunnel_offset: u16,
    }
    SessionRow {
        kind: u32, ifindex: u32, mtu: u32, flags: u32, truncate: u32, sampling: u32, interval: u64, burst: u64,
        template: OuterTemplate,
    }
    NetworkRow {
        flags: u32, overlay_ifindex: u32, overlay_mtu: u32, overlay_vni: u32, egress_mark: u32, routes_v4: u32,
        routes_v6: u32, pad: u32,
    }
    TargetRow {
        kind: u32, ifindex: u32, mtu: u32, flags: u32, mac: [u8; 6], gateway: [u8; 6], remote: [u8; 16], family: u32,
    }
    EgressRow {
        name_hash: u64, pace: u64, burst: u64, place: u32, id: u32, target: u32, counts: [u32; 2], pad: u32,
        numbers: [[u16; EgressRow::ADDRESSES]; 2],
    }
    EgressCounters {
        marked_packets: u64, marked_bytes: u64, forwarded_packets: u64, forwarded_bytes: u64,
        dropped_packets: [u64; EgressCounters::REASONS.len()],
    }
    AddressRow { bytes: [u8; 16], family: u32, }
    DeliveryRow { ifindex: u32, flags: u32, }
    PolicyRow { name_hash: u64, returns: u32, flags: u32, }
    LiveRow { probe_at: u64, state: u32, pad: u32, }
    TripKey {
        source: [u64; 2], destination: [u64; 2], ports: u32, protocol: u32, returns: u32, pad: u32,
    }
    TripRow { ifindex: u32, direction: u32, mark: u32, priority: u32, policy: u32, session: u32, }
    FlowKey { local: [u64; 2], remote: [u64; 2], ports: u32, protocol: u32, ifindex: u32, pad: u32, }
    FlowRow { seen: u64, opener: u32, tcp_flags: u32, }
    TunnelKey { remote: [u8; 16], family: u32, kind: u32, id: u32, port: u32, }
    RelayRow {
        timestamp_ns: u64, session: u32, sequence: u32, direction: u32, flow_hash: u32, captured: u32,
        original: u32, vlan: u32, bank: u32, offset: u32, whole: u32,
    }
    CopyRow {
        slots: u64, generation: u64, state: u32, ruleset: u32, direction: u32, flow_hash: u32,
        network_offset: u32, payload_offset: u32, ether_type: u32, protocol: u32, redirect: u32,
        failure: u32,
    }
    EndpointCounters {
        received_packets: u64, received_bytes: u64, passed_packets: u64, passed_bytes: u64,
        redirected_packets: u64, redirected_bytes: u64, dropped_packets: u64, dropped_bytes: u64,
        mirrored_packets: u64, mirrored_bytes: u64,
    }
    SessionCounters {
        matched_packets: u64, matched_bytes: u64, sent_packets: u64, sent_bytes: u64,
        truncated_packets: u64, queued_packets: u64, sampled_out_packets: u64, handed_packets: u64,
        taken_packets: u64, lost_packets: [u64; Reason::COUNT],
    }
    WatchRow { flags: u32, drops: u32, }
    TraceKey {
        source: [u64; 2], destination: [u64; 2], ports: u32, protocol: u32, tag: u32, family: u32,
    }
    TraceRow {
        until: u64, number: u32, flags: u32, original: u32, tag: u32, left: u32, pad: u32,
    }
    MatchRow {
        seen: u64, taken: u64, until: u64, source: [u64; 2], source_mask: [u64; 2], destination: [u64; 2],
        destination_mask: [u64; 2], ports: u32, ports_mask: u32, family: u32, protocol: u32, tcp_flags: u32,
        tcp_flags_mask: u32, number: u32, flags: u32, tag: u32, spare: u32, count: u32, sampling: u32, capture: u32,
        ttl: u32, length: u32, ip_flags: u32, ip_flags_mask: u32, echo: u32, echo_mask: u32, flows: u32,
    }
    MatchBlock { base: u32, len: u32, }
    KernelRow {
        usable: u32, head: u32, network_header: u32, mark: u32, len: u32, dev: u32, ifindex: u32, nd_net: u32, inum: u32,
        netns: u32, own: [u32; 2],
    }
    CaptureRow {
        time_ns: u64, trace: u32, identity: u32, len: u32, captured: u32, flags: u32, vlan: u32,
    }
    ObservationRow {
        time_ns: u64, sequence: u64, lost: u64, policy: u64, source: [u64; 2], destination: [u64; 2],
        address: [u32; 4], address_family: u32, family: u32, ports: u32, protocol: u32, trace: u32, cpu: u32,
        component: u32, action: u32, reason: u32, ifindex: u32, len: u32, mac: [u8; 6], ttl: u8, tag: u8,
        identity: u32, flags: u32, pad: u32,
    }
    ObservationCounters { generated: u64, suppressed: u64, lost: u64, window: u64, in_window: u64, }
    PolicyCounters {
        matched_packets: u64, matched_bytes: u64, redirected_packets: u64, redirected_bytes: u64,
        returned_packets: u64, returned_bytes: u64, bypassed_packets: u64, refused_packets: u64,
        passed_tool_packets: u64, probes: u64, probes_returned: u64,
    }
}

/// Every ABI version and the hash of its layout. A change of the layout fails to compile until a line with a
/// new version is added here and [`ABI_VERSION`] follows.
const VERSIONS: &[(u32, u32)] = &[(1, 2_752_894_446), (2, 838196539)];

/// Hash (FNV-1a, 32 bits) of names, offsets and sizes of all rows, of the reasons and of the tables' limits.
pub const HASH: u32 = hash();

const LAST: (u32, u32) = VERSIONS[VERSIONS.len() - 1];
const _: () = assert!(LAST.0 == ABI_VERSION, "ABI_VERSION is not the last line of VERSIONS");
// The layout changed when this does not compile: raise ABI_VERSION and add its line, with the hash that the
// compiler names, to VERSIONS.
const _: [(); HASH as usize] = [(); LAST.1 as usize];

const fn hash() -> u32 {
    let mut hash = 0x811c_9dc5;
    let mut i = 0;
    while i < TYPES.len() {
        let row = &TYPES[i];
        hash = mix_number(mix_text(hash, row.name), row.size as u32);
        let mut k = 0;
        while k < row.fields.len() {
            let field = &row.fields[k];
            hash = mix_number(mix_text(hash, field.name), field.offset as u32);
            hash = mix_number(hash, field.size as u32);
            k += 1;
        }
        i += 1;
    }
    let mut i = 0;
    while i < Reason::ALL.len() {
        hash = mix_number(mix_text(hash, Reason::ALL[i].as_str()), Reason::ALL[i] as u32);
        i += 1;
    }
    let sizes = [
        limits::ENDPOINTS,
        limits::DIRECT_INTERFACES,
        limits::RULESETS,
        limits::NODES,
        limits::PREFIXES,
        limits::CHUNKS,
        limits::SPANS,
        limits::SESSIONS,
        limits::RULESET_CHUNKS,
        limits::POLICIES,
        limits::FLOWS,
        limits::TRIPS,
        limits::RETURN_TUNNELS,
        limits::TARGETS,
        limits::EGRESSES,
        limits::EGRESS_ADDRESSES,
        limits::RELAY_RING,
        limits::TRACES,
        limits::OBSERVATION_RING,
        limits::MATCHES,
        limits::CAPTURE_RING,
        limits::FRAMES_RING,
    ];
    let mut i = 0;
    while i < sizes.len() {
        hash = mix_number(hash, sizes[i]);
        i += 1;
    }
    hash
}

const fn mix_text(mut hash: u32, text: &str) -> u32 {
    let bytes = text.as_bytes();
    let mut i = 0;
    while i < bytes.len() {
        hash = mix(hash, bytes[i]);
        i += 1;
    }
    mix(hash, 0)
}

const fn mix_number(mut hash: u32, number: u32) -> u32 {
    let bytes = number.to_le_bytes();
    let mut i = 0;
    while i < bytes.len() {
        hash = mix(hash, bytes[i]);
        i += 1;
    }
    hash
}

const fn mix(hash: u32, byte: u8) -> u32 {
    (hash ^ byte as u32).wrapping_mul(0x0100_0193)
}
