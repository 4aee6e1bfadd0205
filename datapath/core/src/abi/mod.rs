//! Map keys and values, events and reasons: what kernel and user space exchange.
//!
//! | map | kind | index or key | value |
//! |---|---|---|---|
//! | `CONFIG` | array | 0 | [`ConfigRow`] |
//! | `INTERFACES` | array | ifindex below [`limits::DIRECT_INTERFACES`] | endpoint slot + 1, 0 for none |
//! | `FAR_INTERFACES` | hash | any other ifindex | endpoint slot + 1 |
//! | `ENDPOINTS` | array, two banks | bank × [`limits::ENDPOINTS`] + slot | [`EndpointRow`] |
//! | `RULESETS` | array, two banks | absolute | [`RulesetRow`] |
//! | `NODES` | array, two banks | absolute | [`NodeRow`] |
//! | `PREFIXES` | array, two banks | absolute | [`PrefixRow`] |
//! | `CHUNKS` | array, two banks | absolute; the first [`limits::RULESET_CHUNKS`] are the empty row | [`ChunkRow`] |
//! | `SPANS` | array, two banks | absolute | [`SpanRow`] |
//! | `POLICIES` | array, two banks | bank × [`limits::POLICIES`] + policy | [`PolicyRow`] |
//! | `SESSIONS` | array, two banks | bank × [`limits::SESSIONS`] + session | [`SessionRow`] |
//! | `NETWORK` | array, two banks | bank | [`NetworkRow`] |
//! | `TARGETS` | array, two banks | bank × [`limits::TARGETS`] + target; the first of each is none | [`TargetRow`] |
//! | `EGRESSES` | array, two banks | bank × [`limits::EGRESSES`] + policy | [`EgressRow`] |
//! | `EGRESS_ADDRESSES` | array | number, from 1 on | [`AddressRow`]; for the agent alone |
//! | `EGRESS_IDS` | hash | [`EgressRow::id`] | Egress policy |
//! | `LIVE` | array | session | [`LiveRow`] |
//! | `SEQUENCES` | array | session | the next sequence number, `u64` |
//! | `PACES` | array | session, or [`limits::SESSIONS`] + Egress policy | when the next frame is due at the highest rate, `u64` ns |
//! | `CLOCK` | array | 0: node's clock less monotonic clock; 1: when the user-space encapsulator last looked; 2: when the reader of captured frames did | `u64` ns |
//! | `FLOWS` | hash | [`FlowKey`] | [`FlowRow`] |
//! | `TRIPS` | LRU hash | [`TripKey`] | [`TripRow`] |
//! | `RETURN_PORTS` | hash | ifindex | return port number |
//! | `RETURN_TUNNELS` | hash | [`TunnelKey`] | return port number |
//! | `RELAY` | ring buffer | | [`RelayRow`], then the frame |
//! | `FRAMES` | ring buffer | | [`RelayRow`], then a piece of a captured frame |
//! | `COPY` | per-CPU array | 0 | [`CopyRow`] |
//! | `HEADERS` | per-CPU array | 0 | scratch of the encapsulation |
//! | `FACTS` | per-CPU array | 0 | what the packet at hand is, for the classifier |
//! | `DELIVERY` | per-CPU array | 0 | [`DeliveryRow`] |
//! | `EGRESS_COUNTERS` | per-CPU array | Egress policy | [`EgressCounters`] |
//! | `OVERLAY_COUNTERS` | per-CPU array | 0: out of the overlay, 1: into it | [`OverlayCounters`] |
//! | `STAGES` | program array | 0: `leave`, 1: `deliver`, 2: `answer` | |
//! | `NUMBER` | per-CPU array | 0 | a number that the verifier shall not know |
//! | `RECORD` | per-CPU array | 0 | scratch of a record for `RELAY` |
//! | `PACKET` | per-CPU array | 0 | what varies in the outer headers of the frame at hand |
//! | `JOB` | per-CPU array | 0 | the frame at hand, for the encapsulation |
//! | `ENDPOINT_COUNTERS` | per-CPU array | slot × 2 + direction | [`EndpointCounters`] |
//! | `GUARD_COUNTERS` | per-CPU array | slot | [`GuardCounters`] |
//! | `SESSION_COUNTERS` | per-CPU array | session | [`SessionCounters`] |
//! | `RELAY_COUNTERS` | array | session | [`SessionCounters`], of the user-space encapsulator |
//! | `POLICY_COUNTERS` | per-CPU array | policy | [`PolicyCounters`] |
//! | `REASON_COUNTERS` | per-CPU array | [`Reason`] | packets, `u64` |
//! | `WATCH` | array | 0 | [`WatchRow`] |
//! | `TRACES` | hash | [`TraceKey`] | [`TraceRow`] |
//! | `OBSERVATIONS` | ring buffer | | [`ObservationRow`], of traced packets |
//! | `DROPS` | ring buffer | | [`ObservationRow`], of dropped packets that nobody traces |
//! | `OBSERVATION` | per-CPU array | 0 | scratch of a record for either |
//! | `HELD` | per-CPU array | number | [`ObservationRow`] of a packet that is told of if it is dropped |
//! | `HELD_COUNT` | per-CPU array | 0 | how many |
//! | `MATCH_BLOCKS` | hash | [`MatchBlock::of_hook`], [`MatchBlock::of_tag`] | [`MatchBlock`] |
//! | `MATCHES` | array | row | [`MatchRow`] |
//! | `KERNEL` | array | 0 | [`KernelRow`] |
//! | `KERNEL_DRAFT` | per-CPU array | 0 | scratch of what is said of the kernel's own drops |
//! | `CAPTURES` | ring buffer | | [`CaptureRow`], then the frame's first bytes |
//! | `OBSERVATION_COUNTERS` | per-CPU array | [`Class`] | [`ObservationCounters`] |
//!
//! "Absolute" indexes are written by the rule compiler with the bank's base already added, so that a packet
//! which has read the generation word once needs no further arithmetic to stay inside its bank.

mod config;
mod copy;
mod counters;
mod endpoint;
pub mod layout;
pub mod limits;
mod network;
mod observation;
mod policy;
mod reason;
mod ruleset;
mod session;
mod trip;

pub use config::{ConfigRow, Generation};
pub use copy::{CopyRow, CopyState, INJECTED, SegmentMark};
pub use counters::{EndpointCounters, GuardCounters, SessionCounters};
pub use endpoint::{Direction, EndpointRow};
pub use network::{
    AddressRow, DeliveryRow, EgressCounters, EgressPlace, EgressRow, NetworkRow, OVERLAY_MAC,
    OverlayCounters, TargetKind, TargetRow,
};
pub use observation::{
    Action, CaptureRow, Class, Component, KernelRow, MatchBlock, MatchRow, ObservationCounters,
    ObservationRow, TraceKey, TraceRow, WatchRow,
};
pub use policy::{PolicyCounters, PolicyRow};
pub use reason::Reason;
pub use ruleset::{
    CHUNK_WORDS, ChunkRow, Entry, EntryKind, Mode, ModeRow, NodeRow, PrefixRow, RulesetRow, SpanRow,
};
pub use session::{LiveRow, Liveness, SessionKind, SessionRow};
pub use trip::{FlowKey, FlowRow, RelayRow, TripKey, TripRow, TunnelKey};

/// Version of everything in this module. It is part of the pin path, so maps of another version are never
/// read. The golden layout test fails until the version moves together with a layout.
pub const ABI_VERSION: u32 = 2;
