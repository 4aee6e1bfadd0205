//! Every map. Sizes are the limits of `podwire_core::abi`; what is banked holds two banks.

use aya_ebpf::{
    btf_maps::{Array, HashMap, LruHashMap, PerCpuArray, ProgramArray, RingBuf},
    macros::btf_map,
};
use podwire_core::{
    abi::{
        AddressRow, ChunkRow, ConfigRow, CopyRow, DeliveryRow, EgressCounters, EgressRow, EndpointCounters,
        EndpointRow, FlowKey, FlowRow, GuardCounters, KernelRow, LiveRow, MatchBlock, MatchRow, NetworkRow,
        NodeRow, ObservationCounters, ObservationRow, OverlayCounters, PolicyCounters, PolicyRow, PrefixRow,
        Reason, RelayRow, RulesetRow, SessionCounters, SessionRow, SpanRow, TargetRow, TraceKey, TraceRow,
        TripKey, TripRow, TunnelKey, WatchRow, limits,
    },
    stage::Facts,
    wire::encap::PerPacket,
};

use crate::handover::Job;

const BANKS: usize = 2;

/// Room for the headers that the mirror program writes; see `mirror.rs`.
pub const HEADERS_LEN: usize = 264;

/// A record for the user-space encapsulator or for the reader, as long as the longest.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Record {
    pub head: RelayRow,
    pub frame: [u8; limits::RELAY_FRAME],
}

/// An observation in the making: the stack has no room for it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Draft {
    pub key: TraceKey,
    /// Another key, of the same packet or of its answer.
    pub other: TraceKey,
    pub trace: TraceRow,
    pub row: ObservationRow,
}

/// An observation of a packet that the kernel's own stack drops: other programs may be at work on theirs meanwhile.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KernelDraft {
    pub draft: Draft,
    pub facts: Facts,
    /// An Ethernet header of zeros, and the packet from its network header on.
    pub bytes: [u8; limits::HEADER_WINDOW],
}

#[btf_map(name = "CONFIG")]
pub static CONFIG: Array<ConfigRow, 1> = Array::new();

#[btf_map(name = "INTERFACES")]
pub static INTERFACES: Array<u32, { limits::DIRECT_INTERFACES as usize }> = Array::new();

#[btf_map(name = "FAR_INTERFACES")]
pub static FAR_INTERFACES: HashMap<u32, u32, { limits::FAR_INTERFACES as usize }> = HashMap::new();

#[btf_map(name = "ENDPOINTS")]
pub static ENDPOINTS: Array<EndpointRow, { BANKS * limits::ENDPOINTS as usize }> = Array::new();

#[btf_map(name = "RULESETS")]
pub static RULESETS: Array<RulesetRow, { BANKS * limits::RULESETS as usize }> = Array::new();

#[btf_map(name = "NODES")]
pub static NODES: Array<NodeRow, { BANKS * limits::NODES as usize }> = Array::new();

#[btf_map(name = "PREFIXES")]
pub static PREFIXES: Array<PrefixRow, { BANKS * limits::PREFIXES as usize }> = Array::new();

#[btf_map(name = "CHUNKS")]
pub static CHUNKS: Array<ChunkRow, { BANKS * limits::CHUNKS as usize }> = Array::new();

#[btf_map(name = "SPANS")]
pub static SPANS: Array<SpanRow, { BANKS * limits::SPANS as usize }> = Array::new();

#[btf_map(name = "SESSIONS")]
pub static SESSIONS: Array<SessionRow, { BANKS * limits::SESSIONS as usize }> = Array::new();

#[btf_map(name = "POLICIES")]
pub static POLICIES: Array<PolicyRow, { BANKS * limits::POLICIES as usize }> = Array::new();

#[btf_map(name = "NETWORK")]
pub static NETWORK: Array<NetworkRow, BANKS> = Array::new();

#[btf_map(name = "TARGETS")]
pub static TARGETS: Array<TargetRow, { BANKS * limits::TARGETS as usize }> = Array::new();

#[btf_map(name = "EGRESSES")]
pub static EGRESSES: Array<EgressRow, { BANKS * limits::EGRESSES as usize }> = Array::new();

#[btf_map(name = "EGRESS_ADDRESSES")]
pub static EGRESS_ADDRESSES: Array<AddressRow, { limits::EGRESS_ADDRESSES as usize }> = Array::new();

#[btf_map(name = "EGRESS_IDS")]
pub static EGRESS_IDS: HashMap<u32, u32, { limits::EGRESSES as usize }> = HashMap::new();

#[btf_map(name = "EGRESS_COUNTERS")]
pub static EGRESS_COUNTERS: PerCpuArray<EgressCounters, { limits::EGRESSES as usize }> = PerCpuArray::new();

#[btf_map(name = "OVERLAY_COUNTERS")]
pub static OVERLAY_COUNTERS: PerCpuArray<OverlayCounters, 2> = PerCpuArray::new();

#[btf_map(name = "DELIVERY")]
pub static DELIVERY: PerCpuArray<DeliveryRow, 1> = PerCpuArray::new();

#[btf_map(name = "STAGES")]
pub static STAGES: ProgramArray<3> = ProgramArray::new();

/// Rows of `STAGES`.
pub const LEAVE: u32 = 0;
pub const DELIVER: u32 = 1;
pub const ANSWER: u32 = 2;

#[btf_map(name = "LIVE")]
pub static LIVE: Array<LiveRow, { limits::SESSIONS as usize }> = Array::new();

#[btf_map(name = "SEQUENCES")]
pub static SEQUENCES: Array<u64, { limits::SESSIONS as usize }> = Array::new();

