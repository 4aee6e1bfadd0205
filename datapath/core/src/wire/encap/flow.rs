//! A flow's hash, the same for both of its directions.

/// What names a flow. IPv4 addresses stand in the high half of the first word, as in a left-aligned key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Source address as two big-endian words.
    pub source: [u64; 2],
    /// Destination address as two big-endian words.
    pub destination: [u64; 2],
    /// Source port, 0 for none.
    pub source_port: u16,
    /// Destination port, 0 for none.
    pub destination_port: u16,
    /// IP protocol.
    pub protocol: u8,
}

// Odd constants without structure: the golden ratio and the first mixers of splitmix64.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
const MIX_A: u64 = 0xbf58_476d_1ce4_e5b9;
const MIX_B: u64 = 0x94d0_49bb_1331_11eb;

/// 32 well-mixed bits that name a flow, equal for both of its directions, so that a receiver's ECMP or RSS keeps
/// a connection on one path and one queue. Six multiplications, no memory, no branch.
///
/// Not for tables that an attacker may fill: the function has no secret.
#[inline(always)]
pub const fn flow_hash(flow: &Flow) -> u32 {
    let source = end(flow.source, flow.source_port);
    let destination = end(flow.destination, flow.destination_port);
    // A sum does not care for order and, unlike XOR, does not cancel equal ends.
    let mut x = source.wrapping_add(destination) ^ (flow.protocol as u64).wrapping_mul(GOLDEN);
    x = (x ^ (x >> 30)).wrapping_mul(MIX_A);
    (x >> 32) as u32 ^ x as u32
}

/// One end of a flow, mixed.
#[inline(always)]
const fn end(address: [u64; 2], port: u16) -> u64 {
    // An IPv4 address is in the upper half only, from where a multiplication would carry nothing down.
    let mut x = address[0] ^ (address[0] >> 32) ^ port as u64;
    x = x.wrapping_mul(GOLDEN);
    x = (x ^ (x >> 32)).wrapping_add(address[1]).wrapping_mul(MIX_B);
    x ^ (x >> 29)
}
