//! Every map. Sizes are the limits of `podwire_core::abi`; what is banked holds two banks.

use aya_ebpf::{
    btf_maps::{Array, HashMap, PerCpuArray},
    macros::btf_map,
};
use podwire_core::abi::{
    ChunkRow, ConfigRow, CopyRow, EndpointCounters, EndpointRow, NodeRow, PrefixRow, Reason, RulesetRow,
    SessionCounters, SessionRow, SpanRow, limits,
};

const BANKS: usize = 2;

/// Room for the headers that the mirror program writes; see `mirror.rs`.
pub const HEADERS_LEN: usize = 264;

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

#[btf_map(name = "COPY")]
pub static COPY: PerCpuArray<CopyRow, 1> = PerCpuArray::new();

#[btf_map(name = "HEADERS")]
pub static HEADERS: PerCpuArray<[u8; HEADERS_LEN], 1> = PerCpuArray::new();

#[btf_map(name = "ENDPOINT_COUNTERS")]
pub static ENDPOINT_COUNTERS: PerCpuArray<EndpointCounters, { 2 * limits::ENDPOINTS as usize }> =
    PerCpuArray::new();

#[btf_map(name = "SESSION_COUNTERS")]
pub static SESSION_COUNTERS: PerCpuArray<SessionCounters, { limits::SESSIONS as usize }> = PerCpuArray::new();

#[btf_map(name = "REASON_COUNTERS")]
pub static REASON_COUNTERS: PerCpuArray<u64, { Reason::COUNT }> = PerCpuArray::new();
