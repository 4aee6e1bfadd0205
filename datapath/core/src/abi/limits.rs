//! Sizes of the tables. Each is per node; two banks are allocated of what is marked "banked".

/// Endpoint slots (banked).
pub const ENDPOINTS: u32 = 1024;
/// Interface indexes that are looked up in an array; larger ones cost a hash lookup.
pub const DIRECT_INTERFACES: u32 = 16384;
/// Rows of the hash for interface indexes from [`DIRECT_INTERFACES`] on.
pub const FAR_INTERFACES: u32 = ENDPOINTS;
/// Distinct rule sets (banked): endpoints and directions with equal rules share one.
pub const RULESETS: u32 = 2 * ENDPOINTS;
/// Trie nodes of 256 entries, 1 KiB each (banked).
pub const NODES: u32 = 8192;
/// Prefix rows: trie tails that hold a single prefix (banked).
pub const PREFIXES: u32 = 32768;
/// Chunks of 512 rule bits, 64 bytes each (banked).
pub const CHUNKS: u32 = 65536;
/// Span rows, one per chunk of a rule set (banked).
pub const SPANS: u32 = 4096;
/// Mirror sessions (banked).
pub const SESSIONS: u32 = 256;
/// Chunks of one rule set: 20 × 512 = 10,240 rule bits.
pub const RULESET_CHUNKS: u32 = 20;
/// Policies (banked).
pub const POLICIES: u32 = 1024;
/// Policies that can apply to one endpoint.
pub const RULESET_POLICIES: usize = 64;
/// Connections that stateful policies keep in mind, of all endpoints.
pub const FLOWS: u32 = 65536;
/// Flows that are on their way through a tool, of all endpoints; the longest unused one makes room.
pub const TRIPS: u32 = 65536;
/// Destinations, pods and nodes (banked).
pub const TARGETS: u32 = 4096;
/// Egress addresses; 0 and the last number are none.
pub const EGRESS_ADDRESSES: u32 = 8192;
/// Egress policies (banked).
pub const EGRESSES: u32 = 1024;
/// Return ports that are tunnels.
pub const RETURN_TUNNELS: u32 = 256;
/// Rows for traced flows: one for each, and more for answers and translated addresses.
pub const TRACES: u32 = 16384;
/// Rows that say which packets become traced.
pub const MATCHES: u32 = 8192;
/// Flows of one live trace: those of packets that are told of only if they are dropped may be many.
pub const MATCH_FLOWS: u32 = 1024;
/// Such rows for one place.
pub const MATCH_BLOCK: u32 = 64;
/// Bytes of the ring of captured packets.
pub const CAPTURE_RING: u32 = 1 << 22;
/// Bytes of either ring of observations.
pub const OBSERVATION_RING: u32 = 1 << 20;
/// Bytes of the ring to the user-space encapsulator.
pub const RELAY_RING: u32 = 1 << 22;
/// Largest frame that goes through it, in bytes.
pub const RELAY_FRAME: usize = 16384;
/// Bytes of the ring of captured frames.
pub const FRAMES_RING: u32 = 1 << 24;
/// Pieces of [`RELAY_FRAME`] bytes that a captured frame is handed over in at most; what is longer is cut.
pub const FRAME_PIECES: u32 = 5;
/// Largest truncated copy that is taken as a snapshot, without a clone, in bytes.
pub const SNAP_FRAME: u32 = 256;
/// Bytes from the start of a frame within which all headers must lie to be looked at.
pub const HEADER_WINDOW: usize = 256;
/// IPv6 extension headers that are followed before the packet counts as having no ports.
pub const EXTENSION_HEADERS: usize = 8;
/// VLAN tags that are followed inside the frame.
pub const VLAN_TAGS: usize = 2;
/// Largest frame that any hook sees, in bytes: the kernel's largest super-packet and its link header.
pub const FRAME: u32 = 65535 + 22;