#[btf_map(name = "PACES")]
pub static PACES: Array<u64, { (limits::SESSIONS + limits::EGRESSES) as usize }> = Array::new();

#[btf_map(name = "CLOCK")]
pub static CLOCK: Array<u64, 3> = Array::new();

#[btf_map(name = "FLOWS")]
pub static FLOWS: HashMap<FlowKey, FlowRow, { limits::FLOWS as usize }> = HashMap::new();

#[btf_map(name = "TRIPS")]
pub static TRIPS: LruHashMap<TripKey, TripRow, { limits::TRIPS as usize }> = LruHashMap::new();

#[btf_map(name = "RETURN_PORTS")]
pub static RETURN_PORTS: HashMap<u32, u32, { limits::RETURN_TUNNELS as usize }> = HashMap::new();

#[btf_map(name = "RETURN_TUNNELS")]
pub static RETURN_TUNNELS: HashMap<TunnelKey, u32, { limits::RETURN_TUNNELS as usize }> = HashMap::new();

#[btf_map(name = "RELAY")]
pub static RELAY: RingBuf<(), { limits::RELAY_RING as usize }> = RingBuf::new();

#[btf_map(name = "FRAMES")]
pub static FRAMES: RingBuf<(), { limits::FRAMES_RING as usize }> = RingBuf::new();

#[btf_map(name = "RELAY_COUNTERS")]
pub static RELAY_COUNTERS: Array<SessionCounters, { limits::SESSIONS as usize }> = Array::new();

#[btf_map(name = "FACTS")]
pub static FACTS: PerCpuArray<Facts, 2> = PerCpuArray::new();

#[btf_map(name = "NUMBER")]
pub static NUMBER: PerCpuArray<u32, 1> = PerCpuArray::new();

#[btf_map(name = "PACKET")]
pub static PACKET: PerCpuArray<PerPacket, 1> = PerCpuArray::new();

#[btf_map(name = "JOB")]
pub static JOB: PerCpuArray<Job, 1> = PerCpuArray::new();

#[btf_map(name = "RECORD")]
pub static RECORD: PerCpuArray<Record, 1> = PerCpuArray::new();

#[btf_map(name = "COPY")]
pub static COPY: PerCpuArray<CopyRow, 1> = PerCpuArray::new();

#[btf_map(name = "HEADERS")]
pub static HEADERS: PerCpuArray<[u8; HEADERS_LEN], 1> = PerCpuArray::new();

#[btf_map(name = "ENDPOINT_COUNTERS")]
pub static ENDPOINT_COUNTERS: PerCpuArray<EndpointCounters, { 2 * limits::ENDPOINTS as usize }> =
    PerCpuArray::new();

#[btf_map(name = "GUARD_COUNTERS")]
pub static GUARD_COUNTERS: PerCpuArray<GuardCounters, { limits::ENDPOINTS as usize }> = PerCpuArray::new();

#[btf_map(name = "SESSION_COUNTERS")]
pub static SESSION_COUNTERS: PerCpuArray<SessionCounters, { limits::SESSIONS as usize }> = PerCpuArray::new();

#[btf_map(name = "POLICY_COUNTERS")]
pub static POLICY_COUNTERS: PerCpuArray<PolicyCounters, { limits::POLICIES as usize }> = PerCpuArray::new();

#[btf_map(name = "REASON_COUNTERS")]
pub static REASON_COUNTERS: PerCpuArray<u64, { Reason::COUNT }> = PerCpuArray::new();

#[btf_map(name = "WATCH")]
pub static WATCH: Array<WatchRow, 1> = Array::new();

#[btf_map(name = "TRACES")]
pub static TRACES: HashMap<TraceKey, TraceRow, { limits::TRACES as usize }> = HashMap::new();

#[btf_map(name = "OBSERVATIONS")]
pub static OBSERVATIONS: RingBuf<(), { limits::OBSERVATION_RING as usize }> = RingBuf::new();

#[btf_map(name = "DROPS")]
pub static DROPS: RingBuf<(), { limits::OBSERVATION_RING as usize }> = RingBuf::new();

#[btf_map(name = "OBSERVATION")]
pub static OBSERVATION: PerCpuArray<Draft, 1> = PerCpuArray::new();

#[btf_map(name = "HELD")]
pub static HELD: PerCpuArray<ObservationRow, { HELD_ROWS as usize }> = PerCpuArray::new();

#[btf_map(name = "HELD_COUNT")]
pub static HELD_COUNT: PerCpuArray<u32, 1> = PerCpuArray::new();

/// Observations that are kept of a packet until it is known whether it is dropped.
pub const HELD_ROWS: u32 = 8;

#[btf_map(name = "MATCH_BLOCKS")]
pub static MATCH_BLOCKS: HashMap<u32, MatchBlock, { limits::MATCHES as usize }> = HashMap::new();

#[btf_map(name = "MATCHES")]
pub static MATCHES: Array<MatchRow, { limits::MATCHES as usize }> = Array::new();

#[btf_map(name = "KERNEL")]
pub static KERNEL: Array<KernelRow, 1> = Array::new();

#[btf_map(name = "KERNEL_DRAFT")]
pub static KERNEL_DRAFT: PerCpuArray<KernelDraft, 1> = PerCpuArray::new();

#[btf_map(name = "CAPTURES")]
pub static CAPTURES: RingBuf<(), { limits::CAPTURE_RING as usize }> = RingBuf::new();

#[btf_map(name = "OBSERVATION_COUNTERS")]
pub static OBSERVATION_COUNTERS: PerCpuArray<ObservationCounters, 2> = PerCpuArray::new();
